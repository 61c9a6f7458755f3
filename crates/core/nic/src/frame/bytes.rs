//! Access to the bytes of a received frame, wherever they are.

use std::ops::Range;

use netmem::FragList;
use wire::{Checksum, RxHeaders};

use super::RxFrame;
use crate::arrival::{Body, PostedBody};
use crate::pieces::{Piece, Pieces, spans_of, within};

impl RxFrame<'_> {
    /// Returns the first bytes of the frame, at most `len` of them unless the whole frame is in host memory.
    pub(super) fn head(&self, len: usize) -> &[u8] {
        match self.arrival.body {
            Body::Whole => &self.rx.whole,
            Body::Posted(_) | Body::Borrowed { .. } => self.rx.head.frame(len),
        }
    }

    /// Returns how many bytes at the start of the frame are contiguous in host memory.
    pub(super) fn head_len(&self) -> usize {
        match &self.arrival.body {
            Body::Posted(posted) => posted.head_len.min(self.arrival.len),
            Body::Whole => self.arrival.len,
            Body::Borrowed { head_len, .. } => *head_len,
        }
    }

    /// Returns the pieces of `range` of the frame.
    pub(crate) fn pieces(&self, range: Range<usize>) -> Pieces<'_> {
        let mut pieces = Pieces::new();
        let head = range.start..range.end.min(self.head_len());
        let behind = range.start.max(head.end)..range.end;
        if !head.is_empty() {
            pieces.extend(self.head(head.end).get(head).map(Piece::Host));
        }
        if behind.is_empty() {
            return pieces;
        }
        match &self.arrival.body {
            Body::Whole => {}
            Body::Borrowed {
                head_len, frags, ..
            } => {
                let wanted = behind.start - head_len..behind.end - head_len;
                pieces.extend(spans_of(frags, wanted).map(Piece::Span));
            }
            Body::Posted(posted) => self.add_posted(posted, behind, &mut pieces),
        }
        pieces
    }

    /// Adds the pieces of `range`, which begins behind the header buffer.
    fn add_posted<'b>(&'b self, body: &PostedBody, range: Range<usize>, pieces: &mut Pieces<'b>) {
        let (direct, run) = (overlap(&range, body.direct()), overlap(&range, body.run()));
        pieces.extend(self.rx.ddp.posted(direct).map(Piece::Span));
        if let Some(fill) = self.rx.posted_fill(body.queue) {
            pieces.extend(fill.spans_within(body.headroom, run).map(Piece::Span));
        }
        let end = body.run().end;
        let spilled = range.start.max(end)..range.end;
        if !spilled.is_empty() {
            let spilled = self.rx.spill.get(spilled.start - end..spilled.end - end);
            pieces.extend(spilled.map(Piece::Host));
        }
    }

    /// Returns whether the checksum of the transport header and the payload is right.
    pub(super) fn is_checksum_right(&self, headers: &RxHeaders) -> bool {
        let Some(l4) = headers.l4_offset() else {
            return false;
        };
        let end = headers.header_len + headers.payload_len;
        let Some(mut sum) = headers.pseudo_header(end - l4) else {
            return false;
        };
        let mut at = 0;
        for piece in self.pieces(l4..end) {
            let partial = match piece {
                Piece::Host(bytes) => {
                    let mut part = Checksum::new();
                    part.add_bytes(bytes);
                    part.partial()
                }
                Piece::Span(span) => self.rx.host.port().checksum(span),
            };
            sum.add_partial(partial, at);
            at += piece.len();
        }
        sum.finish() == 0
    }

    /// Returns a copy of `range` of the frame.
    pub(crate) fn gather(&self, range: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        let mut rest = &mut out[..];
        for piece in self.pieces(range) {
            // The pieces cover the range, or less if posted memory was short.
            let Some((room, behind)) = rest.split_at_mut_checked(piece.len()) else {
                break;
            };
            piece.copy_out(room, self.rx.host.port());
            rest = behind;
        }
        out
    }

    /// Copies `range` of the frame to `frags`, from their byte `at` on.
    pub(super) fn copy(&self, range: Range<usize>, frags: &FragList, at: usize) {
        let room = at..at + range.len();
        let mut targets = spans_of(frags, room);
        let Some(mut target) = targets.next() else {
            return;
        };
        for piece in self.pieces(range) {
            let mut done = 0;
            while done < piece.len() {
                if target.len == 0 {
                    let Some(next) = targets.next() else { return };
                    target = next;
                }
                let len = (piece.len() - done).min(target.len as usize);
                piece.copy_in(done..done + len, target, self.rx.host.port());
                done += len;
                target = within(target, len..target.len as usize);
            }
        }
    }

    /// Moves the frame to the buffer for whole frames: nothing of it is in posted memory any more.
    pub(super) fn bounce(&mut self) {
        self.rx.whole = self.gather(0..self.arrival.len);
        self.arrival.body = Body::Whole;
    }
}

/// Returns what two ranges have in common; empty, and inside `other`, if that is nothing. Relative to `other`.
fn overlap(range: &Range<usize>, other: Range<usize>) -> Range<usize> {
    let start = range.start.clamp(other.start, other.end);
    let end = range.end.clamp(start, other.end);
    start - other.start..end - other.start
}
