//! Copies between addresses.
//!
// UNSAFETY: none in this file, but its types are part of the proof: only checked ranges become addresses here.

use super::functions::{DevicePtr, RawStream};
use super::memory::{DeviceMemory, Registration};

/// A copy between checked ranges. The memory outlives it: owners wait for the lanes when they are dropped.
#[derive(Debug)]
pub struct RawCopy<'a> {
    pub(crate) kind: CopyKind,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) len: usize,
    /// The device's memory; of a copy from or to the host, twice the same.
    memories: [&'a DeviceMemory; 2],
}

/// Copies for a stream of their device, which exists. Both sides of each stay allocated until the stream is done; host memory is
/// registered. So a vendor's crate may pass their addresses to the library.
#[derive(Debug)]
pub struct CopyBatch<'a> {
    /// The copies.
    pub(super) copies: &'a [RawCopy<'a>],
    /// The stream.
    pub(super) stream: RawStream,
}

impl<'a> CopyBatch<'a> {
    /// Returns the copies.
    pub fn copies(&self) -> &'a [RawCopy<'a>] {
        self.copies
    }

    /// Returns the stream.
    pub fn stream(&self) -> RawStream {
        self.stream
    }
}

/// Where the two sides of a copy are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyKind {
    /// From the host to the device.
    In,
    /// From the device to the host.
    Out,
    /// Both on the device.
    Within,
}

impl<'a> RawCopy<'a> {
    /// Returns the address of the source.
    pub fn source(&self) -> DevicePtr {
        self.from
    }

    /// Returns the address of the destination.
    pub fn destination(&self) -> DevicePtr {
        self.to
    }

    /// Returns the number of bytes, at least 1.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Returns a copy between registered host memory and the device.
    pub(crate) fn staged(
        kind: CopyKind,
        (host, host_at): (&Registration, usize),
        (memory, device_at): (&'a DeviceMemory, usize),
        len: usize,
    ) -> Option<Self> {
        let (host, device) = (host.at(host_at, len)?, memory.at(device_at, len)?);
        let (from, to) = match kind {
            CopyKind::Out => (device, host),
            CopyKind::In | CopyKind::Within => (host, device),
        };
        Some(Self::new(kind, from, to, len, [memory, memory]))
    }

    /// Returns a copy within the memory of a device.
    pub(crate) fn within(
        (from, from_at): (&'a DeviceMemory, usize),
        (to, to_at): (&'a DeviceMemory, usize),
        len: usize,
    ) -> Option<Self> {
        let memories = [from, to];
        let (from, to) = (from.at(from_at, len)?, to.at(to_at, len)?);
        Some(Self::new(CopyKind::Within, from, to, len, memories))
    }

    /// Returns whether no copy of one of the memories may begin. To be asked under the lock of the lane.
    pub(super) fn is_revoked(&self) -> bool {
        self.memories.iter().any(|memory| memory.is_revoked())
    }

    pub(super) fn new(
        kind: CopyKind,
        from: u64,
        to: u64,
        len: usize,
        memories: [&'a DeviceMemory; 2],
    ) -> Self {
        Self {
            kind,
            from,
            to,
            len,
            memories,
        }
    }
}
