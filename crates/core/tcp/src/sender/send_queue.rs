//! Bytes that the application has sent and the peer has not acknowledged, and what the writer has said of them.

use std::collections::VecDeque;

use netmem::Payload;

use super::skbs::Pushes;
use crate::settings::Settings;

/// Bytes of the send buffer charged for each push in addition to its payload, so that a program that writes single bytes
/// does not use far more memory than its send buffer (linux charges `skb->truesize` for the same reason).
const CHUNK_OVERHEAD: usize = 128;

/// Chunks for which an empty queue keeps memory.
const KEPT_CHUNKS: usize = 4;

/// Divisor: a full queue counts as writable again when buffer / divisor is free (linux `sk_stream_is_writeable`).
const WRITABLE_DIVISOR: usize = 3;

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

/// A range of the stream that is about to leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendRange {
    pub(super) start: u64,
    /// Bytes of payload.
    pub(super) len: u32,
    /// The FIN follows the payload.
    pub(super) fin: bool,
}

/// Second owner of a part of the queue, for one transmission.
#[derive(Debug, Default)]
pub(super) struct QueueShare<P> {
    /// The bytes.
    pub(super) payload: P,
    /// PSH: its last byte is the last of a push without MSG_MORE.
    pub(super) push: bool,
}

/// Payload by stream offset: byte 0 is the first one after the SYN. Changed by the writer's calls, and as bytes leave and are
/// acknowledged.
#[derive(Debug, Default)]
pub(crate) struct SendQueue<P> {
    chunks: VecDeque<Chunk<P>>,
    /// Offset behind the last byte pushed.
    end: u64,
    /// The next push starts a new packet.
    boundary: bool,
    /// Some chunk starts a new packet.
    has_boundaries: bool,
    /// Which bytes within writes get PSH. With writers as Linux has them only.
    pushes: Option<Box<Pushes>>,
    /// End of the last segment sent that was not full (Minshall's variant of Nagle's algorithm).
    small_end: u64,
    /// The stream ends behind what is queued.
    fin: bool,
    /// The writer announced more (MSG_MORE), and nothing has come from the peer since: small segments wait. Linux forgets
    /// MSG_MORE with the next ACK, too (`tcp_data_snd_check`).
    expects_more: bool,
}

impl<P: Payload> SendQueue<P> {
    /// Appends payload; `more`: the writer will add to it at once (MSG_MORE: no PSH, no small segment yet).
    ///
    /// Returns the stream offset behind the payload: once [`Sender::acked_offset`](super::Sender::acked_offset) reaches it, all of
    /// the payload is acknowledged. Empty payload without `more` cancels an earlier `more`. Payload behind a FIN is dropped.
    pub(crate) fn push(&mut self, payload: P, more: bool) -> u64 {
        if self.fin {
            return self.end;
        }
        self.expects_more = more;
        match payload.len() {
            0 => {
                if let Some(last) = self.chunks.back_mut() {
                    last.more &= more;
                }
            }
            len => {
                let apart = core::mem::take(&mut self.boundary) && !self.chunks.is_empty();
                self.has_boundaries |= apart;
                self.end += len as u64;
                self.chunks.push_back(Chunk {
                    end: self.end,
                    payload,
                    more,
                    apart,
                });
            }
        }
        if let Some(pushes) = self.pushes.as_mut().filter(|_| !more) {
            pushes.on_write(self.end);
        }
        self.end
    }

    /// Begins to note which bytes within writes get PSH.
    pub(super) fn note_pushes(&mut self) {
        self.pushes = Some(Box::default());
    }

    /// Returns the notes of which bytes within writes get PSH, if it keeps any.
    pub(super) fn pushes_mut(&mut self) -> Option<&mut Pushes> {
        self.pushes.as_deref_mut()
    }

    /// Lets the next push start a new packet: host and device bytes do not share packets, and MSG_EOR ends a record.
    pub(crate) fn push_boundary(&mut self) {
        self.boundary = true;
    }

    /// Ends the stream behind what is queued.
    pub(crate) fn push_fin(&mut self) {
        self.fin = true;
    }

    /// Forgets that the writer announced more: the peer has answered, or the writer has changed its mind.
    pub(super) fn forget_more(&mut self) {
        self.expects_more = false;
    }

    /// Returns how much of the send buffer is used.
    pub(super) fn charged(&self) -> usize {
        self.len() + self.chunks.len() * CHUNK_OVERHEAD
    }

    /// Returns how many bytes a send buffer of `snd_buf_max` bytes still takes; [`SendQueue::push`] does not enforce it.
    pub(crate) fn room(&self, snd_buf_max: usize) -> usize {
        snd_buf_max.saturating_sub(self.charged())
    }

    /// Returns whether the send buffer has enough room to wake a writer that waits.
    pub(super) fn is_writable(&self, snd_buf_max: usize) -> bool {
        self.room(snd_buf_max) >= snd_buf_max / WRITABLE_DIVISOR
    }

    /// Returns how many bytes are held: not sent, or not acknowledged.
    pub(crate) fn len(&self) -> usize {
        (self.end - self.start()) as usize
    }

    /// Returns the stream offset behind the last byte pushed, which a FIN takes.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the offset behind the stream, a FIN included.
    pub(super) fn stream_end(&self) -> u64 {
        self.end + u64::from(self.fin)
    }

    /// Returns whether a FIN is queued and lies before `offset`.
    pub(super) fn has_fin_before(&self, offset: u64) -> bool {
        self.fin && offset > self.end
    }

    /// Returns the payload bytes behind `nxt`.
    pub(super) fn unsent(&self, nxt: u64) -> u64 {
        self.end.saturating_sub(nxt)
    }

    /// Returns whether payload or a FIN lies behind `nxt`.
    pub(super) fn has_unsent(&self, nxt: u64) -> bool {
        nxt < self.stream_end()
    }

    /// Returns whether a FIN follows `[start, start + len)` at once, where `len` is all that is unsent.
    pub(super) fn fin_follows(&self, len: u64, nxt: u64) -> bool {
        self.fin && len == self.unsent(nxt)
    }

    /// Returns how many of `len` bytes from `offset` on may share a packet.
    pub(super) fn until_boundary(&self, offset: u64, len: u64) -> u64 {
        if !self.has_boundaries {
            return len;
        }
        let next = self.chunk_at(offset) + 1;
        self.chunks
            .range(next.min(self.chunks.len())..)
            .take_while(|chunk| chunk.start() < offset + len)
            .find(|chunk| chunk.apart)
            .map_or(len, |chunk| chunk.start() - offset)
    }

    /// Returns whether the `len` bytes from `start` on are complete: nothing can be added to their last packet.
    pub(super) fn is_complete(&self, start: u64, len: u64) -> bool {
        len == self.unsent(start) || (len > 0 && self.until_boundary(start, len + 1) == len)
    }

    /// Returns whether the `len` bytes from `nxt` on may leave although they do not fill their last packet (linux
    /// `tcp_nagle_test`).
    ///
    /// Not while the writer announces more; with Nagle's algorithm not while another small segment is unacknowledged
    /// (Minshall's variant: full segments in flight hold nothing back).
    pub(super) fn may_send_small(&self, settings: &Settings, nxt: u64, len: u64, una: u64) -> bool {
        if len < self.unsent(nxt) {
            // A boundary follows: nothing can be added.
            return true;
        }
        let is_held = self.expects_more || settings.cork;
        !is_held && (settings.nodelay || self.small_end <= una)
    }

    /// Returns whether the writer permits that what is unsent waits for its next writes, where a super-segment has `longest`
    /// bytes: with Nagle's algorithm, and if its last write was shorter than that. A longer one is likely to be a whole
    /// message.
    pub(super) fn may_gather(&self, settings: &Settings, longest: u64) -> bool {
        let is_free = settings.nodelay || self.fin || self.has_boundaries;
        let last = self.chunks.back().map_or(0, |last| last.payload.len());
        !is_free && (last as u64) < longest
    }

    /// Notes that the segment which ends at `end` is not full.
    pub(super) fn note_small(&mut self, end: u64) {
        self.small_end = end;
    }

    /// Returns the range, cut at a boundary, with the FIN if it reaches so far.
    pub(super) fn range_at(&self, start: u64, len: u32) -> SendRange {
        let data = self.end.saturating_sub(start).min(u64::from(len));
        let together = self.until_boundary(start, data);
        SendRange {
            start,
            len: together as u32,
            fin: together == data && start + u64::from(len) > self.end,
        }
    }

    /// Returns second owners of the range's payload, of less if the queue ends before.
    pub(super) fn share(&self, range: SendRange) -> QueueShare<P> {
        let mut index = self.chunk_at(range.start);
        let mut shared: QueueShare<P> = QueueShare::default();
        let mut left = range.len as usize;
        let mut at = range.start.max(self.start());
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
        if let (Some(pushes), 1..) = (&self.pushes, range.len) {
            shared.push |= pushes.has(range.start + u64::from(range.len));
        }
        shared
    }

    /// Drops everything before `offset`: it was acknowledged.
    pub(super) fn release(&mut self, offset: u64) {
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
        if let Some(pushes) = &mut self.pushes {
            pushes.release(offset);
        }
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

    /// Returns `len` bytes from `start` on, without a FIN.
    fn range(start: u64, len: u32) -> SendRange {
        let fin = false;
        SendRange { start, len, fin }
    }

    fn queue(lens: &[usize]) -> SendQueue<Bytes> {
        let mut queue = SendQueue::default();
        for &len in lens {
            let start = SeqNum(queue.end() as u32);
            queue.push(Bytes::pattern(start, len), false);
        }
        queue
    }

    #[test]
    fn shares_span_chunks_and_keep_their_place() {
        let queue = queue(&[10, 20, 30]);
        let shared = queue.share(range(5, 40));
        assert_eq!(shared.payload.len(), 40);
        assert!(shared.payload.is_pattern(SeqNum(5)));
        assert!(!shared.push);
        assert_eq!(queue.share(range(50, 100)).payload.len(), 10);
        assert_eq!(queue.share(range(60, 1)).payload.len(), 0);
    }

    #[test]
    fn push_marks_the_end_of_a_write() {
        let mut queue = queue(&[10, 20]);
        assert!(queue.share(range(0, 10)).push);
        assert!(!queue.share(range(0, 11)).push);
        assert!(queue.share(range(0, 30)).push);
        queue.push(Bytes::pattern(SeqNum(30), 5), true);
        assert!(!queue.share(range(0, 35)).push);
        queue.push(Bytes::default(), false);
        assert!(queue.share(range(0, 35)).push);
    }

    #[test]
    fn release_trims_the_first_chunk_and_drops_those_before() {
        let mut queue = queue(&[10, 20, 30]);
        queue.release(15);
        assert_eq!((queue.len(), queue.chunks.len()), (45, 2));
        assert_eq!(queue.chunks[0].payload.len(), 15);
        assert!(queue.share(range(15, 45)).payload.is_pattern(SeqNum(15)));
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
        queue.push_boundary();
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
