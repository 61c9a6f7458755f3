//! Host memory that a device reads where it is.
//!
// UNSAFETY: memory of the driver, accessed by atomic operations on checked words, and freed when the value is dropped.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::copies::out_of_range;
use super::functions::DevicePtr;
use super::lanes::Lanes;
use netmem::DeviceError;

/// CU_MEMHOSTALLOC_PORTABLE and _DEVICEMAP, hipHostMallocPortable and hipHostMallocMapped.
const FLAGS: u32 = 1 | 2;

/// Host memory that kernels of a device read, such as lists for them: words of 8 bytes, all 0 at first.
///
/// Invariant: `len` words at `start` are allocated, aligned, and accessed by this process through this value only, until it is dropped.
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
    address: DevicePtr,
    lanes: Arc<Lanes>,
}

// SAFETY: every access is an atomic operation, and the driver frees memory in any thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWords({} at {:#x})", self.len, self.address)
    }
}

impl SharedWords {
    /// Allocates words, at least one.
    pub(crate) fn alloc(lanes: &Arc<Lanes>, words: usize) -> Result<Self, DeviceError> {
        let size = words.checked_mul(size_of::<u64>());
        let size = size.ok_or_else(out_of_range)?;
        let current = lanes.enter()?;
        let functions = &current.driver.loaded().functions;
        let (alloc, address_of) = (functions.host_alloc, functions.host_address);
        let mut start = ptr::null_mut();
        // SAFETY: room for a pointer.
        let status = unsafe { (alloc.call)(&raw mut start, size, FLAGS) };
        lanes.note(current.driver.check(alloc.name, status))?;
        let Some(start) = NonNull::new(start.cast::<AtomicU64>()).filter(|at| at.is_aligned())
        else {
            return Err(out_of_range());
        };
        // SAFETY: as many words as were allocated, which nobody else accesses yet.
        unsafe { ptr::write_bytes(start.as_ptr(), 0, words) };
        let mut shared = SharedWords {
            start,
            len: words,
            address: 0,
            lanes: Arc::clone(lanes),
        };
        // SAFETY: room for an address; the memory was allocated above.
        let status = unsafe { (address_of.call)(&raw mut shared.address, shared.raw(), 0) };
        lanes.note(current.driver.check(address_of.name, status))?;
        Ok(shared)
    }
}

impl SharedWords {
    fn raw(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }

    /// Returns the address of the first word, as kernels take it.
    pub fn device_ptr(&self) -> u64 {
        self.address
    }

    /// Returns the number of words.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one word")]
    pub fn len(&self) -> usize {
        self.len
    }

    fn all(&self) -> &[AtomicU64] {
        // SAFETY: `len` allocated and aligned words, accessed by atomic operations only, while the value exists (invariant).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns a range of words; none if it is not inside.
    pub(super) fn words(&self, range: Range<usize>) -> &[AtomicU64] {
        self.all().get(range).unwrap_or_default()
    }

    /// Writes words from `at` on. Those behind the end are left out.
    pub fn write(&self, at: usize, words: &[u64]) {
        for (place, word) in self.words(at..self.len).iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
    }

    /// Writes a word so that whoever sees it sees all that was written before it, and puts it in front of what this thread does next.
    pub fn publish(&self, at: usize, word: u64) {
        if let Some(place) = self.all().get(at) {
            place.store(word, Ordering::Release);
        }
        fence(Ordering::SeqCst);
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if self.lanes.context.is_forked() {
            return;
        }
        if let Ok(current) = self.lanes.context.enter() {
            // SAFETY: allocated by `alloc_shared`, and freed here only. Errors: the driver has freed it.
            let _ = unsafe { (current.driver.loaded().functions.host_free.call)(self.raw()) };
        }
    }
}
