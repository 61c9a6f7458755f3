//! Direct data placement: payload of a connection goes to a place that its program chose, not to the queue's memory.
//!
//! A program knows where the next bytes of a stream belong. [`Nic::ddp_add`] tells the NIC: the sequence number of the
//! first of these bytes, and ranges of memory. The payload of a segment that begins at that number is placed there; frags of the
//! ranges take the place of frags of the queue's memory, so that above the NIC nothing differs.
//!
//! A link that scatters has to know before it reads a packet where its payload goes. As for header length and queue, the last
//! packet is the prediction: if its connection has a range, the next bytes of the range are posted before the memory of the
//! queue. If the prediction is wrong, the payload is copied once, to the range of its own connection if it has one, and
//! bytes of another packet lie in the predicted range until its own bytes arrive. So nothing may look at a range before
//! TCP has delivered its bytes.
//!
//! The connection decides whether the payload counts. It may drop a segment that was placed, or receive one that was
//! not: [`Nic::ddp_resync`] says after each segment where the next byte belongs.

mod ranges;

use std::collections::HashMap;
use std::ops::Range;

use netmem::{BufSpan, DmaPort, Frag, FragList, OutOfBounds, Payload, TxSend};
use wire::{FourTuple, RxHeaders};

use crate::drops::DropReason;
use crate::fill::Piece;
use crate::nic::Nic;
use crate::place::Landed;
use crate::rx_queue::RxQueue;
use ranges::DdpRanges;

/// The ranges of all connections that have one.
#[derive(Debug, Default)]
pub(crate) struct DdpTable {
    /// That of the last packet with payload, if it has one: most packets need no look at the others.
    predicted: Option<(FourTuple, DdpRanges)>,
    others: HashMap<FourTuple, DdpRanges>,
}

impl DdpTable {
    fn is_empty(&self) -> bool {
        self.predicted.is_none() && self.others.is_empty()
    }

    fn is_predicted(&self, flow: &FourTuple) -> bool {
        self.predicted.as_ref().is_some_and(|(it, _)| it == flow)
    }

    /// Returns the range of a connection.
    fn get_mut(&mut self, flow: &FourTuple) -> Option<&mut DdpRanges> {
        match &mut self.predicted {
            Some((it, range)) if it == flow => Some(range),
            _ => self.others.get_mut(flow),
        }
    }

    /// Predicts that the next packet with payload is of `flow`.
    fn predict(&mut self, flow: Option<FourTuple>) {
        if self.predicted.as_ref().map(|(it, _)| *it) == flow {
            return;
        }
        if let Some((before, range)) = self.predicted.take() {
            self.others.insert(before, range);
        }
        self.predicted = flow.and_then(|flow| self.others.remove_entry(&flow));
    }

    /// Prepares the predicted range for the next frame, of at most `room` bytes of payload; returns how many of its bytes
    /// [`posted`](Self::posted) returns.
    pub(crate) fn post(&mut self, room: usize) -> usize {
        let predicted = self.predicted.as_mut();
        predicted.map_or(0, |(_, ranges)| ranges.postable(room))
    }

    /// Takes the next `len` bytes of the range of a connection, as [`DdpRanges::take`] does.
    fn take(&mut self, flow: &FourTuple, len: usize) -> FragList {
        let range = self.get_mut(flow);
        range.map(|range| range.take(len)).unwrap_or_default()
    }

    /// Returns `wanted` of the next bytes of the predicted range.
    pub(crate) fn posted(&self, wanted: Range<usize>) -> impl Iterator<Item = BufSpan<'_>> {
        let range = self.predicted.as_ref();
        let frags = range.into_iter().flat_map(|(_, ranges)| ranges.made());
        let placed = frags.scan(0, |at, frag| {
            let start = *at;
            *at += frag.len();
            Some((start, frag))
        });
        let before_end = placed.take_while(move |(start, _)| *start < wanted.end);
        before_end.filter_map(move |(start, frag)| {
            let (from, to) = (wanted.start.max(start), wanted.end.min(start + frag.len()));
            let span = frag.span();
            // Inside the frag, whose offset and length are u32.
            (from < to).then(|| BufSpan {
                offset: span.offset + (from - start) as u32,
                len: (to - from) as u32,
                ..span
            })
        })
    }
}

/// Where the payload of a frame goes by [`Nic::place_direct`].
pub(crate) struct DirectlyPlaced {
    /// The frags of the first bytes; empty if the connection has no place for them.
    pub(crate) frags: FragList,
    /// The rest of the payload, as a range of the frame: it goes to the memory of the queue.
    pub(crate) rest: Range<usize>,
}

impl Nic {
    /// Places the payload of a connection from sequence number `seq` on in `ranges` of a memory, one after another. Replaces
    /// earlier ranges of the connection.
    ///
    /// # Errors
    /// A range is not inside the memory; then nothing has changed.
    pub fn ddp_add(
        &mut self,
        flow: FourTuple,
        seq: u32,
        memory: TxSend,
        ranges: Vec<Range<usize>>,
    ) -> Result<(), OutOfBounds> {
        let ranges = DdpRanges::new(seq, memory, ranges)?;
        self.ddp_del(&flow);
        self.ddp.others.insert(flow, ranges);
        // Its next packet is the likely one: somebody waits for it.
        self.ddp.predict(Some(flow));
        Ok(())
    }

    /// Tells that the next byte of a connection has the sequence number `seq`, and that `left` bytes of its ranges are still to
    /// be filled.
    pub fn ddp_resync(&mut self, flow: &FourTuple, seq: u32, left: usize) {
        if let Some(ranges) = self.ddp.get_mut(flow) {
            ranges.resync(seq, left);
        }
    }

    /// Forgets the range of a connection: from now on no packet changes its bytes.
    pub fn ddp_del(&mut self, flow: &FourTuple) {
        if self.ddp.is_predicted(flow) {
            self.ddp.predicted = None;
        }
        self.ddp.others.remove(flow);
    }

    /// Posts at most `room` of the next bytes of the predicted range before the memory of `queue`; returns their number. None if
    /// payload of the queue has linear bytes, or is copied by a device.
    pub(crate) fn post_direct(&mut self, queue: usize, room: usize) -> usize {
        let is_staged = self.queues.get(queue).is_none_or(RxQueue::is_staged);
        match is_staged || self.linear_bytes(queue) > 0 {
            true => 0,
            false => self.ddp.post(room),
        }
    }

    /// Places the first bytes of `range` of a frame, its payload, in the range of their connection, as far as it reaches. They are
    /// there already if the connection was predicted correctly.
    pub(crate) fn place_direct(
        &mut self,
        landed: &Landed,
        headers: &RxHeaders,
        payload: Range<usize>,
        queue: usize,
    ) -> Result<DirectlyPlaced, DropReason> {
        let mut placed = DirectlyPlaced {
            frags: FragList::new(),
            rest: payload.clone(),
        };
        if self.ddp.is_empty() || payload.is_empty() || self.queues[queue].is_staged() {
            return Ok(placed);
        }
        let (Some(flow), Some(tcp)) = (headers.four_tuple(), headers.tcp()) else {
            return Ok(placed);
        };
        let was_predicted = landed.posted_direct() > 0 && self.ddp.is_predicted(&flow);
        let Some(range) = self.ddp.get_mut(&flow) else {
            return Ok(placed);
        };
        if range.seq != tcp.seq || range.left() == 0 {
            return Ok(placed);
        }
        // What is in memory of the queue behind that of the connection stays there.
        let posted = match was_predicted {
            true => landed.posted_direct(),
            false => usize::MAX,
        };
        let len = payload
            .len()
            .min(range.front(payload.len()).len())
            .min(posted);
        let direct = payload.start..payload.start + len;
        let is_there = was_predicted && landed.head_end() == Some(payload.start);
        if is_there {
            placed.frags = range.take(len);
            placed.rest.start = direct.end;
        } else if was_predicted {
            // The headers have another length: the payload lies in the range, but not at its place. It may overlap with that.
            let frags = range.made().share(0, len);
            let port = self.host.port();
            let bytes = landed.gather(payload, &self.buffers, &self.ddp, &self.queues, port);
            let (bytes, rest) = bytes.split_at_checked(len).ok_or(DropReason::RxNoBuffers)?;
            write(&[Piece::Host(bytes)], &frags, port);
            let rest = self.queues[queue].place(&[Piece::Host(rest)], rest.len());
            placed.frags = self.ddp.take(&flow, len);
            placed.frags.append(rest.ok_or(DropReason::RxNoBuffers)?);
            placed.rest.start = placed.rest.end;
        } else {
            let frags = range.made().share(0, len);
            let posted = landed.posted_fill(&self.queues);
            let pieces = landed.pieces(direct.clone(), &self.buffers, &self.ddp, posted);
            write(&pieces, &frags, self.host.port());
            drop(pieces);
            placed.frags = self.ddp.take(&flow, len);
            placed.rest.start = direct.end;
        }
        let queue = &mut self.queues[queue];
        queue.fill_mut().note_placed_elsewhere(len);
        queue.stats.direct_bytes += len as u64;
        queue.stats.direct_copied_bytes += if is_there { 0 } else { len as u64 };
        Ok(placed)
    }

    /// Predicts that the next packet with payload is of the same connection.
    pub(crate) fn predict_flow(&mut self, headers: &RxHeaders) {
        if !self.ddp.is_empty() {
            self.ddp.predict(headers.four_tuple());
        }
    }
}

/// Copies pieces of a frame to frags that are as long.
fn write(pieces: &[Piece<'_>], frags: &FragList, port: &DmaPort) {
    let mut targets = frags.iter().map(Frag::span);
    let mut room = targets.next();
    for &piece in pieces {
        let mut done = 0;
        while done < piece.len() {
            let Some(span) = room.as_mut() else { return };
            let len = (piece.len() - done).min(span.len as usize);
            // At most the length of a frag, a u32.
            match piece {
                Piece::Host(bytes) => {
                    port.copy_in(span.netmem, span.offset, &bytes[done..done + len]);
                }
                Piece::Span(from) => {
                    let from = BufSpan {
                        offset: from.offset + done as u32,
                        len: len as u32,
                        ..from
                    };
                    port.copy(from, span.netmem, span.offset);
                }
            }
            done += len;
            span.offset += len as u32;
            span.len -= len as u32;
            if span.len == 0 {
                room = targets.next();
            }
        }
    }
}
