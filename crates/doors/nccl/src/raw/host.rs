// UNSAFETY: reads and writes host memory that NCCL has registered, at addresses that it gave.

//! Registered host memory.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use exchange::{HostMemory, MemoryGone};

/// Host memory of NCCL. After [`revoke`](Self::revoke) nothing touches it.
pub(crate) struct HostRange {
    start: *mut u8,
    len: usize,
    /// Whether the memory may be touched. Held for reading during each access.
    is_live: RwLock<bool>,
}

// SAFETY: the pointer is only followed in `read` and `store`, under the contract of `new`, which any thread may call.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

impl HostRange {
    /// # Safety
    /// `start` leads to `len` bytes that stay valid until `revoke` returns (1). While a send uses a range of them, nobody
    /// writes to it; while a receive uses one, nobody in this process reads or writes it (2). That is the contract of
    /// NCCL's `regMr`, `isend` and `irecv`.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self {
            start,
            len,
            is_live: RwLock::new(true),
        }
    }

    pub(crate) fn address(&self) -> usize {
        self.start.addr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Ends all access to the memory; waits for a copy that is running.
    pub(crate) fn revoke(&self) {
        *self.is_live.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Calls `with` with the first byte of `range`, if the memory may be touched.
    fn access(&self, range: &Range<usize>, with: impl FnOnce(*mut u8)) -> Result<(), MemoryGone> {
        let is_live = self.is_live.read().unwrap_or_else(PoisonError::into_inner);
        if !*is_live || range.start > range.end || range.end > self.len {
            return Err(MemoryGone);
        }
        with(self.start.wrapping_add(range.start));
        Ok(())
    }
}

impl HostMemory for HostRange {
    fn size(&self) -> usize {
        self.len
    }

    fn read(&self, range: Range<usize>, with: &mut dyn FnMut(&[u8])) -> Result<(), MemoryGone> {
        if range.is_empty() {
            with(&[]);
            return Ok(());
        }
        self.access(&range, |start| {
            // SAFETY: 1. `access` has checked the range and holds the lock, so the bytes are valid (`new`, 1); 2. nobody
            // writes to them while a send uses them (`new`, 2).
            with(unsafe { std::slice::from_raw_parts(start, range.len()) });
        })
    }

    fn write(
        &self,
        range: Range<usize>,
        with: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), MemoryGone> {
        if range.is_empty() {
            with(&mut []);
            return Ok(());
        }
        self.access(&range, |start| {
            // SAFETY: 1. as in `read`; 2. nobody else touches them while a receive uses them (`new`, 2); the ranges of two
            // receives do not overlap.
            with(unsafe { std::slice::from_raw_parts_mut(start, range.len()) });
        })
    }
}

/// The same memory, written in ascending order, each aligned word at once, and no byte twice: a GPU may be polling it.
pub(crate) struct Ordered {
    range: Arc<HostRange>,
    scratch: Mutex<Vec<u8>>,
}

impl Ordered {
    pub(crate) fn new(range: Arc<HostRange>) -> Self {
        Self {
            range,
            scratch: Mutex::default(),
        }
    }
}

impl HostMemory for Ordered {
    fn size(&self) -> usize {
        self.range.size()
    }

    fn read(&self, range: Range<usize>, with: &mut dyn FnMut(&[u8])) -> Result<(), MemoryGone> {
        self.range.read(range, with)
    }

    fn write(
        &self,
        range: Range<usize>,
        with: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), MemoryGone> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        scratch.resize(range.len(), 0);
        let written = with(&mut scratch).min(range.len());
        let bytes = &scratch[..written];
        // SAFETY: `access` has checked the range, which `bytes` do not exceed, and holds the lock (`HostRange::new`, 1);
        // nobody in this process touches them meanwhile (2).
        self.range
            .access(&range, |start| unsafe { store_ascending(start, bytes) })
    }
}

/// Copies bytes in ascending order: aligned words by one store each. Every store is a release, so that whoever polls memory
/// sees what was stored before it.
///
/// # Safety
/// `to` leads to room for `bytes`, which nobody in this process touches meanwhile.
unsafe fn store_ascending(to: *mut u8, bytes: &[u8]) {
    let head = to.align_offset(size_of::<u64>()).min(bytes.len());
    let (head, rest) = bytes.split_at(head);
    let (words, tail) = rest.as_chunks::<8>();
    // SAFETY: the first bytes of the room.
    unsafe { store_bytes(to, head) };
    let mut at = to.wrapping_add(head.len());
    for word in words {
        // A cast to a pointer with a larger alignment: `head` ends where the address has it.
        let word_at = at.cast::<u64>();
        // SAFETY: aligned by the choice of `head`, inside of the room.
        let atomic = unsafe { AtomicU64::from_ptr(word_at) };
        atomic.store(u64::from_ne_bytes(*word), Ordering::Release);
        at = at.wrapping_add(size_of::<u64>());
    }
    // SAFETY: the last bytes of the room.
    unsafe { store_bytes(at, tail) };
}

/// # Safety
/// As of [`store_ascending`].
unsafe fn store_bytes(to: *mut u8, bytes: &[u8]) {
    for (offset, byte) in bytes.iter().enumerate() {
        // SAFETY: inside of the room; a byte is always aligned.
        let atomic = unsafe { AtomicU8::from_ptr(to.wrapping_add(offset)) };
        atomic.store(*byte, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_writes_reach_every_byte_and_none_behind() {
        for (start, len) in [(0, 0), (0, 64), (1, 20), (7, 1), (3, 5), (5, 100)] {
            let mut memory = vec![0xee_u8; 128];
            // SAFETY: the vector is not touched while the range is.
            let range = Arc::new(unsafe { HostRange::new(memory.as_mut_ptr(), 128) });
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let ordered = Ordered::new(Arc::clone(&range));
            let write = |out: &mut [u8]| {
                out[..len].copy_from_slice(&bytes);
                len
            };
            ordered.write(start..128, &mut { write }).unwrap();
            range.revoke();
            let mut expected = vec![0xee; 128];
            expected[start..start + len].copy_from_slice(&bytes);
            assert_eq!(memory, expected);
        }
    }

    #[test]
    fn revoked_memory_is_not_touched() {
        let mut memory = vec![1_u8; 16];
        // SAFETY: the vector is not touched while the range is.
        let range = unsafe { HostRange::new(memory.as_mut_ptr(), 16) };
        range.revoke();
        drop(memory);
        assert_eq!(range.read(0..16, &mut |_| panic!("read")), Err(MemoryGone));
        assert_eq!(
            range.write(0..16, &mut |_| panic!("write")),
            Err(MemoryGone)
        );
    }
}
