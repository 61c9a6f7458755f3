//! The driver side of an RX queue.

use gve_defs::desc_dqo::{
    RX_BUFFER_DESC_BYTES, RX_COMPLETION_BYTES, RX_DONE, RX_END_OF_PACKET, RX_ERROR, RX_GENERATION,
    RX_HEADER_LEN_MASK, RX_PACKET_LEN_MASK, RX_PACKET_TYPE_MASK, RX_RSC, RX_RXDID, RX_SPLIT_HEADER,
    RxBufferDesc, RxCompletion,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::ram::GuestRam;

/// Buffers from one doorbell to the next (gve_desc_dqo.h `GVE_RX_BUF_THRESH_DQO`).
const DOORBELL_INTERVAL: u16 = 32;

/// Violation of the gVNIC interface by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A completion has an invalid kind, queue or position.
    #[error("a completion with an invalid kind, queue or ring position")]
    Completion,
    /// A TX packet was completed that is not in flight.
    #[error("completion of TX tag {0}, which is not in flight")]
    Tag(u16),
    /// An RX buffer was completed that is not posted.
    #[error("completion of RX buffer {0}, which is not posted")]
    Buffer(u16),
    /// A completion has more bytes than the buffer.
    #[error("completion of {0} bytes in a smaller buffer")]
    Length(usize),
    /// The completions of one packet contradict each other.
    #[error("the completions of one packet contradict each other")]
    Parts,
}

/// A received packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RxPacket {
    /// Bytes of the header buffer; empty unless `split`.
    pub header: Vec<u8>,
    /// Bytes of the packet buffers.
    pub data: Vec<u8>,
    /// Bytes in each packet buffer.
    pub frags: Vec<usize>,
    /// Headers were split from the payload.
    pub split: bool,
    /// Payload bytes of a segment of a coalesced packet.
    pub rsc: Option<u16>,
    /// Packet type.
    pub packet_type: u16,
    /// `RX_` status bits of the last completion.
    pub status: u8,
    /// `RX_` flag bits of the last completion.
    pub flags: u8,
    /// Hash.
    pub hash: u32,
}

impl RxPacket {
    /// Returns the packet in one piece.
    pub fn frame(&self) -> Vec<u8> {
        [&self.header[..], &self.data].concat()
    }

    /// Records the fields that must be equal in all completions of a packet. Its first buffer is in `frags` already.
    fn note(&mut self, completion: &RxCompletion) -> Result<(), Violation> {
        let coalesced = completion.header_len.get() & RX_RSC != 0;
        let rsc = coalesced.then(|| completion.rsc_seg_len.get());
        let packet_type = completion.packet_type.get() & RX_PACKET_TYPE_MASK;
        let same = (rsc, packet_type, completion.hash.get());
        let is_first = self.frags.len() == 1;
        if !is_first && same != (self.rsc, self.packet_type, self.hash) {
            return Err(Violation::Parts);
        }
        (self.rsc, self.packet_type, self.hash) = same;
        (self.status, self.flags) = (completion.status, completion.flags);
        Ok(())
    }

    /// True if the device has set the error bit.
    pub const fn is_damaged(&self) -> bool {
        self.flags & RX_ERROR != 0
    }
}

#[derive(Debug)]
pub(crate) struct RxRing {
    pub(crate) buffers: u64,
    pub(crate) completions: u64,
    pub(crate) entries: u16,
    pub(crate) doorbell: u32,
    buffer_bytes: usize,
    header_bytes: usize,
    memory: u64,
    headers: u64,
    tail: u16,
    /// Buffers by number: posted or not.
    posted: Vec<bool>,
    /// Numbers of buffers that are neither posted nor held back.
    free: Vec<u16>,
    next_completion: u16,
    generation: bool,
    partial: Option<RxPacket>,
}

impl RxRing {
    pub(crate) fn new(ram: &GuestRam, entries: u16, buffer_bytes: u16, header_bytes: u16) -> Self {
        let count = usize::from(entries);
        let (buffer_bytes, header_bytes) = (usize::from(buffer_bytes), usize::from(header_bytes));
        let mut ring = Self {
            buffers: ram.alloc(count * RX_BUFFER_DESC_BYTES),
            completions: ram.alloc(count * RX_COMPLETION_BYTES),
            entries,
            doorbell: 0,
            buffer_bytes,
            header_bytes,
            memory: ram.alloc(count * buffer_bytes),
            headers: ram.alloc(count * header_bytes),
            tail: 0,
            posted: Vec::new(),
            free: Vec::new(),
            next_completion: 0,
            generation: true,
            partial: None,
        };
        ring.restart(ram);
        ring
    }

    /// Restores the initial state, for a queue that is created again.
    pub(crate) fn restart(&mut self, ram: &GuestRam) {
        self.tail = 0;
        self.next_completion = 0;
        self.generation = true;
        self.partial = None;
        self.posted = vec![false; self.entries.into()];
        // A ring of n entries holds n - 1 buffers.
        self.free = (0..self.entries - 1).rev().collect();
        let bytes = usize::from(self.entries) * RX_COMPLETION_BYTES;
        ram.put(self.completions, &vec![0; bytes]);
    }

    /// Posts up to `limit` free buffers; returns the tail if a doorbell is due (at every 32nd, as in Linux).
    pub(crate) fn post(&mut self, ram: &GuestRam, limit: usize) -> Option<u16> {
        let mut ring_at = None;
        for _ in 0..limit {
            let Some(id) = self.free.pop() else { break };
            let at = u64::from(id);
            let desc = RxBufferDesc {
                buf_id: id.into(),
                reserved0: 0.into(),
                reserved1: 0.into(),
                buf_addr: (self.memory + at * self.buffer_bytes as u64).into(),
                header_buf_addr: (self.headers + at * self.header_bytes as u64).into(),
                reserved2: 0.into(),
            };
            let place = u64::from(self.tail) * RX_BUFFER_DESC_BYTES as u64;
            ram.put(self.buffers + place, desc.as_bytes());
            self.posted[usize::from(id)] = true;
            self.tail = (self.tail + 1) & (self.entries - 1);
            if self.tail.is_multiple_of(DOORBELL_INTERVAL) {
                ring_at = Some(self.tail);
            }
        }
        ring_at
    }

    /// Returns the number of posted buffers.
    pub(crate) fn posted(&self) -> usize {
        self.posted.iter().filter(|posted| **posted).count()
    }

    /// Reads completions until one has the old generation bit; returns complete packets and frees their buffers.
    pub(crate) fn poll(&mut self, ram: &GuestRam) -> Result<Vec<RxPacket>, Violation> {
        let mut packets = Vec::new();
        loop {
            let at = u64::from(self.next_completion) * RX_COMPLETION_BYTES as u64;
            let bytes = ram.get(self.completions + at, RX_COMPLETION_BYTES);
            let completion =
                RxCompletion::read_from_bytes(&bytes).map_err(|_| Violation::Completion)?;
            if (completion.packet_len.get() & RX_GENERATION != 0) != self.generation {
                return Ok(packets);
            }
            self.next_completion = (self.next_completion + 1) & (self.entries - 1);
            if self.next_completion == 0 {
                self.generation = !self.generation;
            }
            packets.extend(self.take(ram, &completion)?);
        }
    }

    fn take(
        &mut self,
        ram: &GuestRam,
        completion: &RxCompletion,
    ) -> Result<Option<RxPacket>, Violation> {
        // The highest bit is the number of the buffer queue; there is only one.
        let queue = completion.packet_len.get() >> 15;
        if completion.rxdid != RX_RXDID || completion.status & RX_DONE == 0 || queue != 0 {
            return Err(Violation::Completion);
        }
        let id = completion.buf_id.get();
        let posted = self.posted.get_mut(usize::from(id));
        *posted
            .filter(|posted| **posted)
            .ok_or(Violation::Buffer(id))? = false;
        self.free.push(id);
        let mut packet = self.partial.take().unwrap_or_default();
        self.take_header(ram, completion, &mut packet)?;
        let len = usize::from(completion.packet_len.get() & RX_PACKET_LEN_MASK);
        if len > self.buffer_bytes {
            return Err(Violation::Length(len));
        }
        let at = self.memory + (usize::from(id) * self.buffer_bytes) as u64;
        packet.data.extend(ram.get(at, len));
        packet.frags.push(len);
        packet.note(completion)?;
        if completion.status & RX_END_OF_PACKET == 0 {
            // Only the last buffer of a packet may be filled in part.
            if len != self.buffer_bytes {
                return Err(Violation::Parts);
            }
            self.partial = Some(packet);
            return Ok(None);
        }
        Ok(Some(packet))
    }

    /// Copies the header buffer, if the completion says that it is used.
    fn take_header(
        &self,
        ram: &GuestRam,
        completion: &RxCompletion,
        packet: &mut RxPacket,
    ) -> Result<(), Violation> {
        let bits = completion.header_len.get();
        if bits & RX_SPLIT_HEADER == 0 {
            return Ok(());
        }
        let len = usize::from(bits & RX_HEADER_LEN_MASK);
        if len > self.header_bytes {
            return Err(Violation::Length(len));
        }
        let is_first = packet.frags.is_empty();
        if !is_first {
            return Err(Violation::Parts);
        }
        let id = usize::from(completion.buf_id.get());
        let at = self.headers + (id * self.header_bytes) as u64;
        packet.split = true;
        packet.header = ram.get(at, len);
        Ok(())
    }
}
