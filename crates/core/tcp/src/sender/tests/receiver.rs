//! A minimal receiver for tests of the sender: reassembly, SACK with D-SACK, delayed ACKs, a window.

use core::time::Duration;

use netmem::Payload;
use wire::{Ecn, Instant, SackBlocks};

use crate::seqnum::SeqNum;
use crate::test_payload::Bytes;

/// One packet on the wire.
#[derive(Debug, Clone)]
pub struct Packet {
    pub seq: SeqNum,
    pub payload: Bytes,
    pub fin: bool,
    /// TSval.
    pub ts: u32,
    pub ecn: Ecn,
    pub cwr: bool,
}

/// One ACK on the wire.
#[derive(Debug, Clone)]
pub struct Ack {
    pub ack: SeqNum,
    pub window: u32,
    pub sack: SackBlocks,
    pub ts_echo: u32,
    pub ece: bool,
}

/// The receiver: which offsets have arrived.
#[derive(Debug)]
pub struct Receiver {
    first: SeqNum,
    next: u64,
    /// Ranges beyond `next`, in order of arrival, the latest first.
    out_of_order: Vec<(u64, u64)>,
    duplicate: Option<(u64, u64)>,
    fin_at: Option<u64>,
    /// Bytes the application has not read.
    unread: u64,
    buffer: u64,
    sack: bool,
    delayed_ack: Duration,
    ack_at: Option<Instant>,
    unacked_packets: u32,
    ts_recent: u32,
    last_advertised: u64,
    ece: bool,
    echo_of: EchoOf,
}

/// What is echoed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EchoOf {
    /// A mark, until CWR comes (RFC 3168).
    AllUntilCwr,
    /// Whether the newest packet was marked; an ACK is of packets that are alike (RFC 8257 3.2).
    NewestPacket,
}

impl Receiver {
    pub fn new(
        first: SeqNum,
        buffer: u64,
        sack: bool,
        delayed_ack: Duration,
        echo_of: EchoOf,
    ) -> Receiver {
        Receiver {
            first,
            next: 0,
            out_of_order: Vec::new(),
            duplicate: None,
            fin_at: None,
            unread: 0,
            buffer,
            sack,
            delayed_ack,
            ack_at: None,
            unacked_packets: 0,
            ts_recent: 0,
            last_advertised: buffer,
            ece: false,
            echo_of,
        }
    }

    /// Returns the ACK of what came before a packet with another mark.
    pub fn before_packet(&mut self, packet: &Packet) -> Option<Ack> {
        let changes = self.echo_of == EchoOf::NewestPacket
            && self.ece != (packet.ecn == Ecn::Ce)
            && self.unacked_packets > 0;
        changes.then(|| self.ack())
    }

    /// Returns how many bytes have arrived in order.
    pub fn arrived(&self) -> u64 {
        self.fin_at.map_or(self.next, |fin| self.next.min(fin))
    }

    pub fn finished(&self) -> bool {
        self.fin_at.is_some_and(|fin| self.next > fin)
    }

    /// Reads `bytes`; returns a window update if the window was closed.
    pub fn read(&mut self, bytes: u64) -> Option<Ack> {
        let was_closed = self.window() == 0;
        self.unread = self.unread.saturating_sub(bytes);
        (was_closed && self.window() > 0).then(|| self.ack())
    }

    pub fn unread(&self) -> u64 {
        self.unread
    }

    fn window(&self) -> u64 {
        let room = self.buffer.saturating_sub(self.unread);
        // Silly window avoidance (RFC 9293 3.8.6.2.2), and the edge never moves back.
        let edge = if room < 1000.min(self.buffer / 2) {
            self.next
        } else {
            self.next + room
        };
        edge.max(self.last_advertised) - self.next
    }

    /// Takes a packet; returns the ACK if it is due at once.
    pub fn on_packet(&mut self, packet: &Packet, now: Instant) -> Option<Ack> {
        assert!(
            packet.payload.is_pattern(packet.seq),
            "wrong bytes at {:?}",
            packet.seq
        );
        let base = self.next.cast_signed()
            + i64::from(packet.seq - (self.first + self.next as u32 as usize));
        let len = packet.payload.len() as i64;
        if len == 0 && !packet.fin {
            // A probe.
            return Some(self.ack());
        }
        let (start, mut end) = (base.max(0) as u64, (base + len).max(0) as u64);
        if packet.fin {
            self.fin_at = Some(end);
            end += 1;
        }
        assert!(end <= self.next + self.window() + 1, "beyond the window");
        if packet.ts.wrapping_sub(self.ts_recent).cast_signed() >= 0 && start <= self.next {
            self.ts_recent = packet.ts;
        }
        let (before, is_marked) = (self.ece, packet.ecn == Ecn::Ce);
        self.ece = match self.echo_of {
            EchoOf::AllUntilCwr => (self.ece && !packet.cwr) || is_marked,
            EchoOf::NewestPacket => is_marked,
        };
        let changes = self.echo_of == EchoOf::NewestPacket && self.ece != before;
        let in_order = start == self.next && self.out_of_order.is_empty();
        self.insert(start, end);
        self.unacked_packets += 1;
        if in_order && self.unacked_packets < 2 && !packet.fin && !changes {
            self.ack_at.get_or_insert(now + self.delayed_ack);
            return None;
        }
        Some(self.ack())
    }

    fn insert(&mut self, start: u64, end: u64) {
        let known = self
            .out_of_order
            .iter()
            .any(|&(left, right)| left <= start && end <= right);
        if end <= self.next || known {
            self.duplicate = Some((start, end));
            return;
        }
        if start < self.next {
            self.duplicate = Some((start, self.next));
        }
        let mut merged = (start.max(self.next), end);
        self.out_of_order.retain(|&(left, right)| {
            let apart = right < merged.0 || merged.1 < left;
            if !apart {
                merged = (merged.0.min(left), merged.1.max(right));
            }
            apart
        });
        if merged.0 > self.next {
            self.out_of_order.insert(0, merged);
            return;
        }
        let before = self.arrived();
        self.next = merged.1;
        self.unread += self.arrived() - before;
    }

    /// Returns when a delayed ACK is due.
    pub fn ack_at(&self) -> Option<Instant> {
        self.ack_at
    }

    /// Returns an ACK for what has arrived.
    pub fn ack(&mut self) -> Ack {
        self.ack_at = None;
        self.unacked_packets = 0;
        let window = self.window();
        self.last_advertised = self.next + window;
        let mut sack = SackBlocks::default();
        if self.sack {
            let duplicate = self.duplicate.take();
            let blocks = duplicate
                .into_iter()
                .chain(self.out_of_order.iter().copied());
            for (left, right) in blocks.take(3) {
                let seq = |offset: u64| (self.first + offset as u32 as usize).0;
                assert!(sack.push(seq(left), seq(right)));
            }
        }
        Ack {
            ack: self.first + self.next as u32 as usize,
            window: window as u32,
            sack,
            ts_echo: self.ts_recent,
            ece: self.ece,
        }
    }
}
