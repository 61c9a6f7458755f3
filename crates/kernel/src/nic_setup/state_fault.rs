//! Problems of a state file, and their remedies.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::small_file::FileKind;

/// Permission bits for writing of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// A problem of a state file or its folder.
#[derive(Debug, thiserror::Error)]
pub enum StateFault {
    /// It is not a regular file.
    #[error("it is {0}, and not a regular file")]
    Kind(FileKind),
    /// The path of the folder is not a folder.
    #[error("it is not a folder")]
    NoFolder,
    /// Another user owns it.
    #[error(
        "it belongs to user {owner}, but this process runs as user {user}: another user may have written it"
    )]
    Owner {
        /// User id of its owner.
        owner: u32,
        /// Effective user id of this process.
        user: u32,
    },
    /// Other users may write to it.
    #[error("its mode is {mode:04o}: other users may have written it")]
    Mode {
        /// Permission bits.
        mode: u32,
    },
    /// It is larger than any state file.
    #[error("it is longer than {limit} bytes, the limit for state files")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// It cannot be parsed. The cause has line and column.
    #[error("it is damaged: {0}")]
    Damaged(serde_json::Error),
    /// It has the format of another version of this program.
    #[error("it has version {found}, and this program writes version {ours}")]
    Version {
        /// The version of the file.
        found: u32,
        /// The version of this program.
        ours: u32,
    },
    /// It is from another boot; the reboot has undone the changes.
    #[error("it is from another boot, and the reboot has undone the changes; removed")]
    OtherBoot,
    /// It belongs to another network namespace.
    #[error("it belongs to another network namespace")]
    OtherNamespace,
}

impl StateFault {
    /// Checks owner and mode; `None` if only this user can have written it.
    pub(super) fn of_rights(facts: &Metadata) -> Option<Self> {
        let user = rustix::process::geteuid().as_raw();
        let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
        match (owner == user, mode & OTHERS_WRITE) {
            (false, _) => Some(Self::Owner { owner, user }),
            (true, 0) => None,
            (true, _) => Some(Self::Mode { mode }),
        }
    }

    /// Returns the remedy for `path`; `None` if the reason is enough.
    pub fn remedy(&self, path: &Path) -> Option<String> {
        let path = quoted(path);
        let by_hand = "restore the settings in it by hand (`ethtool -k`, `-g`, `-x` and `-n` with the interface show the current ones)";
        Some(match self {
            Self::Kind(FileKind::Folder) => {
                format!("`ls -ld {path}` shows it, `rmdir {path}` removes it if it is empty")
            }
            Self::Kind(_) | Self::NoFolder => {
                format!("`ls -ld {path}` shows what it is, `rm {path}` removes it")
            }
            Self::Owner { .. } => format!(
                "`ls -ld {path}` shows it: run as its owner, or `rm -r {path}` if it is not needed"
            ),
            Self::Mode { .. } => format!(
                "check it with `ls -ld {path}`, and with `cat` if it is a file; if no other user changed it: `chmod go-w {path}`, else: `rm -r {path}`"
            ),
            Self::TooLong { .. } => {
                format!("`head -c 1000 {path}` shows how it begins, `rm {path}` removes it")
            }
            Self::Damaged(_) => {
                format!("`cat {path}` shows its content: {by_hand}, then `rm {path}`")
            }
            Self::Version { .. } => format!(
                "restore with the version that wrote it; or `cat {path}`, {by_hand}, then `rm {path}`"
            ),
            Self::OtherNamespace => "restore there".to_owned(),
            Self::OtherBoot => return None,
        })
    }
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.+:,@".contains(c);
    match text.chars().all(plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_its_remedy_beside_its_text() {
        let path = Path::new("/run/a b");
        for (fault, remedy) in [
            (StateFault::NoFolder, "rm '/run/a b'"),
            (StateFault::Owner { owner: 1, user: 2 }, "run as its owner"),
            (StateFault::Mode { mode: 0o666 }, "chmod go-w '/run/a b'"),
            (StateFault::TooLong { limit: 9 }, "head -c 1000"),
            (
                StateFault::Version { found: 2, ours: 1 },
                "the version that wrote it",
            ),
            (StateFault::OtherNamespace, "restore there"),
        ] {
            let found = fault.remedy(path).unwrap();
            assert!(found.contains(remedy), "{found}");
            assert_eq!(found.lines().count(), 1, "{found}");
            assert!(!fault.to_string().contains(remedy), "{fault}");
        }
        assert_eq!(StateFault::OtherBoot.remedy(path), None);
    }

    #[test]
    fn paths_in_commands_are_quoted_for_a_shell() {
        assert_eq!(quoted(Path::new("/run/a-1.json")), "/run/a-1.json");
        assert_eq!(quoted(Path::new("/run/a b")), "'/run/a b'");
        assert_eq!(quoted(Path::new("/run/a'b")), r"'/run/a'\''b'");
    }
}
