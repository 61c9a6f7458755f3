//! The temporary folder of a run.

use std::fs::Permissions;
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

    /// Returns the path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
