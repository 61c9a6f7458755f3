//! One range of the stream in flight, and its state.

use wire::Instant;

use crate::scoreboard::sending::Sending;

/// State of a range (linux `TCPCB_SACKED_ACKED`, `TCPCB_LOST`, `TCPCB_SACKED_RETRANS`,
/// `TCPCB_EVER_RETRANS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RecordMarks(u8);

impl RecordMarks {
    pub(super) const NONE: RecordMarks = RecordMarks(0);
    /// SACK has reported it.
    pub(super) const SACKED: RecordMarks = RecordMarks(1);
    /// It is believed lost.
    pub(super) const LOST: RecordMarks = RecordMarks(2);
    /// Its latest retransmission is in flight.
    pub(super) const RETRANS: RecordMarks = RecordMarks(4);
    /// It was sent more than once.
    pub(super) const EVER_RETRANS: RecordMarks = RecordMarks(8);

    pub(super) const fn has(self, other: RecordMarks) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn set(&mut self, other: RecordMarks) {
        self.0 |= other.0;
    }

    pub(super) fn clear(&mut self, other: RecordMarks) {
        self.0 &= !other.0;
    }
}

/// A range of the stream with the same state. The FIN counts as the byte behind the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct TxRecord {
    pub(super) start: u64,
    /// When it was last sent.
    pub(super) sent_at: Instant,
    pub(super) len: u32,
    /// Size of the packets it was sent in; packet borders lie at multiples of it from `start`.
    pub(super) mss: u16,
    pub(super) marks: RecordMarks,
}

impl TxRecord {
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    /// Returns the number of packets that the range was sent in.
    pub(super) fn packets(&self) -> u32 {
        self.len.div_ceil(u32::from(self.mss).max(1))
    }

    pub(super) fn sending(&self) -> Sending {
        Sending {
            sent_at: self.sent_at,
            end: self.end(),
        }
    }

    pub(super) fn sacked(&self) -> bool {
        self.marks.has(RecordMarks::SACKED)
    }

    /// Returns whether the range is lost and was not sent again.
    pub(super) fn awaits_retransmission(&self) -> bool {
        self.marks.has(RecordMarks::LOST) && !self.marks.has(RecordMarks::RETRANS)
    }

    pub(super) fn original(&self) -> bool {
        !self.marks.has(RecordMarks::EVER_RETRANS)
    }

    /// Cuts `[start, end)` down to whole packets of this record.
    ///
    /// A receiver has whole packets only, so honest reports lose nothing, and forged ones cannot cut the record into single
    /// bytes (linux `tcp_match_skb_to_sack`).
    pub(super) fn whole_packets(&self, start: u64, end: u64) -> (u64, u64) {
        let mss = u64::from(self.mss);
        let from = start.saturating_sub(self.start).next_multiple_of(mss);
        let to = match end >= self.end() {
            true => u64::from(self.len),
            false => (end - self.start) / mss * mss,
        };
        (self.start + from.min(u64::from(self.len)), self.start + to)
    }

    /// Returns whether `next` has the same state and continues this record's packets.
    pub(super) fn joins(&self, next: &TxRecord) -> bool {
        let contiguous = self.end() == next.start && self.len.checked_add(next.len).is_some();
        let same = match self.sacked() {
            // When and how it was sent is not needed any more.
            true => next.sacked(),
            false => {
                self.marks == next.marks
                    && self.sent_at == next.sent_at
                    && self.mss == next.mss
                    && self.len.is_multiple_of(u32::from(self.mss))
            }
        };
        contiguous && same
    }
}
