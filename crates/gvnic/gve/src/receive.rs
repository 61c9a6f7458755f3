//! Reception of frames from the wire.

use std::num::NonZeroU16;

use steer::{RuleAction, RxQueueId};
use wire::{ChecksumState, EthernetHeader, Gso, Offload, RxHeaders, Transport, TxChecksum};

use crate::device::{Gve, LinkState};
use crate::env::{Env, RxFrame};
use crate::rx::{RxContext, RxOutcome};
use crate::rx_frame::{self, PacketFacts, RxPacket};
use crate::segment::{HeaderCopy, Segmenter, finish_checksum, is_kind};
use crate::stats::DropReason;
use crate::tx_packet::MAX_PACKET;

/// An Ethernet frame is filled up to 60 bytes, without its own checksum (IEEE 802.3 4A.2.3.2.4), and perhaps tagged after that.
const PADDED_BYTES: usize = 64;

/// Queue of a frame.
struct Chosen {
    queue: usize,
    hash: Option<u32>,
}

impl Gve {
    /// Delivers a frame from the wire to the guest.
    ///
    /// If the queue of the frame has no buffers, the frame is put into the backlog of that queue, or dropped; other queues
    /// are not affected. A super-packet is delivered coalesced if its queue allows that (RSC), else it is segmented.
    pub fn receive(&mut self, frame: RxFrame<'_>, env: &mut Env<'_>) -> RxOutcome {
        let received = self.try_receive(frame, env);
        received.unwrap_or_else(|reason| {
            self.stats.drops += 1;
            RxOutcome::Dropped(reason)
        })
    }

    fn try_receive(
        &mut self,
        frame: RxFrame<'_>,
        env: &mut Env<'_>,
    ) -> Result<RxOutcome, DropReason> {
        let RxFrame { bytes, offload } = frame;
        if self.link == LinkState::Down {
            return Err(DropReason::LinkDown);
        }
        if bytes.len() < EthernetHeader::LEN {
            return Err(DropReason::Runt);
        }
        let headers = match RxHeaders::parse(bytes, bytes.len()) {
            Ok(headers) => headers,
            Err(error) => {
                self.stats.headers_refused += 1;
                let queue = self.first_live_queue().ok_or(DropReason::NoQueue)?;
                return self.receive_refused(frame, queue, rx_frame::facts_of_refused(error), env);
            }
        };
        rx_frame::count(&headers, &mut self.stats);
        let chosen = self.select_queue(&headers)?;
        if self.too_long(bytes.len(), &offload, chosen.queue) {
            return Err(DropReason::OverMru);
        }
        let mut facts = rx_frame::judge(&headers, bytes, offload.checksum, chosen.hash);
        if let Some(gso) = offload.gso.filter(|_| headers.payload_len > 0) {
            return self.receive_super_packet(bytes, &headers, gso, facts, chosen.queue, env);
        }
        if facts.status & gve_defs::desc_dqo::RX_CSUM_L4_ERR != 0 {
            self.rx_stats[chosen.queue].bad_checksum += 1;
        }
        let (head, rest) = bytes.split_at(headers.header_len);
        let of_packet = &rest[..headers.payload_len];
        let payload = match bytes.len() <= PADDED_BYTES {
            true => of_packet,
            // What follows the packet is no padding, and for the host to judge.
            false => rest,
        };
        let ChecksumState::Partial(what) = offload.checksum else {
            let packet = RxPacket {
                head,
                payload,
                facts,
            };
            return Ok(self.offer(&packet, chosen.queue, env));
        };
        let mut head = HeaderCopy::new(head);
        if !finish_checksum(head.as_mut_slice(), of_packet, what) {
            // An inner checksum, of a tunnel: the device parses only the outer headers.
            facts.status = 0;
            return self.receive_refused(frame, chosen.queue, facts, env);
        }
        let packet = RxPacket {
            head: head.as_slice(),
            payload,
            facts,
        };
        Ok(self.offer(&packet, chosen.queue, env))
    }

    /// Delivers a frame with headers that do not parse.
    fn receive_refused(
        &mut self,
        frame: RxFrame<'_>,
        queue: usize,
        facts: PacketFacts,
        env: &mut Env<'_>,
    ) -> Result<RxOutcome, DropReason> {
        let RxFrame { bytes, offload } = frame;
        if offload.gso.is_some() {
            return Err(DropReason::BadGso);
        }
        if self.too_long(bytes.len(), &offload, queue) {
            return Err(DropReason::OverMru);
        }
        let finished;
        let mut payload = bytes;
        if let ChecksumState::Partial(what) = offload.checksum {
            finished = finish_inside(bytes, what);
            payload = &finished;
        }
        let packet = RxPacket {
            head: &[],
            payload,
            facts: PacketFacts {
                split_at: None,
                ..facts
            },
        };
        Ok(self.offer(&packet, queue, env))
    }

    fn receive_super_packet(
        &mut self,
        bytes: &[u8],
        headers: &RxHeaders,
        gso: Gso,
        mut facts: PacketFacts,
        queue: usize,
        env: &mut Env<'_>,
    ) -> Result<RxOutcome, DropReason> {
        if !is_kind(headers, gso.kind) {
            return Err(DropReason::BadGso);
        }
        // Segments get correct checksums here, and the driver accepts a coalesced packet without one; the checksum in
        // the super-packet need not be that of any segment.
        facts.status = gve_defs::desc_dqo::RX_L3_L4_PROCESSED;
        let (head, rest) = bytes.split_at(headers.header_len);
        let payload = &rest[..headers.payload_len];
        let tcp = matches!(headers.transport, Transport::Tcp(_));
        let many = headers.payload_len > usize::from(gso.size.get());
        let coalesces = self.rx[queue]
            .as_ref()
            .is_some_and(|queue| queue.coalesces());
        let mut packet = RxPacket {
            head,
            payload,
            facts,
        };
        if tcp && many && coalesces {
            packet.facts.rsc_seg_len = Some(gso.size.get());
            return Ok(self.offer(&packet, queue, env));
        }
        self.receive_segments(&packet, headers, gso, queue, env)
    }

    /// Segments a super-packet for a queue that does not coalesce. Returns the result of the last segment.
    fn receive_segments(
        &mut self,
        packet: &RxPacket<'_>,
        headers: &RxHeaders,
        gso: Gso,
        queue: usize,
        env: &mut Env<'_>,
    ) -> Result<RxOutcome, DropReason> {
        let RxPacket {
            head,
            payload,
            facts,
        } = *packet;
        // The guest's current MTU is not known, so segments are limited by the largest MTU.
        let size = usize::from(gso.size.get()).min(self.max_frame().saturating_sub(head.len()));
        let size = u16::try_from(size).ok().and_then(NonZeroU16::new);
        let size = size.ok_or(DropReason::OverMru)?;
        let mut segmenter =
            Segmenter::new(head, headers, payload, gso.kind, size).ok_or(DropReason::BadGso)?;
        let what = segmenter.checksum();
        let mut received = RxOutcome::Dropped(DropReason::BadGso);
        while let Some((mut head, payload)) = segmenter.next() {
            finish_checksum(head.as_mut_slice(), payload, what);
            let packet = RxPacket {
                head: head.as_slice(),
                payload,
                facts,
            };
            received = self.offer(&packet, queue, env);
        }
        Ok(received)
    }

    fn offer(&mut self, packet: &RxPacket<'_>, index: usize, env: &mut Env<'_>) -> RxOutcome {
        let context = RxContext {
            memory: env.memory,
            faults: self.faults,
        };
        let Some(queue) = self.rx[index].as_mut() else {
            self.stats.drops += 1;
            return RxOutcome::Dropped(DropReason::NoQueue);
        };
        let stats = &mut self.rx_stats[index];
        let drained = queue.has_backlog() && queue.drain(context, stats);
        let received = queue.offer(packet, context, stats);
        // A packet with a bad address has written completions, too.
        let bad_address = RxOutcome::Dropped(DropReason::BadAddress);
        let starved = queue.is_starved(env.now);
        if drained || starved || received == RxOutcome::Delivered || received == bad_address {
            self.notify.raise(queue.block(), env.now, env.irqs);
        }
        received
    }

    /// Returns the queue of the matching flow rule with the lowest location, else of the RSS table, else the first queue.
    fn select_queue(&mut self, headers: &RxHeaders) -> Result<Chosen, DropReason> {
        let hash = self.steering.rss.hash(headers);
        if let Some((_, action)) = self.steering.rules.lookup(headers) {
            let RuleAction::Queue(RxQueueId(queue)) = action else {
                return Err(DropReason::RuleNamesDeadQueue);
            };
            let queue = usize::from(queue);
            let live = self.rx.get(queue).is_some_and(Option::is_some);
            self.rx_stats[queue].rule_hits += 1;
            if !live {
                self.rx_stats[queue].drops += 1;
                return Err(DropReason::RuleNamesDeadQueue);
            }
            return Ok(Chosen { queue, hash });
        }
        let named = hash.map(|hash| self.steering.rss.table.queue(hash).index());
        let live = named.filter(|queue| self.rx.get(*queue).is_some_and(Option::is_some));
        let queue = live.or_else(|| self.first_live_queue());
        let queue = queue.ok_or(DropReason::NoQueue)?;
        Ok(Chosen { queue, hash })
    }

    fn first_live_queue(&self) -> Option<usize> {
        self.rx.iter().position(Option::is_some)
    }

    /// Returns the maximum bytes of a frame that is not a super-packet.
    pub(crate) fn max_frame(&self) -> usize {
        usize::from(self.config.max_mtu) + EthernetHeader::TAGGED_LEN
    }

    fn too_long(&mut self, len: usize, offload: &Offload, queue: usize) -> bool {
        let longest = match offload.gso {
            Some(_) => MAX_PACKET as usize,
            None => self.max_frame(),
        };
        let over = len > longest;
        if over {
            let stats = &mut self.rx_stats[queue];
            stats.over_mru += 1;
            stats.drops += 1;
        }
        over
    }
}

/// Returns a copy of the frame with the checksum `what` completed; unchanged if `what` lies outside the frame.
fn finish_inside(bytes: &[u8], what: TxChecksum) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    finish_checksum(&mut bytes, &[], what);
    bytes
}
