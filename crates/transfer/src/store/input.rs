//! A file whose bytes are stored.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use devmem_tcp::Dmabuf;
use devmem_tcp::text::Printable;

use super::supply::Filled;
use crate::checksum::Crc32c;
use client::Remedy;

/// Bytes of one read for the checksum.
const BLOCK_BYTES: usize = 32 << 10;

/// Why a file cannot be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// It cannot be opened.
    #[error("open {name}: {error}")]
    Open {
        /// Its name.
        name: String,
        /// The error.
        error: io::Error,
    },
    /// It is a folder.
    #[error("{name} is a folder")]
    Folder {
        /// Its name.
        name: String,
    },
    /// It is a pipe or the like.
    #[error("{name} has no size: its bytes can be read only once")]
    NoSize {
        /// Its name.
        name: String,
    },
}

impl InputError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Open { .. } => None,
            Self::Folder { .. } => Some("name a file or a block device".into()),
            Self::NoSize { .. } => {
                Some("copy them to a file: after a broken connection they are read again".into())
            }
        }
    }
}

/// A file of a known size, or a block device, for [`Storer::store_from`](super::Storer::store_from).
#[derive(Debug)]
pub struct Input {
    file: File,
    name: String,
    bytes: u64,
    block: Vec<u8>,
}

impl Input {
    /// Opens the file.
    ///
    /// # Errors
    /// It cannot be read at any offset.
    pub fn open(path: &Path) -> Result<Self, InputError> {
        let name = Printable(path.display()).to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (kind, mut file) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err(InputError::Open { name, error }),
        };
        if kind.is_dir() {
            return Err(InputError::Folder { name });
        }
        let Ok(bytes) = file.seek(SeekFrom::End(0)) else {
            return Err(InputError::NoSize { name });
        };
        Ok(Self {
            file,
            name,
            bytes,
            block: Vec::new(),
        })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads a range of the file to `place` of `memory`, unless all of its bytes are zeros.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn fill(
        &mut self,
        range: Range<u64>,
        memory: &Dmabuf,
        place: Range<usize>,
    ) -> io::Result<Filled> {
        let bytes = self.read(range.start, place.len())?;
        let filled = match is_zero(bytes) {
            true => Filled::Zeros,
            false => Filled::Bytes,
        };
        // Also zeros: a server without NBD_CMD_WRITE_ZEROES gets them as they are.
        memory
            .copy_in(place.start, bytes)
            .map_err(io::Error::other)?;
        Ok(filled)
    }

    /// Reads all of it, and returns its checksum.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn crc32c(&mut self) -> io::Result<u32> {
        let mut sum = Crc32c::default();
        for at in (0..self.bytes).step_by(BLOCK_BYTES) {
            let left = usize::try_from(self.bytes - at).unwrap_or(usize::MAX);
            sum.add(self.read(at, left.min(BLOCK_BYTES))?);
        }
        Ok(sum.value())
    }

    fn read(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        if self.block.len() < len {
            self.block.resize(len, 0);
        }
        let bytes = &mut self.block[..len];
        let read = self.file.read_exact_at(bytes, at);
        read.map_err(|error| io::Error::new(error.kind(), format!("read {}: {error}", self.name)))?;
        Ok(bytes)
    }
}

/// Returns whether all bytes are zeros: the first one is, and each one is the same as the one before it.
fn is_zero(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == 0 && *rest == bytes[..rest.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_file_has_a_remedy_that_is_not_in_its_text() {
        let refused = |path: &str| Input::open(Path::new(path)).unwrap_err();
        for (path, remedy) in [
            ("/proc", Some("name a file or a block device")),
            ("/no/such/file", None),
        ] {
            let error = refused(path);
            assert_eq!(error.remedy(), remedy.map(Remedy::from), "{error}");
            let explained = crate::explain(&error);
            assert_eq!(explained, Some((error.to_string(), error.remedy())));
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn one_byte_anywhere_makes_it_no_zeros() {
        assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 4096]));
        for at in [0, 1, 2047, 4095] {
            let mut bytes = [0; 4096];
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "{at}");
        }
    }
}
