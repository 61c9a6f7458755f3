//! The writer's side: what is queued, and what the writer has said of it.

use netmem::Payload;

use super::skbs::Pushes;
use crate::send_queue::{QueueShare, SendQueue};
use crate::settings::Settings;

/// Divisor: a full queue counts as writable again when buffer / divisor is free (linux `sk_stream_is_writeable`).
const WRITABLE_DIVISOR: usize = 3;

/// A range of the stream that is about to leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendRange {
    pub(super) start: u64,
    /// Bytes of payload.
    pub(super) len: u32,
    /// The FIN follows the payload.
    pub(super) fin: bool,
}

/// The send queue and what belongs to it. Changed by the writer's calls, and as bytes leave and are acknowledged.
#[derive(Debug)]
pub(super) struct Writer<P> {
    queue: SendQueue<P>,
    /// With writers as Linux has them only.
    pushes: Option<Box<Pushes>>,
    /// End of the last segment sent that was not full (Minshall's variant of Nagle's algorithm).
    small_end: u64,
    /// The stream ends behind what is queued.
    fin: bool,
    /// The writer announced more (MSG_MORE), and nothing has come from the peer since: small segments wait. Linux forgets
    /// MSG_MORE with the next ACK, too (`tcp_data_snd_check`).
    expects_more: bool,
}

impl<P: Payload> Writer<P> {
    pub(super) fn new() -> Writer<P> {
        Writer {
            queue: SendQueue::new(),
            pushes: None,
            small_end: 0,
            fin: false,
            expects_more: false,
        }
    }

    /// Queues payload and returns the offset behind it; behind a FIN payload is dropped.
    pub(super) fn push(&mut self, payload: P, more: bool) -> u64 {
        if self.fin {
            return self.queue.end();
        }
        self.expects_more = more;
        let end = self.queue.push(payload, more);
        if let Some(pushes) = self.pushes.as_mut().filter(|_| !more) {
            pushes.on_write(end);
        }
        end
    }

    /// Begins to note which bytes within writes get PSH.
    pub(super) fn note_pushes(&mut self) {
        self.pushes = Some(Box::default());
    }

    /// Returns the notes of which bytes within writes get PSH, if it keeps any.
    pub(super) fn pushes_mut(&mut self) -> Option<&mut Pushes> {
        self.pushes.as_deref_mut()
    }

    pub(super) fn push_boundary(&mut self) {
        self.queue.set_boundary();
    }

    /// Ends the stream behind what is queued.
    pub(super) fn push_fin(&mut self) {
        self.fin = true;
    }

    /// Forgets that the writer announced more: the peer has answered, or the writer has changed its mind.
    pub(super) fn forget_more(&mut self) {
        self.expects_more = false;
    }

    /// Returns how much of the send buffer is used.
    pub(super) fn charged(&self) -> usize {
        self.queue.charged()
    }

    /// Returns how many bytes a send buffer of `snd_buf_max` bytes still takes.
    pub(super) fn room(&self, snd_buf_max: usize) -> usize {
        snd_buf_max.saturating_sub(self.queue.charged())
    }

    /// Returns whether the send buffer has enough room to wake a writer that waits.
    pub(super) fn is_writable(&self, snd_buf_max: usize) -> bool {
        self.room(snd_buf_max) >= snd_buf_max / WRITABLE_DIVISOR
    }

    pub(super) fn queued_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the offset behind the last byte queued, which a FIN takes.
    pub(super) fn end(&self) -> u64 {
        self.queue.end()
    }

    /// Returns the offset behind the stream, a FIN included.
    pub(super) fn stream_end(&self) -> u64 {
        self.queue.end() + u64::from(self.fin)
    }

    /// Returns whether a FIN is queued and lies before `offset`.
    pub(super) fn has_fin_before(&self, offset: u64) -> bool {
        self.fin && offset > self.queue.end()
    }

    /// Returns the payload bytes behind `nxt`.
    pub(super) fn unsent(&self, nxt: u64) -> u64 {
        self.queue.end().saturating_sub(nxt)
    }

    /// Returns whether payload or a FIN lies behind `nxt`.
    pub(super) fn has_unsent(&self, nxt: u64) -> bool {
        nxt < self.stream_end()
    }

    /// Returns whether a FIN follows `[start, start + len)` at once, where `len` is all that is unsent.
    pub(super) fn fin_follows(&self, len: u64, nxt: u64) -> bool {
        self.fin && len == self.unsent(nxt)
    }

    /// Returns how many of `len` bytes from `start` on may share a packet.
    pub(super) fn until_boundary(&self, start: u64, len: u64) -> u64 {
        self.queue.until_boundary(start, len as usize) as u64
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
        let is_free = settings.nodelay || self.fin || self.queue.has_boundaries();
        !is_free && (self.queue.last_len() as u64) < longest
    }

    /// Notes that the segment which ends at `end` is not full.
    pub(super) fn note_small(&mut self, end: u64) {
        self.small_end = end;
    }

    /// Returns the range, cut at a boundary, with the FIN if it reaches so far.
    pub(super) fn range_at(&self, start: u64, len: u32) -> SendRange {
        let end = self.queue.end();
        let data = end.saturating_sub(start).min(u64::from(len));
        let together = self.until_boundary(start, data);
        SendRange {
            start,
            len: together as u32,
            fin: together == data && start + u64::from(len) > end,
        }
    }

    /// Returns a second owner of the range's payload.
    pub(super) fn share(&self, range: SendRange) -> QueueShare<P> {
        let len = match range.len {
            0 => return QueueShare::default(),
            len => len as usize,
        };
        let mut shared = self.queue.share(range.start, len);
        let end = range.start + len as u64;
        let pushes = self.pushes.as_ref();
        shared.push |= pushes.is_some_and(|pushes| pushes.has(end));
        shared
    }

    /// Drops what lies before `offset`: it is acknowledged.
    pub(super) fn release(&mut self, offset: u64) {
        self.queue.release(offset);
        if let Some(pushes) = &mut self.pushes {
            pushes.release(offset);
        }
    }

    /// Drops everything queued; the stream ends at SND.NXT `nxt`, with its FIN if that was sent.
    pub(super) fn clear(&mut self, nxt: u64) {
        let fin_sent = self.has_fin_before(nxt);
        self.queue.clear(nxt.min(self.queue.end()));
        self.fin = fin_sent;
    }
}
