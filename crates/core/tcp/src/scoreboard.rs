//! The data in flight, as ranges of the stream with the same state (RFC 6675 with the send times of RFC 8985).
//!
//! A record is a range sent at one time in packets of one size. It is cut when the peer reports a part of it, and
//! joined with a neighbour once both are reported. A super-segment of 64 KiB is one record, and so is a
//! burst of several.
//!
//! Losses are found in order of sending, without a walk over all records for each ACK (linux has
//! `tsorted_sent_queue` for this). First transmissions are sent in order of sequence, so a cursor over the records is enough
//! for them; retransmissions have a separate queue.

pub(crate) mod delivered;
mod record;
mod retransmissions;
pub(crate) mod sending;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use core::time::Duration;

use wire::Instant;

use delivered::Delivered;
use record::{RecordMarks, TxRecord};
use retransmissions::{Retransmission, Retransmissions};
use sending::Sending;

/// Most records. A SACK that would add another one is ignored, and the cumulative ACK will cover its range: this limits the
/// memory that a peer can cause to be used (CVE-2019-11478: no such limit).
const MAX_RECORDS: usize = 16 * 1024;

/// Records for which an empty scoreboard keeps memory.
const KEPT_RECORDS: usize = 8;

/// Conditions for a loss: something that was sent later has arrived, and enough time has passed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossCriteria {
    /// The sending that arrived and was sent last.
    pub(crate) latest: Sending,
    /// Longest time from sending to ACK before a sending counts as lost.
    pub(crate) window: Duration,
    pub(crate) now: Instant,
}

/// Result of [`Scoreboard::detect_lost`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Losses {
    /// Bytes that were marked as lost now.
    pub(crate) bytes: u64,
    /// A retransmission is among them.
    pub(crate) retransmission: bool,
    /// When to look again: something that was sent before the latest arrival is not old enough to be lost.
    pub(crate) again_at: Option<Instant>,
}

impl Losses {
    /// Judges one sending; returns whether it is lost, so that later ones may be lost too.
    fn goes_on(&mut self, judge: &LossCriteria, sending: Sending) -> bool {
        let is_later = !judge.latest.is_after(sending);
        let is_lost = !is_later && sending.sent_at + judge.window <= judge.now;
        if !is_later && !is_lost {
            self.again_at = Some(judge.latest.sent_at + judge.window);
        }
        is_lost
    }
}

/// All records between SND.UNA and SND.NXT, and their sums.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    records: VecDeque<TxRecord>,
    /// In order of sending; only there once something was lost.
    retransmissions: Option<Box<Retransmissions>>,
    /// First transmissions below this offset are known to be lost or delivered.
    next_original: u64,
    /// No record below this offset awaits retransmission.
    next_lost: u64,
    /// End of the highest range that the peer reported (RFC 8985 RACK.fack).
    highest_sacked: u64,
    /// Sums of bytes; a window is at most 2^30.
    sacked: u32,
    lost: u32,
    retrans: u32,
    /// Records of different sendings are never joined before SACK reports them.
    keeps_apart: bool,
    /// The first record begins inside a packet: an ACK ended there.
    head_is_split: bool,
    /// Packets reported by SACK since the last time when none were; used instead of RFC 6675's count of duplicates.
    sacked_packets: u32,
    /// What was sent last, and when it counts as sent.
    last: Sending,
}

impl Scoreboard {
    /// Returns an empty summary for a new ACK.
    pub(crate) fn begin_ack(&self) -> Delivered {
        Delivered {
            highest_before: self.highest_sacked,
            ..Delivered::default()
        }
    }

    /// Returns the end of the highest range that the peer reported.
    pub(crate) fn highest_sacked(&self) -> u64 {
        self.highest_sacked
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

    /// Returns the bytes whose retransmission is in flight.
    pub(crate) fn retrans(&self) -> u64 {
        self.retrans.into()
    }

    /// Returns about how many packets were reported by SACK.
    pub(crate) fn sacked_packets(&self) -> u32 {
        self.sacked_packets
    }

    /// Returns when the first unacknowledged range was last sent.
    pub(crate) fn head_sent_at(&self) -> Option<Instant> {
        self.records.front().map(|record| record.sent_at)
    }

    /// Repeats each super-segment apart from the others.
    pub(crate) fn keep_apart(&mut self) {
        self.keeps_apart = true;
    }

    /// Notes `len` new bytes at `start`, behind all others.
    pub(crate) fn on_sent(&mut self, start: u64, len: u32, mss: u16, now: Instant) {
        let record = TxRecord {
            start,
            sent_at: self.order(start, len, now),
            len,
            mss: mss.max(1),
            marks: RecordMarks::NONE,
        };
        match self.records.back_mut() {
            Some(last) if !self.keeps_apart && last.joins(&record) => last.len += len,
            _ => self.records.push_back(record),
        }
    }

    /// Returns when a sending counts as sent. What leaves in one instant is taken to leave in order of sequence ([`Sending::is_after`]), so that
    /// a retransmission behind new data has to count as later: else it would be lost as soon as that data arrives.
    fn order(&mut self, start: u64, len: u32, now: Instant) -> Instant {
        let end = start + u64::from(len);
        let mut sent_at = now.max(self.last.sent_at);
        if sent_at == self.last.sent_at && end <= self.last.end {
            sent_at = sent_at + Duration::from_nanos(1);
        }
        self.last = Sending { sent_at, end };
        sent_at
    }

    /// Removes everything below `una`, the cumulative acknowledgement.
    pub(crate) fn ack_to(&mut self, una: u64, delivered: &mut Delivered) {
        while let Some(front) = self.records.front_mut() {
            if front.start >= una {
                break;
            }
            let mut acked = *front;
            let was_split = core::mem::take(&mut self.head_is_split);
            delivered.split |= was_split && acked.original() && !acked.sacked();
            if front.end() > una {
                self.head_is_split = !(una - front.start).is_multiple_of(front.mss.into());
                acked.len = (una - front.start) as u32;
                front.start = una;
                front.len -= acked.len;
            } else {
                self.records.pop_front();
            }
            self.uncount(&acked);
            if !acked.sacked() {
                delivered.note_acked(&acked);
            }
        }
        if self.sacked == 0 {
            self.sacked_packets = 0;
        }
        if let Some(queue) = &mut self.retransmissions {
            queue.release(una);
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
        delivered.note_sacked(&record);
        self.sacked += record.len;
        let packets = record.len.div_ceil(u32::from(record.mss));
        self.sacked_packets = self.sacked_packets.saturating_add(packets);
        self.highest_sacked = self.highest_sacked.max(record.end());
        let marks = &mut self.records[index].marks;
        marks.clear(RecordMarks::LOST);
        marks.clear(RecordMarks::RETRANS);
        marks.set(RecordMarks::SACKED);
    }

    /// Marks as lost what meets the conditions of `judge` (RFC 8985 6.2 step 5).
    pub(crate) fn detect_lost(&mut self, judge: LossCriteria) -> Losses {
        let mut losses = Losses::default();
        self.detect_lost_originals(judge, &mut losses);
        self.detect_lost_retransmissions(judge, &mut losses);
        losses
    }

    fn detect_lost_originals(&mut self, judge: LossCriteria, losses: &mut Losses) {
        let mut index = self.index_at(self.next_original);
        while let Some(&record) = self.records.get(index) {
            let settled = record.sacked() || record.marks.has(RecordMarks::LOST);
            if record.original() && !settled {
                if !losses.goes_on(&judge, record.sending()) {
                    break;
                }
                losses.bytes += u64::from(record.len);
                self.mark_lost(index);
            }
            index += 1;
        }
        self.next_original = self.start_of(index);
    }

    fn detect_lost_retransmissions(&mut self, judge: LossCriteria, losses: &mut Losses) {
        let Some(mut queue) = self.retransmissions.take() else {
            return;
        };
        while let Some(sent) = queue.oldest() {
            if !losses.goes_on(&judge, sent.sending()) {
                break;
            }
            queue.pop();
            let mut index = self.index_at(sent.start);
            while let Some(&record) = self
                .records
                .get(index)
                .filter(|record| record.start < sent.end())
            {
                // A record that was sent again since has a later entry.
                if record.marks.has(RecordMarks::RETRANS) && record.sent_at == sent.sent_at {
                    losses.bytes += u64::from(record.len);
                    losses.retransmission = true;
                    self.mark_lost(index);
                }
                index += 1;
            }
        }
        self.retransmissions = Some(queue);
    }

    /// Marks every range as lost that the peer has not reported, and for which `is_lost` (send time, packet size) is true.
    pub(crate) fn mark_lost_where(&mut self, is_lost: impl Fn(Instant, u32) -> bool) {
        for index in 0..self.records.len() {
            let record = self.records[index];
            let packet = record.len.min(u32::from(record.mss));
            if !record.sacked() && is_lost(record.sent_at, packet) {
                self.mark_lost(index);
            }
        }
    }

    /// Marks the first unacknowledged packet as lost; returns false if it was marked before, or if there is none.
    pub(crate) fn mark_head_lost(&mut self) -> bool {
        let Some(&head) = self.records.front() else {
            return false;
        };
        if head.sacked() || head.marks.has(RecordMarks::LOST) {
            return false;
        }
        let packet = u64::from(head.len.min(u32::from(head.mss)));
        let index = self.isolate(0, head.start, head.start + packet);
        self.mark_lost(index);
        true
    }

    /// Marks the first unacknowledged packet as lost, even if its retransmission is in flight.
    pub(crate) fn mark_head_timed_out(&mut self) {
        if !self.mark_head_lost() && self.records.front().is_some_and(|head| !head.sacked()) {
            self.mark_lost(0);
        }
    }

    /// Returns the lowest range that is lost and was not sent again, at most `max` bytes of it.
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
            let is_full = end - first.start >= u64::from(max);
            if !record.awaits_retransmission() || is_full || self.keeps_apart {
                break;
            }
            end = record.end();
        }
        Some((first.start, (end - first.start).min(u64::from(max)) as u32))
    }

    /// Returns start and length of the first packet, unless the peer has reported it.
    pub(crate) fn first_packet(&self) -> Option<(u64, u32)> {
        let front = self.records.front().filter(|front| !front.sacked())?;
        Some((front.start, front.len.min(u32::from(front.mss))))
    }

    /// Returns start and length of the last packet, with the FIN, whose offset is `fin` if it was sent.
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
        let sent_at = self.order(start, len, now);
        let mut index = self.index_at(start);
        while let Some(&record) = self.records.get(index).filter(|record| record.start < end) {
            index = self.isolate(index, start.max(record.start), end.min(record.end()));
            let record = &mut self.records[index];
            if !record.sacked() {
                if !record.marks.has(RecordMarks::RETRANS) {
                    self.retrans += record.len;
                }
                record.marks.set(RecordMarks::RETRANS);
                record.marks.set(RecordMarks::EVER_RETRANS);
                record.sent_at = sent_at;
                record.mss = mss.max(1);
                index = self.join_before(index);
            }
            index += 1;
        }
        let sent = Retransmission {
            start,
            sent_at,
            len,
        };
        self.retransmissions.get_or_insert_default().push(sent);
    }

    /// Removes all marks of losses: the packets were only late.
    pub(crate) fn unmark_lost(&mut self) {
        for record in &mut self.records {
            record.marks.clear(RecordMarks::LOST);
        }
        self.lost = 0;
        self.next_original = 0;
    }

    /// Removes all marks of SACK: the peer has dropped what it had reported (RFC 2018 8, reneging).
    pub(crate) fn forget_sacks(&mut self) {
        for record in &mut self.records {
            record.marks.clear(RecordMarks::SACKED);
        }
        self.sacked = 0;
        self.sacked_packets = 0;
        self.highest_sacked = 0;
        self.next_original = 0;
    }

    /// Returns whether the first unacknowledged range is reported by SACK.
    pub(crate) fn head_sacked(&self) -> bool {
        self.records.front().is_some_and(TxRecord::sacked)
    }

    fn mark_lost(&mut self, index: usize) {
        let record = &mut self.records[index];
        let len = record.len;
        if record.marks.has(RecordMarks::RETRANS) {
            record.marks.clear(RecordMarks::RETRANS);
            self.retrans -= len;
        }
        if !record.marks.has(RecordMarks::LOST) {
            record.marks.set(RecordMarks::LOST);
            self.lost += len;
        }
        self.next_lost = self.next_lost.min(record.start);
    }

    /// Subtracts a record from the sums of its marks.
    fn uncount(&mut self, record: &TxRecord) {
        let len = record.len;
        for (mark, sum) in [
            (RecordMarks::SACKED, &mut self.sacked),
            (RecordMarks::LOST, &mut self.lost),
            (RecordMarks::RETRANS, &mut self.retrans),
        ] {
            if record.marks.has(mark) {
                *sum -= len;
            }
        }
    }

    fn may_cut(&self, record: &TxRecord, from: u64, to: u64) -> bool {
        (from == record.start && to == record.end()) || self.records.len() < MAX_RECORDS
    }

    /// Cuts the record at `index` so that `[from, to)` is a separate record; returns its index.
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

    /// Joins the record at `index` with neighbours of the same state; returns its index.
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
        let may_join = record.sacked() || !self.keeps_apart;
        if !may_join || !self.records[before].joins(&record) {
            return index;
        }
        self.records[before].len += record.len;
        self.records.remove(index);
        before
    }

    /// Returns the index of the first record that ends behind `offset`.
    fn index_at(&self, offset: u64) -> usize {
        // The offset is usually in the first record.
        match self.records.front() {
            Some(front) if front.end() > offset => 0,
            _ => self
                .records
                .partition_point(|record| record.end() <= offset),
        }
    }

    /// Returns the start of the record at `index`, or of the next one to be added.
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
