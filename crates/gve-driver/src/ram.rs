//! A guest's memory.

use std::cell::{Cell, RefCell};

/// Memory from a base address on; what is below or above is not there.
#[derive(Debug)]
pub struct GuestRam {
    base: u64,
    bytes: RefCell<Vec<u8>>,
    used: Cell<usize>,
}

impl GuestRam {
    /// Makes `len` bytes of memory at `base`, all zero.
    pub fn new(base: u64, len: usize) -> Self {
        Self {
            base,
            bytes: RefCell::new(vec![0; len]),
            used: Cell::new(0),
        }
    }

    /// Returns the first address.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Returns the address after the last.
    pub fn end(&self) -> u64 {
        self.base + self.bytes.borrow().len() as u64
    }

    /// Takes `len` bytes that nobody else has, aligned to a page.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn alloc(&self, len: usize) -> u64 {
        let at = self.used.get().next_multiple_of(4096);
        let end = at + len;
        assert!(
            end <= self.bytes.borrow().len(),
            "the guest has no {len} bytes more"
        );
        self.used.set(end);
        self.base + at as u64
    }

    /// Copies memory to `out`; false, and nothing copied, if not all of it is there.
    #[must_use]
    pub fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        let bytes = self.bytes.borrow();
        let from = self
            .range(addr, out.len())
            .and_then(|range| bytes.get(range));
        if let Some(from) = from {
            out.copy_from_slice(from);
        }
        from.is_some()
    }

    /// Copies `from` to memory; false, and nothing copied, if not all of it is there.
    #[must_use]
    pub fn write(&self, addr: u64, from: &[u8]) -> bool {
        let mut bytes = self.bytes.borrow_mut();
        let to = self
            .range(addr, from.len())
            .and_then(|range| bytes.get_mut(range));
        match to {
            Some(to) => {
                to.copy_from_slice(from);
                true
            }
            None => false,
        }
    }

    /// Returns memory that the driver itself allocated.
    ///
    /// # Panics
    /// If it is not there.
    pub fn get(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        assert!(self.read(addr, &mut out), "{addr:#x} is the driver's own");
        out
    }

    /// Writes memory that the driver itself allocated.
    ///
    /// # Panics
    /// If it is not there.
    pub fn put(&self, addr: u64, from: &[u8]) {
        assert!(self.write(addr, from), "{addr:#x} is the driver's own");
    }

    fn range(&self, addr: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(addr.checked_sub(self.base)?).ok()?;
        Some(start..start.checked_add(len)?)
    }
}
