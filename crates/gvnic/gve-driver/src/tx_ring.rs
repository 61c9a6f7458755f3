//! The driver side of a TX queue.

use gve_defs::desc_dqo::{
    TX_CHECKSUM_OFFLOAD, TX_COMPLETION_BYTES, TX_COMPLETION_DESC, TX_COMPLETION_GENERATION,
    TX_COMPLETION_PACKET, TX_COMPLETION_QUEUE_MASK, TX_COMPLETION_TYPE_MASK,
    TX_COMPLETION_TYPE_SHIFT, TX_DESC_BYTES, TX_DTYPE_GENERAL_CONTEXT, TX_DTYPE_PACKET,
    TX_DTYPE_TSO_CONTEXT, TX_END_OF_PACKET, TX_REPORT_EVENT, TX_TSO, TxCompletion, TxPacketDesc,
    TxTsoContextDesc,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::ram::GuestRam;
use crate::rx_ring::Violation;

/// Bytes of the buffer of one packet: more than an IP packet of 64 KiB with its Ethernet header.
const SLOT_BYTES: usize = 68 * 1024;
/// Maximum number of packets in flight.
const SLOTS: u16 = 16;
/// Minimum number of descriptors between two reports (gve_desc_dqo.h `GVE_TX_MIN_RE_INTERVAL`).
const REPORT_INTERVAL: u16 = 32;

/// A super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tso {
    /// Payload bytes of a segment.
    pub mss: u16,
    /// Bytes of all headers.
    pub header_len: u8,
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct TxRequest<'a> {
    /// The frame.
    pub frame: &'a [u8],
    /// Bytes of each buffer but the last, at most 16,383.
    pub buffer_bytes: u16,
    /// Request checksum offload.
    pub checksum: bool,
    /// Segmentation parameters, for a super-packet.
    pub tso: Option<Tso>,
}

impl<'a> TxRequest<'a> {
    /// Returns a request for a frame in one buffer, without offloads.
    pub const fn plain(frame: &'a [u8]) -> Self {
        Self {
            frame,
            buffer_bytes: 16_383,
            checksum: false,
            tso: None,
        }
    }
}

/// Result of processing completions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxDone {
    /// Tags of completed packets.
    pub tags: Vec<u16>,
    /// Number of descriptor completions.
    pub reports: usize,
}

#[derive(Debug)]
pub(crate) struct TxRing {
    id: u16,
    pub(crate) ring: u64,
    pub(crate) entries: u16,
    pub(crate) completions: u64,
    pub(crate) doorbell: u32,
    pub(crate) tail: u16,
    /// Head of the ring, as reported by the device.
    head: u16,
    next_completion: u16,
    generation: bool,
    slots: u64,
    /// Tags in use.
    busy: Vec<bool>,
    since_report: u16,
}

impl TxRing {
    pub(crate) fn new(ram: &GuestRam, id: u16, entries: u16) -> Self {
        Self {
            id,
            ring: ram.alloc(usize::from(entries) * TX_DESC_BYTES),
            entries,
            completions: ram.alloc(usize::from(entries) * TX_COMPLETION_BYTES),
            doorbell: 0,
            tail: 0,
            head: 0,
            next_completion: 0,
            generation: true,
            slots: ram.alloc(usize::from(SLOTS) * SLOT_BYTES),
            busy: vec![false; SLOTS.into()],
            since_report: 0,
        }
    }

    /// Restores the initial state, for a queue that is created again.
    pub(crate) fn restart(&mut self, ram: &GuestRam) {
        self.tail = 0;
        self.head = 0;
        self.next_completion = 0;
        self.generation = true;
        self.since_report = 0;
        self.busy.fill(false);
        let bytes = usize::from(self.entries) * TX_COMPLETION_BYTES;
        ram.put(self.completions, &vec![0; bytes]);
    }

    /// Writes a packet into the ring; returns its tag, `None` if ring or tags are full.
    pub(crate) fn push(&mut self, ram: &GuestRam, request: &TxRequest<'_>) -> Option<u16> {
        let pieces: Vec<_> = request
            .frame
            .chunks(usize::from(request.buffer_bytes).max(1))
            .collect();
        let free = self.head.wrapping_sub(self.tail).wrapping_sub(1) & (self.entries - 1);
        if pieces.len() + 2 > usize::from(free) {
            return None;
        }
        let slot = self.busy.iter().position(|busy| !busy)?;
        self.busy[slot] = true;
        let tag = slot as u16;
        let mut addr = self.slots + (slot * SLOT_BYTES) as u64;
        ram.put(addr, request.frame);
        if let Some(Tso { mss, header_len }) = request.tso {
            let total = (request.frame.len() - usize::from(header_len)) as u32;
            let [a, b, c, _] = total.to_le_bytes();
            let desc = TxTsoContextDesc {
                tso_total_len: [a, b, c],
                flex10: 0,
                mss: mss.into(),
                header_len,
                flex11: 0,
                dtype_flags: TX_DTYPE_TSO_CONTEXT | TX_TSO,
                reserved: 0,
                flex: [0; 6],
            };
            self.put(ram, desc.as_bytes());
        }
        let mut general = [0; TX_DESC_BYTES];
        general[gve_defs::desc_dqo::TX_DTYPE_OFFSET] = TX_DTYPE_GENERAL_CONTEXT;
        self.put(ram, &general);
        let last = pieces.len() - 1;
        for (index, piece) in pieces.into_iter().enumerate() {
            let mut flags = TX_DTYPE_PACKET;
            if request.checksum {
                flags |= TX_CHECKSUM_OFFLOAD;
            }
            if index == last {
                flags |= TX_END_OF_PACKET;
                if self.since_report >= REPORT_INTERVAL {
                    flags |= TX_REPORT_EVENT;
                    self.since_report = 0;
                }
            }
            let desc = TxPacketDesc {
                buf_addr: addr.into(),
                dtype_flags: flags,
                reserved0: 0,
                reserved1: 0.into(),
                compl_tag: tag.into(),
                buf_size: (piece.len() as u16).into(),
            };
            self.put(ram, desc.as_bytes());
            addr += piece.len() as u64;
        }
        Some(tag)
    }

    fn put(&mut self, ram: &GuestRam, desc: &[u8]) {
        let at = u64::from(self.tail) * TX_DESC_BYTES as u64;
        ram.put(self.ring + at, desc);
        self.tail = (self.tail + 1) & (self.entries - 1);
        self.since_report += 1;
    }

    /// Reads completions until one has the old generation bit.
    pub(crate) fn poll(&mut self, ram: &GuestRam) -> Result<TxDone, Violation> {
        let mut done = TxDone::default();
        loop {
            let at = u64::from(self.next_completion) * TX_COMPLETION_BYTES as u64;
            let bytes = ram.get(self.completions + at, TX_COMPLETION_BYTES);
            let completion =
                TxCompletion::read_from_bytes(&bytes).map_err(|_| Violation::Completion)?;
            let word = completion.id_type_generation.get();
            if (word & TX_COMPLETION_GENERATION != 0) != self.generation {
                return Ok(done);
            }
            self.next_completion = (self.next_completion + 1) & (self.entries - 1);
            if self.next_completion == 0 {
                self.generation = !self.generation;
            }
            if word & TX_COMPLETION_QUEUE_MASK != self.id {
                return Err(Violation::Completion);
            }
            let value = completion.tag_or_head.get();
            match word >> TX_COMPLETION_TYPE_SHIFT & TX_COMPLETION_TYPE_MASK {
                TX_COMPLETION_PACKET => {
                    let busy = self.busy.get_mut(usize::from(value));
                    let busy = busy.filter(|busy| **busy).ok_or(Violation::Tag(value))?;
                    *busy = false;
                    done.tags.push(value);
                }
                TX_COMPLETION_DESC if value < self.entries => {
                    self.head = value;
                    done.reports += 1;
                }
                _ => return Err(Violation::Completion),
            }
        }
    }
}
