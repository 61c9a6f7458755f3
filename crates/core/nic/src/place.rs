//! Where a received frame landed, and placement of its payload in the memory of the selected queue.

use std::ops::Range;

use netmem::{BufSpan, DmaPort, Frag, FragList, Payload};
use smallvec::SmallVec;
use steer::header_split::{self, HdsConfig, Settle, Split, WhyWhole};
use wire::{ParseError, RxHeaders};

use crate::ddp::DdpTable;
use crate::drops::DropReason;
use crate::fill::{Fill, Piece};
use crate::link::{HeaderBuf, LentUntil, LinkCaps, MAX_FRAME_LEN, VnetMeta};
use crate::nic::Nic;
use crate::packet::Origin;
use crate::rx_queue::RxQueue;
use crate::staging::start_of;

/// Host buffers of the NIC for receiving.
#[derive(Debug)]
pub(crate) struct RxBuffers {
    pub(crate) head: HeaderBuf,
    /// Bytes that did not fit into the posted memory. One byte longer than any frame, to detect truncated frames.
    pub(crate) spill: Box<[u8]>,
    /// A whole frame, from a link that does not scatter.
    pub(crate) frame: Vec<u8>,
    /// Payload in the memory that it was sent from; the headers are in `head`.
    pub(crate) lent: FragList,
}

impl RxBuffers {
    pub(crate) fn new(linear_bytes: usize, caps: &LinkCaps) -> Self {
        Self {
            head: HeaderBuf::new(linear_bytes),
            spill: vec![0; caps.max_rx_frame() + 1].into_boxed_slice(),
            frame: Vec::new(),
            lent: FragList::default(),
        }
    }
}

/// A received frame that is not placed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub(crate) frame_len: usize,
    pub(crate) meta: VnetMeta,
    pub(crate) place: Place,
    pub(crate) origin: Origin,
}

/// Location of the bytes of a received frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The first bytes are in the header buffer, the next in a queue's posted memory, the rest in the
    /// spill buffer.
    Posted(Posting),
    /// All bytes are in the frame buffer.
    Frame,
    /// `head_len` bytes of headers are in the header buffer, the payload is in the memory that it was sent from.
    Sender { head_len: usize, until: LentUntil },
}

/// The memory that was posted for a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    /// Index of the queue.
    pub(crate) queue: usize,
    /// Number of bytes of the frame for the header buffer.
    pub(crate) head_len: usize,
    /// Number of free bytes before the posted memory.
    pub(crate) headroom: usize,
    /// Bytes posted of the place that a connection has chosen, before the memory of the queue ([`crate::ddp`]).
    pub(crate) direct_bytes: usize,
    /// Bytes of posted memory of the queue.
    pub(crate) span_bytes: usize,
}

impl Posting {
    /// Returns the offset in the frame of the first byte that lies in memory of the queue.
    fn queue_start(&self) -> usize {
        self.head_len + self.direct_bytes
    }
}

/// Pieces of a frame: header buffer, posted net_iovs, spill.
pub(crate) type Pieces<'a> = SmallVec<[Piece<'a>; 22]>;

impl Landed {
    /// Returns how many bytes at the start of the frame are contiguous in host memory.
    pub(crate) fn head_len(&self) -> usize {
        match self.place {
            Place::Posted(posting) => posting.head_len.min(self.frame_len),
            Place::Frame => self.frame_len,
            Place::Sender { head_len, .. } => head_len,
        }
    }

    /// Returns the memory that the frame was posted to.
    pub(crate) fn posted_fill<'q>(&self, queues: &'q [RxQueue]) -> Option<&'q Fill> {
        match self.place {
            Place::Posted(posting) => queues.get(posting.queue).map(RxQueue::posted_fill),
            Place::Frame | Place::Sender { .. } => None,
        }
    }

    /// Returns the offset in the frame of the first byte that is not in the header buffer, if the link scatters.
    pub(crate) fn head_end(&self) -> Option<usize> {
        match self.place {
            Place::Posted(posting) => Some(posting.head_len),
            Place::Frame | Place::Sender { .. } => None,
        }
    }

    /// Returns how many bytes were posted of the place that a connection has chosen.
    pub(crate) fn posted_direct(&self) -> usize {
        match self.place {
            Place::Posted(posting) => posting.direct_bytes,
            Place::Frame | Place::Sender { .. } => 0,
        }
    }

    /// Returns the pieces of `range` of the frame. `posted` is the memory of the queue that it was received into, after
    /// that of `ddp`.
    pub(crate) fn pieces<'a>(
        &self,
        range: Range<usize>,
        buffers: &'a RxBuffers,
        ddp: &'a DdpTable,
        posted: Option<&'a Fill>,
    ) -> Pieces<'a> {
        let mut pieces = Pieces::new();
        let posting = match self.place {
            Place::Posted(posting) => posting,
            Place::Frame => {
                pieces.extend(buffers.frame.get(range).map(Piece::Host));
                return pieces;
            }
            Place::Sender { head_len, .. } => return lent_pieces(range, head_len, buffers),
        };
        let mut from = range.start;
        let head_end = range.end.min(posting.head_len);
        if from < head_end {
            pieces.push(Piece::Host(&buffers.head.frame(head_end)[from..]));
            from = head_end;
        }
        let queue_start = posting.queue_start();
        if from < range.end.min(queue_start) {
            let end = range.end.min(queue_start);
            let wanted = from - posting.head_len..end - posting.head_len;
            pieces.extend(ddp.posted(wanted).map(Piece::Span));
            from = end;
        }
        let span_end = queue_start + posting.span_bytes;
        if let Some(fill) = posted.filter(|_| from < range.end.min(span_end)) {
            let end = range.end.min(span_end);
            let wanted = from - queue_start..end - queue_start;
            pieces.extend(fill.spans_within(posting.headroom, wanted).map(Piece::Span));
            from = end;
        }
        if from < range.end {
            let spilled = buffers.spill.get(from - span_end..range.end - span_end);
            pieces.extend(spilled.map(Piece::Host));
        }
        pieces
    }

    /// Parses the headers; copies those that are in posted memory into the header buffer first.
    pub(crate) fn parse(
        &self,
        buffers: &mut RxBuffers,
        ddp: &DdpTable,
        queues: &[RxQueue],
    ) -> Result<RxHeaders, DropReason> {
        let mut have = self.head_len();
        loop {
            let head = match self.place {
                Place::Posted(_) | Place::Sender { .. } => buffers.head.frame(have),
                Place::Frame => &buffers.frame[..],
            };
            match RxHeaders::parse(head, self.frame_len) {
                Ok(headers) => return self.check_length(headers),
                // `have` grows in every round, up to the longest headers. Headers of packets with lent payload are contiguous.
                Err(ParseError::NeedMore { need })
                    if !matches!(self.place, Place::Sender { .. })
                        && need > have
                        && need <= self.frame_len.min(buffers.head.capacity()) =>
                {
                    self.fetch_head(have..need, buffers, ddp, queues);
                    have = need;
                }
                Err(error) => return Err(self.drop_reason(error)),
            }
        }
    }

    /// Returns the headers if the frame may have its length: a frame that no plain packet fills is a super-packet of TCP without
    /// padding.
    fn check_length(&self, headers: RxHeaders) -> Result<RxHeaders, DropReason> {
        let end = headers.header_len + headers.payload_len;
        let is_whole = end == self.frame_len && headers.tcp().is_some();
        match self.frame_len > MAX_FRAME_LEN && !(is_whole && self.meta.gso_size > 0) {
            true => Err(DropReason::RxOversize),
            false => Ok(headers),
        }
    }

    /// Copies `range` of the frame to `out`.
    pub(crate) fn gather(
        &self,
        range: Range<usize>,
        buffers: &RxBuffers,
        ddp: &DdpTable,
        queues: &[RxQueue],
        port: &DmaPort,
    ) -> Vec<u8> {
        let posted = self.posted_fill(queues);
        let port = posted.map_or(port, Fill::port);
        let mut out = vec![0; range.len()];
        let mut rest = &mut out[..];
        for piece in self.pieces(range, buffers, ddp, posted) {
            // The pieces cover the range, or less if posted memory was short.
            let Some((room, behind)) = rest.split_at_mut_checked(piece.len()) else {
                break;
            };
            piece.copy_to(room, port);
            rest = behind;
        }
        out
    }

    /// Copies `range` of the frame to the same offsets of the header buffer.
    pub(crate) fn fetch_head(
        &self,
        range: Range<usize>,
        buffers: &mut RxBuffers,
        ddp: &DdpTable,
        queues: &[RxQueue],
    ) {
        let Some(posted) = self.posted_fill(queues) else {
            return;
        };
        // Through a second buffer, because a piece may be in the header buffer; headers are short.
        let mut copy = SmallVec::<[u8; 512]>::new();
        for piece in self.pieces(range.clone(), buffers, ddp, Some(posted)) {
            let at = copy.len();
            copy.resize(at + piece.len(), 0);
            piece.copy_to(&mut copy[at..], posted.port());
        }
        buffers.head.write(range.start, &copy);
    }

    fn drop_reason(&self, error: ParseError) -> DropReason {
        match error {
            _ if self.frame_len < wire::EthernetHeader::LEN => DropReason::RxRunt,
            // The headers that the sender has sent end too early; the payload is not looked at for them.
            ParseError::NeedMore { .. } if matches!(self.place, Place::Sender { .. }) => {
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
}

/// Returns the pieces of `range` of a packet with its payload in the memory that it was sent from.
fn lent_pieces(range: Range<usize>, head_len: usize, buffers: &RxBuffers) -> Pieces<'_> {
    let mut pieces = Pieces::new();
    let head_end = range.end.min(head_len);
    if range.start < head_end {
        let head = &buffers.head.frame(head_end)[range.start..];
        pieces.push(Piece::Host(head));
    }
    // Offset of the next frag in the packet.
    let mut at = head_len;
    for frag in &buffers.lent {
        let (from, to) = (range.start.max(at), range.end.min(at + frag.len()));
        if from < to {
            let span = frag.span();
            // Inside the frag, whose offset and length are u32.
            pieces.push(Piece::Span(BufSpan {
                offset: span.offset + (from - at) as u32,
                len: (to - from) as u32,
                ..span
            }));
        }
        at += frag.len();
    }
    pieces
}

impl Nic {
    /// Places the payload of a landed frame and returns its frags: in the queue's memory if the packet is split, in host
    /// memory if it is not; linear bytes are in host memory.
    pub(crate) fn place(
        &mut self,
        landed: &Landed,
        headers: &RxHeaders,
        queue: usize,
    ) -> Result<FragList, DropReason> {
        let end = headers.header_len + headers.payload_len;
        let target = self.queues.get(queue).ok_or(DropReason::RxNoQueue)?;
        if !is_split(headers, target, &self.rings.hds()) {
            let payload = self.place_in_host(landed, headers.header_len..end)?;
            self.queues[queue].stats.whole += 1;
            return Ok(payload);
        }
        let linear = self.linear_bytes(queue).min(headers.payload_len);
        let cut = headers.header_len + linear;
        let mut payload = FragList::default();
        if linear > 0 {
            let frags = self.place_in_host(landed, headers.header_len..cut)?;
            payload.extend(frags.into_iter().map(Frag::into_linear));
        }
        let mut rest = cut..end;
        if linear == 0 {
            let direct = self.place_direct(landed, headers, rest, queue)?;
            payload = direct.frags;
            rest = direct.rest;
        }
        let part = match linear == 0 && !payload.is_empty() {
            true => Part::Rest,
            false => Part::Whole,
        };
        payload.append(self.place_in_queue(landed, rest, part, queue)?);
        let stats = &mut self.queues[queue].stats;
        stats.split += 1;
        stats.linear_bytes += linear as u64;
        Ok(payload)
    }

    /// Copies `range` of the frame to host memory, which the stack may read.
    fn place_in_host(
        &mut self,
        landed: &Landed,
        range: Range<usize>,
    ) -> Result<FragList, DropReason> {
        let len = range.len();
        let posted = landed.posted_fill(&self.queues);
        let pieces = landed.pieces(range, &self.buffers, &self.ddp, posted);
        self.host
            .place(&pieces, len)
            .ok_or(DropReason::RxNoHostBuffers)
    }

    /// Places `range` of the frame in the memory of `queue`. It is there already if the queue was predicted correctly.
    fn place_in_queue(
        &mut self,
        landed: &Landed,
        range: Range<usize>,
        part: Part,
        queue: usize,
    ) -> Result<FragList, DropReason> {
        let len = range.len();
        let placed = match landed.place {
            _ if len == 0 => Some(FragList::default()),
            Place::Sender {
                until: LentUntil::Read,
                ..
            } if part == Part::Whole && self.queues[queue].is_readable() => {
                return Ok(self.keep_lent(len, queue));
            }
            Place::Posted(posting) if posting.queue == queue && range.end > posting.head_len => {
                let posting = self
                    .take_in_spill(posting, range.end)
                    .ok_or(DropReason::RxNoBuffers)?;
                match (posting.direct_bytes, part) {
                    (0, Part::Whole) => self.settle(landed, posting, range),
                    _ => self.settle_behind(landed, posting, range),
                }
            }
            Place::Posted(posting) if posting.queue != queue => {
                let Ok([from, to]) = self.queues.get_disjoint_mut([posting.queue, queue]) else {
                    return Err(DropReason::RxNoQueue);
                };
                let posted = Some(from.posted_fill());
                let placed = to.place(&landed.pieces(range, &self.buffers, &self.ddp, posted), len);
                to.stats.placed += u64::from(placed.is_some());
                to.stats.placed_bytes += placed.as_ref().map_or(0, |frags| frags.len() as u64);
                placed
            }
            // All bytes are in host buffers (a short packet, or a link without scatter), or in the sender's memory.
            Place::Posted(_) | Place::Frame | Place::Sender { .. } => {
                self.queues[queue].place(&landed.pieces(range, &self.buffers, &self.ddp, None), len)
            }
        };
        let placed = placed.ok_or(DropReason::RxNoBuffers)?;
        self.stage(placed, queue).ok_or(DropReason::RxNoBuffers)
    }

    /// Takes payload over where its sender has it: the program's read will be the only copy. Host memory of the queue stays free.
    fn keep_lent(&mut self, len: usize, queue: usize) -> FragList {
        let mut payload = std::mem::take(&mut self.buffers.lent);
        // Without padding.
        payload.truncate(len);
        let queue = &mut self.queues[queue];
        queue.fill_mut().note_placed_elsewhere(len);
        queue.stats.kept += 1;
        queue.stats.kept_bytes += len as u64;
        payload
    }

    /// Returns the memory of `queue` for payload in its host memory, and adds the copy for [`Nic::poll_rx`]; returns the
    /// payload itself if the queue has no such memory.
    fn stage(&mut self, payload: FragList, queue: usize) -> Option<FragList> {
        let memory = &mut self.queues.get_mut(queue)?.memory;
        let Some(ring) = memory.ring.as_ref().filter(|_| !payload.is_empty()) else {
            return Some(payload);
        };
        let device = memory.fill.reserve(payload.len(), start_of(&payload))?;
        let port = ring.fill.port();
        self.landing
            .add_copies(&ring.engine, port, &payload, &device);
        Some(device)
    }

    /// Copies the bytes of a frame up to `end` that are in the spill buffer behind those in the posted memory, which is
    /// extended for them. `None`: there is not enough memory.
    fn take_in_spill(&mut self, posting: Posting, end: usize) -> Option<Posting> {
        let span_end = posting.queue_start() + posting.span_bytes;
        if end <= span_end {
            return Some(posting);
        }
        let spilled = self.buffers.spill.get(..end - span_end)?;
        let queue = &mut self.queues[posting.queue];
        let fill = queue.posted_fill_mut();
        fill.write_behind(posting.span_bytes, spilled, posting.headroom)?;
        queue.stats.spilled_bytes += spilled.len() as u64;
        Some(Posting {
            span_bytes: posting.span_bytes + spilled.len(),
            ..posting
        })
    }

    /// Takes payload that landed in the memory of the selected queue, and corrects a wrong predicted header length.
    fn settle(
        &mut self,
        landed: &Landed,
        posting: Posting,
        range: Range<usize>,
    ) -> Option<FragList> {
        let Posting {
            queue,
            head_len,
            headroom,
            direct_bytes: _,
            span_bytes: _,
        } = posting;
        let queue = &mut self.queues[queue];
        let len = range.len();
        match header_split::settle(head_len, range.start, landed.frame_len) {
            Settle::Exact => Some(queue.posted_fill_mut().take(0, len, headroom)),
            Settle::HeaderLonger(n) => {
                queue.stats.header_longer += 1;
                Some(queue.posted_fill_mut().take(n, len, headroom))
            }
            // Cannot happen: `Nic::predict` limits predictions to the shortest header plus the headroom.
            Settle::HeaderShorter(n) if n > headroom => None,
            Settle::HeaderShorter(_) => {
                queue.stats.header_shorter += 1;
                let moved = &self.buffers.head.frame(head_len)[range.start..];
                Some(queue.posted_fill_mut().take_behind(moved, len, headroom))
            }
        }
    }

    /// Takes the rest of a payload whose first bytes were placed directly, or a payload of which the first bytes may lie where
    /// another connection wants its own: those are copied.
    fn settle_behind(
        &mut self,
        landed: &Landed,
        posting: Posting,
        range: Range<usize>,
    ) -> Option<FragList> {
        let queue_start = posting.queue_start();
        let queue = &mut self.queues[posting.queue];
        let border = queue_start.clamp(range.start, range.end);
        // First what stays: the copy goes to the memory behind it.
        let stays = border..range.end;
        let rest = match stays.is_empty() {
            true => FragList::default(),
            false => {
                let skip = border - queue_start;
                let fill = queue.posted_fill_mut();
                fill.take(skip, stays.len(), posting.headroom)
            }
        };
        let moved = range.start..border;
        let len = moved.len();
        queue.stats.misdirected_bytes += len as u64;
        let pieces = landed.pieces(moved, &self.buffers, &self.ddp, None);
        let mut frags = queue.place(&pieces, len)?;
        frags.append(rest);
        Some(frags)
    }
}

/// What of a payload goes to the queue's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// All of it, except for linear bytes.
    Whole,
    /// What is behind the bytes that were placed directly.
    Rest,
}

/// Returns whether the payload goes to the queue's memory.
fn is_split(headers: &RxHeaders, queue: &RxQueue, hds: &HdsConfig) -> bool {
    match header_split::decide(headers, hds) {
        Split::At(_) => true,
        // The queue's memory is host memory, too: no copy to the other host memory is needed.
        Split::Whole(WhyWhole::Disabled | WhyWhole::BelowThreshold) => {
            queue.is_readable() && headers.tcp().is_some()
        }
        Split::Whole(WhyWhole::NotTcp | WhyWhole::Fragment) => false,
    }
}
