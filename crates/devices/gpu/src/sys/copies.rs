//! Copies between addresses.
//!
// UNSAFETY: none in this file, but its types are part of the proof: only checked ranges become addresses here.

use super::functions::{DevicePtr, RawStream};
use super::revocation::Revocation;

/// A copy between checked ranges. The memory outlives it: owners wait for the lanes when they are dropped.
#[derive(Debug)]
pub struct RawCopy<'a> {
    pub(crate) kind: CopyKind,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) len: usize,
    /// Those of the device's memories; of a copy from or to the host, twice the same.
    revocations: [&'a Revocation; 2],
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

    /// Returns whether no copy of one of the memories may begin. To be asked under the lock of the lane.
    pub(super) fn is_revoked(&self) -> bool {
        self.revocations.iter().any(|of| of.is_revoked())
    }

    /// Returns the copy between ranges that were checked.
    pub(super) fn new(
        kind: CopyKind,
        from: u64,
        to: u64,
        len: usize,
        revocations: [&'a Revocation; 2],
    ) -> Self {
        Self {
            kind,
            from,
            to,
            len,
            revocations,
        }
    }
}
