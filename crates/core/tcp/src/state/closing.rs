//! TIME-WAIT (RFC 9293 3.6).

use core::time::Duration;

use netmem::Payload;
use wire::{Ecn, Instant};

use crate::disposition::Disposition;
use crate::options::{TimestampClock, TsRecent, ack_options};
use crate::segment::{Control, Segment};
use crate::segment_drop::SegmentDrop;
use crate::seqnum::SeqNum;
use crate::timers::ReplyLimit;

/// Distance from SND.NXT of a connection in TIME-WAIT to the ISN of the next connection: more
/// than an unscaled window (linux `tcp_timewait_state_process` adds as much).
const REOPEN_GAP: usize = 65_535 + 2;

/// A connection in TIME-WAIT, small enough to keep many.
///
/// It answers a repeated FIN, keeps late segments away from a new connection between the same endpoints, and decides when
/// such a connection may begin. RSTs do not end it (RFC 1337).
#[derive(Debug, Clone)]
pub struct TimeWait {
    kept: TimeWaitFields,
    duration: Duration,
    deadline: Instant,
    replies: ReplyLimit,
}

/// Fields of a connection that TIME-WAIT keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeWaitFields {
    /// The peer's FIN, or something before it, is not acknowledged yet.
    pub(crate) ack_due: bool,
    pub(crate) snd_nxt: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    pub(crate) window: u16,
    pub(crate) ts_recent: Option<TsRecent>,
    pub(crate) clock: TimestampClock,
    /// ECN field of packets sent in TIME-WAIT.
    pub(crate) ecn: Ecn,
}

impl TimeWait {
    pub(crate) fn new(kept: TimeWaitFields, duration: Duration, now: Instant) -> TimeWait {
        TimeWait {
            kept,
            duration,
            deadline: now + duration,
            replies: ReplyLimit::default(),
        }
    }

    /// Processes a segment between the endpoints of the old connection.
    pub fn on_segment<P: Payload>(&mut self, segment: &Segment<P>, now: Instant) -> Disposition {
        let tsval = segment.options.timestamps.map(|ts| ts.value);
        let is_stale = self
            .kept
            .ts_recent
            .zip(tsval)
            .is_some_and(|(recent, tsval)| recent.rejects(tsval, now));
        match segment.control {
            Control::Rst => Disposition::dropped(SegmentDrop::TimeWaitRst),
            Control::Syn
                if segment.ack.is_none() && !is_stale && self.may_follow(segment.seq, tsval) =>
            {
                Disposition {
                    reopen: Some(self.kept.snd_nxt + REOPEN_GAP),
                    ..Disposition::default()
                }
            }
            _ if is_stale => self.answer(SegmentDrop::Paws, segment, now),
            Control::Fin if segment.end() == self.kept.rcv_nxt => {
                self.deadline = now + self.duration;
                self.answer(SegmentDrop::TimeWait, segment, now)
            }
            // An ACK of our ACK gets no answer: two ends in TIME-WAIT would answer each other for ever.
            _ if segment.seq == self.kept.rcv_nxt && segment.seq_len() == 0 => {
                Disposition::dropped(SegmentDrop::TimeWait)
            }
            _ => self.answer(SegmentDrop::TimeWait, segment, now),
        }
    }

    /// Returns whether a SYN certainly belongs to a new connection: by its timestamp (RFC 6191 2), else
    /// by its sequence number (RFC 9293 3.10.7.4, RFC 1122 4.2.2.13).
    fn may_follow(&self, seq: SeqNum, tsval: Option<u32>) -> bool {
        let by_time = self
            .kept
            .ts_recent
            .zip(tsval)
            .is_some_and(|(recent, tsval)| recent.is_newer(tsval));
        by_time || seq.after(self.kept.rcv_nxt)
    }

    fn answer<P: Payload>(
        &mut self,
        reason: SegmentDrop,
        segment: &Segment<P>,
        now: Instant,
    ) -> Disposition {
        if segment.seq_len() == 0 && !self.replies.allow_invalid(now) {
            return Disposition::dropped(reason);
        }
        self.kept.ack_due = true;
        Disposition::answered(reason)
    }

    /// Returns the ACK that is due, if one is.
    pub fn poll_send<P: Payload>(&mut self, now: Instant) -> Option<Segment<P>> {
        core::mem::take(&mut self.kept.ack_due).then(|| Segment {
            seq: self.kept.snd_nxt,
            ack: Some(self.kept.rcv_nxt),
            ecn: self.kept.ecn,
            window: self.kept.window,
            options: ack_options(
                self.kept.ts_recent.map(TsRecent::value),
                self.kept.clock.value(now),
            ),
            ..Segment::default()
        })
    }

    /// Returns when the endpoints are free again.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_wait_is_compact() {
        assert!(
            core::mem::size_of::<TimeWait>() <= 128,
            "{}",
            core::mem::size_of::<TimeWait>()
        );
    }
}
