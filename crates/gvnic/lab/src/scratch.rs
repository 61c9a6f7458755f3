//! The temporary folder of a run.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::TempDir;
use tool::output::Failure;

/// A private temporary folder, removed on drop.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Creates a folder.
    ///
    /// # Errors
    ///
    /// The folder cannot be created.
    pub fn new() -> Result<Self, Failure> {
        // A short path, because the address of a UNIX socket has at most 107 bytes.
        let base = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_dir());
        let base = base.unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new()
            .prefix("devmem-lab-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&base)
            .with_context(|| format!("create a folder in {}", base.display()))?;
        Ok(Self(folder))
    }

    /// Returns its path.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file into it.
    ///
    /// # Errors
    ///
    /// There is no room, or the folder is gone.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.path(name);
        fs::write(&path, bytes).map_err(|error| no_room(&path, bytes.len(), error))
    }

    /// Returns the path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }
}

/// Returns the error for a file of `len` bytes that cannot be written.
fn no_room(path: &Path, len: usize, error: io::Error) -> Failure {
    let is_full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    );
    let mib = len.div_ceil(1 << 20);
    let failure: Failure = anyhow::Error::from(error)
        .context(format!("write the {mib} MiB of {}", path.display()))
        .into();
    match is_full {
        true => failure.with_remedy(
            "free some space there, or name a folder on another disk: XDG_RUNTIME_DIR=FOLDER",
        ),
        false => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_with_the_folder_and_the_variable_that_names_another() {
        let scratch = Scratch::new().unwrap();
        std::os::unix::fs::symlink("/dev/full", scratch.path("initrd")).unwrap();
        let said = scratch
            .write("initrd", &[0; 3 << 20])
            .unwrap_err()
            .to_string();
        for words in [
            "write the 3 MiB of ",
            "initrd: No space left",
            "XDG_RUNTIME_DIR",
        ] {
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn a_folder_is_private_and_removed_on_drop() {
        let scratch = Scratch::new().unwrap();
        let folder = scratch.folder().to_owned();
        let mode = folder.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::write(scratch.path("file"), "text").unwrap();
        drop(scratch);
        assert!(!folder.exists());
    }
}
