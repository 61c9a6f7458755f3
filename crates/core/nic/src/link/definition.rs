//! The trait [`Link`], which each link implements, and what a link says about itself.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ::wire::{EthernetHeader, Instant};
use netmem::MemoryProvider;

use super::conditioner::ImpairedStats;
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame};
use crate::packet::RxPacket;

/// Bytes of the longest IP packet with its length in the header (RFC 791 3.1; without jumbograms RFC 8200 3).
pub const MAX_PACKET_LEN: usize = 65_535;

/// Longest payload of a super-packet with its length in the IP header, in bytes, for headers of any length (linux
/// `GSO_LEGACY_MAX_SIZE` less `MAX_TCP_HEADER`).
pub const LEGACY_SUPER_PAYLOAD: u32 = 65_160;

/// Bytes of the longest frame with its length in the IP header: a tagged Ethernet header and a packet of [`MAX_PACKET_LEN`]
/// bytes (a super-packet, with segmentation offload).
pub const MAX_FRAME_LEN: usize = MAX_PACKET_LEN + EthernetHeader::TAGGED_LEN;

/// Payload lengths of super-packets, in bytes, that the kernel refuses although it accepts longer ones: it stores the
/// payload in pieces of 32 KiB and the rest in pieces of 16, 8 and 4 KiB. For these lengths it needs 15 of the first and
/// one of each of the others: 18, where a packet may have 17 (linux net/core/skbuff.c `alloc_skb_with_frags`,
/// `MAX_SKB_FRAGS`).
const UNFIT_BIG_PAYLOAD: RangeInclusive<u32> =
    (15 << 15) + (24 << 10) + 1..=(15 << 15) + (28 << 10);

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
    /// Frames may come with their payload in the sender's memory ([`LinkReceived::Borrowed`]). No memory is posted for them: the
    /// others come as [`LinkReceived::Frame`].
    pub borrows: bool,
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
        is_big.then_some(UNFIT_BIG_PAYLOAD)
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

    /// Returns the link that this one stands on, if it is around another: that one answers whatever this one does not. Each answer is
    /// one more dynamic call; [`UnixLink`](super::UnixLink), on which a thread spins, saves those that its wire has no answer to.
    fn inner(&self) -> Option<&dyn Link> {
        None
    }

    /// As [`inner`](Self::inner), to change it.
    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        None
    }

    /// Returns a descriptor that becomes readable when a frame may have arrived; `None` if the link has none.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner()?.poll_fd()
    }

    /// Returns a second descriptor, which becomes readable when the link has room again. It is the same as long as the link
    /// exists. `None`: the descriptor of [`poll_fd`](Self::poll_fd) reports that, too, or none does.
    fn room_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner()?.room_fd()
    }

    /// Returns true if the last [`send`](Self::send) was [`LinkSent::Busy`] and a descriptor becomes readable when the link has
    /// room again ([`room_fd`](Self::room_fd)). If false, a caller with frames for a busy link has to retry by time.
    fn tells_of_room(&self) -> bool {
        self.inner().is_some_and(|link| link.tells_of_room())
    }

    /// Prepares for a sleep on the descriptors. Returns false if something has arrived that they do not show: poll instead of
    /// sleeping. [`end_sleep`](Self::end_sleep) has to follow in both cases.
    ///
    /// A link whose other end is in another process need not make a system call for each frame to a thread that looks for frames
    /// by itself. Before the first of these calls it does.
    fn prepare_sleep(&mut self) -> bool {
        self.inner_mut().is_none_or(|link| link.prepare_sleep())
    }

    /// The thread has slept, or will not, and looks for frames by itself.
    fn end_sleep(&mut self) {
        if let Some(link) = self.inner_mut() {
            link.end_sleep();
        }
    }

    /// Returns when the link has work without an event on its descriptor: a delayed frame is due.
    fn next_due(&self) -> Option<Instant> {
        self.inner()?.next_due()
    }

    /// Returns the state of the link. Some links notice a change only at the next receive or send.
    fn state(&self) -> LinkState {
        self.inner().map_or(LinkState::Up, |link| link.state())
    }

    /// Returns how many frames the link lost before they could be received, since the last call. A link that has to ask the
    /// kernel does so from time to time only; see [`next_due`](Self::next_due).
    fn take_lost(&mut self, now: Instant) -> u64 {
        self.inner_mut().map_or(0, |link| link.take_lost(now))
    }

    /// Returns the counters of the impairment, if this link is impaired.
    fn impairment_stats(&self) -> Option<ImpairedStats> {
        self.inner()?.impairment_stats()
    }

    /// Returns memory for payload to be sent that the other end of the link reads where it is, if the program has asked to share it:
    /// frames from it need no copy. It is another one after the other end has changed, so ask before each use.
    fn send_memory(&self) -> Option<&Arc<MemoryProvider>> {
        self.inner()?.send_memory()
    }

    /// Returns whether the other end is a process of this machine, which reads what is sent soon after. It never changes.
    fn is_near(&self) -> bool {
        self.inner().is_some_and(|link| link.is_near())
    }

    /// Called with each packet that the NIC accepted from this link, before the next receive. For links that observe.
    fn accepted(&mut self, packet: &RxPacket) {
        if let Some(link) = self.inner_mut() {
            link.accepted(packet);
        }
    }
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
