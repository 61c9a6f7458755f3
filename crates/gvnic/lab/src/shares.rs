//! Folders of this machine that a guest shares: virtiofsd serves them over vhost-user, the guest mounts them as virtiofs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{getegid, geteuid};

use super::elf::Packaged;
use super::job::SharedFolder;
use super::servers::Servers;
use tool::output::{Failure, note};

/// Paths of an installed virtiofsd. QEMU 7 and older had another program of that name, with other options.
const INSTALLED: &[&str] = &["virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/virtiofsd"];
/// Path of virtiofsd in its package.
const PACKAGED: &str = "usr/libexec/virtiofsd";
/// Start of the output of `--version` of the program that is meant, before its minor version.
const VERSION: &str = "virtiofsd 1.";
/// First minor version that translates the owners of files.
const MINOR_VERSION_MIN: u32 = 13;
/// Folders of the guest's root file system that a shared folder may neither hide nor replace.
const RESERVED: &[&str] = &[
    "bin", "dev", "etc", "init", "lab", "lib", "lib64", "proc", "run", "sys", "usr",
];

/// A folder to share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The folder here.
    pub folder: PathBuf,
    /// Where the guest mounts it.
    pub place: String,
}

impl Share {
    /// Parses `DIR[:PLACE]`.
    ///
    /// # Errors
    ///
    /// DIR is not a folder, or PLACE is not a path where the guest can mount it.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let (folder, place) = match text.rsplit_once(':') {
            Some((folder, place)) => (PathBuf::from(folder), place.to_owned()),
            None => {
                let folder = PathBuf::from(text);
                // `.` has a name only as an absolute path.
                let full = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
                let name = full.file_name().unwrap_or_default().to_string_lossy();
                (folder, format!("/{name}"))
            }
        };
        if !folder.is_dir() {
            return Err(Failure::usage(format!(
                "--share {text:?}: {} is not a folder",
                folder.display()
            )));
        }
        let place = place.trim_end_matches('/').to_owned();
        let mut parts = place.split('/');
        let is_absolute = parts.next() == Some("") && !place.is_empty();
        if !is_absolute || parts.any(|part| matches!(part, "" | "." | "..")) {
            return Err(Failure::usage(format!(
                "--share {text:?}: the place in the guest must be an absolute path below /"
            ))
            .with_remedy(format!("--share {}:/PLACE", folder.display())));
        }
        let top = place.split('/').nth(1).unwrap_or_default();
        if RESERVED.contains(&top) {
            return Err(Failure::usage(format!(
                "--share {text:?}: the guest's own files are in /{top}"
            ))
            .with_remedy(format!("--share {}:/mnt/{top}", folder.display())));
        }
        Ok(Self { folder, place })
    }

    /// Parses a list.
    ///
    /// # Errors
    ///
    /// As [`Share::parse`], or two have the same place in the guest.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, Failure> {
        let mut shares: Vec<Self> = Vec::new();
        for text in texts {
            let share = Self::parse(text)?;
            if shares.iter().any(|other| other.place == share.place) {
                return Err(Failure::usage(format!(
                    "--share: two folders have the place {} in the guest",
                    share.place
                ))
                .with_remedy("name another place: --share DIR:/PLACE"));
            }
            shares.push(share);
        }
        Ok(shares)
    }
}

/// The folders to share, and the program that serves them.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    /// The folders.
    pub folders: Vec<Share>,
    /// The program; `None` if there are no folders.
    pub program: Option<Virtiofsd>,
}

impl Shares {
    /// Returns the entries for the guest's job.
    pub fn mounts(&self) -> Vec<SharedFolder> {
        let mounts = self.folders.iter().enumerate();
        mounts
            .map(|(index, share)| SharedFolder {
                tag: tag(index),
                place: share.place.clone(),
            })
            .collect()
    }

    /// Returns tag and socket of each folder.
    pub fn sockets(&self, run: &Path) -> Vec<(String, PathBuf)> {
        let tags = (0..self.folders.len()).map(tag);
        tags.map(|tag| (tag.clone(), run.join(tag))).collect()
    }

    /// Starts one server for each folder.
    ///
    /// # Errors
    ///
    /// A server did not start; the error has its output.
    pub fn serve(&self, run: &Path, servers: &mut Servers) -> Result<(), Failure> {
        let Some(program) = &self.program else {
            return Ok(());
        };
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let sandbox = sandbox(user);
        for (share, (_, socket)) in self.folders.iter().zip(self.sockets(run)) {
            let mut command = program.command()?;
            command.arg("--socket-path").arg(&socket);
            command.arg("--shared-dir").arg(&share.folder);
            command.args(["--sandbox", sandbox]);
            command.args(owners(user, group));
            let what = format!("the server of --share {}", share.folder.display());
            servers.start(what, &mut command, &socket)?;
        }
        Ok(())
    }
}

/// Returns virtiofsd's sandbox: namespaces, in which the shared folder is the whole file system, or none where this machine
/// does not allow them, as in some containers.
fn sandbox(user: u32) -> &'static str {
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "--pid", "--net", "--fork"]);
    if user != 0 {
        probe.arg("--user");
    }
    probe.arg("true").stdin(Stdio::null());
    if probe.output().is_ok_and(|output| output.status.success()) {
        return "namespace";
    }
    note(
        "--share: this machine does not allow namespaces; a fault of virtiofsd could let the guest reach files outside the \
         folder",
    );
    "none"
}

/// Returns virtiofsd's options for the owners of files. Without privilege, it can only create files of this user, which the
/// guest then sees as root's, because its commands run as root.
fn owners(user: u32, group: u32) -> Vec<String> {
    if user == 0 {
        return Vec::new();
    }
    vec![
        format!("--translate-uid=map:0:{user}:1"),
        format!("--translate-gid=map:0:{group}:1"),
    ]
}

fn tag(index: usize) -> String {
    format!("share{index}")
}

/// A usable virtiofsd.
#[derive(Clone, Debug)]
pub struct Virtiofsd {
    program: PathBuf,
    /// Folder of the unpacked package; `None` for an installed one.
    root: Option<PathBuf>,
}

impl Virtiofsd {
    /// Returns the installed program, if this machine has it.
    pub fn installed() -> Option<Self> {
        let programs = INSTALLED.iter().map(|program| Self {
            program: PathBuf::from(program),
            root: None,
        });
        programs.into_iter().find(|program| {
            let output = program.command().ok().and_then(|mut command| {
                let output = command.arg("--version").stdin(Stdio::null()).output();
                output.ok()
            });
            output.is_some_and(|output| is_new_enough(&String::from_utf8_lossy(&output.stdout)))
        })
    }

    /// Returns the program of unpacked packages.
    pub fn packaged(root: &Path) -> Self {
        Self {
            program: root.join(PACKAGED),
            root: Some(root.to_owned()),
        }
    }

    fn command(&self) -> Result<Command, Failure> {
        Ok(match &self.root {
            None => Command::new(&self.program),
            Some(root) => Packaged::new(root)?.command(&self.program),
        })
    }
}

fn is_new_enough(version: &str) -> bool {
    let minor = version.strip_prefix(VERSION).and_then(|rest| {
        let number = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        number.parse::<u32>().ok()
    });
    minor.is_some_and(|minor| minor >= MINOR_VERSION_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_folder_has_the_given_place_or_keeps_its_name() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("tree");
        std::fs::create_dir(&folder).unwrap();
        let shown = folder.display();
        let share = Share::parse(&format!("{shown}")).unwrap();
        assert_eq!(
            (share.folder, share.place),
            (folder.clone(), "/tree".into())
        );
        let share = Share::parse(&format!("{shown}:/mnt/src/")).unwrap();
        assert_eq!(share.place, "/mnt/src");
        let here = std::env::current_dir().unwrap();
        let name = here.file_name().unwrap().to_string_lossy();
        // This crate's folder has the name of one of the guest's own.
        let said = Share::parse(".").unwrap_err().to_string();
        assert!(
            said.contains(&format!("own files are in /{name}")),
            "{said}"
        );
    }

    #[test]
    fn files_of_an_ordinary_user_are_roots_in_the_guest() {
        assert_eq!(owners(0, 0), Vec::<String>::new());
        let options = [
            "--translate-uid=map:0:1000:1",
            "--translate-gid=map:0:100:1",
        ];
        assert_eq!(owners(1000, 100), options);
    }

    #[test]
    fn an_installed_server_that_is_too_old_or_another_program_is_not_used() {
        assert!(is_new_enough("virtiofsd 1.13.2\n") && is_new_enough("virtiofsd 1.20"));
        for other in [
            "virtiofsd 1.10.0",
            "virtiofsd version 7.2.22 (Debian)",
            "virtiofsd 1.",
            "",
        ] {
            assert!(!is_new_enough(other), "{other}");
        }
    }

    #[test]
    fn a_share_that_the_guest_cannot_mount_is_refused_with_its_option() {
        let scratch = tempfile::tempdir().unwrap();
        let shown = scratch.path().display();
        let cases = [
            ("/nonexistent".to_owned(), "is not a folder"),
            ("Cargo.toml".to_owned(), "is not a folder"),
            (format!("{shown}:mnt"), "an absolute path below /"),
            (format!("{shown}:/"), "an absolute path below /"),
            (format!("{shown}:/a/../b"), "an absolute path below /"),
            (format!("{shown}:/dev"), "own files are in /dev"),
            (format!("{shown}:/etc/x"), "own files are in /etc"),
            ("/:/".to_owned(), "an absolute path below /"),
        ];
        for (text, what) in cases {
            let said = Share::parse(&text).unwrap_err().to_string();
            assert!(
                said.starts_with("--share ") && said.contains(what),
                "{said}"
            );
        }
        let twice = [format!("{shown}:/a"), format!("{shown}:/a/")];
        let said = Share::parse_all(&twice).unwrap_err().to_string();
        assert!(said.contains("two folders have the place /a"), "{said}");
    }
}
