//! Where a received frame is, before anybody looks at its bytes.

use std::ops::Range;

use netmem::FragList;
use steer::RxQueueId;

use crate::link::{BorrowedUntil, VnetMeta};
use crate::packet::Origin;

/// A frame that has arrived.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Bytes of the frame.
    pub(crate) len: usize,
    pub(crate) body: Body,
    pub(crate) meta: VnetMeta,
    pub(crate) origin: Origin,
}

/// Where the bytes of a frame are.
#[derive(Debug)]
pub(crate) enum Body {
    /// In the buffers of the receive side and in posted memory.
    Posted(PostedBody),
    /// In the buffer for whole frames.
    Whole,
    /// The first `head_len` bytes, the headers, are in the header buffer, the others in the memory that they were sent from.
    Borrowed {
        head_len: usize,
        frags: FragList,
        until: BorrowedUntil,
    },
}

/// A frame in memory that was posted for it. In this order: the header buffer, the place that the predicted connection has
/// chosen, the run of net_iovs that the predicted queue had posted, and the spill buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedBody {
    pub(crate) queue: RxQueueId,
    /// Bytes of the frame for the header buffer.
    pub(crate) head_len: usize,
    /// Free bytes before the run.
    pub(crate) headroom: usize,
    direct_end: usize,
    run_end: usize,
}

impl PostedBody {
    pub(crate) fn new(
        queue: RxQueueId,
        head_len: usize,
        headroom: usize,
        direct_bytes: usize,
        run_bytes: usize,
    ) -> Self {
        let direct_end = head_len + direct_bytes;
        Self {
            queue,
            head_len,
            headroom,
            direct_end,
            run_end: direct_end + run_bytes,
        }
    }

    /// Returns which bytes of the frame are at the place that the predicted connection has chosen.
    pub(crate) fn direct(&self) -> Range<usize> {
        self.head_len..self.direct_end
    }

    /// Returns which bytes of the frame are in the posted run of the queue.
    pub(crate) fn run(&self) -> Range<usize> {
        self.direct_end..self.run_end
    }
}
