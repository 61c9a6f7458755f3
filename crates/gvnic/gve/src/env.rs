//! What the device is given: guest memory, interrupts, a wire and the time.
//!
//! The device owns none of them. Each entry point of [`Gve`](crate::Gve) that may touch the world takes an [`Env`];
//! whoever serves the device (vfio-user over a socket, a test in one process) makes one for the call.

use std::fmt;

use wire::{ChecksumState, Instant, Offload};

/// An address in the guest's physical memory. The guest chooses it: it may be anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddr(pub u64);

impl GuestAddr {
    /// Returns the address `bytes` further, `None` past the end of the address space.
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

/// The guest named memory that it does not have, or may not use so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guest address {addr} and {len} bytes on: not memory that the device may use so")]
pub struct BadAddress {
    /// First byte asked for.
    pub addr: GuestAddr,
    /// Bytes asked for.
    pub len: usize,
}

/// The guest's memory, as far as the device may reach it.
///
/// Every access is checked where it is made and copies: the guest writes its memory at any time, so nothing of it
/// is ever borrowed. A range that is not wholly inside is refused, though a part may have been copied by then.
pub trait GuestMemory {
    /// Copies guest memory at `addr` to all of `out`.
    ///
    /// # Errors
    /// [`BadAddress`]; `out` then holds anything.
    fn read(&self, addr: GuestAddr, out: &mut [u8]) -> Result<(), BadAddress>;

    /// Copies `bytes` to guest memory at `addr`.
    ///
    /// # Errors
    /// [`BadAddress`].
    fn write(&self, addr: GuestAddr, bytes: &[u8]) -> Result<(), BadAddress>;

    /// Stores two bytes, `value` in little endian, in one piece and after everything written before (a release
    /// store): the word that holds a completion's generation bit. The device gives an even `addr` whenever the
    /// guest's ring is aligned.
    ///
    /// # Errors
    /// [`BadAddress`].
    fn store_release_u16(&self, addr: GuestAddr, value: u16) -> Result<(), BadAddress>;
}

/// Where interrupts go.
pub trait IrqSink {
    /// Fires MSI-X vector `vector`, which is below [`Config::vectors`](crate::Config::vectors). It must not block,
    /// and a vector that the guest has not set up is no error.
    fn fire(&self, vector: u16);
}

bitflags::bitflags! {
    /// What a wire takes off the device's hands.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WireFeatures: u8 {
        /// Takes frames whose checksum is still to be finished ([`ChecksumState::Partial`]).
        const CHECKSUM = 1 << 0;
        /// Takes TCP super-packets over IPv4.
        const TSO4 = 1 << 1;
        /// Takes TCP super-packets over IPv6.
        const TSO6 = 1 << 2;
        /// Takes UDP super-packets (USO): each segment becomes a datagram.
        const USO = 1 << 3;
    }
}

/// A frame that comes to the device: whole, in host memory, Ethernet header first.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// What is known of them.
    pub offload: Offload,
}

impl<'a> RxFrame<'a> {
    /// Returns a frame about which nothing is known.
    pub const fn plain(bytes: &'a [u8]) -> Self {
        let offload = Offload {
            checksum: ChecksumState::Unknown,
            gso: None,
        };
        Self { bytes, offload }
    }
}

/// A frame that leaves the device.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// The first bytes, a copy in host memory: all headers, and the whole frame if it is short.
    pub head: &'a [u8],
    /// What follows.
    pub payload: TxPayload<'a>,
    /// What is still to be done to it; only what the wire's [`WireFeatures`] say it does.
    pub offload: Offload,
}

/// Where the rest of an outgoing frame is.
#[derive(Clone, Copy, Debug)]
pub enum TxPayload<'a> {
    /// In guest memory still, in this order; the ranges are not checked.
    Guest(&'a [GuestRange]),
    /// In host memory.
    Host(&'a [u8]),
}

impl TxFrame<'_> {
    /// Returns the bytes of the frame; a device never gives more than 65,535 and an Ethernet header's 18.
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
    /// [`BadAddress`] of a range; `out` then holds the part before it.
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

/// Appends guest memory to `out`, which is as it was if a range is bad.
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

/// What became of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// The wire has it; the guest's memory is free.
    Done,
    /// The wire takes nothing now. The device leaves the frame in the guest's ring and asks again at the next
    /// [`Gve::resume_tx`](crate::Gve::resume_tx) or doorbell.
    Busy,
    /// The wire lost it or refuses it; it is gone and counted.
    Lost,
    /// A range of it is not memory of the guest; it is gone and counted.
    BadAddress,
}

/// The far side of the device: a wire.
pub trait Backend {
    /// Returns what the wire does for the device; it may change between calls.
    fn features(&self) -> WireFeatures;

    /// Sends one frame, all or nothing, without blocking.
    fn send(&mut self, frame: &TxFrame<'_>, memory: &dyn GuestMemory) -> Sent;
}

/// The world, for one call.
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
