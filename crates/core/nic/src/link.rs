//! The cable: where frames come from and go to.

mod captured;
mod conditioner;
mod hello;
mod impaired;
mod impairment;
mod tap;
mod unix;
mod unix_port;
mod vnet_fd;
mod wire;

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use std::num::NonZeroU16;

use ::wire::{
    ChecksumState, EtherType, EthernetHeader, Gso, GsoKind, Instant, MAX_HEADER_LEN, Offload,
    TxChecksum,
};
use netmem::{BufSpan, DmaPort, FragList, Payload};

pub use captured::{Captured, Direction, FrameSink};
pub use conditioner::{Conditioner, ConditionerStats};
pub use hello::{HELLO_LIMIT, NoHello, WireHello};
pub use impaired::{Impaired, ImpairedStats, OffloadsOn, complete_checksum};
pub use impairment::{
    DEFAULT_LIMIT, DEFAULT_REORDER_GAP, Impairment, ImpairmentError, Probability, REORDER_HOLD,
};
pub use tap::{BIG_PACKET_LEN, TapLink, TapOptions};
pub use unix::UnixLink;
pub use unix_port::{UnixPort, UnixPortEvent, Written};
pub use vnet_fd::{VnetFd, VnetHeaderLen};
pub use wire::{CablePlug, WireLink, WireOptions};

/// Bytes of the longest IP packet whose header says how long it is (RFC 791 3.1; without jumbograms RFC 8200 3).
pub const MAX_PACKET_LEN: usize = 65_535;

/// Longest frame any link brings: such a packet (a super-packet with segmentation offload) behind a tagged Ethernet
/// header.
pub const MAX_FRAME_LEN: usize = MAX_PACKET_LEN + EthernetHeader::TAGGED_LEN;

/// What a link can do; it does not change while the link lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCaps {
    /// Kind of link, for people.
    pub name: &'static str,
    /// Bytes of the largest IP packet that is not a super-packet.
    pub mtu: u16,
    /// Frames carry a virtio-net header (checksum and segmentation facts) beside them.
    pub vnet: bool,
    /// Takes, and gives, super-packets of up to [`MAX_PACKET_LEN`] bytes.
    pub tso: bool,
    /// Bytes of the longest super-packet that it takes, [`MAX_PACKET_LEN`] at least. One that is longer has 0 in its length
    /// field (Linux: BIG TCP), and if it is of IPv6 a jumbo payload option (RFC 2675).
    pub max_super_packet: usize,
    /// Finishes checksums of frames it takes.
    pub tx_checksum: bool,
    /// Queues of the link itself (fds of a TAP); not the queues of the NIC.
    pub queues: u16,
}

impl LinkCaps {
    /// Returns the payload lengths, in bytes, that the link refuses in one super-packet although it takes longer ones;
    /// `None`: it takes all lengths up to [`LinkCaps::max_super_packet`] less the headers.
    pub fn unfit_payload(&self) -> Option<RangeInclusive<u32>> {
        let is_big = self.max_super_packet > MAX_PACKET_LEN;
        is_big.then_some(tap::UNFIT_BIG_PAYLOAD)
    }
}

/// A link: the only way bytes enter and leave the NIC. Never blocks.
///
/// Frames from a link are hostile: nothing is known about them but their length.
pub trait Link: Send {
    /// Returns what this link can do.
    fn caps(&self) -> LinkCaps;

    /// Receives one frame: into `posted` if the link can scatter, else whole into `posted.frame`.
    ///
    /// # Errors
    /// The link is down or failed; the frame, if there was one, is lost.
    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived>;

    /// Sends one frame, all or nothing.
    ///
    /// # Errors
    /// The link is down or refuses this frame; it is lost.
    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent>;

    /// Returns an fd that polls readable when a frame may be there, if there is such an fd.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// True if the link was [`LinkSent::Busy`] last and [`poll_fd`](Self::poll_fd) polls readable also when it takes
    /// frames again. Who has frames for any other busy link tries again and again.
    fn tells_of_room(&self) -> bool {
        false
    }

    /// Returns when this link has something to do by itself: a delayed frame is due.
    fn next_due(&self) -> Option<Instant>;

    /// False if the cable is out. The link may come back, and may find out only when it is used again.
    fn is_up(&self) -> bool;

    /// Returns the counters of the impairment of this link, if it is impaired.
    fn impairment_stats(&self) -> Option<ImpairedStats> {
        None
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn caps(&self) -> LinkCaps {
        (**self).caps()
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        (**self).receive(posted, now)
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        (**self).send(frame, now)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).poll_fd()
    }

    fn tells_of_room(&self) -> bool {
        (**self).tells_of_room()
    }

    fn next_due(&self) -> Option<Instant> {
        (**self).next_due()
    }

    fn is_up(&self) -> bool {
        (**self).is_up()
    }

    fn impairment_stats(&self) -> Option<ImpairedStats> {
        (**self).impairment_stats()
    }
}

/// Memory for one frame: what a scattering link fills in order, one part after the other.
#[derive(Debug)]
pub struct Posted<'a> {
    /// For a virtio-net header and the first bytes of the frame.
    pub head: &'a mut HeaderBuf,
    /// How many bytes of the frame go to `head`: the predicted header, and linear bytes if asked for.
    pub predicted_header: usize,
    /// Memory of the predicted queue; may be shorter than the frame, or empty.
    pub spans: &'a [BufSpan<'a>],
    /// Host memory for what the spans do not hold; long enough for any frame.
    pub spill: &'a mut [u8],
    /// For a link that has whole frames in host memory.
    pub frame: &'a mut Vec<u8>,
    /// The capability to fill the spans.
    pub port: &'a DmaPort,
}

/// What [`Link::receive`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkReceived {
    /// Nothing is there.
    None,
    /// The frame lies in head, then spans, then spill.
    Placed {
        /// Bytes of the frame.
        frame_len: usize,
        /// What the link knows about it.
        meta: VnetMeta,
    },
    /// The frame lies in [`Posted::frame`]; the NIC copies.
    Frame {
        /// What the link knows about it.
        meta: VnetMeta,
    },
}

/// What [`Link::send`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LinkSent {
    /// The link has the frame; its memory is free.
    Done,
    /// The link took nothing; try again later.
    Busy,
    /// The link took nothing: it has no memory for a frame that long. One of [`MAX_FRAME_LEN`] is never refused so.
    TooLong,
}

/// One frame to send.
#[derive(Debug)]
pub struct TxFrame<'a> {
    /// Headers, and whatever else lies in host memory before the payload.
    pub head: &'a [u8],
    /// What follows `head`; perhaps unreadable.
    pub payload: &'a FragList,
    /// A checksum the link shall finish; only if [`LinkCaps::tx_checksum`].
    pub checksum: Option<TxChecksum>,
    /// Payload bytes of each segment the frame shall be cut into, 0 for none; only if [`LinkCaps::tso`].
    pub gso_size: u16,
    /// The capability to read the payload.
    pub port: &'a DmaPort,
}

impl Posted<'_> {
    /// Copies a frame that was placed here into `out`, wherever its bytes lie.
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
}

impl TxFrame<'_> {
    /// Returns the bytes of the frame.
    pub fn frame_len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Copies the frame into `out`, wherever its bytes lie.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.head);
        self.copy_payload_to(out);
    }

    /// Returns what is left to be done to the frame, as its virtio-net header says it; of which family a super-packet is,
    /// its EtherType says.
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
        for frag in self.payload {
            let at = out.len();
            out.resize(at + frag.len(), 0);
            self.port.copy_out(frag, 0, &mut out[at..]);
        }
    }
}

/// What a link says about a frame: the virtio-net header in our words (VIRTIO 1.2 5.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetMeta {
    /// Payload bytes per segment of a super-packet of TCP; 0: not one.
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
            // UFO and USO are not asked for (TUNSETOFFLOAD).
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

/// Host memory where a frame's first bytes land, with room in front for a virtio-net header.
#[derive(Debug)]
pub struct HeaderBuf {
    bytes: Box<[u8]>,
}

impl HeaderBuf {
    /// Bytes in front of the frame: the longest virtio-net header (with `num_buffers`).
    pub const VNET_ROOM: usize = 12;

    /// Returns a buffer for all headers [`wire::RxHeaders::parse`](::wire::RxHeaders::parse) accepts and
    /// `linear_bytes` of payload behind them.
    pub fn new(linear_bytes: usize) -> Self {
        let len = Self::VNET_ROOM + MAX_HEADER_LEN + linear_bytes;
        Self {
            bytes: vec![0; len].into_boxed_slice(),
        }
    }

    /// Returns how many bytes of a frame fit.
    pub fn capacity(&self) -> usize {
        self.bytes.len() - Self::VNET_ROOM
    }

    /// Returns room for a virtio-net header of `vnet_len` bytes directly followed by `len` bytes of
    /// frame; both are cut to what fits.
    pub fn with_vnet(&mut self, vnet_len: usize, len: usize) -> &mut [u8] {
        let start = Self::VNET_ROOM.saturating_sub(vnet_len);
        let end = Self::VNET_ROOM + len.min(self.capacity());
        self.bytes.get_mut(start..end).unwrap_or_default()
    }

    /// Returns the first `len` bytes of the frame, fewer if fewer fit.
    pub fn frame(&self, len: usize) -> &[u8] {
        let frame = self.bytes.get(Self::VNET_ROOM..).unwrap_or_default();
        frame.get(..len).unwrap_or(frame)
    }

    /// Writes `bytes` at `at` of the frame; what does not fit is not written.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let room = self
            .bytes
            .get_mut(Self::VNET_ROOM + at..)
            .unwrap_or_default();
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
    }
}
