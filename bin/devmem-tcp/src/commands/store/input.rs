//! The file that `store` reads.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::Dmabuf;
use tool::output::Failure;
use transfer::store::Filled;

/// A file of a known size, or a block device.
pub struct Input {
    file: File,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    block: Vec<u8>,
    /// CPU time of reading it.
    pub filling: Duration,
}

impl Input {
    /// Opens the file.
    ///
    /// # Errors
    ///
    /// It cannot be read at any offset.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let opened = File::open(path);
        let mut file = opened.with_context(|| format!("open {name}"))?;
        let kind = file.metadata().with_context(|| format!("look at {name}"))?;
        if kind.is_dir() {
            let text = format!("{name} is a folder");
            return Err(Failure::failed(text).with_remedy("name a file or a block device"));
        }
        let Ok(bytes) = file.seek(SeekFrom::End(0)) else {
            let text = format!("{name} has no size: its bytes can be read only once");
            let remedy = "copy them to a file: a broken connection makes `store` read them again";
            return Err(Failure::failed(text).with_remedy(remedy));
        };
        Ok(Self {
            file,
            name,
            bytes,
            block: Vec::new(),
            filling: Duration::ZERO,
        })
    }

    /// Reads a range of the file to `place` of `memory`, unless all of its bytes are zeros.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has become shorter.
    pub fn fill(
        &mut self,
        range: Range<u64>,
        memory: &Dmabuf,
        place: Range<usize>,
    ) -> io::Result<Filled> {
        let before = cpu::thread_cpu_time();
        let bytes = self.read(range.start, place.len())?;
        let filled = match is_zero(bytes) {
            true => Filled::Zeros,
            false => Filled::Bytes,
        };
        // Also zeros: a server without NBD_CMD_WRITE_ZEROES gets them as they are.
        memory
            .copy_in(place.start, bytes)
            .map_err(io::Error::other)?;
        self.filling += cpu::thread_cpu_time().saturating_sub(before);
        Ok(filled)
    }

    /// Reads `len` bytes from `at` on.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has become shorter.
    pub fn read(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
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
    fn one_byte_anywhere_makes_it_no_zeros() {
        assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 4096]));
        for at in [0, 1, 2047, 4095] {
            let mut bytes = [0; 4096];
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "{at}");
        }
    }
}
