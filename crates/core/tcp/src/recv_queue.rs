//! Payload in order that was not read yet.

use std::collections::VecDeque;

use netmem::Payload;

/// Entries for which an empty queue keeps memory: enough for a fast reader to need no allocations, and little enough for many
/// idle connections.
const KEPT_CAPACITY: usize = 8;

/// The receive queue of a connection: one payload for each segment, so that a reader sees where readable and unreadable
/// packets meet. A new queue owns no memory.
#[derive(Debug, Default)]
pub struct RecvQueue<P> {
    payloads: VecDeque<P>,
    bytes: usize,
    eof: bool,
}

impl<P: Payload> RecvQueue<P> {
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether there are no bytes, which is also so at the end of the stream ([`RecvQueue::has_fin`]).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    /// Returns whether the peer's FIN follows the last byte queued.
    #[must_use]
    pub fn has_fin(&self) -> bool {
        self.eof
    }

    /// Returns the number of payloads: the measure of the queue's host memory.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.payloads.len()
    }

    /// Returns the payloads in order, without removing them.
    pub fn iter(&self) -> impl Iterator<Item = &P> + '_ {
        self.payloads.iter()
    }

    /// Returns the payloads in order, to be moved to other memory; none may change its length.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut P> + '_ {
        self.payloads.iter_mut()
    }

    /// Returns the first payload; it has at least one byte.
    #[must_use]
    pub fn front(&self) -> Option<&P> {
        self.payloads.front()
    }

    /// Takes the first payload, or the first `max` bytes of it if it is longer.
    pub fn pop(&mut self, max: usize) -> Option<P> {
        if max == 0 {
            return None;
        }
        let front = self.payloads.front_mut()?;
        let payload = if front.len() > max {
            front.split_off_front(max)
        } else {
            self.payloads.pop_front()?
        };
        self.bytes -= payload.len();
        if self.payloads.is_empty() {
            // An idle connection gives back the memory of a burst.
            self.payloads.shrink_to(KEPT_CAPACITY);
        }
        Some(payload)
    }

    /// Returns a second owner of the first `max` bytes, as a queue of its own: what a peek reads.
    #[must_use]
    pub fn share(&self, max: usize) -> Self {
        let mut shared = RecvQueue::default();
        for payload in &self.payloads {
            if shared.bytes >= max {
                break;
            }
            shared.push(payload.share(0, max - shared.bytes));
        }
        shared.eof = self.eof;
        shared
    }

    /// Drops all payload; the end of the stream stays.
    pub fn clear(&mut self) {
        self.payloads = VecDeque::new();
        self.bytes = 0;
    }

    pub(crate) fn push(&mut self, payload: P) {
        debug_assert!(!self.eof, "no byte follows a FIN");
        if !payload.is_empty() {
            self.bytes += payload.len();
            self.payloads.push_back(payload);
        }
    }

    pub(crate) fn set_eof(&mut self) {
        self.eof = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqnum::SeqNum;
    use crate::test_payload::Bytes;

    #[test]
    fn pop_cuts_a_payload_and_keeps_the_count() {
        let mut queue = RecvQueue::default();
        queue.push(Bytes::pattern(SeqNum(0), 10));
        queue.push(Bytes::pattern(SeqNum(10), 5));
        assert_eq!((queue.len(), queue.segments()), (15, 2));
        let part = queue.pop(4).unwrap();
        assert!(part.is_pattern(SeqNum(0)) && part.len() == 4);
        assert_eq!(queue.pop(0), None);
        assert_eq!(queue.pop(100).unwrap().len(), 6);
        assert_eq!((queue.len(), queue.segments()), (5, 1));
        assert_eq!(queue.front().unwrap().len(), 5);
    }

    #[test]
    fn a_share_has_the_first_bytes_and_the_end_and_takes_nothing() {
        let mut queue = RecvQueue::default();
        queue.push(Bytes::pattern(SeqNum(0), 10));
        queue.push(Bytes::pattern(SeqNum(10), 5));
        queue.push(Bytes::pattern(SeqNum(15), 5));
        queue.set_eof();
        let mut shared = queue.share(12);
        assert_eq!((shared.len(), shared.segments()), (12, 2));
        assert!(shared.pop(20).unwrap().is_pattern(SeqNum(0)));
        let cut = shared.pop(20).unwrap();
        assert!(cut.is_pattern(SeqNum(10)) && cut.len() == 2);
        assert!(shared.is_empty() && shared.has_fin());
        assert!(queue.share(0).is_empty());
        assert_eq!(queue.share(usize::MAX).len(), 20);
        assert_eq!((queue.len(), queue.segments()), (20, 3));
    }

    #[test]
    fn memory_for_a_burst_is_freed_when_it_is_read() {
        let mut queue = RecvQueue::default();
        assert_eq!(queue.payloads.capacity(), 0);
        for i in 0..100 {
            queue.push(Bytes::pattern(SeqNum(i), 1));
        }
        while queue.pop(1).is_some() {}
        assert!((1..=KEPT_CAPACITY).contains(&queue.payloads.capacity()));
    }

    #[test]
    fn the_end_of_the_stream_stays_when_all_is_read() {
        let mut queue = RecvQueue::default();
        queue.push(Bytes::pattern(SeqNum(0), 1));
        queue.set_eof();
        assert!(queue.has_fin() && !queue.is_empty());
        let _ = queue.pop(1);
        assert!(queue.has_fin() && queue.is_empty());
    }
}
