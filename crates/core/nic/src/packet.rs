//! Packets on their way between NIC and stack.

use netmem::{FragList, Payload};
use steer::RxQueueId;
use wire::{RxHeaders, TxChecksum};

/// A received packet: judged headers and the payload, wherever it lies.
#[derive(Debug)]
pub struct RxPacket {
    /// The queue it was steered to.
    pub queue: RxQueueId,
    /// Its headers.
    pub headers: RxHeaders,
    /// `headers.payload_len` bytes, unless `unplaced` says otherwise; linear bytes first, if there are any.
    pub payload: FragList,
    /// Payload bytes that found no memory, all of them or none: then `payload` is empty, and the packet
    /// is counted as dropped. Its headers still count: an ACK is an ACK, and the peer can be told.
    pub unplaced: usize,
    /// How many segments the sender's TCP made of it: more than 1 for a super-packet.
    pub segments: u16,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a received packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the link: nothing about it can be trusted.
    Link,
    /// From this NIC's own transmit side: it was sent to this NIC's own address.
    Loop,
}

/// Up to 128 bytes of headers, inline.
#[derive(Clone, Copy, Debug)]
pub struct HeadBuf {
    len: u8,
    bytes: [u8; Self::CAPACITY],
}

impl HeadBuf {
    /// Most bytes it holds: a tagged Ethernet header, IPv6 with a jumbo payload option and TCP with all options take 126.
    pub const CAPACITY: usize = 128;

    /// Lets `emit` write headers and say how long they are.
    ///
    /// # Panics
    /// If `emit` claims to have written more than there is room for.
    pub fn with(emit: impl FnOnce(&mut [u8]) -> usize) -> Self {
        let mut bytes = [0; Self::CAPACITY];
        let len = emit(&mut bytes);
        assert!(
            len <= Self::CAPACITY,
            "emitted {len} bytes of headers into {}",
            Self::CAPACITY
        );
        Self {
            len: len as u8,
            bytes,
        }
    }

    /// Returns a copy of `bytes`, `None` if they do not fit.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        let mut head = Self {
            len: u8::try_from(bytes.len()).ok()?,
            bytes: [0; Self::CAPACITY],
        };
        head.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(head)
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Forgets what is behind `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u8::try_from(len).unwrap_or(u8::MAX));
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.bytes
            .get_mut(..usize::from(self.len))
            .unwrap_or_default()
    }
}

/// A packet to send.
#[derive(Debug)]
pub struct TxPacket {
    /// All headers.
    pub head: HeadBuf,
    /// What follows them; perhaps unreadable.
    pub payload: FragList,
    /// The checksum to finish, its field holding the pseudo-header's sum.
    pub checksum: Option<TxChecksum>,
    /// Payload bytes of each segment a super-packet is cut into; 0: send as it is.
    pub gso_size: u16,
}

impl TxPacket {
    /// Returns the bytes of the frame, all headers included.
    pub fn frame_len(&self) -> usize {
        self.head.as_slice().len() + self.payload.len()
    }
}
