//! The environment of the device: guest memory, interrupts, a wire and the time.
//!
//! The device owns none of them. Each entry point of [`Gve`](crate::Gve) that needs them takes an [`Env`], which the
//! caller (the vfio-user server, or a test in one process) makes for that call.

use std::fmt;

use wire::{ChecksumState, Instant, Offload};

/// An address in the guest's physical memory. It comes from the guest and is not trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddr(pub u64);

impl GuestAddr {
    /// Returns the address plus `bytes`, `None` past the end of the address space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(addr) => Some(Self(addr)),
            None => None,
        }
    }
}

impl fmt::Display for GuestAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A range of guest memory, not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRange {
    /// First byte.
    pub addr: GuestAddr,
    /// Bytes.
    pub len: u32,
}

/// The guest gave an address range that is not its memory, or not accessible in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guest address {addr} and {len} bytes on: not memory that the device may use so")]
pub struct BadAddress {
    /// First byte of the range.
    pub addr: GuestAddr,
    /// Bytes of the range.
    pub len: usize,
}

/// The guest memory that the device may access.
///
/// Every access is checked and copies: the guest may write its memory at any time, so it is never borrowed. An access
/// to a range that is not completely inside fails, but part of it may have been copied.
pub trait GuestMemory {
    /// Copies guest memory at `addr` to all of `out`.
    ///
    /// # Errors
    /// [`BadAddress`]; the contents of `out` are then unspecified.
    fn read(&self, addr: GuestAddr, out: &mut [u8]) -> Result<(), BadAddress>;

    /// Copies `bytes` to guest memory at `addr`.
    ///
    /// # Errors
    /// [`BadAddress`].
    fn write(&self, addr: GuestAddr, bytes: &[u8]) -> Result<(), BadAddress>;

    /// Stores `value` as two little-endian bytes, atomically and after everything written before (a release store).
    /// Used for the word with the generation bit of a completion. `addr` is even if the guest's ring is aligned.
    ///
    /// # Errors
    /// [`BadAddress`].
    fn store_release_u16(&self, addr: GuestAddr, value: u16) -> Result<(), BadAddress>;
}

/// Destination of interrupts.
pub trait IrqSink {
    /// Fires MSI-X vector `vector`, which is below [`Config::vectors`](crate::Config::vectors). It must not block, and
    /// ignores a vector that the guest has not set up.
    fn fire(&self, vector: u16);
}

bitflags::bitflags! {
    /// Offloads of a wire.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WireFeatures: u8 {
        /// Accepts frames with a partial checksum ([`ChecksumState::Partial`]).
        const CHECKSUM = 1 << 0;
        /// Accepts TCP super-packets over IPv4.
        const TSO4 = 1 << 1;
        /// Accepts TCP super-packets over IPv6.
        const TSO6 = 1 << 2;
        /// Accepts UDP super-packets (USO): each segment becomes a datagram.
        const USO = 1 << 3;
    }
}

/// A frame for the device to receive: complete, in host memory, Ethernet header first.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Metadata of the frame.
    pub offload: Offload,
}

impl<'a> RxFrame<'a> {
    /// Returns a frame without offload metadata.
    pub const fn plain(bytes: &'a [u8]) -> Self {
        let offload = Offload {
            checksum: ChecksumState::Unknown,
            gso: None,
        };
        Self { bytes, offload }
    }
}

/// A frame that the device sends.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// The first bytes, a copy in host memory: all headers, and the whole frame if it is short.
    pub head: &'a [u8],
    /// The remaining bytes.
    pub payload: TxPayload<'a>,
    /// Offload work left to the wire, within its [`WireFeatures`].
    pub offload: Offload,
}

/// Remaining bytes of a sent frame, after its head.
#[derive(Clone, Copy, Debug)]
pub enum TxPayload<'a> {
    /// In guest memory, in this order; the ranges are not checked.
    Guest(&'a [GuestRange]),
    /// In host memory.
    Host(&'a [u8]),
}

impl TxFrame<'_> {
    /// Returns the bytes of the frame: at most 65,535 plus 18 for the Ethernet header.
    pub fn frame_len(&self) -> usize {
        let payload = match self.payload {
            TxPayload::Guest(ranges) => ranges.iter().map(|range| range.len as usize).sum(),
            TxPayload::Host(bytes) => bytes.len(),
        };
        self.head.len() + payload
    }

    /// Appends the frame to `out`.
    ///
    /// # Errors
    /// [`BadAddress`] for the first bad range; `out` then has the bytes before it.
    pub fn append_to(&self, memory: &dyn GuestMemory, out: &mut Vec<u8>) -> Result<(), BadAddress> {
        out.extend_from_slice(self.head);
        match self.payload {
            TxPayload::Guest(ranges) => append_ranges(ranges, memory, out),
            TxPayload::Host(bytes) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// Appends guest memory to `out`; leaves `out` unchanged if a range is bad.
pub(crate) fn append_ranges(
    ranges: &[GuestRange],
    memory: &dyn GuestMemory,
    out: &mut Vec<u8>,
) -> Result<(), BadAddress> {
    for range in ranges {
        let at = out.len();
        out.resize(at + range.len as usize, 0);
        if let Err(bad) = memory.read(range.addr, &mut out[at..]) {
            out.truncate(at);
            return Err(bad);
        }
    }
    Ok(())
}

/// Result of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TxOutcome {
    /// The wire has taken the frame; the guest may reuse its memory.
    Done,
    /// The wire is full. The device leaves the frame in the guest's ring and tries again at the next
    /// [`Gve::resume_tx`](crate::Gve::resume_tx) or doorbell.
    Busy,
    /// The wire lost or refused the frame; it is dropped and counted.
    Lost,
    /// A range of the frame is not guest memory; it is dropped and counted.
    BadAddress,
}

/// The wire of the device.
pub trait Backend {
    /// Returns the offloads of the wire; they may change between calls.
    fn features(&self) -> WireFeatures;

    /// Sends one frame completely or not at all; does not block.
    fn send(&mut self, frame: &TxFrame<'_>, memory: &dyn GuestMemory) -> TxOutcome;
}

/// Environment of one call.
pub struct Env<'a> {
    /// The guest's memory.
    pub memory: &'a dyn GuestMemory,
    /// The interrupts.
    pub irqs: &'a dyn IrqSink,
    /// The wire.
    pub backend: &'a mut dyn Backend,
    /// The time.
    pub now: Instant,
}

impl fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}
