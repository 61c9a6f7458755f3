//! The part of a NIC that is one shard of several.

use steer::ShardId;
use wire::{FourTuple, Instant, RxHeaders};

use super::Nic;
use crate::crossing::{Course, Crossing, CrossingFrame, CrossingStats};
use crate::drops::Drops;
use crate::frame::RxFrame;
use crate::packet::Origin;

impl Nic {
    /// Makes this NIC one shard of several: frames of flows that other shards have are passed on to them. Must be called before
    /// the first frame.
    pub fn join(&mut self, crossing: Crossing) {
        self.crossing = Some(Box::new(crossing));
    }

    /// Returns whether this shard has the flow of packets with this four-tuple; true without shards.
    pub fn owns(&self, tuple: &FourTuple) -> bool {
        self.crossing.as_ref().is_none_or(|it| it.owns(tuple))
    }

    /// Returns whether this is the first shard, or the only one.
    pub fn is_first_shard(&self) -> bool {
        let crossing = self.crossing.as_ref();
        crossing.is_none_or(|it| it.shard() == ShardId(0))
    }

    /// Returns the counters of frames that crossed between shards; all 0 without shards.
    pub fn crossing_stats(&self) -> CrossingStats {
        self.crossing
            .as_ref()
            .map(|it| it.stats())
            .unwrap_or_default()
    }
}

impl Crossing {
    /// Passes a frame of another shard's flow on to it, and copies of frames that all shards learn from to all. Returns whether
    /// another shard goes on with the frame.
    pub(crate) fn takes(
        &mut self,
        frame: &RxFrame<'_>,
        headers: &RxHeaders,
        drops: &mut Drops,
        now: Instant,
    ) -> bool {
        if frame.arrival.origin != Origin::Link {
            return false;
        }
        let end = headers.header_len + headers.payload_len;
        let course = self.course(headers, || frame.gather(headers.header_len..end));
        let whole = || frame.gather(0..frame.arrival.len);
        match course {
            Course::Here => {}
            Course::HereAndCopies(update) => {
                if self.are_to_be_told(update, now) {
                    self.send_copies(update, &whole(), frame.arrival.meta);
                }
            }
            Course::To(shard) => {
                let crossing = CrossingFrame {
                    bytes: whole(),
                    meta: frame.arrival.meta,
                    origin: Origin::Link,
                };
                self.send(shard, crossing, drops);
            }
        }
        matches!(course, Course::To(_))
    }
}
