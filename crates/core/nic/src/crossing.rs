//! Frames that cross from the shard that received them to the shard of their flow.
//!
//! Each shard has a NIC half on a queue pair of the link. The link decides where a frame arrives: a TAP by the queue that last
//! sent a packet of the flow, and by a secret hash before that; a packet link by the same hash as this module. The connection
//! is where [`shard_of`] says. A frame that arrives elsewhere is copied to host memory and crosses through the mailbox of the
//! right shard, which receives it as if its link had passed on whole frames: checks, steering and placement happen there, in
//! memory of that shard only.
//!
//! ARP and neighbour discovery have no flow: the shard that received such a frame answers it, the others get a copy
//! ([`Origin::Copy`](crate::Origin)) and learn the same, if it tells them anything ([`neighbor_updates`]). Copies have a mailbox of their own:
//! however many there are, none is in the way of a frame.

mod mailbox;
mod neighbor_updates;

use std::io;
use std::os::fd::BorrowedFd;

use steer::{ShardId, shard_of};
use wire::{ArpPacket, FourTuple, Icmp, Instant, Network, RxHeaders, Transport, protocol};

use crate::drops::{DropReason, Drops};
use crate::link::VnetMeta;
use crate::packet::Origin;
pub use mailbox::CrossingWakeup;
use mailbox::{Mailbox, Sender};
use neighbor_updates::{NeighborUpdate, NeighborUpdates, Verdict};

/// Frames that may wait for one shard; at most 16 MiB of super-packets. Beyond that they are dropped
/// ([`DropReason::RxCrossingFull`]).
const MAILBOX_FRAMES: usize = 256;

/// Copies that may wait for one shard.
const MAILBOX_COPIES: usize = 64;

/// A frame on its way to another shard.
#[derive(Debug)]
pub(crate) struct CrossingFrame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) meta: VnetMeta,
    /// [`Origin::Link`] for a frame of a flow of the receiving shard, [`Origin::Copy`] for a copy.
    pub(crate) origin: Origin,
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
    /// Frames of ARP and neighbour discovery of which this shard told no other one, because they knew it.
    pub known: u64,
    /// Frames of ARP and neighbour discovery of which this shard told no other one, or not all, because there were too many.
    pub limited: u64,
}

/// One shard's part of the exchange of frames.
#[derive(Debug)]
pub struct Crossing {
    shard: ShardId,
    mailbox: Mailbox<CrossingFrame>,
    copies: Mailbox<CrossingFrame>,
    /// By shard; `None` for this one.
    others: Vec<Option<OtherShard>>,
    updates: NeighborUpdates,
    /// The mailbox had the last turn.
    had_turn: bool,
    stats: CrossingStats,
}

/// The ways to another shard.
#[derive(Clone, Debug)]
struct OtherShard {
    frames: Sender<CrossingFrame>,
    copies: Sender<CrossingFrame>,
}

/// The shard that handles a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// This one.
    Here,
    /// This one, and all others learn from it.
    HereAndCopies(NeighborUpdate),
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
        let copies = mailboxes
            .iter()
            .map(|(mailbox, _)| mailbox.beside(MAILBOX_COPIES))
            .collect::<io::Result<Vec<_>>>()?;
        let ways = mailboxes.iter().zip(&copies);
        let ways: Vec<_> = ways
            .map(|((_, frames), (_, copies))| OtherShard {
                frames: frames.clone(),
                copies: copies.clone(),
            })
            .collect();
        let mailboxes = mailboxes.into_iter().zip(copies);
        let parts = (0..shards)
            .zip(mailboxes)
            .zip(NeighborUpdates::group(shards));
        let part = |((number, ((mailbox, _), (copies, _))), updates)| {
            let mut others: Vec<_> = ways.iter().cloned().map(Some).collect();
            others[usize::from(number)] = None;
            Self {
                shard: ShardId(number),
                mailbox,
                copies,
                others,
                updates,
                had_turn: false,
                stats: CrossingStats::default(),
            }
        };
        Ok(parts.map(part).collect())
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
            (Network::Arp, _) => {
                return match ArpPacket::parse(&message()) {
                    Ok(arp) => Course::HereAndCopies(NeighborUpdate::of_arp(&arp)),
                    Err(_) => Course::Here,
                };
            }
            (_, Transport::Tcp(_)) => headers.four_tuple(),
            (Network::Ipv4(_), Transport::Other(protocol::ICMP)) => {
                Icmp::parse_v4(&message()).ok().and_then(answers_quoted)
            }
            (Network::Ipv6(ip), Transport::Other(protocol::ICMPV6)) => {
                let message = message();
                let parsed = Icmp::parse_v6(&ip, &message).ok();
                let source = headers.ethernet.src;
                let update = parsed.and_then(|it| NeighborUpdate::of_icmpv6(&ip, source, &it));
                if let Some(update) = update {
                    return Course::HereAndCopies(update);
                }
                parsed.and_then(answers_quoted)
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
        match sender.map(|sender| sender.frames.send(frame)) {
            Some(Ok(())) => self.stats.sent += 1,
            // The frame is lost, as in a full queue of hardware. TCP sends it again.
            Some(Err(_)) | None => drops.count(DropReason::RxCrossingFull),
        }
    }

    /// Returns whether the other shards are to be told of an update.
    pub(crate) fn are_to_be_told(&mut self, update: NeighborUpdate, now: Instant) -> bool {
        match self.updates.judge(update, now) {
            Verdict::Tell => return true,
            Verdict::Known => self.stats.known += 1,
            Verdict::Limited => self.stats.limited += 1,
        }
        false
    }

    /// Passes a copy of a frame to all other shards.
    pub(crate) fn send_copies(&mut self, update: NeighborUpdate, bytes: &[u8], meta: VnetMeta) {
        let copy = || CrossingFrame {
            bytes: bytes.to_vec(),
            meta,
            origin: Origin::Copy,
        };
        let others = self.others.iter().flatten();
        let missed = others.filter(|other| other.copies.send(copy()).is_err());
        if missed.count() > 0 {
            self.updates.take_back(update);
            self.stats.limited += 1;
        }
    }

    /// Notes a frame that this shard sends.
    pub(crate) fn note_sent(&self, head: &[u8]) {
        self.updates.note_sent(head);
    }

    /// Returns the next frame that has crossed to this shard.
    pub(crate) fn receive(&mut self) -> Option<CrossingFrame> {
        let copy = self.copies.receive();
        let frame = copy.or_else(|| self.mailbox.receive())?;
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
        self.mailbox.may_have_items() || self.copies.may_have_items()
    }
}

/// Returns the four-tuple of packets that answer the one that an ICMP error quotes.
fn answers_quoted(message: Icmp<'_>) -> Option<FourTuple> {
    match message {
        Icmp::Undelivered { quoted, .. } => quoted?.answers(),
        _ => None,
    }
}
