//! The receive side: the memory that frames arrive in, and what is predicted of the next frame.

use netmem::{FragList, Lane};
use steer::RxQueueId;
use wire::{Instant, RxHeaders};

use crate::arrival::{Arrival, Body, PostedBody};
use crate::config::NicConfig;
use crate::conveyor::Conveyor;
use crate::crossing::CrossingFrame;
use crate::ddp::DdpTable;
use crate::drops::{DropReason, Drops};
use crate::features::ChecksumVerdict;
use crate::fill::{ALIGN, Fill, MAX_PAYLOAD, MIN_GOOD_PAYLOAD, RxSpace, Spans};
use crate::link::{HeaderBuf, Link, LinkCaps, LinkReceived, LinkState, Posted};
use crate::packet::{Origin, RxPacket};
use crate::queue_mgmt::{ProviderChoice, QueueMemory};
use crate::restart_error::RestartError;
use crate::rx_queue::RxQueue;

/// Shortest headers of a packet that is split: Ethernet, IPv4 and TCP without options.
const MIN_SPLIT_HEADER: usize = 14 + 20 + 20;

/// Longest headers that are predicted; the parser finds longer ones. The difference to [`MIN_SPLIT_HEADER`] is the maximum
/// headroom.
const MAX_PREDICTED_HEADER: usize = MIN_SPLIT_HEADER + 128;

/// The first prediction: TCP over IPv4 with timestamps.
const FIRST_PREDICTED_HEADER: usize = MIN_SPLIT_HEADER + 12;

/// Packets with payload after a long one, one with more than [`MAX_PAYLOAD`] bytes, during which another is expected.
const BIG_EXPECTED: u16 = 1024;

/// Prediction for the next frame: the same queue and header length as the last frame with payload.
#[derive(Clone, Copy, Debug)]
struct Prediction {
    /// The queue; it exists.
    queue: RxQueueId,
    /// Bytes of the headers, [`MIN_SPLIT_HEADER`] to [`MAX_PREDICTED_HEADER`].
    header_len: usize,
    /// Number of packets for which memory for the longest ones of the link is posted; 0: for [`MAX_PAYLOAD`] bytes.
    big_left: u16,
}

impl Prediction {
    /// Returns the free bytes that are kept before the payload, in case that its headers are shorter than predicted.
    fn headroom(&self) -> usize {
        self.header_len - MIN_SPLIT_HEADER
    }
}

/// The queues with their memory, the host buffers of the NIC, and the packets that devices are copying.
#[derive(Debug)]
pub(crate) struct RxSide {
    pub(crate) queues: Vec<RxQueue>,
    /// Host memory for linear bytes and for packets that are not split.
    pub(crate) host: Fill,
    /// The first bytes of the frame that arrived last, from a link that scatters, or whose frames are borrowed.
    pub(crate) head: HeaderBuf,
    /// Its bytes that did not fit into posted memory. One byte longer than any frame, to detect truncated frames.
    pub(crate) spill: Box<[u8]>,
    /// The whole frame, from a link that does not scatter.
    pub(crate) whole: Vec<u8>,
    /// Where the next payload of some connections goes.
    pub(crate) ddp: DdpTable,
    /// Received packets while devices copy their payload.
    pub(crate) landing: Conveyor<RxPacket>,
    predicted: Prediction,
    /// See [`NicConfig::linear_bytes`].
    linear_bytes: usize,
    caps: LinkCaps,
    /// The last receive found the link down, and counted it.
    link_failed: bool,
}

impl RxSide {
    pub(crate) fn new(config: &NicConfig, caps: LinkCaps) -> Result<Self, RestartError> {
        let queue = |id| RxQueue::new(RxQueueId(id), ProviderChoice::Host, config);
        Ok(Self {
            queues: (0..config.rx_queues).map(queue).collect::<Result<_, _>>()?,
            host: QueueMemory::allocate(ProviderChoice::Host, config)?.fill,
            head: HeaderBuf::new(config.linear_bytes),
            spill: vec![0; caps.max_rx_frame() + 1].into_boxed_slice(),
            whole: Vec::new(),
            ddp: DdpTable::default(),
            landing: Conveyor::new(Lane::In),
            predicted: Prediction {
                queue: RxQueueId(0),
                header_len: FIRST_PREDICTED_HEADER,
                big_left: 0,
            },
            linear_bytes: config.linear_bytes,
            caps,
            link_failed: false,
        })
    }

    pub(crate) fn queue(&self, id: RxQueueId) -> Option<&RxQueue> {
        self.queues.get(id.index())
    }

    /// Returns the memory that frames for a queue are received into.
    pub(crate) fn posted_fill(&self, id: RxQueueId) -> Option<&Fill> {
        self.queue(id).map(|queue| queue.memory.posted())
    }

    /// Returns how many payload bytes of each packet stay in host memory: 0 if the memory of `queue` is readable.
    pub(crate) fn linear_bytes(&self, queue: RxQueueId) -> usize {
        match self.queue(queue) {
            Some(queue) if !queue.memory.is_readable => self.linear_bytes,
            _ => 0,
        }
    }

    /// Returns the free memory of `queue`; all 0 for a queue that does not exist.
    pub(crate) fn space(&mut self, id: RxQueueId) -> RxSpace {
        let Some(queue) = self.queues.get_mut(id.index()) else {
            return RxSpace::default();
        };
        let space = queue.memory.fill.space();
        match self.linear_bytes(id) {
            0 => space,
            linear => RxSpace {
                bytes: space.bytes.min(self.linear_limit(linear)),
                ..space
            },
        }
    }

    /// Returns the payload bytes of one queue whose linear bytes fit into the free host memory, for packets of at least
    /// [`MIN_GOOD_PAYLOAD`] bytes.
    fn linear_limit(&mut self, linear_bytes: usize) -> usize {
        let users = self.queues.iter().filter(|queue| !queue.memory.is_readable);
        let host_bytes = self.host.space().bytes / users.count().max(1);
        host_bytes / linear_bytes.next_multiple_of(ALIGN) * MIN_GOOD_PAYLOAD
    }

    /// Returns the payload bytes that memory is posted for: those of the longest packet that the link delivers, except that long
    /// super-packets are expected only after others.
    fn payload_room(&self) -> usize {
        match self.caps.borrows || self.predicted.big_left > 0 {
            true => self.caps.max_rx_packet,
            false => MAX_PAYLOAD,
        }
    }

    /// Returns false while the host memory of a queue is full of payload that a device is copying.
    pub(crate) fn is_open(&mut self) -> bool {
        let (room, headroom) = (self.payload_room(), self.predicted.headroom());
        self.landing.is_empty()
            || self
                .queues
                .iter_mut()
                .all(|queue| queue.is_open(room, headroom))
    }

    /// Predicts that the next packet with payload has the queue, the header length and the connection of this one.
    fn predict(&mut self, queue: RxQueueId, headers: &RxHeaders) {
        self.predicted = Prediction {
            queue,
            header_len: headers
                .header_len
                .clamp(MIN_SPLIT_HEADER, MAX_PREDICTED_HEADER),
            big_left: match headers.payload_len > MAX_PAYLOAD {
                true => BIG_EXPECTED,
                false => self.predicted.big_left.saturating_sub(1),
            },
        };
        self.ddp.predict(headers);
    }

    /// Counts an accepted packet, and expects another one like it.
    pub(crate) fn note(&mut self, packet: &RxPacket, verdict: ChecksumVerdict) {
        let RxPacket { queue, headers, .. } = packet;
        if packet.origin == Origin::Link && headers.payload_len > 0 && headers.tcp().is_some() {
            self.predict(*queue, headers);
        }
        let stats = &mut self.queues[queue.index()].stats;
        stats.packets += 1;
        stats.bytes += headers.payload_len as u64;
        stats.segments += u64::from(packet.segments);
        stats.checksum_verified += u64::from(verdict == ChecksumVerdict::Verified);
        stats.checksum_trusted += u64::from(verdict == ChecksumVerdict::Trusted);
    }

    /// Receives one frame from the link: into posted memory, if the link scatters.
    pub(crate) fn receive(
        &mut self,
        link: &mut dyn Link,
        drops: &mut Drops,
        now: Instant,
    ) -> Option<Arrival> {
        let body = self.post();
        let (head_len, mut borrowed) = (body.head_len, FragList::new());
        let queue = self.queues.get(body.queue.index())?;
        let mut spans = Spans::new();
        if !body.direct().is_empty() {
            spans.extend(self.ddp.posted(0..body.direct().len()));
        }
        if !body.run().is_empty() {
            spans.extend(queue.memory.posted().spans(body.headroom));
        }
        let mut posted = Posted {
            head: &mut self.head,
            predicted_header: head_len,
            spans: &spans,
            spill: &mut self.spill,
            frame: &mut self.whole,
            borrowed: &mut borrowed,
            port: queue.memory.posted().port(),
        };
        let received = link.receive(&mut posted, now);
        let failed_before = std::mem::take(&mut self.link_failed);
        let (len, meta, body) = match received {
            Ok(LinkReceived::None) => return None,
            Ok(LinkReceived::Dropped(reason)) => {
                drops.count(reason);
                return None;
            }
            Ok(LinkReceived::Scattered { frame_len, meta }) => {
                (frame_len, meta, Body::Posted(body))
            }
            Ok(LinkReceived::Borrowed {
                head_len,
                frame_len,
                meta,
                until,
            }) => {
                let body = Body::Borrowed {
                    head_len,
                    frags: borrowed,
                    until,
                };
                (frame_len, meta, body)
            }
            Ok(LinkReceived::Frame { meta }) => (self.whole.len(), meta, Body::Whole),
            Err(_) => {
                // Counted once per failure: no frame is lost while the link stays down.
                self.link_failed = link.state() != LinkState::Up;
                if !(failed_before && self.link_failed) {
                    drops.count(DropReason::RxLinkError);
                }
                return None;
            }
        };
        Some(Arrival {
            len,
            body,
            meta,
            origin: Origin::Link,
        })
    }

    /// Posts memory for the next frame: the place that the predicted connection has chosen, then memory of the predicted queue.
    fn post(&mut self) -> PostedBody {
        let Prediction {
            queue: id,
            header_len,
            ..
        } = self.predicted;
        let (room, headroom) = (self.payload_room(), self.predicted.headroom());
        let linear = self.linear_bytes(id);
        let (mut direct, mut run) = (0, 0);
        if let Some(queue) = self
            .queues
            .get_mut(id.index())
            .filter(|_| !self.caps.borrows)
        {
            // A place gets no linear bytes, and nothing that a device copies.
            if linear == 0 && !queue.is_staged() {
                direct = self.ddp.post(room);
            }
            if direct < room {
                let fill = queue.memory.posted_mut();
                fill.post(room.min(fill.most_in_spans(headroom)), headroom);
                run = fill.span_bytes(headroom);
            }
        }
        PostedBody::new(id, header_len + linear, headroom, direct, run)
    }

    /// Returns a frame that arrived at another shard.
    pub(crate) fn crossed(&mut self, frame: CrossingFrame) -> Arrival {
        let CrossingFrame {
            bytes,
            meta,
            origin,
        } = frame;
        self.whole = bytes;
        Arrival {
            len: self.whole.len(),
            body: Body::Whole,
            meta,
            origin,
        }
    }
}
