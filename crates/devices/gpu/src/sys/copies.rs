//! Copies between addresses.
//!
// UNSAFETY: none in this file, but its types are part of the proof: only checked ranges become addresses here.

use netmem::{CopyPiece, DeviceError, DeviceState};

use super::functions::{DevicePtr, RawStream};
use super::revocation::Revocation;

/// Copies between two memories of a device, or one of it and registered host memory. Both outlive the copies: owners wait for the
/// lanes when they are dropped.
#[derive(Debug)]
pub(crate) struct Copies<'a> {
    pub(crate) kind: CopyKind,
    pub(crate) from: Extent,
    pub(crate) to: Extent,
    /// Those of the device's memories; of copies from or to the host, twice the same.
    pub(crate) revocations: [&'a Revocation; 2],
    pub(crate) pieces: &'a [CopyPiece],
    /// Their bytes together, if they are inside of the memories.
    pub(crate) bytes: usize,
}

/// Memory that a copy may access: of a device, or of the host and registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(super) address: u64,
    pub(super) len: usize,
}

/// A copy between checked ranges.
#[derive(Clone, Copy, Debug)]
pub struct RawCopy {
    from: u64,
    to: u64,
    len: usize,
}

/// Copies for a stream of their device, which exists. Both sides of each stay allocated until the stream is done; host memory is
/// registered. So a vendor's crate may pass their addresses to the library.
#[derive(Debug)]
pub struct CopyBatch<'a> {
    /// The copies.
    pub(super) copies: &'a [RawCopy],
    /// The stream.
    pub(super) stream: RawStream,
}

impl<'a> CopyBatch<'a> {
    /// Returns the copies.
    pub fn copies(&self) -> &'a [RawCopy] {
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

impl Extent {
    /// Returns the address of `len` bytes at `offset`, if they are inside.
    #[inline]
    pub(super) fn at(self, offset: usize, len: usize) -> Option<u64> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        is_inside.then(|| self.address + offset as u64)
    }
}

impl Copies<'_> {
    /// Returns whether no copy of one of the memories may begin. To be asked under the lock of the lane.
    pub(super) fn is_revoked(&self) -> bool {
        self.revocations.iter().any(|of| of.is_revoked())
    }

    /// Returns the copy of a piece.
    ///
    /// # Errors
    ///
    /// It is not inside of the memories.
    #[inline]
    pub(super) fn raw(&self, piece: &CopyPiece) -> Result<RawCopy, DeviceError> {
        let from = self.from.at(piece.from, piece.len);
        let to = self.to.at(piece.to, piece.len);
        let (Some(from), Some(to)) = (from, to) else {
            return Err(out_of_range());
        };
        let len = piece.len;
        Ok(RawCopy { from, to, len })
    }
}

impl RawCopy {
    /// Returns a copy between ranges that were checked.
    pub(super) fn new(from: u64, to: u64, len: usize) -> Self {
        Self { from, to, len }
    }

    /// Returns the address of the source.
    pub fn source(&self) -> DevicePtr {
        self.from
    }

    /// Returns the address of the destination.
    pub fn destination(&self) -> DevicePtr {
        self.to
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

/// Returns the error of a copy whose range is not inside its memory.
pub(crate) fn out_of_range() -> DeviceError {
    DeviceError {
        call: "copy",
        name: "a range is not inside the memory",
        code: 1,
        state: DeviceState::Usable,
        remedy: "a program error: report it with what the program did",
    }
}
