//! Links: what a NIC receives frames from and sends frames to.

mod captured;
mod conditioner;
mod cut;
#[cfg(test)]
mod descriptor_tests;
mod hello;
mod impaired;
mod impairment;
mod macvtap;
mod packet_socket;
mod shared;
mod socket_events;
mod tap;
mod unix;
mod unix_listen;
mod unix_port;
mod vnet_fd;
mod wire;

use std::io;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ::wire::{
    ChecksumState, EtherType, EthernetHeader, Gso, GsoKind, Instant, MAX_HEADER_LEN, Offload,
    TxChecksum,
};
use netmem::{BufSpan, DmaPort, FragList, MemoryProvider, Payload};

use crate::drops::DropReason;
use crate::packet::RxPacket;

pub use captured::{Captured, Direction, FramePayload, FrameSink};
pub use conditioner::{Conditioner, ConditionerStats};
pub use cut::{CutError, FrameCutter};
pub use hello::{HELLO_LIMIT, HelloError, NeedsOffloads, WireHello};
pub use impaired::{Impaired, ImpairedStats, complete_checksum};
pub use impairment::{
    DEFAULT_LIMIT, DEFAULT_REORDER_GAP, Impairment, ImpairmentError, Probability, REORDER_HOLD,
};
pub use macvtap::{InterfaceReports, MacvtapLink, StatusQuery};
pub use packet_socket::{InterfaceStatus, PacketLink, PacketLinkOptions};
pub use tap::{BIG_PACKET_LEN, TapLink, TapOptions};
pub use unix::UnixLink;
pub use unix_listen::UnixListenLink;
pub use unix_port::{UnixPort, UnixPortEvent, Written};
pub use vnet_fd::VnetFd;
pub use wire::{CablePlug, WireLink, WireOptions};

/// Bytes of the longest IP packet with its length in the header (RFC 791 3.1; without jumbograms RFC 8200 3).
pub const MAX_PACKET_LEN: usize = 65_535;

/// Longest payload of a super-packet with its length in the IP header, in bytes, for headers of any length (linux
/// `GSO_LEGACY_MAX_SIZE` less `MAX_TCP_HEADER`).
pub const LEGACY_SUPER_PAYLOAD: u32 = 65_160;

/// Bytes of the longest frame with its length in the IP header: a tagged Ethernet header and a packet of [`MAX_PACKET_LEN`]
/// bytes (a super-packet, with segmentation offload).
pub const MAX_FRAME_LEN: usize = MAX_PACKET_LEN + EthernetHeader::TAGGED_LEN;

/// Capabilities of a link. They never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCaps {
    /// Kind of link, for messages.
    pub name: &'static str,
    /// Bytes of the largest IP packet that is not a super-packet.
    pub mtu: u16,
    /// The link sends and receives super-packets of up to [`MAX_PACKET_LEN`] bytes.
    pub tso: bool,
    /// Bytes of the longest super-packet that the link sends, at least [`MAX_PACKET_LEN`]. A longer packet than that has 0
    /// in its length field (Linux: BIG TCP); over IPv6 it also has a jumbo payload option (RFC 2675).
    pub max_super_packet: usize,
    /// Bytes of the longest packet that the link receives, at least [`MAX_PACKET_LEN`]. A longer packet than that is a
    /// super-packet of TCP, with 0 in its length field as above.
    pub max_rx_packet: usize,
    /// The link computes the checksums of frames that are sent.
    pub tx_checksum: bool,
    /// Frames may come with their payload in the sender's memory ([`LinkReceived::Lent`]). No memory is posted for them: the
    /// others come as [`LinkReceived::Frame`].
    pub lends: bool,
}

impl LinkCaps {
    /// Returns the bytes of the longest frame that the link receives: the longest packet after a tagged Ethernet header.
    pub fn max_rx_frame(&self) -> usize {
        self.max_rx_packet + EthernetHeader::TAGGED_LEN
    }

    /// Returns the payload lengths, in bytes, of super-packets that the link refuses although it sends longer ones;
    /// `None`: it sends all lengths up to [`LinkCaps::max_super_packet`] minus the headers.
    pub fn unfit_payload(&self) -> Option<RangeInclusive<u32>> {
        let is_big = self.max_super_packet > MAX_PACKET_LEN;
        is_big.then_some(tap::UNFIT_BIG_PAYLOAD)
    }
}

/// A link: all frames of a NIC pass it. No method blocks.
///
/// The content of received frames is untrusted; only their length is known.
pub trait Link: Send {
    /// Returns the capabilities of this link.
    fn caps(&self) -> LinkCaps;

    /// Receives one frame: into the header buffer and spans of `posted` if the link can scatter, otherwise completely
    /// into `posted.frame`.
    ///
    /// # Errors
    /// The link is down or failed; the frame, if there was one, is lost.
    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived>;

    /// Sends one frame completely or not at all.
    ///
    /// # Errors
    /// The link is down or refuses this frame; the frame is lost.
    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent>;

    /// Returns a descriptor that becomes readable when a frame may have arrived; `None` if the link has none.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns a second descriptor, which becomes readable when the link has room again. It is the same as long as the link
    /// exists. `None`: the descriptor of [`poll_fd`](Self::poll_fd) reports that, too, or none does.
    fn room_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns true if the last [`send`](Self::send) was [`LinkSent::Busy`] and a descriptor becomes readable when the link has
    /// room again ([`room_fd`](Self::room_fd)). If false, a caller with frames for a busy link has to retry by time.
    fn tells_of_room(&self) -> bool {
        false
    }

    /// Prepares for a sleep on the descriptors. Returns false if something has arrived that they do not show: poll instead of
    /// sleeping. [`end_sleep`](Self::end_sleep) has to follow in both cases.
    ///
    /// A link whose other end is in another process need not make a system call for each frame to a thread that looks for frames
    /// by itself. Before the first of these calls it does.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// The thread has slept, or will not, and looks for frames by itself.
    fn end_sleep(&mut self) {}

    /// Returns when the link has work without an event on its descriptor: a delayed frame is due.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// Returns the state of the link. Some links notice a change only at the next receive or send.
    fn state(&self) -> LinkState {
        LinkState::Up
    }

    /// Returns how many frames the link lost before they could be received, since the last call. A link that has to ask the
    /// kernel does so from time to time only; see [`next_due`](Self::next_due).
    fn take_lost(&mut self, _now: Instant) -> u64 {
        0
    }

    /// Returns the counters of the impairment, if this link is impaired.
    fn impairment_stats(&self) -> Option<ImpairedStats> {
        None
    }

    /// Returns memory for payload to be sent that the other end of the link reads where it is, if the program has asked to share it:
    /// frames from it need no copy. It is another one after the other end has changed, so ask before each use.
    fn send_memory(&self) -> Option<&Arc<MemoryProvider>> {
        None
    }

    /// Returns whether the other end is a process of this machine, which reads what is sent soon after. It never changes.
    fn is_near(&self) -> bool {
        false
    }

    /// Called with each packet that the NIC accepted from this link, before the next receive. For links that observe.
    fn accepted(&mut self, _packet: &RxPacket) {}
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// Frames pass.
    Up,
    /// No frames pass now. The link may come up again.
    Down,
    /// The link has ended: the interface below it was removed, or the peer of a wire that this end cannot join again has left. No frame will ever
    /// pass.
    Gone,
}

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
    pub lent: &'a mut FragList,
    /// The capability to fill the spans.
    pub port: &'a DmaPort,
}

/// Result of [`Link::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkReceived {
    /// No frame has arrived.
    None,
    /// The frame is in head, then spans, then spill.
    Placed {
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
    /// The headers are in [`Posted::head`], the payload is in [`Posted::lent`]; the NIC copies it. Only by a link that
    /// [`lends`](LinkCaps::lends).
    Lent {
        /// Bytes of the headers.
        head_len: usize,
        /// Bytes of the frame.
        frame_len: usize,
        /// The link's information about it.
        meta: VnetMeta,
        /// How long the payload may stay where it is.
        until: LentUntil,
    },
    /// A frame has arrived that the link cannot pass on; the NIC counts it under this reason.
    Dropped(DropReason),
}

/// How long the payload of a received frame may stay in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LentUntil {
    /// Until the NIC has copied it, which it does before TCP sees the packet.
    Copied,
    /// Until the program has read it.
    Read,
}

/// Result of [`Link::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LinkSent {
    /// The link has the frame; the caller may reuse its memory.
    Done,
    /// The link is busy and has not sent the frame; try again later.
    Busy,
    /// The link has not sent the frame: it has no memory for one of this length. Never returned for frames of at most
    /// [`MAX_FRAME_LEN`] bytes.
    TooLong,
}

/// One frame to send.
#[derive(Debug)]
pub struct TxFrame<'a> {
    /// The headers, and any other bytes in host memory before the payload.
    pub head: &'a [u8],
    /// The bytes after `head`; possibly unreadable.
    pub payload: &'a FragList,
    /// A checksum that the link has to complete; only with [`LinkCaps::tx_checksum`].
    pub checksum: Option<TxChecksum>,
    /// Payload bytes of each segment of a super-packet, 0 for other frames; only with [`LinkCaps::tso`].
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
            let len = (span.len as usize).min(frame_len.saturating_sub(at));
            out.resize(at + len, 0);
            self.port.copy_out(*span, 0, &mut out[at..]);
        }
        let rest = frame_len.saturating_sub(out.len()).min(self.spill.len());
        out.extend_from_slice(&self.spill[..rest]);
    }

    /// Copies a frame from head and the sender's memory into `out`.
    pub fn gather_lent(&self, head_len: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.head.frame(head_len));
        copy_frags(self.lent, self.port, out);
    }
}

/// Appends the bytes of a payload to `out`.
fn copy_frags(payload: &FragList, port: &DmaPort, out: &mut Vec<u8>) {
    for frag in payload {
        let at = out.len();
        out.resize(at + frag.len(), 0);
        port.copy_out(frag, 0, &mut out[at..]);
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
