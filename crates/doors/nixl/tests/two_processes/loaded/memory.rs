// UNSAFETY: maps memory, and reads and writes it by its address.

//! Memory that is transferred.

use std::ptr::null_mut;
use std::sync::Arc;

/// Memory of this process, as programs of other languages have it: no Rust reference to its bytes exists. Each clone keeps it: an agent
/// has one as long as it is registered, because agents touch such memory, also for transfers that are over.
#[derive(Clone)]
pub struct Memory(Arc<Mapping>);

struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the bytes are read and written by copies; tests do that when no transfer does.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Memory {
    /// Maps zeroed memory; of a large one only what is touched takes any. `None`: the kernel has not so much.
    pub fn try_new(len: usize) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
        let start = (start != libc::MAP_FAILED).then(|| start.cast())?;
        Some(Self(Arc::new(Mapping { start, len })))
    }

    pub fn new(len: usize) -> Self {
        Self::try_new(len).expect("the kernel has memory")
    }

    pub fn address(&self) -> u64 {
        self.0.start.expose_provenance() as u64
    }

    /// Takes the right to touch the memory from everybody, as if it was freed, but nobody else gets its addresses.
    pub fn forbid(&self) {
        // SAFETY: the mapping of `new`; nobody reads or writes it by a reference.
        let forbidden = unsafe { libc::mprotect(self.0.start.cast(), self.0.len, libc::PROT_NONE) };
        assert_eq!(forbidden, 0);
    }

    pub fn len(&self) -> usize {
        self.0.len
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.0.len);
        // SAFETY: inside of the mapping.
        unsafe {
            std::ptr::copy(
                bytes.as_ptr(),
                self.0.start.wrapping_add(offset),
                bytes.len(),
            )
        };
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.0.len);
        let mut bytes = vec![0; len];
        // SAFETY: inside of the mapping.
        unsafe { std::ptr::copy(self.0.start.wrapping_add(offset), bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody touches any more: no agent has it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
