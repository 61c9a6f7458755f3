//! A received frame, and access to its bytes wherever they are.

use std::ops::Range;

use netmem::FragList;
use wire::{ParseError, RxHeaders};

use crate::arrival::{Arrival, Body, PostedBody};
use crate::drops::DropReason;
use crate::link::{MAX_FRAME_LEN, VnetMeta};
use crate::packet::Origin;
use crate::pieces::{Piece, Pieces, spans_of, within};
use crate::rx::RxSide;
use crate::rx_checksum;

/// A received frame with all its bytes. What is not taken by [`place`](Self::place) stays where it is, and is posted for the
/// next frame.
#[derive(Debug)]
pub(crate) struct RxFrame<'a> {
    pub(crate) rx: &'a mut RxSide,
    pub(crate) len: usize,
    pub(crate) body: Body,
    pub(crate) meta: VnetMeta,
    pub(crate) origin: Origin,
}

impl<'a> RxFrame<'a> {
    pub(crate) fn new(rx: &'a mut RxSide, arrival: Arrival) -> Self {
        let Arrival {
            len,
            body,
            meta,
            origin,
        } = arrival;
        Self {
            rx,
            len,
            body,
            meta,
            origin,
        }
    }

    /// Returns the first bytes of the frame, at most `len` of them unless the whole frame is in host memory.
    fn head(&self, len: usize) -> &[u8] {
        match self.body {
            Body::Whole => &self.rx.whole,
            Body::Posted(_) | Body::Lent { .. } => self.rx.head.frame(len),
        }
    }

    /// Returns how many bytes at the start of the frame are contiguous in host memory.
    fn head_len(&self) -> usize {
        match &self.body {
            Body::Posted(posted) => posted.head_len.min(self.len),
            Body::Whole => self.len,
            Body::Lent { head_len, .. } => *head_len,
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
        match &self.body {
            Body::Whole => {}
            Body::Lent {
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

    /// Parses the headers, and checks that a frame with them may be as long as this one.
    pub(crate) fn parse(&mut self) -> Result<RxHeaders, DropReason> {
        let mut have = self.head_len();
        loop {
            match RxHeaders::parse(self.head(have), self.len) {
                Ok(headers) => {
                    // A frame that no plain packet fills is a super-packet of TCP without padding.
                    let is_whole = headers.header_len + headers.payload_len == self.len;
                    let is_super = is_whole && headers.tcp().is_some() && self.meta.gso_size > 0;
                    return match self.len <= MAX_FRAME_LEN || is_super {
                        true => Ok(headers),
                        false => Err(DropReason::RxOversize),
                    };
                }
                // `have` grows in every round, up to the longest headers.
                Err(ParseError::NeedMore { need })
                    if matches!(self.body, Body::Posted(_))
                        && need > have
                        && need <= self.len.min(self.rx.head.capacity()) =>
                {
                    // Headers that are longer than predicted go on in posted memory.
                    let more = self.gather(have..need);
                    self.rx.head.write(have, &more);
                    have = need;
                }
                Err(error) => return Err(self.drop_reason(error)),
            }
        }
    }

    fn drop_reason(&self, error: ParseError) -> DropReason {
        match error {
            _ if self.len < wire::EthernetHeader::LEN => DropReason::RxRunt,
            // The headers that the sender has sent end too early; the payload is not looked at for them.
            ParseError::NeedMore { .. } if matches!(self.body, Body::Lent { .. }) => {
                DropReason::RxTruncated
            }
            // RxHeaders::parse does not parse ARP, so BadArp does not occur.
            ParseError::Truncated | ParseError::BadArp => DropReason::RxTruncated,
            ParseError::BadVersion | ParseError::BadHeaderLength | ParseError::BadTotalLength => {
                DropReason::RxBadIpHeader
            }
            ParseError::BadIpChecksum => DropReason::RxBadIpChecksum,
            ParseError::BadTcpOffset | ParseError::BadTcpOptions(_) => DropReason::RxBadTcpHeader,
            ParseError::BadUdpLength => DropReason::RxBadUdpHeader,
            ParseError::ExtensionHeaders | ParseError::NeedMore { .. } => {
                DropReason::RxBadExtensionHeaders
            }
        }
    }

    /// Verifies the transport checksum.
    pub(crate) fn verify(&self, headers: &RxHeaders) -> Result<(), DropReason> {
        let l4 = headers.l4_offset().unwrap_or(headers.header_len);
        let covered = l4..headers.header_len + headers.payload_len;
        match rx_checksum::is_right(headers, &self.pieces(covered), self.rx.host.port()) {
            true => Ok(()),
            false => Err(DropReason::RxBadChecksum),
        }
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
    pub(crate) fn copy(&self, range: Range<usize>, frags: &FragList, at: usize) {
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
    pub(crate) fn bounce(&mut self) {
        self.rx.whole = self.gather(0..self.len);
        self.body = Body::Whole;
    }
}

/// Returns what two ranges have in common; empty, and inside `other`, if that is nothing. Relative to `other`.
fn overlap(range: &Range<usize>, other: Range<usize>) -> Range<usize> {
    let start = range.start.clamp(other.start, other.end);
    let end = range.end.clamp(start, other.end);
    start - other.start..end - other.start
}
