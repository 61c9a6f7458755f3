//! The send sequence space (RFC 9293 3.3.1): how far the peer has acknowledged, how far this side has sent, and what the
//! peer's window admits.
//!
//! Positions are stream offsets: byte 0 follows the SYN, and the FIN takes the offset behind the last byte. Only this file
//! converts between them and sequence numbers, which wrap.

use super::incoming::{AckKind, IncomingAck};
use crate::seqnum::SeqNum;

/// SND.UNA, SND.NXT and SND.WND. Changed by ACKs, and by sending.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SendSpace {
    /// Number of stream offset 0: ISS + 1.
    first: SeqNum,
    una: u64,
    nxt: u64,
    wnd: u32,
    /// MAX.SND.WND (RFC 5961 5.2, RFC 9293 3.8.6.2.1).
    max_wnd: u32,
    /// SEG.SEQ of the last window update. SND.WL2 is not kept: an ACK that is accepted is never below it.
    wl1: SeqNum,
}

/// What an ACK does to the peer's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum WindowUpdate {
    /// It has the same window, or is older than another one.
    Unchanged,
    /// The window changes.
    Changed,
    /// It was 0 and is open now.
    Reopened,
}

impl SendSpace {
    /// Returns the space behind a SYN numbered `iss`: nothing is sent, and there is no window.
    pub(super) fn new(iss: SeqNum) -> SendSpace {
        SendSpace {
            first: iss + 1,
            ..SendSpace::default()
        }
    }

    /// Takes the first window, which the segment numbered `seq` brought.
    pub(super) fn open(&mut self, window: u32, seq: SeqNum) {
        self.wnd = window;
        self.max_wnd = window;
        self.wl1 = seq;
    }

    /// Returns SND.UNA.
    pub(super) fn una(&self) -> u64 {
        self.una
    }

    /// Returns SND.NXT.
    pub(super) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Returns SND.WND.
    pub(super) fn wnd(&self) -> u32 {
        self.wnd
    }

    /// Returns the largest window that the peer ever offered.
    pub(super) fn max_wnd(&self) -> u32 {
        self.max_wnd
    }

    /// Returns the sequence number of the byte at `offset`.
    pub(super) fn seq_of(&self, offset: u64) -> SeqNum {
        // Numbers wrap at 2^32, offsets do not.
        self.first + (offset as u32) as usize
    }

    /// Returns the offset of a number near SND.UNA; below 0 for numbers before the stream.
    pub(super) fn offset_of(&self, seq: SeqNum) -> i64 {
        self.una.cast_signed() + i64::from(seq - self.seq_of(self.una))
    }

    /// Returns the offset behind the last byte that the peer's window admits.
    pub(super) fn window_end(&self) -> u64 {
        self.una + u64::from(self.wnd)
    }

    /// Returns how many new bytes the peer's window admits.
    pub(super) fn usable(&self) -> u64 {
        self.window_end().saturating_sub(self.nxt)
    }

    /// Returns whether an ACK brings nothing: the same number and the same window.
    pub(super) fn repeats(&self, ack: &IncomingAck<'_>) -> bool {
        ack.ack == self.seq_of(self.una) && ack.window == self.wnd
    }

    /// Compares an acknowledgement number with what was sent.
    pub(super) fn classify(&self, ack: SeqNum) -> AckKind {
        let (offset, una) = (self.offset_of(ack), self.una.cast_signed());
        if offset > self.nxt.cast_signed() {
            AckKind::Future
        } else if offset > una {
            AckKind::New
        } else if offset < self.oldest_ack() {
            AckKind::TooOld
        } else {
            AckKind::Duplicate
        }
    }

    /// Returns the offset below which an acknowledgement or a SACK block is too old to be genuine (RFC 5961 5.2).
    pub(super) fn oldest_ack(&self) -> i64 {
        self.una.cast_signed() - i64::from(self.max_wnd)
    }

    /// Moves SND.UNA; returns by how much.
    pub(super) fn advance_una(&mut self, to: u64) -> u64 {
        let advanced = to - self.una;
        self.una = to;
        advanced
    }

    /// Moves SND.NXT over `len` numbers that leave now.
    pub(super) fn advance_nxt(&mut self, len: u32) {
        self.nxt += u64::from(len);
    }

    /// Notes the number of a segment that leaves the window as it is.
    pub(super) fn note_seq(&mut self, seq: SeqNum) {
        self.wl1 = self.wl1.latest(seq);
    }

    /// Takes the window over unless an older segment brings it (RFC 9293 3.10.7.4).
    pub(super) fn update_window(&mut self, ack: &IncomingAck<'_>) -> WindowUpdate {
        if ack.seq.before(self.wl1) {
            return WindowUpdate::Unchanged;
        }
        self.wl1 = ack.seq;
        let before = core::mem::replace(&mut self.wnd, ack.window);
        self.max_wnd = self.max_wnd.max(ack.window);
        match (before, ack.window) {
            (before, after) if before == after => WindowUpdate::Unchanged,
            (0, _) => WindowUpdate::Reopened,
            _ => WindowUpdate::Changed,
        }
    }
}
