//! A received frame: its headers are parsed, its checksum is verified, and its payload is placed: in the memory of its queue, at
//! the place that its connection has chosen, or in host memory.
//!
//! Placement takes a range of the frame, and returns it as frags: as it is, if the range was received there, otherwise by one
//! copy.

mod bytes;

use std::ops::Range;

use netmem::{Frag, FragList, Payload};
use steer::{RxQueueId, is_split};
use wire::{ChecksumState, Network, ParseError, RxHeaders, Transport, UdpHeader};

use crate::arrival::{Arrival, Body, PostedBody};
use crate::drops::DropReason;
use crate::features::{ChecksumVerdict, TcpDataSplit};
use crate::link::{BorrowedUntil, MAX_FRAME_LEN};
use crate::rx::RxSide;
use crate::staging::start_of;

/// A received frame with all its bytes. What is not taken by [`place`](Self::place) stays where it is, and is posted for the
/// next frame.
#[derive(Debug)]
pub(crate) struct RxFrame<'a> {
    pub(crate) rx: &'a mut RxSide,
    pub(crate) arrival: Arrival,
}

impl RxFrame<'_> {
    /// Parses the headers, and checks that a frame with them may be as long as this one.
    pub(crate) fn parse(&mut self) -> Result<RxHeaders, DropReason> {
        let mut have = self.head_len();
        loop {
            match RxHeaders::parse(self.head(have), self.arrival.len) {
                Ok(headers) => {
                    // A frame that no plain packet fills is a super-packet of TCP without padding.
                    let is_whole = headers.header_len + headers.payload_len == self.arrival.len;
                    let is_super =
                        is_whole && headers.tcp().is_some() && self.arrival.meta.gso_size > 0;
                    return match self.arrival.len <= MAX_FRAME_LEN || is_super {
                        true => Ok(headers),
                        false => Err(DropReason::RxOversize),
                    };
                }
                // `have` grows in every round, up to the longest headers.
                Err(ParseError::NeedMore { need })
                    if matches!(self.arrival.body, Body::Posted(_))
                        && need > have
                        && need <= self.arrival.len.min(self.rx.head.capacity()) =>
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
            _ if self.arrival.len < wire::EthernetHeader::LEN => DropReason::RxRunt,
            // The headers that the sender has sent end too early; the payload is not looked at for them.
            ParseError::NeedMore { .. } if matches!(self.arrival.body, Body::Borrowed { .. }) => {
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

    /// Verifies the transport checksum, unless the link has done so: the stack cannot read payload in
    /// device memory.
    pub(crate) fn verify(&self, headers: &RxHeaders) -> Result<ChecksumVerdict, DropReason> {
        match headers.transport {
            Transport::Tcp(_) => {}
            // No checksum (RFC 768). Not allowed over IPv6 (RFC 8200 8.1): there 0 is verified, and found wrong.
            Transport::Udp(UdpHeader { checksum: 0, .. })
                if matches!(headers.network, Network::Ipv4(_)) =>
            {
                return Ok(ChecksumVerdict::NoChecksum);
            }
            Transport::Udp(_) => {}
            Transport::Other(_) | Transport::Fragment | Transport::None => {
                return Ok(ChecksumVerdict::NoChecksum);
            }
        }
        match self.arrival.meta.checksum {
            // A partial checksum is that of a sender on this host, which left it to its NIC.
            ChecksumState::Partial(_) | ChecksumState::Verified => Ok(ChecksumVerdict::Trusted),
            ChecksumState::Unknown => match self.is_checksum_right(headers) {
                true => Ok(ChecksumVerdict::Verified),
                false => Err(DropReason::RxBadChecksum),
            },
        }
    }

    /// Places the payload, and returns its frags: in the memory of the queue if the packet is split, in host memory if it is not.
    /// Linear bytes are in host memory, before the others.
    pub(crate) fn place(
        &mut self,
        headers: &RxHeaders,
        queue: RxQueueId,
        setting: TcpDataSplit,
    ) -> Result<FragList, DropReason> {
        let mut payload = headers.header_len..headers.header_len + headers.payload_len;
        let target = self.rx.queue(queue).ok_or(DropReason::RxNoQueue)?;
        // What the settings leave whole needs no copy if the queue's memory is host memory, too.
        let is_split = setting != TcpDataSplit::Disabled && is_split(headers);
        let goes_to_queue = is_split || target.memory.is_readable && headers.tcp().is_some();
        if !goes_to_queue {
            let frags = self.copy_to_host(payload)?;
            self.rx.queues[queue.index()].stats.whole += 1;
            return Ok(frags);
        }
        let is_staged = target.is_staged();
        let linear = self.rx.linear_bytes(queue).min(headers.payload_len);
        self.count_prediction(payload.start + linear, queue);
        let mut frags = FragList::new();
        if linear > 0 {
            let copied = self.copy_to_host(payload.start..payload.start + linear)?;
            frags.extend(copied.into_iter().map(Frag::into_linear));
        } else if !is_staged && !self.rx.ddp.is_empty() {
            frags = self.place_as_chosen(headers, payload.clone(), queue);
        }
        payload.start += frags.len();
        if !payload.is_empty() {
            let mut placed = match &self.arrival.body {
                Body::Posted(posted) if posted.queue == queue && payload.end > posted.head_len => {
                    self.take_posted(*posted, payload)
                }
                _ => self.bring(payload, queue),
            };
            if is_staged {
                placed = placed.and_then(|placed| self.stage(placed, queue));
            }
            frags.append(placed.ok_or(DropReason::RxNoBuffers)?);
        }
        let stats = &mut self.rx.queues[queue.index()].stats;
        stats.split += 1;
        stats.linear_bytes += linear as u64;
        Ok(frags)
    }

    /// Compares where the payload begins with what was predicted, for a packet to memory that was posted.
    fn count_prediction(&mut self, start: usize, queue: RxQueueId) {
        if let Body::Posted(posted) = &self.arrival.body
            && posted.queue == queue
            && posted.head_len < self.arrival.len
        {
            let stats = &mut self.rx.queues[queue.index()].stats;
            stats.header_longer += u64::from(start > posted.head_len);
            stats.header_shorter += u64::from(start < posted.head_len);
        }
    }

    /// Copies `range` of the frame to host memory, which the stack may read.
    fn copy_to_host(&mut self, range: Range<usize>) -> Result<FragList, DropReason> {
        let frags = self.rx.host.reserve(range.len(), 0);
        let frags = frags.ok_or(DropReason::RxNoHostBuffers)?;
        self.copy(range, &frags, 0);
        Ok(frags)
    }

    /// Takes the first bytes of a payload, as far as its connection has chosen a place for them. They are there already if the
    /// connection and its headers were predicted correctly.
    fn place_as_chosen(
        &mut self,
        headers: &RxHeaders,
        payload: Range<usize>,
        queue: RxQueueId,
    ) -> FragList {
        let Some(mut place) = self.rx.ddp.place_of(headers) else {
            return FragList::new();
        };
        let mut len = place.room(payload.len());
        let is_predicted = place.is_predicted();
        let mut is_there = false;
        if let Body::Posted(posted) = self.arrival.body
            && is_predicted
            && !posted.direct().is_empty()
        {
            is_there = posted.head_len == payload.start;
            if !is_there {
                // The payload lies there, but not where it belongs: it could overlap with its copy.
                self.bounce();
            }
            // What is in memory of the queue behind that of the connection stays there.
            len = len.min(posted.direct().len());
        }
        let frags = self.rx.ddp.take(headers, len);
        if !is_there {
            self.copy(payload.start..payload.start + len, &frags, 0);
        }
        let queue = &mut self.rx.queues[queue.index()];
        queue.memory.fill.note_placed_elsewhere(len);
        queue.stats.direct_bytes += len as u64;
        queue.stats.direct_copied_bytes += if is_there { 0 } else { len as u64 };
        frags
    }

    /// Brings `range` of the frame, which is elsewhere, to memory that the queue receives into; `None` if there is not enough.
    fn bring(&mut self, range: Range<usize>, queue: RxQueueId) -> Option<FragList> {
        let is_readable = self.rx.queue(queue)?.memory.is_readable;
        match &self.arrival.body {
            Body::Posted(posted) if posted.queue != queue => {
                let len = range.len() as u64;
                let frags = self.copy_to_queue(range, queue)?;
                let stats = &mut self.rx.queues[queue.index()].stats;
                stats.placed += 1;
                stats.placed_bytes += len;
                Some(frags)
            }
            Body::Borrowed {
                head_len,
                until: BorrowedUntil::Read,
                ..
            } if range.start >= *head_len && is_readable => {
                let skip = range.start - head_len;
                Some(self.keep_borrowed(skip, range.len(), queue))
            }
            // All bytes are in host buffers (a short packet, or a link without scatter), or in the sender's memory.
            Body::Posted(_) | Body::Whole | Body::Borrowed { .. } => {
                self.copy_to_queue(range, queue)
            }
        }
    }

    fn copy_to_queue(&mut self, range: Range<usize>, queue: RxQueueId) -> Option<FragList> {
        let fill = self.rx.queues.get_mut(queue.index())?.memory.posted_mut();
        let frags = fill.reserve(range.len(), 0)?;
        self.copy(range, &frags, 0);
        Some(frags)
    }

    /// Takes `range` of a frame out of the memory that its queue had posted. Bytes that are not there are copied to it: those in
    /// the header buffer, because the headers are shorter than predicted, those at the place of another connection, which was
    /// predicted, and those in the spill buffer.
    fn take_posted(&mut self, posted: PostedBody, range: Range<usize>) -> Option<FragList> {
        let run = posted.run();
        let front = range.start..run.start.clamp(range.start, range.end);
        let queue = &mut self.rx.queues[posted.queue.index()];
        let stats = &mut queue.stats;
        if run.start.saturating_sub(range.start) > posted.headroom {
            stats.misdirected_bytes += front.len() as u64;
            // First what stays: the copy goes to the memory behind it.
            let stays = match front.end == range.end {
                true => FragList::new(),
                false => self.take_posted(posted, front.end..range.end)?,
            };
            let mut frags = self.copy_to_queue(front, posted.queue)?;
            frags.append(stays);
            return Some(frags);
        }
        let back = run.end.clamp(range.start, range.end)..range.end;
        stats.spilled_bytes += back.len() as u64;
        let fill = queue.memory.posted_mut();
        if !back.is_empty() && !fill.extend(range.end - run.start, posted.headroom) {
            return None;
        }
        let at = fill.start(posted.headroom) + range.start - run.start;
        let frags = fill.take(at, range.len());
        if !front.is_empty() {
            self.copy(front, &frags, 0);
        }
        if !back.is_empty() {
            let at = back.start - range.start;
            self.copy(back, &frags, at);
        }
        Some(frags)
    }

    /// Takes payload over where its sender has it, but for its first `skip` bytes: the program's read will be the only copy. Host
    /// memory of the queue stays free.
    fn keep_borrowed(&mut self, skip: usize, len: usize, queue: RxQueueId) -> FragList {
        let Body::Borrowed { frags, .. } = &mut self.arrival.body else {
            return FragList::new();
        };
        let mut payload = std::mem::take(frags);
        payload.trim_front(skip);
        // Without padding.
        payload.truncate(len);
        let queue = &mut self.rx.queues[queue.index()];
        queue.memory.fill.note_placed_elsewhere(len);
        queue.stats.kept += 1;
        queue.stats.kept_bytes += len as u64;
        payload
    }

    /// Returns the memory of `queue` for payload in its host memory, and adds the copy by the device; `None` if there is not
    /// enough.
    fn stage(&mut self, payload: FragList, queue: RxQueueId) -> Option<FragList> {
        let memory = &mut self.rx.queues.get_mut(queue.index())?.memory;
        let ring = memory.ring.as_ref()?;
        let device = memory.fill.reserve(payload.len(), start_of(&payload))?;
        let port = ring.fill.port();
        self.rx
            .landing
            .add_copies(&ring.engine, port, &payload, &device);
        Some(device)
    }
}
