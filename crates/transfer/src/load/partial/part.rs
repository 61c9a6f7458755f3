//! The two files beside the one that is loaded.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::error::{PartialError, failed};

/// `NAME.part`, which has the bytes, and `NAME.part.state`, which says which.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bytes: PathBuf,
    pub(super) state: PathBuf,
    /// When the state was written.
    pub(super) saved: Instant,
}

impl Part {
    pub(super) fn beside(path: &Path) -> Self {
        let with = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        Self {
            bytes: with(".part"),
            state: with(".part.state"),
            saved: Instant::now(),
        }
    }

    /// Opens the file of the bytes, makes it if there is none, and keeps other loads from it while it is open: the first of two would give
    /// its name to a file that the other one still writes.
    pub(super) fn open(&self) -> Result<File, PartialError> {
        loop {
            let file = open(&self.bytes, true)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let part = self.bytes.clone();
                    return Err(PartialError::Busy { part });
                }
                // A file system without locks.
                Err(TryLockError::Error(_)) => return Ok(file),
            }
            // The load that had it may have given it its name since.
            if self.is_named(&file)? {
                return Ok(file);
            }
        }
    }

    fn is_named(&self, file: &File) -> Result<bool, PartialError> {
        let open = file.metadata();
        let open = open.map_err(failed("read the length of", &self.bytes))?;
        let named = fs::metadata(&self.bytes);
        Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())))
    }
}

/// Opens a file with what it has, for reading, too: checksums are computed of what was written.
pub(super) fn open(path: &Path, or_create: bool) -> Result<File, PartialError> {
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .write(true)
        .create(or_create)
        .truncate(false)
        .open(path);
    opened.map_err(failed("open", path))
}
