//! Guest memory.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Guest memory at a base address.
#[derive(Debug)]
pub struct GuestRam {
    base: u64,
    len: usize,
    bytes: Bytes,
    used: Cell<usize>,
}

#[derive(Debug)]
enum Bytes {
    /// For a device in the same thread.
    Own(RefCell<Vec<u8>>),
    /// For a device that maps the file.
    Shared(File),
}

impl GuestRam {
    /// Returns `len` zero bytes of memory at `base`.
    pub fn new(base: u64, len: usize) -> Self {
        Self {
            base,
            len,
            bytes: Bytes::Own(RefCell::new(vec![0; len])),
            used: Cell::new(0),
        }
    }

    /// Returns memory at `base` that consists of the first `len` bytes of `file`, which must be at least as long.
    pub const fn shared(base: u64, len: usize, file: File) -> Self {
        Self {
            base,
            len,
            bytes: Bytes::Shared(file),
            used: Cell::new(0),
        }
    }

    /// Returns the first address.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Returns the address after the last.
    pub const fn end(&self) -> u64 {
        self.base + self.len as u64
    }

    /// Allocates `len` bytes, aligned to a page.
    ///
    /// # Panics
    /// If the memory is used up.
    pub fn alloc(&self, len: usize) -> u64 {
        let at = self.used.get().next_multiple_of(4096);
        let end = at + len;
        assert!(end <= self.len, "guest memory has no {len} bytes left");
        self.used.set(end);
        self.base + at as u64
    }

    /// Copies memory to `out`; returns false, without copying, if the range is not completely inside.
    #[must_use]
    pub fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        let Some(at) = self.offset(addr, out.len()) else {
            return false;
        };
        match &self.bytes {
            Bytes::Own(bytes) => {
                out.copy_from_slice(&bytes.borrow()[at..at + out.len()]);
                true
            }
            Bytes::Shared(file) => file.read_exact_at(out, at as u64).is_ok(),
        }
    }

    /// Copies `from` to memory; returns false, without copying, if the range is not completely inside.
    #[must_use]
    pub fn write(&self, addr: u64, from: &[u8]) -> bool {
        let Some(at) = self.offset(addr, from.len()) else {
            return false;
        };
        match &self.bytes {
            Bytes::Own(bytes) => {
                bytes.borrow_mut()[at..at + from.len()].copy_from_slice(from);
                true
            }
            Bytes::Shared(file) => file.write_all_at(from, at as u64).is_ok(),
        }
    }

    /// Returns memory that the driver itself allocated.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn get(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        assert!(
            self.read(addr, &mut out),
            "{addr:#x} was allocated by the driver"
        );
        out
    }

    /// Writes memory that the driver itself allocated.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn put(&self, addr: u64, from: &[u8]) {
        assert!(
            self.write(addr, from),
            "{addr:#x} was allocated by the driver"
        );
    }

    /// Returns the offset of `addr`, if `len` bytes from there are inside.
    fn offset(&self, addr: u64, len: usize) -> Option<usize> {
        let start = usize::try_from(addr.checked_sub(self.base)?).ok()?;
        (start.checked_add(len)? <= self.len).then_some(start)
    }
}
