//! An RX queue: copies packets to the guest's buffers, one completion per buffer, with a backlog for lack of buffers.

use std::collections::VecDeque;
use std::time::Duration;

use gve_defs::desc_dqo::{
    RX_BUFFER_DESC_BYTES, RX_DONE, RX_END_OF_PACKET, RX_ERROR, RX_GENERATION, RX_GENERATION_OFFSET,
    RX_HEADER_BUFFER_OVERFLOW, RX_HEADER_LEN_MASK, RX_RSC, RX_RXDID, RX_SPLIT_HEADER, RxBufferDesc,
    RxCompletion,
};
use wire::Instant;
use zerocopy::{FromBytes, IntoBytes};

use crate::config::Faults;
use crate::env::{BadAddress, GuestAddr, GuestMemory};
use crate::ring::{Completions, GenerationWord, Ring, RingWindow};
use crate::rx_frame::{PacketFacts, RxPacket};
use crate::stats::{DropReason, RxQueueStats};

/// Interval of interrupts for a queue that has a backlog but not enough buffers.
///
/// Linux posts buffers in its interrupt handler, and rings the doorbell for every 32nd. If a packet needs more buffers
/// than are posted, and the driver ran out of memory last time, no other event would make it post more.
const STARVED_INTERVAL: Duration = Duration::from_millis(20);

/// Parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxQueueParts {
    pub(crate) block: u16,
    pub(crate) buffers: Ring,
    pub(crate) completions: Ring,
    pub(crate) packet_buffer_size: u16,
    /// Bytes of a header buffer; 0 turns header split off.
    pub(crate) header_buffer_size: u16,
    pub(crate) rsc: bool,
    pub(crate) backlog_frames: usize,
    pub(crate) backlog_bytes: usize,
}

/// Result of receiving a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxOutcome {
    /// The frame was delivered to the guest.
    Delivered,
    /// The frame is in the backlog of its queue.
    Held,
    /// The frame was dropped and counted.
    Dropped(DropReason),
}

/// An RX queue that the driver has created.
#[derive(Debug)]
pub(crate) struct RxQueue {
    parts: RxQueueParts,
    window: RingWindow<RX_BUFFER_DESC_BYTES>,
    completions: Completions,
    head: u16,
    tail: u16,
    backlog: VecDeque<HeldFrame>,
    backlog_bytes: usize,
    /// Time of the next interrupt for a backlog.
    wake_at: Option<Instant>,
    /// Number of splittable packets so far.
    splittable: u32,
}

/// A packet in the backlog.
#[derive(Debug)]
struct HeldFrame {
    bytes: Vec<u8>,
    head_len: usize,
    facts: PacketFacts,
}

/// A buffer taken from the ring; it must be completed.
#[must_use]
struct PostedBuffer {
    desc: RxBufferDesc,
}

/// Distribution of a packet over buffers.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes for the header buffer; `None` without header split.
    header_len: Option<usize>,
    /// Headers are longer than the header buffer.
    overflow: bool,
    /// Bytes for packet buffers.
    data_len: usize,
    buffers: usize,
}

/// Environment of a delivery.
#[derive(Clone, Copy)]
pub(crate) struct RxContext<'a> {
    pub(crate) memory: &'a dyn GuestMemory,
    pub(crate) faults: Faults,
}

impl RxQueue {
    pub(crate) fn new(parts: RxQueueParts) -> Self {
        Self {
            parts,
            window: RingWindow::new(),
            completions: Completions::new(parts.completions),
            head: 0,
            tail: 0,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            wake_at: None,
            splittable: 0,
        }
    }

    /// Returns the notification block to raise after a completion.
    pub(crate) const fn block(&self) -> u16 {
        self.parts.block
    }

    /// True if the backlog is not empty.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Returns when to interrupt the driver because of the backlog.
    pub(crate) const fn wake_at(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Returns true if it is time to interrupt the driver because of the backlog, and schedules the next interrupt; a time
    /// that is already scheduled is kept.
    pub(crate) fn is_starved(&mut self, now: Instant) -> bool {
        if self.backlog.is_empty() {
            self.wake_at = None;
            return false;
        }
        let due = self.wake_at.is_some_and(|wake_at| wake_at <= now);
        if due || self.wake_at.is_none() {
            self.wake_at = Some(now + STARVED_INTERVAL);
        }
        due
    }

    /// True if a super-packet may be delivered coalesced.
    pub(crate) const fn coalesces(&self) -> bool {
        self.parts.rsc
    }

    /// Handles a doorbell: buffers are posted up to `tail`. Returns false if the ring has no such index.
    pub(crate) fn doorbell(&mut self, tail: u32) -> bool {
        let index = self.parts.buffers.index(tail);
        if let Some(index) = index {
            self.tail = index;
        }
        index.is_some()
    }

    /// Delivers packets of the backlog while there are buffers; returns true if it wrote completions.
    pub(crate) fn drain(&mut self, context: RxContext<'_>, stats: &mut RxQueueStats) -> bool {
        let mut delivered = false;
        while let Some(held) = self.backlog.pop_front() {
            let (head, payload) = held.bytes.split_at(held.head_len);
            let packet = RxPacket {
                head,
                payload,
                facts: held.facts,
            };
            let layout = self.layout(&packet, context.faults);
            if self.available(context.faults) < layout.buffers {
                self.backlog.push_front(held);
                break;
            }
            self.backlog_bytes -= held.bytes.len();
            // A packet with a bad address completes a buffer, too.
            let _counted = self.deliver(&packet, layout, context, stats);
            delivered = true;
        }
        stats.backlog = self.backlog.len() as u64;
        delivered
    }

    /// Delivers a packet, or appends it to the backlog, or drops it.
    pub(crate) fn offer(
        &mut self,
        packet: &RxPacket<'_>,
        context: RxContext<'_>,
        stats: &mut RxQueueStats,
    ) -> RxOutcome {
        let layout = self.layout(packet, context.faults);
        // A ring of n entries holds n - 1 buffers.
        if layout.buffers >= usize::from(self.parts.buffers.entries()) {
            stats.drops += 1;
            return RxOutcome::Dropped(DropReason::TooManyBuffers);
        }
        if self.backlog.is_empty() && self.available(context.faults) >= layout.buffers {
            return self.deliver(packet, layout, context, stats);
        }
        stats.no_buffers += 1;
        self.hold(packet, stats)
    }

    fn hold(&mut self, packet: &RxPacket<'_>, stats: &mut RxQueueStats) -> RxOutcome {
        let RxQueueParts {
            backlog_frames,
            backlog_bytes,
            ..
        } = self.parts;
        let bytes = self.backlog_bytes + packet.len();
        if self.backlog.len() >= backlog_frames || bytes > backlog_bytes {
            stats.drops += 1;
            return RxOutcome::Dropped(DropReason::NoBuffers);
        }
        self.backlog_bytes = bytes;
        self.backlog.push_back(HeldFrame {
            bytes: [packet.head, packet.payload].concat(),
            head_len: packet.head.len(),
            facts: packet.facts,
        });
        stats.backlog = self.backlog.len() as u64;
        RxOutcome::Held
    }

    /// Returns the number of buffers that may be filled.
    fn available(&self, faults: Faults) -> usize {
        let posted = self.parts.buffers.between(self.head, self.tail);
        posted.saturating_sub(faults.rx_buffers_kept).into()
    }

    fn layout(&self, packet: &RxPacket<'_>, faults: Faults) -> Layout {
        let room = usize::from(self.parts.header_buffer_size.min(RX_HEADER_LEN_MASK));
        let split_at = match room {
            0 => None,
            _ => packet.facts.split_at.map(usize::from),
        };
        let every = faults.unsplit_every.map_or(0, std::num::NonZeroU32::get);
        let spared = every != 0 && self.splittable.wrapping_add(1).is_multiple_of(every);
        let header_len = split_at.filter(|at| *at <= room && !spared).map(|at| {
            (at + usize::from(faults.linear_bytes))
                .min(room)
                .min(packet.len())
        });
        let data_len = packet.len() - header_len.unwrap_or(0);
        let buffer = usize::from(self.parts.packet_buffer_size);
        Layout {
            header_len,
            overflow: split_at.is_some_and(|at| at > room),
            data_len,
            // A packet without payload needs a buffer, too, because a completion always returns a buffer.
            buffers: data_len.div_ceil(buffer).max(1),
        }
    }

    fn deliver(
        &mut self,
        packet: &RxPacket<'_>,
        layout: Layout,
        context: RxContext<'_>,
        stats: &mut RxQueueStats,
    ) -> RxOutcome {
        if packet.facts.split_at.is_some() && self.parts.header_buffer_size != 0 {
            self.splittable = self.splittable.wrapping_add(1);
            stats.unsplit += u64::from(layout.header_len.is_none());
        }
        if self.fill(packet, layout, context.memory).is_err() {
            stats.drops += 1;
            return RxOutcome::Dropped(DropReason::BadAddress);
        }
        stats.packets += 1;
        stats.bytes += packet.len() as u64;
        stats.split += u64::from(layout.header_len.is_some());
        stats.rsc += u64::from(packet.facts.rsc_seg_len.is_some());
        RxOutcome::Delivered
    }

    /// Fills and completes buffers in order.
    ///
    /// A buffer that is not guest memory ends the packet: its completion has the error bit, and the driver gets back every
    /// buffer that it posted.
    fn fill(
        &mut self,
        packet: &RxPacket<'_>,
        layout: Layout,
        memory: &dyn GuestMemory,
    ) -> Result<(), BadAddress> {
        let buffer_size = usize::from(self.parts.packet_buffer_size);
        let header_len = layout.header_len.unwrap_or(0);
        for index in 0..layout.buffers {
            let first = index == 0;
            let buffer = self.take_buffer(memory)?;
            let start = header_len + index * buffer_size;
            let len = (packet.len() - start).min(buffer_size);
            let mut filled = Ok(());
            if first && header_len > 0 {
                let addr = GuestAddr(buffer.desc.header_buf_addr.get());
                filled = copy_to_guest(packet, 0, header_len, addr, memory);
            }
            if len > 0 {
                let addr = GuestAddr(buffer.desc.buf_addr.get());
                filled = filled.and_then(|()| copy_to_guest(packet, start, len, addr, memory));
            }
            let mut completion = completion_of(&packet.facts, first.then_some(layout));
            if index + 1 == layout.buffers || filled.is_err() {
                completion.status |= RX_END_OF_PACKET;
            }
            if filled.is_err() {
                completion.flags |= RX_ERROR;
            }
            // A buffer has at most 4,096 bytes.
            self.complete(buffer, completion, len as u16, memory)?;
            filled?;
        }
        debug_assert_eq!(layout.data_len + header_len, packet.len());
        Ok(())
    }

    fn take_buffer(&mut self, memory: &dyn GuestMemory) -> Result<PostedBuffer, BadAddress> {
        let Self {
            parts,
            window,
            head,
            tail,
            ..
        } = self;
        let bytes = window.get(&parts.buffers, *head, *tail, memory)?;
        *head = parts.buffers.step(*head, 1);
        // The length matches, so this always succeeds.
        let desc = RxBufferDesc::read_from_bytes(&bytes);
        let bad = BadAddress {
            addr: GuestAddr(0),
            len: bytes.len(),
        };
        desc.map(|desc| PostedBuffer { desc }).map_err(|_| bad)
    }

    fn complete(
        &mut self,
        buffer: PostedBuffer,
        mut completion: RxCompletion,
        len: u16,
        memory: &dyn GuestMemory,
    ) -> Result<(), BadAddress> {
        let PostedBuffer { desc } = buffer;
        completion.buf_id = desc.buf_id;
        completion.packet_len = (len | self.completions.stale(RX_GENERATION)).into();
        let generation = GenerationWord {
            offset: RX_GENERATION_OFFSET,
            word: len,
            bit: RX_GENERATION,
        };
        self.completions
            .write(completion.as_bytes(), generation, memory)
    }
}

/// Returns the fields of a completion that do not depend on its buffer. Only that of the first buffer has those of the
/// header, which `header` describes.
fn completion_of(facts: &PacketFacts, header: Option<Layout>) -> RxCompletion {
    let PacketFacts {
        packet_type,
        flags,
        status,
        hash,
        split_at: _,
        rsc_seg_len,
    } = *facts;
    let mut header_len = 0;
    if let Some(len) = header.and_then(|layout| layout.header_len) {
        // At most RX_HEADER_LEN_MASK, ensured by `layout`.
        header_len = len as u16 | RX_SPLIT_HEADER;
    }
    if rsc_seg_len.is_some() {
        header_len |= RX_RSC;
    }
    let overflow = match header.is_some_and(|layout| layout.overflow) {
        true => RX_HEADER_BUFFER_OVERFLOW,
        false => 0,
    };
    RxCompletion {
        rxdid: RX_RXDID,
        flags,
        packet_type: packet_type.into(),
        packet_len: 0.into(),
        header_len: header_len.into(),
        status: status | RX_DONE | overflow,
        status_error1: 0,
        reserved5: 0.into(),
        buf_id: 0.into(),
        rsc_seg_len: rsc_seg_len.unwrap_or(0).into(),
        hash: hash.into(),
        reserved6: 0.into(),
        reserved7: 0.into(),
        timestamp: 0.into(),
    }
}

/// Copies `len` bytes of a packet, from byte `start` on, to guest memory.
fn copy_to_guest(
    packet: &RxPacket<'_>,
    start: usize,
    len: usize,
    addr: GuestAddr,
    memory: &dyn GuestMemory,
) -> Result<(), BadAddress> {
    let head = packet.head.get(start..).unwrap_or_default();
    let head = &head[..head.len().min(len)];
    if !head.is_empty() {
        memory.write(addr, head)?;
    }
    let rest = len - head.len();
    if rest == 0 {
        return Ok(());
    }
    let bad = BadAddress { addr, len };
    let addr = addr.checked_add(head.len() as u64).ok_or(bad)?;
    let at = (start + head.len()) - packet.head.len();
    memory.write(addr, &packet.payload[at..at + rest])
}
