//! Bytes that the application has sent and the peer has not acknowledged.

use std::collections::VecDeque;

use netmem::Payload;

/// Bytes of the send buffer charged for each push in addition to its payload, so that a program that writes single bytes
/// does not use far more memory than its send buffer (linux charges `skb->truesize` for the same reason).
const CHUNK_OVERHEAD: usize = 128;

/// Chunks for which an empty queue keeps memory.
const KEPT_CHUNKS: usize = 4;

/// Payload of one push. Bytes are removed at the front as they are acknowledged.
#[derive(Debug)]
struct Chunk<P> {
    /// Stream offset behind its last byte.
    end: u64,
    payload: P,
    /// The writer announced more (MSG_MORE): no PSH.
    more: bool,
    /// A packet starts with this chunk.
    apart: bool,
}

impl<P: Payload> Chunk<P> {
    fn start(&self) -> u64 {
        self.end - self.payload.len() as u64
    }
}

/// Payload by stream offset: byte 0 is the first one after the SYN.
#[derive(Debug)]
pub(crate) struct SendQueue<P> {
    chunks: VecDeque<Chunk<P>>,
    /// Offset behind the last byte pushed.
    end: u64,
    /// The next push starts a new packet.
    boundary: bool,
    /// Some chunk starts a new packet.
    has_boundaries: bool,
}

/// Second owner of a part of the queue, for one transmission.
#[derive(Debug, Default)]
pub(crate) struct QueueShare<P> {
    /// The bytes.
    pub(crate) payload: P,
    /// PSH: its last byte is the last of a push without MSG_MORE.
    pub(crate) push: bool,
}

impl<P: Payload> SendQueue<P> {
    /// Returns an empty queue; it allocates nothing.
    pub(crate) fn new() -> SendQueue<P> {
        SendQueue {
            chunks: VecDeque::new(),
            end: 0,
            boundary: false,
            has_boundaries: false,
        }
    }

    /// Appends payload and returns the stream offset behind it.
    pub(crate) fn push(&mut self, payload: P, more: bool) -> u64 {
        let len = payload.len();
        if len == 0 {
            // An empty push cancels an earlier announcement of more.
            if let Some(last) = self.chunks.back_mut() {
                last.more &= more;
            }
            return self.end;
        }
        let apart = core::mem::take(&mut self.boundary) && !self.chunks.is_empty();
        self.has_boundaries |= apart;
        self.end += len as u64;
        self.chunks.push_back(Chunk {
            end: self.end,
            payload,
            more,
            apart,
        });
        self.end
    }

    /// Lets the next push start a new packet.
    pub(crate) fn set_boundary(&mut self) {
        self.boundary = true;
    }

    /// Drops everything before `offset`: it was acknowledged.
    pub(crate) fn release(&mut self, offset: u64) {
        let offset = offset.min(self.end);
        while let Some(front) = self.chunks.front_mut() {
            if front.end > offset {
                let acked = offset.saturating_sub(front.start());
                if acked > 0 {
                    front.payload.trim_front(acked as usize);
                }
                break;
            }
            self.chunks.pop_front();
        }
        if self.chunks.is_empty() {
            self.has_boundaries = false;
            if self.chunks.capacity() > KEPT_CHUNKS {
                self.chunks.shrink_to(KEPT_CHUNKS);
            }
        }
    }

    /// Returns second owners of `len` bytes from `offset` on, fewer if the queue ends before.
    pub(crate) fn share(&self, offset: u64, len: usize) -> QueueShare<P> {
        let mut index = self.chunk_at(offset);
        let mut shared = QueueShare {
            payload: P::default(),
            push: false,
        };
        let mut left = len;
        let mut at = offset.max(self.start());
        while let Some(chunk) = self.chunks.get(index) {
            let within = at.saturating_sub(chunk.start()) as usize;
            let take = left.min(chunk.payload.len().saturating_sub(within));
            if take == 0 {
                break;
            }
            let part = chunk.payload.share(within, take);
            if shared.payload.is_empty() {
                shared.payload = part;
            } else {
                shared.payload.append(part);
            }
            left -= take;
            at += take as u64;
            shared.push = at == chunk.end && !chunk.more;
            index += 1;
        }
        shared
    }

    /// Returns the number of bytes of the last push, as far as they are not acknowledged.
    pub(crate) fn last_len(&self) -> usize {
        self.chunks.back().map_or(0, |last| last.payload.len())
    }

    /// Returns whether some packet ends before the queue does, although more bytes would fit in it.
    pub(crate) fn has_boundaries(&self) -> bool {
        self.has_boundaries
    }

    /// Returns how many of `len` bytes from `offset` on may share a packet.
    pub(crate) fn until_boundary(&self, offset: u64, len: usize) -> usize {
        if !self.has_boundaries {
            return len;
        }
        let next = self.chunk_at(offset) + 1;
        self.chunks
            .range(next.min(self.chunks.len())..)
            .take_while(|chunk| chunk.start() < offset + len as u64)
            .find(|chunk| chunk.apart)
            .map_or(len, |chunk| (chunk.start() - offset) as usize)
    }

    /// Returns the stream offset behind the last byte pushed.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns how many bytes are held.
    pub(crate) fn len(&self) -> usize {
        (self.end - self.start()) as usize
    }

    /// Returns how much of the send buffer is used.
    pub(crate) fn charged(&self) -> usize {
        self.len() + self.chunks.len() * CHUNK_OVERHEAD
    }

    /// Drops everything; the stream ends at `end`.
    pub(crate) fn clear(&mut self, end: u64) {
        self.release(self.end);
        self.end = end;
    }

    /// Returns the offset of the first byte held.
    fn start(&self) -> u64 {
        self.chunks.front().map_or(self.end, Chunk::start)
    }

    /// Returns the index of the chunk that holds the byte at `offset`.
    fn chunk_at(&self, offset: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.end <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqnum::SeqNum;
    use crate::test_payload::Bytes;

    fn queue(lens: &[usize]) -> SendQueue<Bytes> {
        let mut queue = SendQueue::new();
        for &len in lens {
            let start = SeqNum(queue.end() as u32);
            queue.push(Bytes::pattern(start, len), false);
        }
        queue
    }

    #[test]
    fn shares_span_chunks_and_keep_their_place() {
        let queue = queue(&[10, 20, 30]);
        let shared = queue.share(5, 40);
        assert_eq!(shared.payload.len(), 40);
        assert!(shared.payload.is_pattern(SeqNum(5)));
        assert!(!shared.push);
        assert_eq!(queue.share(50, 100).payload.len(), 10);
        assert_eq!(queue.share(60, 1).payload.len(), 0);
    }

    #[test]
    fn push_marks_the_end_of_a_write() {
        let mut queue = queue(&[10, 20]);
        assert!(queue.share(0, 10).push);
        assert!(!queue.share(0, 11).push);
        assert!(queue.share(0, 30).push);
        queue.push(Bytes::pattern(SeqNum(30), 5), true);
        assert!(!queue.share(0, 35).push);
        queue.push(Bytes::default(), false);
        assert!(queue.share(0, 35).push);
    }

    #[test]
    fn release_trims_the_first_chunk_and_drops_those_before() {
        let mut queue = queue(&[10, 20, 30]);
        queue.release(15);
        assert_eq!((queue.len(), queue.chunks.len()), (45, 2));
        assert_eq!(queue.chunks[0].payload.len(), 15);
        assert!(queue.share(15, 45).payload.is_pattern(SeqNum(15)));
        queue.release(15);
        queue.release(60);
        assert_eq!((queue.len(), queue.charged(), queue.end()), (0, 0, 60));
        queue.release(1000);
        assert_eq!(queue.end(), 60);
    }

    #[test]
    fn every_push_is_charged_for_its_bookkeeping() {
        assert_eq!(queue(&[1; 8]).charged(), 8 * (1 + CHUNK_OVERHEAD));
    }

    #[test]
    fn a_boundary_keeps_packets_apart() {
        let mut queue = queue(&[10, 10]);
        queue.set_boundary();
        queue.push(Bytes::pattern(SeqNum(20), 10), false);
        queue.push(Bytes::pattern(SeqNum(30), 10), false);
        assert_eq!(queue.until_boundary(0, 40), 20);
        assert_eq!(queue.until_boundary(0, 20), 20);
        assert_eq!(queue.until_boundary(15, 40), 5);
        assert_eq!(queue.until_boundary(20, 20), 20);
        assert_eq!(queue.until_boundary(25, 15), 15);
        queue.release(40);
        assert!(!queue.has_boundaries);
    }

    #[test]
    fn a_large_queue_gives_its_room_back_when_empty() {
        let mut queue = queue(&[1; 1000]);
        queue.release(1000);
        assert!(queue.chunks.capacity() <= KEPT_CHUNKS);
    }
}
