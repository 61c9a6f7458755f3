//! A TX queue: reads descriptors from the guest's ring, sends packets to the wire, writes completions.

use gve_defs::desc_dqo::{
    TX_COMPLETION_BYTES, TX_COMPLETION_DESC, TX_COMPLETION_GENERATION,
    TX_COMPLETION_GENERATION_OFFSET, TX_COMPLETION_PACKET, TX_COMPLETION_QUEUE_MASK,
    TX_COMPLETION_TYPE_SHIFT, TX_DESC_BYTES, TxCompletion,
};
use wire::EthernetHeader;
use zerocopy::IntoBytes;

use crate::env::{BadAddress, Env, GuestMemory, GuestRange, TxOutcome};
use crate::ring::{Completions, GenerationWord, Ring, RingWindow};
use crate::stats::TxQueueStats;
use crate::tx_desc::{TxBuffer, TxDesc};
use crate::tx_offload::{self, Refused, TxScratch};
use crate::tx_packet::{MAX_PACKET, TxPacket};

/// Maximum descriptors of one packet, contexts included. Enough for a packet of 64 KiB in 45 fragments (the maximum in
/// Linux) with two buffers each; fewer than the entries of the smallest ring, so that a packet without an end is
/// detected.
const MAX_DESCS: u16 = 128;

/// Parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxQueueParts {
    pub(crate) id: u16,
    pub(crate) block: u16,
    pub(crate) ring: Ring,
    pub(crate) completions: Ring,
    /// Maximum bytes of a frame that is not a super-packet.
    pub(crate) max_frame: u32,
}

/// A TX queue that the driver has created.
#[derive(Debug)]
pub(crate) struct TxQueue {
    id: u16,
    block: u16,
    max_frame: u32,
    ring: Ring,
    window: RingWindow<TX_DESC_BYTES>,
    completions: Completions,
    head: u16,
    tail: u16,
    /// The wire was full at the last attempt.
    blocked: bool,
    /// Number of segments of the packet at `head` that were already sent.
    segments_sent: usize,
}

/// Contents of the ring at its head.
enum AtHead {
    /// Nothing.
    Nothing,
    /// The first descriptors of a packet; the doorbell does not cover the rest yet.
    Part,
    /// A packet.
    Packet(TxPacket),
}

impl TxQueue {
    pub(crate) fn new(parts: TxQueueParts) -> Self {
        let TxQueueParts {
            id,
            block,
            ring,
            completions,
            max_frame,
        } = parts;
        Self {
            id,
            block,
            max_frame,
            ring,
            window: RingWindow::new(),
            completions: Completions::new(completions),
            head: 0,
            tail: 0,
            blocked: false,
            segments_sent: 0,
        }
    }

    /// Returns the notification block to raise after a completion.
    pub(crate) const fn block(&self) -> u16 {
        self.block
    }

    /// True if the wire was full at the last attempt.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Handles a doorbell: descriptors are ready up to `tail`. Returns false if the ring has no such index.
    pub(crate) fn doorbell(&mut self, tail: u32) -> bool {
        let index = self.ring.index(tail);
        if let Some(index) = index {
            self.tail = index;
        }
        index.is_some()
    }

    /// Sends the packets in the ring; returns true if it wrote completions.
    ///
    /// Stops at the tail, at an incomplete packet, and when the wire is full.
    pub(crate) fn run(
        &mut self,
        env: &mut Env<'_>,
        scratch: &mut TxScratch,
        stats: &mut TxQueueStats,
    ) -> bool {
        self.window.clear();
        self.blocked = false;
        let mut completed = false;
        loop {
            let packet = match self.collect(env.memory, scratch) {
                Ok(AtHead::Packet(packet)) => packet,
                Ok(AtHead::Nothing | AtHead::Part) => break,
                Err(BadAddress { .. }) => {
                    stats.bad_address += 1;
                    break;
                }
            };
            if self.send(&packet, env, scratch, stats) == TxOutcome::Busy {
                stats.busy += 1;
                self.blocked = true;
                break;
            }
            self.complete(&packet, env.memory, scratch, stats);
            completed = true;
        }
        completed
    }

    /// Reads the descriptors of the packet at the head. Fails if the ring is no longer guest memory.
    fn collect(
        &mut self,
        memory: &dyn GuestMemory,
        scratch: &mut TxScratch,
    ) -> Result<AtHead, BadAddress> {
        scratch.ranges.clear();
        scratch.reports.clear();
        if self.head == self.tail {
            return Ok(AtHead::Nothing);
        }
        let ready = self.ring.between(self.head, self.tail);
        let mut packet = TxPacket::default();
        while packet.descs < ready.min(MAX_DESCS) {
            let index = self.ring.step(self.head, packet.descs);
            let bytes = self.window.get(&self.ring, index, self.tail, memory)?;
            packet.descs += 1;
            match TxDesc::parse(&bytes) {
                TxDesc::Packet(buffer) => {
                    packet.add(&buffer);
                    if buffer.range.len > 0 {
                        scratch.ranges.push(buffer.range);
                    }
                    if buffer.report {
                        scratch.reports.push(self.ring.step(index, 1));
                    }
                    if buffer.end_of_packet {
                        return Ok(AtHead::Packet(packet));
                    }
                }
                TxDesc::TsoContext(context) => {
                    packet.malformed |= packet.tso.is_some() || packet.buffers > 0;
                    packet.tso = Some(context);
                }
                TxDesc::GeneralContext => packet.malformed |= packet.buffers > 0,
                // The end of its packet is unknown, so it is treated as a packet of one descriptor.
                TxDesc::Unknown => {
                    packet.malformed = true;
                    return Ok(AtHead::Packet(packet));
                }
            }
        }
        if packet.descs < MAX_DESCS {
            return Ok(AtHead::Part);
        }
        packet.malformed = true;
        Ok(AtHead::Packet(packet))
    }

    fn send(
        &mut self,
        packet: &TxPacket,
        env: &mut Env<'_>,
        scratch: &mut TxScratch,
        stats: &mut TxQueueStats,
    ) -> TxOutcome {
        // A packet of at most 128 buffers of 16,383 bytes does not overflow `len`.
        let longest = packet.tso.map_or(self.max_frame, |_| MAX_PACKET);
        if packet.malformed || packet.len < EthernetHeader::LEN as u32 || packet.len > longest {
            stats.malformed += 1;
            return TxOutcome::Lost;
        }
        let sent = match tx_offload::send(packet, env, scratch, &mut self.segments_sent) {
            Ok(sent) => sent,
            Err(Refused::Offload) => {
                stats.bad_offload += 1;
                return TxOutcome::Lost;
            }
            Err(Refused::BadAddress) => TxOutcome::BadAddress,
        };
        match sent {
            TxOutcome::Done => {
                stats.packets += 1;
                stats.bytes += u64::from(packet.len);
                stats.gso += u64::from(packet.tso.is_some());
                stats.segmented += u64::from(self.segments_sent > 0);
            }
            TxOutcome::Busy => {}
            TxOutcome::Lost => stats.lost += 1,
            TxOutcome::BadAddress => stats.bad_address += 1,
        }
        sent
    }

    /// Completes the packet at the head.
    fn complete(
        &mut self,
        packet: &TxPacket,
        memory: &dyn GuestMemory,
        scratch: &TxScratch,
        stats: &mut TxQueueStats,
    ) {
        self.head = self.ring.step(self.head, packet.descs);
        self.segments_sent = 0;
        // The packet completion comes first, so that the driver has processed it before it reuses the descriptors.
        if packet.buffers > 0 {
            self.write_completion(TX_COMPLETION_PACKET, packet.tag, memory, stats);
        }
        for index in &scratch.reports {
            self.write_completion(TX_COMPLETION_DESC, *index, memory, stats);
        }
    }

    fn write_completion(
        &mut self,
        kind: u16,
        value: u16,
        memory: &dyn GuestMemory,
        stats: &mut TxQueueStats,
    ) {
        let word = self.id & TX_COMPLETION_QUEUE_MASK | kind << TX_COMPLETION_TYPE_SHIFT;
        let completion = TxCompletion {
            id_type_generation: (word | self.completions.stale(TX_COMPLETION_GENERATION)).into(),
            tag_or_head: value.into(),
            reserved: 0.into(),
        };
        let generation = GenerationWord {
            offset: TX_COMPLETION_GENERATION_OFFSET,
            word,
            bit: TX_COMPLETION_GENERATION,
        };
        const _: () = assert!(size_of::<TxCompletion>() == TX_COMPLETION_BYTES);
        let written = self
            .completions
            .write(completion.as_bytes(), generation, memory);
        if written.is_err() {
            stats.bad_address += 1;
        }
    }
}

impl TxPacket {
    fn add(&mut self, buffer: &TxBuffer) {
        let TxBuffer {
            range: GuestRange { addr: _, len },
            tag,
            end_of_packet: _,
            checksum,
            report: _,
        } = *buffer;
        self.buffers += 1;
        self.len += len;
        self.tag = tag;
        self.checksum |= checksum;
    }
}
