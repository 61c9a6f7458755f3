//! Timestamps: of sends, when the last byte was passed to the NIC, and when the peer acknowledged it; of receives, when
//! the segment with the last byte arrived.

use std::collections::VecDeque;
use std::ops::Range;

use devmem_uapi::{StampKind, TxStamp};
use wire::Instant;

/// Maximum number of sends of a socket with timestamps to be taken; further sends get none.
const MAX_AWAITED: usize = 4096;

/// Maximum number of arrival times of a socket; beyond it, adjacent segments share the later time.
const MAX_ARRIVALS: usize = 4096;

/// The timestamps that a socket reports; by default none. Those of sends are reported in the error queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[doc(alias = "SO_TIMESTAMPING")]
pub struct Timestamping {
    /// The time at which the last byte of a send reached the packet scheduler. There is none: the time is that of `sent`.
    pub scheduled: bool,
    /// The time at which the last byte of a send was first passed to the NIC, or queued until the next hop is resolved.
    pub sent: bool,
    /// The time at which the peer acknowledged the last byte of a send.
    pub acked: bool,
    /// Numbering of sends.
    pub ids: StampIds,
    /// The arrival time of received bytes, returned with them.
    pub received: bool,
}

/// Numbering of sends in timestamps: a send has the offset of its last byte, relative to a first byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StampIds {
    /// No numbering: all sends have 0.
    #[default]
    None,
    /// Relative to the first byte that was not acknowledged when this was set.
    #[doc(alias = "SOF_TIMESTAMPING_OPT_ID")]
    FromAcked,
    /// Relative to the first byte that was not queued when this was set.
    #[doc(alias = "SOF_TIMESTAMPING_OPT_ID_TCP")]
    FromQueued,
}

impl Timestamping {
    /// Returns whether any timestamp of sends is enabled.
    pub(crate) fn is_on(self) -> bool {
        self.scheduled || self.sent || self.acked
    }
}

/// A send with timestamps to be taken.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    /// Stream offset after its last byte.
    end: u64,
    id: u32,
    wanted: Timestamping,
}

/// Sends with timestamps to be taken, each list in the order of the stream.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// Stream offset of the byte that has the number 0.
    base: Option<u64>,
    unsent: VecDeque<Awaited>,
    unacked: VecDeque<Awaited>,
}

impl Stamps {
    /// Starts or stops numbering. If it has started already, the first byte stays the same.
    pub(crate) fn number(&mut self, ids: StampIds, acked: u64, queued: u64) {
        self.base = match (ids, self.base) {
            (StampIds::None, _) => None,
            (_, Some(base)) => Some(base),
            (StampIds::FromAcked, None) => Some(acked),
            (StampIds::FromQueued, None) => Some(queued),
        };
    }

    /// Adds a send that ends at the stream offset `end`.
    pub(crate) fn push(&mut self, end: u64, wanted: Timestamping) {
        if !wanted.is_on() || self.unsent.len() + self.unacked.len() >= MAX_AWAITED {
            return;
        }
        let last = end.saturating_sub(1);
        let id = self.base.map_or(0, |base| last.wrapping_sub(base));
        self.unsent.push_back(Awaited {
            end,
            // Modulo 2^32, as the kernel's.
            id: u32::try_from(id & u64::from(u32::MAX)).unwrap_or(0),
            wanted,
        });
    }

    /// Returns whether no timestamps are to be taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.unacked.is_empty()
    }

    /// Calls `report` with the timestamps that are due: bytes before `sent` have been sent, and bytes before `acked`
    /// acknowledged.
    pub(crate) fn advance(
        &mut self,
        sent: u64,
        acked: u64,
        now: Instant,
        mut report: impl FnMut(TxStamp),
    ) {
        let nanos = now.as_nanos();
        let stamp = |kind, id| TxStamp { kind, id, nanos };
        while let Some(send) = take_below(&mut self.unacked, acked) {
            report(stamp(StampKind::Acked, send.id));
        }
        while let Some(send) = take_below(&mut self.unsent, sent) {
            let Awaited { id, wanted, .. } = send;
            if wanted.scheduled {
                report(stamp(StampKind::Scheduled, id));
            }
            if wanted.sent {
                report(stamp(StampKind::Sent, id));
            }
            if wanted.acked {
                self.unacked.push_back(send);
            }
        }
    }
}

/// Arrival times of unread bytes by segment, in the order of the stream. Bytes that arrived before timestamps were
/// enabled have none.
#[derive(Debug, Default)]
pub(crate) struct ArrivalTimes(VecDeque<(Range<u64>, Instant)>);

impl ArrivalTimes {
    /// Notes the arrival of the bytes of a segment. Bytes that were received before keep their time.
    pub(crate) fn note(&mut self, bytes: Range<u64>, at: Instant) {
        let place = self.0.partition_point(|(other, _)| other.end < bytes.end);
        let before = place.checked_sub(1).and_then(|before| self.0.get(before));
        let start = before.map_or(0, |(before, _)| before.end);
        match (self.0.get(place), self.0.len()) {
            // All bytes were received before.
            (Some((behind, _)), _) if behind.start <= bytes.start.max(start) => {}
            (_, MAX_ARRIVALS..) => {
                // Linux reports the later time for merged packets.
                if let Some((before, time)) = place.checked_sub(1).and_then(|at| self.0.get_mut(at))
                {
                    (before.end, *time) = (bytes.end, at);
                }
            }
            _ => self
                .0
                .insert(place, (bytes.start.max(start)..bytes.end, at)),
        }
    }

    /// Returns the arrival time of the last of these bytes, if it has one.
    pub(crate) fn of(&self, bytes: Range<u64>) -> Option<Instant> {
        if bytes.is_empty() {
            return None;
        }
        let behind = self.0.partition_point(|(other, _)| other.start < bytes.end);
        let (last, at) = self.0.get(behind.checked_sub(1)?)?;
        (last.end > bytes.start).then_some(*at)
    }

    /// Removes the times of bytes before `offset`, which have been read.
    pub(crate) fn forget(&mut self, offset: u64) {
        while self.0.front().is_some_and(|(bytes, _)| bytes.end <= offset) {
            self.0.pop_front();
        }
    }
}

/// Takes the first send if it ends at `offset` or before.
fn take_below(sends: &mut VecDeque<Awaited>, offset: u64) -> Option<Awaited> {
    sends.front().filter(|send| send.end <= offset)?;
    sends.pop_front()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Timestamping = Timestamping {
        scheduled: true,
        sent: true,
        acked: true,
        ids: StampIds::FromAcked,
        received: false,
    };

    fn told(stamps: &mut Stamps, sent: u64, acked: u64) -> Vec<(StampKind, u32)> {
        let mut told = Vec::new();
        stamps.advance(sent, acked, Instant::from_millis(5), |stamp| {
            assert_eq!(stamp.nanos, 5_000_000);
            told.push((stamp.kind, stamp.id));
        });
        told
    }

    #[test]
    fn a_send_has_times_of_the_transmission_and_acknowledgement_of_its_last_byte() {
        let mut stamps = Stamps::default();
        stamps.number(StampIds::FromAcked, 100, 300);
        stamps.push(1100, ALL);
        stamps.push(1200, ALL);
        assert_eq!(told(&mut stamps, 1099, 500), []);
        let left = [(StampKind::Scheduled, 999), (StampKind::Sent, 999)];
        assert_eq!(told(&mut stamps, 1100, 1099), left);
        assert_eq!(
            told(&mut stamps, 1200, 1100),
            [
                (StampKind::Acked, 999),
                (StampKind::Scheduled, 1099),
                (StampKind::Sent, 1099)
            ]
        );
        assert!(!stamps.is_empty());
        assert_eq!(told(&mut stamps, 1200, 1200), [(StampKind::Acked, 1099)]);
        assert!(stamps.is_empty());
    }

    #[test]
    fn numbers_go_on_from_where_they_began_until_they_are_taken_back() {
        let mut stamps = Stamps::default();
        let sent = Timestamping {
            scheduled: false,
            acked: false,
            ..ALL
        };
        stamps.number(StampIds::FromQueued, 100, 300);
        stamps.number(StampIds::FromAcked, 200, 400);
        stamps.push(401, sent);
        stamps.number(StampIds::None, 0, 0);
        stamps.push(402, sent);
        assert_eq!(
            told(&mut stamps, 500, 0),
            [(StampKind::Sent, 100), (StampKind::Sent, 0)]
        );
    }

    #[test]
    fn pending_timestamps_are_bounded_and_exist_only_on_request() {
        let mut stamps = Stamps::default();
        stamps.push(1, Timestamping::default());
        assert!(stamps.is_empty());
        for end in 0..2 * MAX_AWAITED as u64 {
            stamps.push(end, ALL);
        }
        assert_eq!(stamps.unsent.len(), MAX_AWAITED);
    }

    #[test]
    fn a_read_has_the_time_of_its_last_segment_and_none_if_no_time_was_noted() {
        let mut times = ArrivalTimes::default();
        let at = Instant::from_millis;
        times.note(1000..2000, at(5));
        times.note(3000..4000, at(6));
        times.note(2000..3000, at(7));
        times.note(1500..2500, at(8));
        times.note(3000..4000, at(9));
        assert_eq!(times.of(0..1000), None);
        assert_eq!(times.of(0..1001), Some(at(5)));
        assert_eq!(times.of(1000..2000), Some(at(5)));
        assert_eq!(times.of(1000..2001), Some(at(7)));
        assert_eq!(times.of(1000..9000), Some(at(6)));
        assert_eq!(times.of(4000..4000), None);
        times.forget(1999);
        assert_eq!(times.of(1999..2000), Some(at(5)));
        times.forget(2000);
        assert_eq!(times.of(1999..2000), None);
    }

    #[test]
    fn segments_beyond_the_limit_of_separate_times_have_the_later_time() {
        let mut times = ArrivalTimes::default();
        let many = MAX_ARRIVALS as u64;
        for n in 0..2 * many {
            times.note(n..n + 1, Instant::from_millis(n));
        }
        assert_eq!(times.0.len(), MAX_ARRIVALS);
        assert_eq!(times.of(0..1), Some(Instant::from_millis(0)));
        assert_eq!(times.of(0..many), Some(Instant::from_millis(2 * many - 1)));
    }
}
