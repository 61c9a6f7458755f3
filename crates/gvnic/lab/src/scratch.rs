//! A folder for one run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tool::output::Failure;

/// A private folder that goes away.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// There is no place for it.
    pub fn new() -> Result<Self, Failure> {
        // Short: the address of a unix socket has at most 107 bytes.
        let base = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_dir());
        let base = base.unwrap_or_else(std::env::temp_dir);
        for attempt in 0..1000u32 {
            let folder = base.join(format!("devmem-lab-{}-{attempt}", std::process::id()));
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            match builder.create(&folder) {
                Ok(()) => return Ok(Self(folder)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(anyhow::Error::from(error)
                        .context(format!("make {}", folder.display()))
                        .into());
                }
            }
        }
        Err(Failure::failed(format!(
            "no name is free below {}",
            base.display()
        )))
    }

    /// Returns where it is.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns the path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
