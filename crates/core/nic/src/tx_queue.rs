//! The transmit side: a queue of packets for a busy link, and the checksums and segments that the link does not make.

use std::collections::VecDeque;

use netmem::{DmaPort, FragList, Payload};
use wire::{Checksum, EthernetHeader, Instant, TxChecksum, fill_checksum, segment_headers_len};

use crate::drops::{DropReason, Drops};
use crate::link::{Link, LinkSent, LinkState, MAX_FRAME_LEN, TxFrame};
use crate::packet::TxPacket;
use crate::stats::TxStats;
use crate::tso::Segmenter;

/// Queue of packets for a busy link, oldest first.
#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    waiting: VecDeque<WaitingPacket>,
    limit: usize,
    /// When the link last was busy.
    busy_at: Option<Instant>,
    refusals: Refusals,
    pub(crate) stats: TxStats,
}

/// Backoff after a link has refused a long super-packet ([`LinkSent::TooLong`]). Each attempt costs the link a search for
/// memory, which may fail again: after each consecutive refusal, twice as many long super-packets are cut into shorter
/// ones without an attempt.
#[derive(Debug, Default)]
struct Refusals {
    consecutive: u32,
    /// Number of long super-packets that are still to be cut without an attempt.
    skip: u32,
}

impl Refusals {
    /// Base-2 logarithm of the maximum number of super-packets without an attempt, plus one.
    const MAX_SKIP_LOG: u32 = 6;

    /// Returns whether to try the next long super-packet.
    fn may_try(&mut self) -> bool {
        let may = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        may
    }

    fn on_sent(&mut self) {
        self.consecutive = 0;
    }

    /// After the first refusal the next super-packet is tried again: memory may have been short for a moment, or the link
    /// refuses this length only.
    fn on_refused(&mut self) {
        self.skip = (1 << self.consecutive.min(Self::MAX_SKIP_LOG)) - 1;
        self.consecutive = self.consecutive.saturating_add(1);
    }
}

/// A packet, or a super-packet that this NIC is cutting: the next piece and the rest.
#[derive(Debug)]
struct WaitingPacket {
    packet: TxPacket,
    rest: Option<Box<Segmenter>>,
}

/// The link's offloads and limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offloads {
    pub(crate) checksum: bool,
    pub(crate) tso: bool,
    /// Maximum length of a frame that is not a super-packet.
    pub(crate) longest: usize,
    /// Maximum length of a super-packet's frame.
    pub(crate) longest_super: usize,
}

/// The link, and what is needed to send on it.
pub(crate) struct TxContext<'a> {
    pub(crate) link: &'a mut dyn Link,
    pub(crate) port: &'a DmaPort,
    pub(crate) drops: &'a mut Drops,
    pub(crate) offloads: Offloads,
    pub(crate) now: Instant,
}

impl TxQueue {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit: limit as usize,
            ..Self::default()
        }
    }

    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit as usize;
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn room(&self) -> usize {
        self.limit.saturating_sub(self.waiting.len())
    }

    /// Sends a packet after those in the queue, or drops it.
    pub(crate) fn transmit(
        &mut self,
        packet: TxPacket,
        tx: &mut TxContext<'_>,
    ) -> Result<(), DropReason> {
        let waiting = self.prepare(packet, tx).ok_or(DropReason::TxInvalid)?;
        // A full link is tried once for all packets of one time: each attempt is a system call.
        if self.busy_at != Some(tx.now) {
            self.flush(tx);
        }
        if !self.waiting.is_empty() {
            return self.enqueue(waiting);
        }
        match self.push_out(waiting, tx) {
            Ok(()) => Ok(()),
            Err(Unsent::Busy(waiting)) => self.enqueue(*waiting),
            Err(Unsent::Dropped(reason)) => Err(reason),
        }
    }

    /// Sends queued packets until the link is busy.
    pub(crate) fn flush(&mut self, tx: &mut TxContext<'_>) {
        while let Some(waiting) = self.waiting.pop_front() {
            match self.push_out(waiting, tx) {
                Ok(()) => {}
                Err(Unsent::Busy(waiting)) => return self.waiting.push_front(*waiting),
                Err(Unsent::Dropped(reason)) => tx.drops.count(reason),
            }
        }
    }

    fn enqueue(&mut self, waiting: WaitingPacket) -> Result<(), DropReason> {
        if self.room() == 0 {
            return Err(DropReason::TxBusy);
        }
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Cuts a packet and computes its checksum if the link does not; `None` if it is invalid: longer than the link allows,
    /// with headers that end too early, or a super-packet that is not a TCP packet with a checksum to complete.
    fn prepare(&mut self, packet: TxPacket, tx: &TxContext<'_>) -> Option<WaitingPacket> {
        let Offloads {
            tso,
            longest,
            longest_super,
            ..
        } = tx.offloads;
        let head_len = packet.head.as_slice().len();
        let field = |what: TxChecksum| usize::from(what.start) + usize::from(what.offset) + 2;
        if head_len < EthernetHeader::LEN
            || packet.checksum.is_some_and(|what| field(what) > head_len)
        {
            return None;
        }
        let gso_size = usize::from(packet.gso_size);
        let is_super = gso_size > 0 && packet.payload.len() > gso_size;
        // The headers are parsed only if there are segments.
        let segment_len = || segment_headers_len(packet.head.as_slice()) + gso_size;
        let len = packet.frame_len();
        let is_too_long = match is_super {
            true => segment_len() > longest || len > longest_super,
            false => len > longest,
        };
        if is_too_long {
            return None;
        }
        if is_super && tso && packet.checksum.is_some() {
            let is_long = len > MAX_FRAME_LEN;
            return match is_long && !self.refusals.may_try() {
                true => self.shorten(packet),
                false => Some(WaitingPacket { packet, rest: None }),
            };
        }
        if is_super {
            let mut rest = Segmenter::into_segments(packet)?;
            let first = rest.next()?;
            self.stats.software_tso += 1;
            return Some(WaitingPacket {
                packet: self.finish_checksum(first, tx),
                rest: Some(Box::new(rest)),
            });
        }
        let packet = TxPacket {
            gso_size: 0,
            ..packet
        };
        Some(WaitingPacket {
            packet: self.finish_checksum(packet, tx),
            rest: None,
        })
    }

    /// Cuts a super-packet into shorter ones; `None` if it is not a TCP packet with a checksum to complete.
    fn shorten(&mut self, packet: TxPacket) -> Option<WaitingPacket> {
        let mut rest = Segmenter::into_shorter(packet)?;
        let packet = rest.next()?;
        self.stats.shortened += 1;
        Some(WaitingPacket {
            packet,
            rest: Some(Box::new(rest)),
        })
    }

    /// Computes the checksum unless the link does.
    fn finish_checksum(&mut self, mut packet: TxPacket, tx: &TxContext<'_>) -> TxPacket {
        if tx.offloads.checksum {
            return packet;
        }
        if let Some(what) = packet.checksum.take() {
            let payload = sum_of(&packet.payload, tx.port);
            fill_checksum(packet.head.as_mut_slice(), payload, what);
            self.stats.software_checksum += 1;
        }
        packet
    }

    /// Sends a packet on the link, piece by piece if it is cut.
    fn push_out(
        &mut self,
        mut waiting: WaitingPacket,
        tx: &mut TxContext<'_>,
    ) -> Result<(), Unsent> {
        loop {
            let TxPacket {
                head,
                payload,
                checksum,
                gso_size,
            } = &waiting.packet;
            let frame = TxFrame {
                head: head.as_slice(),
                payload,
                checksum: *checksum,
                gso_size: *gso_size,
                port: tx.port,
            };
            match tx.link.send(&frame, tx.now) {
                Ok(LinkSent::Done) => {
                    self.stats.frames += 1;
                    self.stats.bytes += frame.frame_len() as u64;
                    if frame.frame_len() > MAX_FRAME_LEN {
                        self.refusals.on_sent();
                    }
                }
                Ok(LinkSent::Busy) => {
                    self.stats.busy += 1;
                    self.busy_at = Some(tx.now);
                    return Err(Unsent::Busy(Box::new(waiting)));
                }
                Ok(LinkSent::TooLong) if waiting.rest.is_none() => {
                    self.refusals.on_refused();
                    let shorter = self.shorten(waiting.packet);
                    waiting = shorter.ok_or(Unsent::Dropped(DropReason::TxInvalid))?;
                    continue;
                }
                Ok(LinkSent::TooLong) | Err(_) => {
                    return Err(Unsent::Dropped(match tx.link.state() {
                        LinkState::Up => DropReason::TxLinkError,
                        LinkState::Down | LinkState::Gone => DropReason::TxLinkDown,
                    }));
                }
            }
            match waiting.rest.as_mut().and_then(|rest| rest.next()) {
                Some(next) => waiting.packet = self.finish_checksum(next, tx),
                None => break,
            }
        }
        self.stats.packets += 1;
        Ok(())
    }
}

/// Why a packet was not sent completely.
enum Unsent {
    /// The link is busy; the value is the unsent part.
    Busy(Box<WaitingPacket>),
    /// The packet is dropped, for this reason.
    Dropped(DropReason),
}

/// Returns the folded ones' complement sum of a payload.
fn sum_of(payload: &FragList, port: &DmaPort) -> u16 {
    let mut sum = Checksum::new();
    let mut at = 0;
    for frag in payload.iter() {
        sum.add_partial(port.checksum(frag), at);
        at += frag.len();
    }
    sum.partial()
}
