//! Frames that cross from the shard that received them to the shard of their flow.
//!
//! Each shard has a NIC half on a queue pair of the link. The link decides where a frame arrives: a TAP by the queue that last
//! sent a packet of the flow, and by a secret hash before that; a packet link by the same hash as this module. The connection
//! is where [`shard_of`] says. A frame that arrives elsewhere is copied to host memory and crosses through the mailbox of the
//! right shard, which receives it as if its link had passed on whole frames: checks, steering and placement happen there, in
//! memory of that shard only.
//!
//! ARP and neighbour discovery have no flow: the shard that received such a frame answers it, the others get a copy
//! ([`Origin::Copy`](crate::Origin)) and learn the same.

mod mailbox;

use std::io;
use std::os::fd::BorrowedFd;

use steer::{ShardId, shard_of};
use wire::{FourTuple, Icmpv4, Icmpv6, Network, Quoted, RxHeaders, Transport, protocol};

use crate::drops::{DropReason, Drops};
use crate::link::VnetMeta;
use crate::packet::Origin;
use mailbox::{Mailbox, Sender};

/// Frames that may wait for one shard; at most 16 MiB of super-packets. Beyond that they are dropped
/// ([`DropReason::RxCrossingFull`]).
const MAILBOX_FRAMES: usize = 256;

/// A frame on its way to another shard.
#[derive(Debug)]
pub(crate) struct CrossingFrame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) meta: VnetMeta,
    /// [`Origin::Link`] for a frame of a flow of the receiving shard, [`Origin::Copy`] for a copy.
    pub(crate) origin: Origin,
}

/// Whether a shard can be woken while it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossingWakeup {
    /// [`Crossing::poll_fd`] becomes readable when a frame has crossed.
    Eventfd,
    /// There is no descriptor: the caller polls all shards in turn, as simulations do.
    None,
}

/// Counters of frames that crossed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossingStats {
    /// Frames that this shard passed on to the shard of their flow.
    pub sent: u64,
    /// Frames that this shard got from others.
    pub received: u64,
    /// Copies that this shard got, to learn from.
    pub copies: u64,
}

/// One shard's part of the exchange of frames.
#[derive(Debug)]
pub struct Crossing {
    shard: ShardId,
    mailbox: Mailbox<CrossingFrame>,
    /// By shard; `None` for this one.
    others: Vec<Option<Sender<CrossingFrame>>>,
    /// The mailbox had the last turn.
    had_turn: bool,
    stats: CrossingStats,
}

/// The shard that handles a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// This one.
    Here,
    /// This one, and all others learn from it.
    HereAndCopies,
    /// Another one.
    To(ShardId),
}

impl Crossing {
    /// Returns the parts of the shards of one NIC, in the order of their numbers.
    ///
    /// # Errors
    /// An eventfd cannot be created.
    pub fn group(shards: u16, wakeup: CrossingWakeup) -> io::Result<Vec<Self>> {
        let mailboxes = (0..shards)
            .map(|_| Mailbox::new(MAILBOX_FRAMES, wakeup))
            .collect::<io::Result<Vec<_>>>()?;
        let senders: Vec<_> = mailboxes.iter().map(|(_, sender)| sender.clone()).collect();
        let part = |(number, mailbox): (u16, Mailbox<_>)| {
            let mut others: Vec<_> = senders.iter().cloned().map(Some).collect();
            others[usize::from(number)] = None;
            Self {
                shard: ShardId(number),
                mailbox,
                others,
                had_turn: false,
                stats: CrossingStats::default(),
            }
        };
        let mailboxes = mailboxes.into_iter().map(|(mailbox, _)| mailbox);
        Ok((0..shards).zip(mailboxes).map(part).collect())
    }

    /// Returns the number of this shard.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Returns whether this shard has the flow.
    pub fn owns(&self, tuple: &FourTuple) -> bool {
        self.owner(tuple) == self.shard
    }

    fn owner(&self, tuple: &FourTuple) -> ShardId {
        // There are as many as `group` was asked for, which is a u16.
        shard_of(tuple, self.others.len() as u16)
    }

    /// Returns a descriptor that becomes readable when a frame has crossed to this shard.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.mailbox.poll_fd()
    }

    /// Returns the counters.
    pub fn stats(&self) -> CrossingStats {
        self.stats
    }

    /// Returns the shard that handles a frame with these headers; `message` returns the bytes after them.
    pub(crate) fn course(&self, headers: &RxHeaders, message: impl FnOnce() -> Vec<u8>) -> Course {
        let flow = match (headers.network, headers.transport) {
            (Network::Arp, _) => return Course::HereAndCopies,
            (_, Transport::Tcp(_)) => headers.four_tuple(),
            (Network::Ipv4(_), Transport::Other(protocol::ICMP)) => {
                quoted_v4(&message()).as_ref().map(sent_tuple)
            }
            (Network::Ipv6(ip), Transport::Other(protocol::ICMPV6)) => {
                let message = message();
                match Icmpv6::parse(&ip, &message) {
                    Ok(Icmpv6::NeighborSolicitation(_) | Icmpv6::NeighborAdvertisement(_)) => {
                        return Course::HereAndCopies;
                    }
                    Ok(parsed) => quoted_v6(&parsed).as_ref().map(sent_tuple),
                    Err(_) => None,
                }
            }
            _ => None,
        };
        match flow.map(|tuple| self.owner(&tuple)) {
            Some(owner) if owner != self.shard => Course::To(owner),
            _ => Course::Here,
        }
    }

    /// Passes a frame to the shard of its flow.
    pub(crate) fn send(&mut self, to: ShardId, frame: CrossingFrame, drops: &mut Drops) {
        let sender = self.others.get(to.index()).and_then(Option::as_ref);
        match sender.map(|sender| sender.send(frame)) {
            Some(Ok(())) => self.stats.sent += 1,
            // The frame is lost, as in a full queue of hardware. TCP sends it again.
            Some(Err(_)) | None => drops.count(DropReason::RxCrossingFull),
        }
    }

    /// Passes a copy of a frame to all other shards.
    pub(crate) fn send_copies(&mut self, bytes: &[u8], meta: VnetMeta, drops: &mut Drops) {
        for sender in self.others.iter().flatten() {
            let copy = CrossingFrame {
                bytes: bytes.to_vec(),
                meta,
                origin: Origin::Copy,
            };
            if sender.send(copy).is_err() {
                drops.count(DropReason::RxCrossingFull);
            }
        }
    }

    /// Returns the next frame that has crossed to this shard.
    pub(crate) fn receive(&mut self) -> Option<CrossingFrame> {
        let frame = self.mailbox.receive()?;
        match frame.origin {
            Origin::Copy => self.stats.copies += 1,
            Origin::Link | Origin::Loop => self.stats.received += 1,
        }
        Some(frame)
    }

    /// Returns whether the mailbox is read before the link this time: each second time.
    pub(crate) fn take_turn(&mut self) -> bool {
        self.had_turn = !self.had_turn;
        self.had_turn
    }

    /// Returns whether frames may wait.
    pub(crate) fn may_have_frames(&self) -> bool {
        self.mailbox.may_have_items()
    }
}

/// Returns the four-tuple of packets in the direction of the error, to the sender of the quoted packet.
fn sent_tuple(quoted: &Quoted) -> FourTuple {
    FourTuple {
        src_ip: quoted.dst,
        dst_ip: quoted.src,
        src_port: quoted.dst_port,
        dst_port: quoted.src_port,
    }
}

/// Returns the TCP packet that an ICMP error quotes.
fn quoted_v4(message: &[u8]) -> Option<Quoted> {
    let quoted = match Icmpv4::parse(message).ok()? {
        Icmpv4::DestinationUnreachable { quoted, .. } | Icmpv4::TimeExceeded { quoted, .. } => {
            quoted?
        }
        Icmpv4::EchoRequest(_) | Icmpv4::EchoReply(_) | Icmpv4::Other { .. } => return None,
    };
    (quoted.protocol == protocol::TCP).then_some(quoted)
}

/// As [`quoted_v4`], of ICMPv6.
fn quoted_v6(message: &Icmpv6<'_>) -> Option<Quoted> {
    let quoted = match *message {
        Icmpv6::PacketTooBig { quoted, .. }
        | Icmpv6::DestinationUnreachable { quoted, .. }
        | Icmpv6::TimeExceeded { quoted, .. } => quoted?,
        _ => return None,
    };
    (quoted.protocol == protocol::TCP).then_some(quoted)
}
