//! Frames as a link receives and sends them.

use std::num::NonZeroU16;

use ::wire::{
    ChecksumState, EtherType, EthernetHeader, Gso, GsoKind, MAX_HEADER_LEN, Offload, TxChecksum,
};
use netmem::{BufSpan, DmaPort, FragList, Payload};

use crate::drops::DropReason;

/// Memory for one received frame. A link that scatters fills `head`, then `spans`, then `spill`.
#[derive(Debug)]
pub struct Posted<'a> {
    /// Buffer of a virtio-net header and the first bytes of the frame.
    pub head: &'a mut HeaderBuf,
    /// Number of bytes of the frame that go into `head`: the predicted header length plus the linear bytes, if any.
    pub predicted_header: usize,
    /// Memory of the predicted queue; may be shorter than the frame, or empty.
    pub spans: &'a [BufSpan<'a>],
    /// Host memory for what does not fit into the spans; long enough for any frame.
    pub spill: &'a mut [u8],
    /// Buffer for a link that has whole frames in host memory.
    pub frame: &'a mut Vec<u8>,
    /// Payload in the sender's memory; empty before.
    pub borrowed: &'a mut FragList,
    /// The capability to fill the spans.
    pub port: &'a DmaPort,
}

/// Result of [`Link::receive`](crate::Link::receive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkReceived {
    /// No frame has arrived.
    None,
    /// The frame is in head, then spans, then spill.
    Scattered {
        /// Bytes of the frame.
        frame_len: usize,
        /// The link's information about it.
        meta: VnetMeta,
    },
    /// The frame is in [`Posted::frame`]; the NIC copies the payload.
    Frame {
        /// The link's information about it.
        meta: VnetMeta,
    },
    /// The headers are in [`Posted::head`], the payload is in [`Posted::borrowed`]; the NIC copies it. Only by a link that
    /// [`borrows`](crate::LinkCaps::borrows).
    Borrowed {
        /// Bytes of the headers.
        head_len: usize,
        /// Bytes of the frame.
        frame_len: usize,
        /// The link's information about it.
        meta: VnetMeta,
        /// How long the payload may stay where it is.
        until: BorrowedUntil,
    },
    /// A frame has arrived that the link cannot pass on; the NIC counts it under this reason.
    Dropped(DropReason),
}

/// How long the payload of a received frame may stay in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BorrowedUntil {
    /// Until the NIC has copied it, which it does before TCP sees the packet.
    Copied,
    /// Until the program has read it.
    Read,
}

/// Result of [`Link::send`](crate::Link::send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LinkSent {
    /// The link has the frame; the caller may reuse its memory.
    Done,
    /// The link is busy and has not sent the frame; try again later.
    Busy,
    /// The link has not sent the frame: it has no memory for one of this length. Never returned for frames of at most
    /// [`MAX_FRAME_LEN`](crate::MAX_FRAME_LEN) bytes.
    TooLong,
}

/// One frame to send.
#[derive(Debug)]
pub struct TxFrame<'a> {
    /// The headers, and any other bytes in host memory before the payload.
    pub head: &'a [u8],
    /// The bytes after `head`; possibly unreadable.
    pub payload: &'a FragList,
    /// A checksum that the link has to complete; only with [`LinkCaps::tx_checksum`](crate::LinkCaps::tx_checksum).
    pub checksum: Option<TxChecksum>,
    /// Payload bytes of each segment of a super-packet, 0 for other frames; only with [`LinkCaps::tso`](crate::LinkCaps::tso).
    pub gso_size: u16,
    /// The capability to read the payload.
    pub port: &'a DmaPort,
}

impl Posted<'_> {
    /// Copies a frame from head, spans and spill into `out`.
    pub fn gather(&self, frame_len: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.head.frame(self.predicted_header.min(frame_len)));
        for span in self.spans {
            let at = out.len();
            extend_zeroed(out, (span.len as usize).min(frame_len.saturating_sub(at)));
            self.port.copy_out(*span, 0, &mut out[at..]);
        }
        let rest = frame_len.saturating_sub(out.len()).min(self.spill.len());
        out.extend_from_slice(&self.spill[..rest]);
    }

    /// Copies a frame from head and the sender's memory into `out`.
    pub fn gather_borrowed(&self, head_len: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.head.frame(head_len));
        copy_frags(self.borrowed, self.port, out);
    }
}

/// Appends the bytes of a payload to `out`.
fn copy_frags(payload: &FragList, port: &DmaPort, out: &mut Vec<u8>) {
    for frag in payload {
        let at = out.len();
        extend_zeroed(out, frag.len());
        port.copy_out(frag, 0, &mut out[at..]);
    }
}

/// Appends zeros, a block at a time: `Vec::resize` writes each byte by a call where little is optimised, as in tests.
fn extend_zeroed(out: &mut Vec<u8>, mut len: usize) {
    static BLOCK: [u8; 4096] = [0; 4096];
    out.reserve(len);
    while len > 0 {
        let block = &BLOCK[..BLOCK.len().min(len)];
        out.extend_from_slice(block);
        len -= block.len();
    }
}

impl TxFrame<'_> {
    /// Returns the length of the frame in bytes.
    pub fn frame_len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Copies head and payload into `out`.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.head);
        self.copy_payload_to(out);
    }

    /// Returns the work that is left to the link (checksum, segmentation), for the virtio-net header. The EtherType tells
    /// whether a super-packet is of IPv4 or IPv6.
    pub(crate) fn offload(&self) -> Offload {
        let kind = || match EthernetHeader::parse(self.head).ok()?.ethertype {
            EtherType::IPV4 => Some(GsoKind::Tcp4),
            EtherType::IPV6 => Some(GsoKind::Tcp6),
            _ => None,
        };
        Offload {
            checksum: self.checksum.into(),
            gso: NonZeroU16::new(self.gso_size)
                .and_then(|size| kind().map(|kind| Gso { kind, size })),
        }
    }

    /// Appends the payload to `out`.
    pub(crate) fn copy_payload_to(&self, out: &mut Vec<u8>) {
        copy_frags(self.payload, self.port, out);
    }
}

/// What a link knows about a received frame, from its virtio-net header (VIRTIO 1.2 5.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetMeta {
    /// Payload bytes per segment of a TCP super-packet; 0 for other frames.
    pub gso_size: u16,
    /// State of the transport checksum.
    pub checksum: ChecksumState,
}

impl From<Offload> for VnetMeta {
    fn from(offload: Offload) -> Self {
        let gso_size = match offload.gso {
            Some(Gso {
                kind: GsoKind::Tcp4 | GsoKind::Tcp6,
                size,
            }) => size.get(),
            // UFO and USO are not enabled (TUNSETOFFLOAD).
            Some(Gso {
                kind: GsoKind::Udp, ..
            })
            | None => 0,
        };
        Self {
            gso_size,
            checksum: offload.checksum,
        }
    }
}

/// Host memory for the first bytes of a received frame, with room for a virtio-net header before them.
#[derive(Debug)]
pub struct HeaderBuf {
    bytes: Box<[u8]>,
}

impl HeaderBuf {
    /// Bytes before the frame: the longest virtio-net header (with `num_buffers`).
    pub const VNET_ROOM: usize = 12;

    /// Returns a buffer for the longest headers that [`wire::RxHeaders::parse`](::wire::RxHeaders::parse) accepts and
    /// `linear_bytes` of payload after them.
    pub fn new(linear_bytes: usize) -> Self {
        let len = Self::VNET_ROOM + MAX_HEADER_LEN + linear_bytes;
        Self {
            bytes: vec![0; len].into_boxed_slice(),
        }
    }

    /// Returns the capacity in bytes of a frame.
    pub fn capacity(&self) -> usize {
        self.bytes.len() - Self::VNET_ROOM
    }

    /// Returns the buffer of a virtio-net header of `vnet_len` bytes directly followed by `len` bytes of
    /// a frame; both are limited to the capacity.
    pub fn with_vnet(&mut self, vnet_len: usize, len: usize) -> &mut [u8] {
        let start = Self::VNET_ROOM.saturating_sub(vnet_len);
        let end = Self::VNET_ROOM + len.min(self.capacity());
        self.bytes.get_mut(start..end).unwrap_or_default()
    }

    /// Returns the first `len` bytes of the frame, or the whole buffer if it is shorter.
    pub fn frame(&self, len: usize) -> &[u8] {
        let frame = self.bytes.get(Self::VNET_ROOM..).unwrap_or_default();
        frame.get(..len).unwrap_or(frame)
    }

    /// Writes `bytes` at offset `at` of the frame; bytes past the capacity are not written.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let room = self
            .bytes
            .get_mut(Self::VNET_ROOM + at..)
            .unwrap_or_default();
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
    }
}
