//! Receiving one frame: the memory that is posted for it, and where it landed.

use wire::Instant;

use super::{MIN_SPLIT_HEADER, Nic, Prediction};
use crate::drops::DropReason;
use crate::fill::{MAX_PAYLOAD, Spans};
use crate::link::{LinkReceived, Posted};
use crate::packet::Origin;
use crate::place::{Landed, Place, Posting, RxBuffers};

impl Nic {
    /// Returns the payload bytes that memory is posted for: those of the longest packet that the link delivers, except that long
    /// super-packets are expected only after others.
    pub(super) fn payload_room(&self) -> usize {
        match self.caps.lends || self.predicted.big_left > 0 {
            true => self.caps.max_rx_packet,
            false => MAX_PAYLOAD,
        }
    }

    /// Receives one frame from the link into posted memory.
    pub(super) fn receive(&mut self, now: Instant) -> Option<Landed> {
        let Prediction {
            queue, header_len, ..
        } = self.predicted;
        let room = self.payload_room();
        let headroom = header_len - MIN_SPLIT_HEADER;
        let head_len = header_len + self.linear_bytes(queue);
        let lends = self.caps.lends;
        let direct_bytes = match lends {
            true => 0,
            false => self.post_direct(queue, room),
        };
        let posted_queue = self.queues.get_mut(queue)?;
        let span_bytes = match direct_bytes < room && !lends {
            true => posted_queue.post(room, headroom),
            false => 0,
        };
        let mut spans = Spans::new();
        if direct_bytes > 0 {
            spans.extend(self.ddp.posted(0..direct_bytes));
        }
        if span_bytes > 0 {
            posted_queue.add_posted(headroom, &mut spans);
        }
        let RxBuffers {
            head,
            spill,
            frame,
            lent,
        } = &mut self.buffers;
        let mut posted = Posted {
            head,
            predicted_header: head_len,
            spans: &spans,
            spill,
            frame,
            lent,
            port: posted_queue.posted_fill().port(),
        };
        let received = self.link.receive(&mut posted, now);
        drop(spans);
        let posting = Posting {
            queue,
            head_len,
            headroom,
            direct_bytes,
            span_bytes,
        };
        let failed_before = std::mem::take(&mut self.link_failed);
        match received {
            Ok(received) => self.landing_of(received, posting),
            Err(_) => {
                // Counted once per failure: no frame is lost while the link stays down.
                self.link_failed = !self.link.is_up();
                if !(failed_before && self.link_failed) {
                    self.drops.count(DropReason::RxLinkError);
                }
                None
            }
        }
    }

    /// Returns where a received frame is.
    fn landing_of(&mut self, received: LinkReceived, posting: Posting) -> Option<Landed> {
        let (frame_len, meta, place) = match received {
            LinkReceived::None => return None,
            LinkReceived::Dropped(reason) => {
                self.drops.count(reason);
                return None;
            }
            LinkReceived::Placed { frame_len, meta } => (frame_len, meta, Place::Posted(posting)),
            LinkReceived::Lent {
                head_len,
                frame_len,
                meta,
                until,
            } => (frame_len, meta, Place::Sender { head_len, until }),
            LinkReceived::Frame { meta } => (self.buffers.frame.len(), meta, Place::Frame),
        };
        Some(Landed {
            frame_len,
            meta,
            place,
            origin: Origin::Link,
        })
    }
}
