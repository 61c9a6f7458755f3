//! What is in flight, as ranges of the stream that share one fate (RFC 6675 with the send times of RFC 8985).
//!
//! A record is a range sent at one time in packets of one size; it is cut when the peer reports a part of it and
//! joined again with neighbours once both are reported. A super-segment of 64 KiB is one record, and so is a whole
//! burst of them.
//!
//! Losses are found in order of sending, without looking at every record for every ACK (linux keeps
//! `tsorted_sent_queue` for this). First transmissions are in order of sending when they are in order of sequence,
//! so a cursor over the records does for them; retransmissions have a queue of their own.

use std::collections::VecDeque;

use core::time::Duration;

use wire::Instant;

use crate::rack::Sending;

/// Records beyond which a SACK that would cut one more is ignored until the cumulative ACK gets there: bounds the
/// memory that a peer can make us spend (CVE-2019-11478 was about its absence).
const MAX_RECORDS: usize = 16 * 1024;

/// Records for which an empty scoreboard keeps its room; more is given back.
const KEPT_RECORDS: usize = 16;

/// What is known of a range (linux `TCPCB_SACKED_ACKED`, `TCPCB_LOST`, `TCPCB_SACKED_RETRANS`,
/// `TCPCB_EVER_RETRANS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Marks(u8);

impl Marks {
    const NONE: Marks = Marks(0);
    /// The peer has it.
    const SACKED: Marks = Marks(1);
    /// It is believed to be gone.
    const LOST: Marks = Marks(2);
    /// Its latest retransmission is in flight.
    const RETRANS: Marks = Marks(4);
    /// It was sent more than once.
    const EVER_RETRANS: Marks = Marks(8);

    const fn has(self, other: Marks) -> bool {
        self.0 & other.0 != 0
    }

    fn set(&mut self, other: Marks) {
        self.0 |= other.0;
    }

    fn clear(&mut self, other: Marks) {
        self.0 &= !other.0;
    }
}

/// A range of the stream with one fate. The FIN counts as the byte behind the stream.
#[derive(Debug, Clone, Copy)]
struct TxRecord {
    start: u64,
    /// When it was sent last.
    sent_at: Instant,
    len: u32,
    /// Size of the packets it was sent in; packet borders lie at multiples of it from `start`.
    mss: u16,
    marks: Marks,
}

impl TxRecord {
    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    fn sending(&self) -> Sending {
        Sending {
            sent_at: self.sent_at,
            end: self.end(),
        }
    }

    fn sacked(&self) -> bool {
        self.marks.has(Marks::SACKED)
    }

    /// Lost, and not yet sent again.
    fn awaits_retransmission(&self) -> bool {
        self.marks.has(Marks::LOST) && !self.marks.has(Marks::RETRANS)
    }

    fn original(&self) -> bool {
        !self.marks.has(Marks::EVER_RETRANS)
    }

    /// Cuts `[start, end)` down to whole packets of this record.
    ///
    /// A receiver can only have whole packets, so an honest report loses nothing, and a dishonest one cannot grind
    /// the record to single bytes (linux `tcp_match_skb_to_sack`).
    fn whole_packets(&self, start: u64, end: u64) -> (u64, u64) {
        let mss = u64::from(self.mss);
        let from = start.saturating_sub(self.start).next_multiple_of(mss);
        let to = match end >= self.end() {
            true => u64::from(self.len),
            false => (end - self.start) / mss * mss,
        };
        (self.start + from.min(u64::from(self.len)), self.start + to)
    }

    /// Returns whether `next` shares this record's fate and continues its packets.
    fn joins(&self, next: &TxRecord) -> bool {
        let contiguous = self.end() == next.start && self.len.checked_add(next.len).is_some();
        let same = match self.sacked() {
            // When and how it was sent matters no more.
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

/// One retransmission, kept until it is old enough to be judged.
#[derive(Debug, Clone, Copy)]
struct Retransmission {
    start: u64,
    sent_at: Instant,
    len: u32,
}

/// What one ACK told about the records: filled by [`Scoreboard::ack_to`] and [`Scoreboard::sack`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delivered {
    /// Bytes that the peer is now known to have and was not before (RFC 9937 DeliveredData).
    pub(crate) bytes: u64,
    /// Those of them reported by SACK.
    pub(crate) sacked: u64,
    /// The delivered packet that was sent last, of those sent only once (RFC 8985 6.2 step 2).
    pub(crate) latest_original: Option<Sending>,
    /// The same of those sent again.
    pub(crate) latest_retransmission: Option<Sending>,
    /// When the oldest and the newest of the cumulatively acknowledged packets were sent, of those sent only once.
    pub(crate) acked_sent: Option<(Instant, Instant)>,
    /// The same for the packets acknowledged selectively.
    pub(crate) sacked_sent: Option<(Instant, Instant)>,
    /// End of the lowest range delivered that was sent only once.
    pub(crate) lowest_original: Option<u64>,
    /// Some of what is cumulatively acknowledged was sent more than once.
    pub(crate) acked_retransmission: bool,
    /// A packet sent only once arrived after a later one (RFC 8985 6.2 step 3).
    pub(crate) reordered: bool,
    /// End of the highest range that was reported before this ACK.
    highest_before: u64,
}

/// The verdict of [`Scoreboard::detect_lost`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Losses {
    /// Bytes newly believed lost.
    pub(crate) bytes: u64,
    /// A retransmission is among them.
    pub(crate) retransmission: bool,
    /// Something sent before the delivered packet is not old enough to be judged: look again later.
    pub(crate) undecided: bool,
}

/// All records between SND.UNA and SND.NXT, and their sums.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    records: VecDeque<TxRecord>,
    /// In order of sending; only there once something was lost.
    retransmissions: Option<Box<VecDeque<Retransmission>>>,
    /// First transmissions below this offset need no judgement any more.
    next_original: u64,
    /// No record below this offset awaits retransmission.
    next_lost: u64,
    /// End of the highest range that the peer reported (RFC 8985 RACK.fack).
    highest_sacked: u64,
    /// Sums of bytes; a window is at most 2^30.
    sacked: u32,
    lost: u32,
    retrans: u32,
    /// Packets reported by SACK since nothing was; stands in for RFC 6675's count of duplicates.
    sacked_packets: u32,
}

impl Scoreboard {
    /// Returns the account of a new ACK.
    pub(crate) fn begin_ack(&self) -> Delivered {
        Delivered {
            highest_before: self.highest_sacked,
            ..Delivered::default()
        }
    }

    /// Returns the bytes between SND.UNA and SND.NXT.
    pub(crate) fn outstanding(&self) -> u64 {
        match (self.records.front(), self.records.back()) {
            (Some(front), Some(back)) => back.end() - front.start,
            _ => 0,
        }
    }

    /// Returns the bytes believed to be in the network (RFC 6675 pipe, linux `tcp_packets_in_flight`).
    pub(crate) fn pipe(&self) -> u64 {
        (self.outstanding() + u64::from(self.retrans))
            .saturating_sub(u64::from(self.sacked) + u64::from(self.lost))
    }

    /// Returns the bytes reported by SACK and not yet acknowledged.
    pub(crate) fn sacked(&self) -> u64 {
        self.sacked.into()
    }

    /// Returns the bytes believed lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.into()
    }

    /// Returns the bytes sent again whose fate is open.
    pub(crate) fn retrans(&self) -> u64 {
        self.retrans.into()
    }

    /// Returns about how many packets were reported by SACK.
    pub(crate) fn sacked_packets(&self) -> u32 {
        self.sacked_packets
    }

    /// Returns when the oldest unacknowledged range was sent last.
    pub(crate) fn head_sent_at(&self) -> Option<Instant> {
        self.records.front().map(|record| record.sent_at)
    }

    /// Notes `len` new bytes at `start`, behind all others.
    pub(crate) fn on_sent(&mut self, start: u64, len: u32, mss: u16, now: Instant) {
        let record = TxRecord {
            start,
            sent_at: now,
            len,
            mss: mss.max(1),
            marks: Marks::NONE,
        };
        match self.records.back_mut() {
            Some(last) if last.joins(&record) => last.len += len,
            _ => self.records.push_back(record),
        }
    }

    /// Forgets everything below `una`, the cumulative acknowledgement.
    pub(crate) fn ack_to(&mut self, una: u64, delivered: &mut Delivered) {
        while let Some(front) = self.records.front_mut() {
            if front.start >= una {
                break;
            }
            let mut acked = *front;
            if front.end() > una {
                acked.len = (una - front.start) as u32;
                front.start = una;
                front.len -= acked.len;
            } else {
                self.records.pop_front();
            }
            self.uncount(&acked);
            if !acked.sacked() {
                delivered.note(&acked);
                delivered.acked_sent = widened(delivered.acked_sent, &acked);
                delivered.acked_retransmission |= !acked.original();
            }
        }
        if self.sacked == 0 {
            self.sacked_packets = 0;
        }
        if self.records.is_empty() {
            self.on_empty();
        }
    }

    /// Marks `[start, end)` as arrived out of order.
    pub(crate) fn sack(&mut self, start: u64, end: u64, delivered: &mut Delivered) {
        let mut index = self.index_at(start);
        while let Some(&record) = self.records.get(index) {
            if record.start >= end {
                break;
            }
            let (from, to) = record.whole_packets(start, end);
            if record.sacked() || from >= to || !self.may_cut(&record, from, to) {
                index += 1;
                continue;
            }
            index = self.isolate(index, from, to);
            self.sack_record(index, delivered);
            index = self.join_around(index) + 1;
        }
    }

    fn sack_record(&mut self, index: usize, delivered: &mut Delivered) {
        let record = self.records[index];
        self.uncount(&record);
        delivered.note(&record);
        delivered.sacked += u64::from(record.len);
        delivered.sacked_sent = widened(delivered.sacked_sent, &record);
        self.sacked += record.len;
        let packets = record.len.div_ceil(u32::from(record.mss));
        self.sacked_packets = self.sacked_packets.saturating_add(packets);
        self.highest_sacked = self.highest_sacked.max(record.end());
        let marks = &mut self.records[index].marks;
        marks.clear(Marks::LOST);
        marks.clear(Marks::RETRANS);
        marks.set(Marks::SACKED);
    }

    /// Marks what was sent before `latest` and at least `window` ago as lost (RFC 8985 6.2 step 5).
    pub(crate) fn detect_lost(
        &mut self,
        latest: Sending,
        window: Duration,
        now: Instant,
    ) -> Losses {
        let mut losses = Losses::default();
        self.detect_lost_originals(latest, window, now, &mut losses);
        self.detect_lost_retransmissions(latest, window, now, &mut losses);
        losses
    }

    fn detect_lost_originals(
        &mut self,
        latest: Sending,
        window: Duration,
        now: Instant,
        losses: &mut Losses,
    ) {
        let mut index = self.index_at(self.next_original);
        while let Some(&record) = self.records.get(index) {
            let open = record.original() && !record.sacked() && !record.marks.has(Marks::LOST);
            if open && !latest.is_after(record.sending()) {
                break;
            }
            if open && record.sent_at + window > now {
                losses.undecided = true;
                break;
            }
            if open {
                losses.bytes += u64::from(record.len);
                self.mark_lost(index);
            }
            index += 1;
        }
        self.next_original = self.start_of(index);
    }

    fn detect_lost_retransmissions(
        &mut self,
        latest: Sending,
        window: Duration,
        now: Instant,
        losses: &mut Losses,
    ) {
        while let Some(&sent) = self
            .retransmissions
            .as_ref()
            .and_then(|queue| queue.front())
        {
            let end = sent.start + u64::from(sent.len);
            if !latest.is_after(Sending {
                sent_at: sent.sent_at,
                end,
            }) {
                break;
            }
            if sent.sent_at + window > now {
                losses.undecided = true;
                break;
            }
            self.retransmissions.as_mut().map(|queue| queue.pop_front());
            let mut index = self.index_at(sent.start);
            while let Some(&record) = self.records.get(index).filter(|record| record.start < end) {
                // A record sent again since then waits for its later entry.
                if record.marks.has(Marks::RETRANS) && record.sent_at == sent.sent_at {
                    losses.bytes += u64::from(record.len);
                    losses.retransmission = true;
                    self.mark_lost(index);
                }
                index += 1;
            }
        }
    }

    /// Marks every range that the peer has not reported and that `is_lost` names (send time, packet size).
    pub(crate) fn mark_lost_where(&mut self, is_lost: impl Fn(Instant, u32) -> bool) {
        for index in 0..self.records.len() {
            let record = self.records[index];
            let packet = record.len.min(u32::from(record.mss));
            if !record.sacked() && is_lost(record.sent_at, packet) {
                self.mark_lost(index);
            }
        }
    }

    /// Marks the first unacknowledged packet as lost; returns false if it was already, or if there is none.
    pub(crate) fn mark_head_lost(&mut self) -> bool {
        let Some(&head) = self.records.front() else {
            return false;
        };
        if head.sacked() || head.marks.has(Marks::LOST) {
            return false;
        }
        let packet = u64::from(head.len.min(u32::from(head.mss)));
        let index = self.isolate(0, head.start, head.start + packet);
        self.mark_lost(index);
        true
    }

    /// Marks the first unacknowledged packet as lost, even if its retransmission left just now.
    pub(crate) fn mark_head_timed_out(&mut self) {
        if !self.mark_head_lost() && self.records.front().is_some_and(|head| !head.sacked()) {
            self.mark_lost(0);
        }
    }

    /// Returns the lowest range that is lost and not sent again, at most `max` bytes of it.
    pub(crate) fn next_lost(&mut self, max: u32) -> Option<(u64, u32)> {
        let mut index = self.index_at(self.next_lost);
        while self
            .records
            .get(index)
            .is_some_and(|record| !record.awaits_retransmission())
        {
            index += 1;
        }
        self.next_lost = self.start_of(index);
        let first = *self.records.get(index)?;
        let mut end = first.end();
        for record in self.records.range(index + 1..) {
            if !record.awaits_retransmission() || end - first.start >= u64::from(max) {
                break;
            }
            end = record.end();
        }
        Some((first.start, (end - first.start).min(u64::from(max)) as u32))
    }

    /// Returns the last packet: where it starts, and its length with the FIN, which lies at `fin` if it was sent.
    pub(crate) fn last_packet(&self, fin: Option<u64>) -> Option<(u64, u32)> {
        let (front, back) = (self.records.front()?, self.records.back()?);
        let end = back.end();
        let data_end = fin.map_or(end, |fin| fin.min(end));
        if data_end <= front.start {
            return Some((front.start, (end - front.start) as u32));
        }
        let record = self.records.get(self.index_at(data_end - 1))?;
        let packet = (data_end - 1 - record.start) % u64::from(record.mss) + 1;
        let start = data_end - packet;
        Some((start, (end - start) as u32))
    }

    /// Notes that `[start, start + len)` was sent again in packets of `mss`.
    pub(crate) fn on_retransmitted(&mut self, start: u64, len: u32, mss: u16, now: Instant) {
        let end = start + u64::from(len);
        let mut index = self.index_at(start);
        while let Some(&record) = self.records.get(index).filter(|record| record.start < end) {
            index = self.isolate(index, start.max(record.start), end.min(record.end()));
            let record = &mut self.records[index];
            if !record.sacked() {
                if !record.marks.has(Marks::RETRANS) {
                    self.retrans += record.len;
                }
                record.marks.set(Marks::RETRANS);
                record.marks.set(Marks::EVER_RETRANS);
                record.sent_at = now;
                record.mss = mss.max(1);
                index = self.join_before(index);
            }
            index += 1;
        }
        self.note_retransmission(start, len, now);
    }

    fn note_retransmission(&mut self, start: u64, len: u32, now: Instant) {
        let queue = self.retransmissions.get_or_insert_default();
        match queue.back_mut() {
            Some(last) if last.sent_at == now && last.start + u64::from(last.len) == start => {
                last.len = last.len.saturating_add(len);
            }
            _ => queue.push_back(Retransmission {
                start,
                sent_at: now,
                len,
            }),
        }
    }

    /// Takes back every loss verdict that was not acted on: the network was only slow.
    pub(crate) fn unmark_lost(&mut self) {
        for record in &mut self.records {
            record.marks.clear(Marks::LOST);
        }
        self.lost = 0;
        self.next_original = 0;
    }

    /// Forgets every SACK: the peer dropped what it had reported (RFC 2018 8, reneging).
    pub(crate) fn forget_sacks(&mut self) {
        for record in &mut self.records {
            record.marks.clear(Marks::SACKED);
        }
        self.sacked = 0;
        self.sacked_packets = 0;
        self.highest_sacked = 0;
        self.next_original = 0;
    }

    /// Returns whether the peer reported the very range that it does not acknowledge.
    pub(crate) fn head_sacked(&self) -> bool {
        self.records.front().is_some_and(TxRecord::sacked)
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Scoreboard::default();
    }

    fn mark_lost(&mut self, index: usize) {
        let record = &mut self.records[index];
        let len = record.len;
        if record.marks.has(Marks::RETRANS) {
            record.marks.clear(Marks::RETRANS);
            self.retrans -= len;
        }
        if !record.marks.has(Marks::LOST) {
            record.marks.set(Marks::LOST);
            self.lost += len;
        }
        self.next_lost = self.next_lost.min(record.start);
    }

    /// Takes a record out of the sums that its marks put it into.
    fn uncount(&mut self, record: &TxRecord) {
        let len = record.len;
        for (mark, sum) in [
            (Marks::SACKED, &mut self.sacked),
            (Marks::LOST, &mut self.lost),
            (Marks::RETRANS, &mut self.retrans),
        ] {
            if record.marks.has(mark) {
                *sum -= len;
            }
        }
    }

    fn may_cut(&self, record: &TxRecord, from: u64, to: u64) -> bool {
        (from == record.start && to == record.end()) || self.records.len() < MAX_RECORDS
    }

    /// Cuts the record at `index` so that `[from, to)` is a record of its own; returns its index.
    fn isolate(&mut self, index: usize, from: u64, to: u64) -> usize {
        let record = self.records[index];
        if to < record.end() {
            self.records[index].len = (to - record.start) as u32;
            let rest = TxRecord {
                start: to,
                len: (record.end() - to) as u32,
                ..record
            };
            self.records.insert(index + 1, rest);
        }
        if from == record.start {
            return index;
        }
        let front = TxRecord {
            len: (from - record.start) as u32,
            ..record
        };
        let middle = &mut self.records[index];
        middle.start = from;
        middle.len -= front.len;
        self.records.insert(index, front);
        index + 1
    }

    /// Joins the record at `index` with its neighbours where they share its fate; returns its index.
    fn join_around(&mut self, index: usize) -> usize {
        if index + 1 < self.records.len() {
            self.join_before(index + 1);
        }
        self.join_before(index)
    }

    fn join_before(&mut self, index: usize) -> usize {
        let Some(before) = index.checked_sub(1) else {
            return index;
        };
        let record = self.records[index];
        if !self.records[before].joins(&record) {
            return index;
        }
        self.records[before].len += record.len;
        self.records.remove(index);
        before
    }

    /// Returns the index of the first record that ends behind `offset`.
    fn index_at(&self, offset: u64) -> usize {
        // Most often the cursor stands at one of the two ends.
        match self.records.front() {
            Some(front) if front.end() > offset => 0,
            _ => self
                .records
                .partition_point(|record| record.end() <= offset),
        }
    }

    /// Returns where the record at `index` starts, or where the next one will.
    fn start_of(&self, index: usize) -> u64 {
        match self.records.get(index) {
            Some(record) => record.start,
            None => self.records.back().map_or(0, TxRecord::end),
        }
    }

    fn on_empty(&mut self) {
        self.retransmissions = None;
        self.next_lost = 0;
        if self.records.capacity() > KEPT_RECORDS {
            self.records.shrink_to(KEPT_RECORDS);
        }
    }
}

impl Delivered {
    fn note(&mut self, record: &TxRecord) {
        self.bytes += u64::from(record.len);
        let latest = record.sending();
        let known = match record.original() {
            true => &mut self.latest_original,
            false => &mut self.latest_retransmission,
        };
        if known.is_none_or(|known| latest.is_after(known)) {
            *known = Some(latest);
        }
        if record.original() {
            self.reordered |= record.start < self.highest_before;
            let lowest = self
                .lowest_original
                .map_or(record.end(), |end| end.min(record.end()));
            self.lowest_original = Some(lowest);
        }
    }
}

fn widened(span: Option<(Instant, Instant)>, record: &TxRecord) -> Option<(Instant, Instant)> {
    if !record.original() {
        return span;
    }
    let (oldest, newest) = span.unwrap_or((record.sent_at, record.sent_at));
    Some((oldest.min(record.sent_at), newest.max(record.sent_at)))
}

#[cfg(test)]
mod tests;
