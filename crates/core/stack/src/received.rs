//! A received TCP segment on its way to its connection.

use netmem::FragList;
use steer::RxQueueId;
use tcp::{Control, Segment};
use wire::{FourTuple, MacAddr};

/// A received TCP segment with its four-tuple and its origin.
pub(crate) struct ReceivedSegment {
    pub(crate) tuple: FourTuple,
    /// Station that sent the frame; `None`: this host, or not the address of a station.
    pub(crate) from: Option<MacAddr>,
    pub(crate) queue: RxQueueId,
    pub(crate) segment: Segment<FragList>,
    /// Its payload found no memory: the segment is here without it.
    pub(crate) is_unplaced: bool,
    /// The urgent pointer, if it is significant.
    pub(crate) urgent: Option<u16>,
}

impl ReceivedSegment {
    /// Returns a SYN without its payload; `None` of other segments.
    pub(crate) fn syn(&self) -> Option<Self> {
        (self.segment.control == Control::Syn).then(|| Self {
            segment: Segment {
                payload: FragList::default(),
                ..self.segment
            },
            ..*self
        })
    }
}
