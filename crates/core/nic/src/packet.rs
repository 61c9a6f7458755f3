//! Packets passed between NIC and stack.

use netmem::{DeviceError, FragList, Payload};
use steer::RxQueueId;
use wire::{FourTuple, RxHeaders, TxChecksum};

/// A received packet: validated headers, and the payload in host or device memory.
#[derive(Debug)]
pub struct RxPacket {
    /// The queue that steering selected.
    pub queue: RxQueueId,
    /// The headers.
    pub headers: RxHeaders,
    /// What became of its payload.
    pub payload: Placed,
    /// Number of segments that the sender's TCP made: more than 1 for a super-packet.
    pub segments: u16,
    /// Source of the packet.
    pub origin: Origin,
}

/// What became of the payload of a received packet.
#[derive(Debug)]
pub enum Placed {
    /// All `headers.payload_len` bytes, linear bytes first.
    Whole(FragList),
    /// There was no memory for it. The packet is counted as dropped, but TCP processes its headers: its ACK is valid, and the
    /// window can be reduced.
    Unplaced,
    /// A device did not copy it. The connection cannot continue.
    Failed(Box<DeviceError>),
}

impl Placed {
    /// Returns the payload, if it is whole.
    pub fn frags(&self) -> Option<&FragList> {
        match self {
            Self::Whole(frags) => Some(frags),
            Self::Unplaced | Self::Failed(_) => None,
        }
    }

    /// Returns the payload; none unless it is whole.
    pub fn into_frags(self) -> FragList {
        match self {
            Self::Whole(frags) => frags,
            Self::Unplaced | Self::Failed(_) => FragList::new(),
        }
    }

    /// Returns whether there is payload in memory that the CPU cannot access.
    pub(crate) fn is_remote(&self) -> bool {
        self.frags().is_some_and(is_remote)
    }
}

/// Source of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The link: the content is untrusted.
    Link,
    /// The transmit side of this NIC: the packet was sent to the NIC's own address.
    Loop,
    /// Another shard of this NIC, which answers it. This one may learn from it.
    Copy,
}

/// Up to 128 bytes of headers, without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct HeadBuf {
    len: u8,
    bytes: [u8; Self::CAPACITY],
}

impl HeadBuf {
    /// Capacity in bytes: a tagged Ethernet header, IPv6 with a jumbo payload option and TCP with all options have 126.
    pub const CAPACITY: usize = 128;

    /// Returns the headers that `emit` writes; it returns their length.
    ///
    /// # Panics
    /// If `emit` returns more than the capacity.
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

    /// Removes all bytes after the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u8::try_from(len).unwrap_or(u8::MAX));
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.bytes
            .get_mut(..usize::from(self.len))
            .unwrap_or_default()
    }
}

/// A packet that was not sent because a device failed to copy its payload.
#[derive(Debug)]
pub struct FailedTx {
    pub(crate) packet: TxPacket,
    /// Error of the device.
    pub error: DeviceError,
}

impl FailedTx {
    /// Returns the addresses and ports of the packet.
    pub fn four_tuple(&self) -> Option<FourTuple> {
        let head = self.packet.head.as_slice();
        let headers = RxHeaders::parse(head, self.packet.frame_len()).ok()?;
        headers.four_tuple()
    }
}

/// A packet to send.
#[derive(Debug)]
pub struct TxPacket {
    /// All headers.
    pub head: HeadBuf,
    /// The bytes after the headers; possibly unreadable.
    pub payload: FragList,
    /// The checksum to complete; its field has the sum of the pseudo-header.
    pub checksum: Option<TxChecksum>,
    /// Payload bytes of each segment of a super-packet; 0 for other packets.
    pub gso_size: u16,
}

impl TxPacket {
    /// Returns the length of the frame in bytes, all headers included.
    pub fn frame_len(&self) -> usize {
        self.head.as_slice().len() + self.payload.len()
    }
}

/// Returns whether the bytes are in memory that the CPU cannot access.
pub(crate) fn is_remote(payload: &FragList) -> bool {
    !payload.is_empty() && payload.copy_engine().is_some()
}
