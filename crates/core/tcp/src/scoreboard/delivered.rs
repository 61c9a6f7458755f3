//! Summary of one ACK: the records that it delivered.

use wire::Instant;

use super::record::TxRecord;
use crate::scoreboard::sending::Sending;

/// Summary of what one ACK delivered, filled by `Scoreboard::ack_to` and `Scoreboard::sack`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delivered {
    /// A packet was acknowledged of which an earlier ACK had acknowledged a part.
    pub(crate) split: bool,
    /// Bytes that are newly known to have arrived (RFC 9937 DeliveredData).
    pub(crate) bytes: u64,
    /// Packets of these bytes, as last sent.
    pub(crate) packets: u32,
    /// The part of the bytes that SACK reported.
    pub(crate) sacked: u64,
    /// The delivered packet that was sent last, of those sent only once (RFC 8985 6.2 step 2).
    pub(crate) latest_original: Option<Sending>,
    /// The same for those sent again.
    pub(crate) latest_retransmission: Option<Sending>,
    /// Send time of the last record of this ACK, in the order of processing, and whether it was a retransmission.
    pub(crate) last: Option<(Instant, bool)>,
    /// The same for the last record that was sent only once.
    pub(crate) last_original: Option<Instant>,
    /// Oldest and newest send time of the cumulatively acknowledged packets that were sent only once.
    pub(crate) acked_sent: Option<(Instant, Instant)>,
    /// The same for the packets acknowledged selectively.
    pub(crate) sacked_sent: Option<(Instant, Instant)>,
    /// End of the lowest range delivered that was sent only once.
    pub(crate) lowest_original: Option<u64>,
    /// Some of the cumulatively acknowledged bytes were sent more than once.
    pub(crate) acked_retransmission: bool,
    /// Start of the lowest packet sent only once that arrived after a later one (RFC 8985 6.2 step 3).
    pub(crate) reordered_from: Option<u64>,
    /// End of the highest range that was reported before this ACK.
    pub(crate) highest_before: u64,
}

impl Delivered {
    /// Returns whether a packet sent only once arrived after a later one.
    pub(crate) fn reordered(&self) -> bool {
        self.reordered_from.is_some()
    }

    /// Returns when the delivered packet left that was sent last.
    pub(crate) fn newest(&self) -> Option<Instant> {
        let sent_at = |sending: Option<Sending>| sending.map(|sending| sending.sent_at);
        sent_at(self.latest_original).max(sent_at(self.latest_retransmission))
    }

    /// Adds a range that the cumulative acknowledgement covers, and that SACK had not reported.
    pub(super) fn note_acked(&mut self, record: &TxRecord) {
        self.note(record);
        self.acked_sent = widened(self.acked_sent, record);
        self.acked_retransmission |= !record.original();
    }

    /// Adds a range that SACK reports for the first time.
    pub(super) fn note_sacked(&mut self, record: &TxRecord) {
        self.note(record);
        self.sacked_sent = widened(self.sacked_sent, record);
        self.sacked += u64::from(record.len);
    }

    fn note(&mut self, record: &TxRecord) {
        self.bytes += u64::from(record.len);
        self.packets += record.packets();
        let latest = record.sending();
        self.last = Some((record.sent_at, !record.original()));
        if record.original() {
            self.last_original = Some(record.sent_at);
        }
        let known = match record.original() {
            true => &mut self.latest_original,
            false => &mut self.latest_retransmission,
        };
        if known.is_none_or(|known| latest.is_after(known)) {
            *known = Some(latest);
        }
        if record.original() {
            if record.start < self.highest_before {
                let from = self.reordered_from.unwrap_or(record.start);
                self.reordered_from = Some(from.min(record.start));
            }
            let lowest = self
                .lowest_original
                .map_or(record.end(), |end| end.min(record.end()));
            self.lowest_original = Some(lowest);
        }
    }
}

/// Returns the span of send times extended by that of `record`, unless the record was sent more than once.
fn widened(span: Option<(Instant, Instant)>, record: &TxRecord) -> Option<(Instant, Instant)> {
    if !record.original() {
        return span;
    }
    let (oldest, newest) = span.unwrap_or((record.sent_at, record.sent_at));
    Some((oldest.min(record.sent_at), newest.max(record.sent_at)))
}
