// UNSAFETY: reads and writes memory at the addresses that NCCL gives its kernels and the CUDA runtime, as those do. The modules that play kernels
// and streams are part of the proof: they take addresses from NCCL, and offsets from `layout`.

//! Memory of NCCL and its application, at the addresses that NCCL names.
#![allow(unsafe_code)]

use std::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The address of a structure of NCCL, whose fields are at the offsets of `layout`. Invariant: NCCL has named it to a kernel or in a call, and
/// keeps it until that ends.
#[derive(Clone, Copy)]
pub struct Address(usize);

impl Address {
    /// # Safety
    ///
    /// NCCL has named it to a kernel or in a call, and it is used until that ends only.
    pub unsafe fn new(address: usize) -> Self {
        Self(address)
    }

    /// Returns the address of words that live as long as the kernel that uses it.
    pub fn of(words: &[u64]) -> Self {
        Self(words.as_ptr().expose_provenance())
    }

    fn read<T: Copy>(self, offset: usize) -> T {
        // SAFETY: a field of a structure that is there, by the invariant.
        unsafe { at::<T>(self.0 + offset).read_volatile() }
    }

    pub fn u8(self, offset: usize) -> usize {
        self.read::<u8>(offset).into()
    }

    pub fn u32(self, offset: usize) -> usize {
        self.read::<u32>(offset) as usize
    }

    pub fn u64(self, offset: usize) -> usize {
        self.read(offset)
    }

    /// Returns the structure that a field points to.
    pub fn to(self, offset: usize) -> Self {
        Self(self.read(offset))
    }

    pub fn plus(self, offset: usize) -> Self {
        Self(self.0 + offset)
    }

    pub fn set(self, offset: usize, value: u64) {
        // SAFETY: as in `read`.
        unsafe { at_mut::<u64>(self.0 + offset).write_volatile(value) };
    }

    /// Returns the counter that a field points to, which a proxy changes at the same time.
    pub fn counter(self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: as in `read`; it is aligned, and everybody accesses it as a whole.
        unsafe { AtomicU64::from_ptr(at_mut(self.read(offset))) }
    }

    /// Returns whether the flag that a field points to is set.
    pub fn flag(self, offset: usize) -> bool {
        // SAFETY: as in `counter`.
        let flag = unsafe { AtomicU32::from_ptr(at_mut(self.read(offset))) };
        flag.load(Ordering::Acquire) != 0
    }
}

/// Copies bytes between buffers of NCCL or its application, or within one.
pub fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: NCCL's plan or its call has these ranges, which live until the stream has come here.
    unsafe { at::<u8>(from).copy_to(at_mut(to), len) };
}

pub fn fill(to: usize, byte: u8, len: usize) {
    // SAFETY: as in `copy`.
    unsafe { at_mut::<u8>(to).write_bytes(byte, len) };
}

/// Adds floats.
pub fn add(one: usize, other: usize, to: usize, len: usize) {
    for offset in (0..len).step_by(4) {
        // SAFETY: as in `copy`.
        let [one, other] =
            [one, other].map(|from| unsafe { at::<f32>(from + offset).read_unaligned() });
        // SAFETY: as in `copy`.
        unsafe { at_mut::<f32>(to + offset).write_unaligned(one + other) };
    }
}
