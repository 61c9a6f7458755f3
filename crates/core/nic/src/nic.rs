//! The device: receive, transmit, and the memory in between.

mod receive;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use netmem::{FragList, Lane, Netmem, Payload, PoolStats};
use steer::{Rss, Rules, RxQueueId, Selected, Steering};
use wire::{EthernetHeader, Instant, MacAddr, RxHeaders};

use crate::config::{NicConfig, NicError};
use crate::conveyor::{Conveyed, Conveyor};
use crate::crossing::Crossing;
use crate::ddp::DdpTable;
use crate::drops::{DropReason, Drops};
use crate::features::{Features, Rings, default_table};
use crate::fill::{ALIGN, Fill, MAX_PAYLOAD, MIN_GOOD_PAYLOAD, Piece, RxSpace};
use crate::link::{Link, LinkCaps, LinkState, MAX_FRAME_LEN};
use crate::loopback::{self, LoopQueue, Turn};
use crate::packet::{FailedTx, Origin, RxPacket, TxPacket};
use crate::place::{Landed, RxBuffers};
use crate::queue_mgmt::{ProviderChoice, QueueMemory};
use crate::rx_checksum::{self, ChecksumVerdict};
use crate::rx_queue::{RxQueue, RxQueueInfo};
use crate::staging::{StagingStats, is_remote};
use crate::stats::{RxQueueStats, TxStats};
use crate::tx_queue::{Offloads, TransmitError, TxContext, TxQueue};
use crate::tx_stage::TxStage;

/// Shortest headers of a packet that is split: Ethernet, IPv4 and TCP without options.
pub(crate) const MIN_SPLIT_HEADER: usize = 14 + 20 + 20;

/// Longest headers that are predicted; the parser finds longer ones. The difference to
/// [`MIN_SPLIT_HEADER`] is the maximum headroom.
const MAX_PREDICTED_HEADER: usize = MIN_SPLIT_HEADER + 128;

/// The first prediction: TCP over IPv4 with timestamps.
const FIRST_PREDICTED_HEADER: usize = MIN_SPLIT_HEADER + 12;

/// Frames that [`Nic::poll_rx`] drops in a row before it returns `None`: during a flood of bad frames its caller must
/// still get to its other work.
const RX_DROP_BUDGET: usize = 64;

/// Time after which a device that is copying is asked again: its events have no file descriptor.
const COPY_POLL: Duration = Duration::from_micros(5);

/// VLAN identifier in a tag's control information (IEEE 802.1Q 9.6); 0 in a priority tag.
const VLAN_ID_MASK: u16 = 0x0fff;

/// A software NIC. It works only while one of its methods runs; its owner polls it.
pub struct Nic {
    link: Box<dyn Link>,
    caps: LinkCaps,
    pub(crate) config: NicConfig,
    pub(crate) rings: Rings,
    pub(crate) features: Features,
    pub(crate) steering: Steering,
    /// The RSS table was set by a caller and no longer follows the number of queues.
    pub(crate) rss_configured: bool,
    pub(crate) queues: Vec<RxQueue>,
    /// Host memory for linear bytes and for packets that are not split.
    pub(crate) host: Fill,
    pub(crate) buffers: RxBuffers,
    pub(crate) predicted: Prediction,
    pub(crate) tx: TxQueue,
    pub(crate) looped: LoopQueue,
    /// Where the next payload of some connections goes.
    pub(crate) ddp: DdpTable,
    /// Received packets while devices copy their payload.
    pub(crate) landing: Conveyor<RxPacket>,
    pub(crate) tx_stage: TxStage,
    /// Sent packets whose payload a device failed to copy, for [`Nic::take_failed_tx`].
    failed_tx: VecDeque<FailedTx>,
    /// The other shards, if there are any.
    pub(crate) crossing: Option<Box<Crossing>>,
    rx_full: u64,
    /// Time of the last poll.
    pub(crate) last_poll: Instant,
    pub(crate) drops: Drops,
    /// The last receive found the link down, and counted it.
    link_failed: bool,
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            caps,
            config,
            queues,
            drops,
            ..
        } = self;
        f.debug_struct("Nic")
            .field("link", caps)
            .field("config", config)
            .field("queues", queues)
            .field("drops", drops)
            .finish_non_exhaustive()
    }
}

/// Prediction for the next frame: the same queue and header length as the last frame with payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    /// Index of the queue; the queue exists.
    pub(crate) queue: usize,
    /// Bytes of the headers, [`MIN_SPLIT_HEADER`] to [`MAX_PREDICTED_HEADER`].
    header_len: usize,
    /// Number of packets for which memory for the longest ones of the link is posted; 0: for [`MAX_PAYLOAD`] bytes.
    big_left: u16,
}

/// Packets with payload after a long one, one with more than [`MAX_PAYLOAD`] bytes, during which another is expected.
const BIG_EXPECTED: u16 = 1024;

impl Nic {
    /// Creates a NIC on `link`.
    ///
    /// # Errors
    /// [`NicError`]: a setting is out of range, or there is no memory.
    pub fn new(link: Box<dyn Link>, config: NicConfig) -> Result<Self, NicError> {
        let caps = link.caps();
        config.check(&caps)?;
        let NicConfig {
            rx_queues,
            linear_bytes,
            rings,
            ..
        } = config;
        let queue = |id| RxQueue::new(RxQueueId(id), ProviderChoice::Host, &config);
        let queues = (0..rx_queues).map(queue).collect::<Result<Vec<_>, _>>()?;
        let host = QueueMemory::allocate(ProviderChoice::Host, &config)?.fill;
        Ok(Self {
            link,
            caps,
            rings,
            features: config.features,
            steering: Steering {
                rss: Rss::new(config.rss_key, default_table(rx_queues)),
                rules: Rules::default(),
                ntuple: config.features.ntuple,
            },
            rss_configured: false,
            queues,
            host,
            buffers: RxBuffers::new(linear_bytes, &caps),
            predicted: Prediction {
                queue: 0,
                header_len: FIRST_PREDICTED_HEADER,
                big_left: 0,
            },
            tx: TxQueue::new(rings.tx_packets),
            looped: LoopQueue::default(),
            ddp: DdpTable::default(),
            landing: Conveyor::new(Lane::In),
            tx_stage: TxStage::new(),
            failed_tx: VecDeque::new(),
            crossing: None,
            rx_full: 0,
            last_poll: Instant::ZERO,
            drops: Drops::default(),
            link_failed: false,
            config,
        })
    }

    /// Receives the next packet. `None`: no packet has arrived, 64 frames in a row were dropped, or devices are still copying
    /// what has arrived.
    pub fn poll_rx(&mut self, now: Instant) -> Option<RxPacket> {
        self.last_poll = now;
        self.flush_tx(now);
        self.drops
            .count_many(DropReason::RxLinkFull, self.link.take_lost(now));
        for _ in 0..RX_DROP_BUDGET {
            if let Some(conveyed) = self.landing.pop() {
                return Some(self.landed(conveyed));
            }
            let Some(landed) = self.next_landed(now) else {
                self.landing.submit();
                let conveyed = self.landing.pop()?;
                return Some(self.landed(conveyed));
            };
            let accepted = self.accept(&landed);
            // The payload has been copied or dropped, so the sender's memory is free now.
            drop(std::mem::take(&mut self.buffers.lent));
            match accepted {
                Ok(None) => {}
                Ok(Some(packet)) => {
                    if packet.origin == Origin::Link {
                        self.link.accepted(&packet);
                    }
                    let queue = &self.queues[packet.queue.index()];
                    if queue.is_staged() && is_remote(&packet.payload) {
                        self.landing.push_staged(packet);
                    } else if self.landing.is_empty() {
                        return Some(packet);
                    } else {
                        self.landing.push(packet);
                    }
                }
                Err(reason) => self.drops.count(reason),
            }
        }
        None
    }

    /// Returns a packet whose payload has been copied by a device; without payload if the device has failed.
    fn landed(&mut self, conveyed: Conveyed<RxPacket>) -> RxPacket {
        let Conveyed { packet, failed } = conveyed;
        let Some(error) = failed else { return packet };
        self.drops.count(DropReason::RxDeviceFailed);
        RxPacket {
            payload: FragList::default(),
            unplaced: packet.payload.len(),
            failed: Some(Box::new(error)),
            ..packet
        }
    }

    /// Returns the next frame. The link and the queue of packets to this NIC itself take turns while both have frames.
    ///
    /// While the host memory of a queue is full of payload that a device is copying, nothing is read: the link keeps it.
    fn next_landed(&mut self, now: Instant) -> Option<Landed> {
        let headroom = self.predicted.header_len - MIN_SPLIT_HEADER;
        let payload = self.payload_room();
        if !self.landing.is_empty()
            && !self
                .queues
                .iter_mut()
                .all(|queue| queue.is_open(payload, headroom))
        {
            self.rx_full += 1;
            return None;
        }
        let is_crossing_turn = self.crossing.as_mut().is_some_and(|it| it.take_turn());
        let crossed = is_crossing_turn.then(|| self.receive_crossed()).flatten();
        if crossed.is_some() {
            return crossed;
        }
        let landed = match self.looped.take_turn() {
            Turn::Loop => self.receive_looped().or_else(|| self.receive(now)),
            Turn::Link => self.receive(now).or_else(|| self.receive_looped()),
        };
        landed.or_else(|| self.receive_crossed())
    }

    fn receive_looped(&mut self) -> Option<Landed> {
        let packet = self.looped.pop()?;
        Some(packet.land(&mut self.buffers))
    }

    /// Validates a landed frame, selects its queue and moves its payload into the memory of that queue. `None`: the frame has
    /// crossed to the shard of its flow.
    fn accept(&mut self, landed: &Landed) -> Result<Option<RxPacket>, DropReason> {
        if landed.frame_len > self.caps.max_rx_frame() {
            return Err(DropReason::RxOversize);
        }
        let headers = landed.parse(&mut self.buffers, &self.ddp, &self.queues)?;
        self.filter(&headers.ethernet)?;
        if !self.keeps(landed, &headers) {
            return Ok(None);
        }
        let verdict = self.check(landed, &headers)?;
        let queue = self.select_queue(&headers)?;
        let payload = match self.place(landed, &headers, queue.index()) {
            Ok(payload) => payload,
            Err(reason @ (DropReason::RxNoBuffers | DropReason::RxNoHostBuffers))
                if headers.tcp().is_some() =>
            {
                self.drops.count(reason);
                return Ok(Some(unplaced(queue, headers, landed)));
            }
            Err(reason) => return Err(reason),
        };
        let segments = segments(headers.payload_len, landed.meta.gso_size);
        let origin = landed.origin;
        if origin == Origin::Link && headers.payload_len > 0 && headers.tcp().is_some() {
            self.predict(queue, &headers);
            self.predict_flow(&headers);
        }
        let stats = &mut self.queues[queue.index()].stats;
        stats.packets += 1;
        stats.bytes += headers.payload_len as u64;
        stats.segments += u64::from(segments);
        stats.checksum_verified += u64::from(verdict == ChecksumVerdict::Compute);
        stats.checksum_trusted += u64::from(verdict == ChecksumVerdict::Trusted);
        Ok(Some(RxPacket {
            queue,
            headers,
            payload,
            unplaced: 0,
            failed: None,
            segments,
            origin,
        }))
    }

    fn filter(&self, ethernet: &EthernetHeader) -> Result<(), DropReason> {
        if ethernet.dst != self.config.mac && !ethernet.dst.is_multicast() {
            return Err(DropReason::RxNotForUs);
        }
        match ethernet.vlan {
            Some(control) if control & VLAN_ID_MASK != 0 => Err(DropReason::RxVlan),
            _ => Ok(()),
        }
    }

    fn check(&self, landed: &Landed, headers: &RxHeaders) -> Result<ChecksumVerdict, DropReason> {
        let verdict = rx_checksum::judge(headers, landed.meta.checksum, self.features.rx_checksum);
        if verdict == ChecksumVerdict::Compute {
            let l4 = headers.l4_offset().unwrap_or(headers.header_len);
            let posted = landed.posted_fill(&self.queues);
            let covered = l4..headers.header_len + headers.payload_len;
            let pieces = landed.pieces(covered, &self.buffers, &self.ddp, posted);
            if !rx_checksum::is_right(headers, &pieces, self.host.port()) {
                return Err(DropReason::RxBadChecksum);
            }
        }
        Ok(verdict)
    }

    fn select_queue(&self, headers: &RxHeaders) -> Result<RxQueueId, DropReason> {
        if self.queues.len() == 1 && self.steering.rules.is_empty() {
            // Every packet goes to the only queue; no hash is needed.
            return Ok(RxQueueId(0));
        }
        match self.steering.select_queue(headers) {
            Selected::Queue { queue, .. } if queue.index() < self.queues.len() => Ok(queue),
            Selected::Queue { .. } => Err(DropReason::RxNoQueue),
            Selected::Drop(_) => Err(DropReason::RxRuleDrop),
        }
    }

    fn predict(&mut self, queue: RxQueueId, headers: &RxHeaders) {
        let header_len = headers
            .header_len
            .clamp(MIN_SPLIT_HEADER, MAX_PREDICTED_HEADER);
        let big_left = match headers.payload_len > MAX_PAYLOAD {
            true => BIG_EXPECTED,
            false => self.predicted.big_left.saturating_sub(1),
        };
        self.predicted = Prediction {
            queue: queue.index(),
            header_len,
            big_left,
        };
    }

    /// Returns how many payload bytes of each packet stay in host memory: 0 if the memory of `queue` is readable.
    pub(crate) fn linear_bytes(&self, queue: usize) -> usize {
        match self.queues.get(queue) {
            Some(queue) if !queue.is_readable() => self.config.linear_bytes,
            _ => 0,
        }
    }

    /// Sends a packet, or queues it until the link has room; a packet from this NIC to itself does not pass the link. The
    /// payload is dropped, which completes the send, as soon as the link has the packet.
    ///
    /// # Errors
    /// [`TransmitError`]: the packet was dropped, and counted under its [`DropReason`].
    pub fn transmit(&mut self, packet: TxPacket, now: Instant) -> Result<(), TransmitError> {
        if let Some(crossing) = &self.crossing
            && packet.payload.is_empty()
        {
            crossing.note_sent(packet.head.as_slice());
        }
        if !self.tx_stage.takes(&packet) {
            return self.transmit_from_host(packet, now);
        }
        if self.tx_room() == 0 {
            self.drops.count(DropReason::TxBusy);
            return Err(TransmitError::QueueFull);
        }
        self.tx_stage.push(packet);
        Ok(())
    }

    /// Sends a packet with payload that the CPU can access.
    fn transmit_from_host(&mut self, packet: TxPacket, now: Instant) -> Result<(), TransmitError> {
        if loopback::is_own(self.config.mac, &packet) {
            return self.send_looped(packet);
        }
        let (queue, mut context) = self.tx_parts(now);
        queue.transmit(packet, &mut context)
    }

    /// Queues a packet to this NIC itself for the next [`Nic::poll_rx`], without computing a checksum or cutting segments.
    fn send_looped(&mut self, packet: TxPacket) -> Result<(), TransmitError> {
        let len = packet.frame_len();
        if len > MAX_FRAME_LEN {
            self.drops.count(DropReason::TxInvalid);
            return Err(TransmitError::TooLong {
                len,
                max: MAX_FRAME_LEN,
            });
        }
        if self.tx_room() == 0 {
            self.drops.count(DropReason::TxBusy);
            return Err(TransmitError::QueueFull);
        }
        self.tx.stats.looped += 1;
        self.looped.push(packet);
        Ok(())
    }

    /// Sends queued packets until the link is busy; returns how many are still queued.
    pub fn flush_tx(&mut self, now: Instant) -> usize {
        while let Some(Conveyed { packet, failed }) = self.tx_stage.pop() {
            match failed {
                // An error has been counted, as for a packet that waited in the queue.
                None => drop(self.transmit_from_host(packet, now)),
                Some(error) => {
                    self.drops.count(DropReason::TxDeviceFailed);
                    self.failed_tx.push_back(FailedTx { packet, error });
                }
            }
        }
        if self.tx.len() > 0 {
            let (queue, mut context) = self.tx_parts(now);
            queue.flush(&mut context);
        }
        self.tx.len()
    }

    fn tx_parts(&mut self, now: Instant) -> (&mut TxQueue, TxContext<'_>) {
        let offloads = self.offloads();
        let context = TxContext {
            link: &mut *self.link,
            port: self.host.port(),
            drops: &mut self.drops,
            offloads,
            now,
        };
        (&mut self.tx, context)
    }

    /// Returns how many more packets fit into the transmit queue.
    pub fn tx_room(&self) -> usize {
        self.tx
            .room()
            .saturating_sub(self.looped.len() + self.tx_stage.len())
    }

    /// Removes a packet that was not sent because a device failed to copy its payload. Its connection cannot continue.
    pub fn take_failed_tx(&mut self) -> Option<FailedTx> {
        self.failed_tx.pop_front()
    }

    /// Returns the counters of payload that devices copy.
    pub fn staging_stats(&self) -> StagingStats {
        StagingStats {
            rx_batches: self.landing.batches,
            rx_bytes: self.landing.bytes,
            rx_full: self.rx_full,
            tx_batches: self.tx_stage.conveyor.batches,
            tx_bytes: self.tx_stage.conveyor.bytes,
        }
    }

    fn offloads(&self) -> Offloads {
        let checksum = self.caps.tx_checksum && self.features.link_tx_checksum;
        Offloads {
            checksum,
            tso: checksum && self.caps.tso && self.features.link_tso,
            longest: usize::from(self.config.mtu) + EthernetHeader::TAGGED_LEN,
            longest_super: self.caps.max_super_packet + EthernetHeader::TAGGED_LEN,
        }
    }

    /// Recycles payload that is no longer needed. Frags of this NIC's memory go directly back to their pool, which is
    /// faster than dropping them; other frags are dropped.
    pub fn recycle(&mut self, payload: FragList) {
        for frag in payload {
            self.recycle_netmem(frag.into_netmem());
        }
    }

    /// As [`Nic::recycle`], for one handle.
    pub fn recycle_netmem(&mut self, netmem: Netmem) {
        let pool = netmem.pool_id();
        let mut fills = self.queues.iter_mut().map(RxQueue::fill_mut);
        match fills.find(|fill| fill.pool().id() == pool) {
            Some(fill) => fill.recycle(netmem),
            None => self.host.recycle(netmem),
        }
    }

    /// Copies bytes that are to be sent into host memory of this NIC; `None` if there is not enough.
    pub fn host_payload(&mut self, bytes: &[u8]) -> Option<FragList> {
        self.host.place(&[Piece::Host(bytes)], bytes.len())
    }

    /// Returns the free memory of `queue`; all 0 for a queue that does not exist.
    pub fn rx_space(&mut self, queue: RxQueueId) -> RxSpace {
        let Some(target) = self.queues.get_mut(queue.index()) else {
            return RxSpace::default();
        };
        let space = target.fill_mut().space();
        match self.linear_bytes(queue.index()) {
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
        let users = self
            .queues
            .iter()
            .filter(|queue| !queue.is_readable())
            .count();
        let host_bytes = self.host.space().bytes / users.max(1);
        host_bytes / linear_bytes.next_multiple_of(ALIGN) * MIN_GOOD_PAYLOAD
    }

    /// Returns facts about one queue.
    pub fn queue_info(&self, queue: RxQueueId) -> Option<RxQueueInfo> {
        self.queues.get(queue.index()).map(RxQueue::info)
    }

    /// Returns the counters of one queue.
    pub fn queue_stats(&self, queue: RxQueueId) -> Option<RxQueueStats> {
        self.queues.get(queue.index()).map(RxQueue::stats)
    }

    /// Returns the counters of one queue's page pool.
    pub fn pool_stats(&self, queue: RxQueueId) -> Option<PoolStats> {
        self.queues.get(queue.index()).map(RxQueue::pool_stats)
    }

    /// Returns the counters of the page pool for linear bytes and packets that are not split.
    pub fn host_pool_stats(&self) -> PoolStats {
        self.host.pool().stats()
    }

    /// Returns the counters of the transmit side.
    pub fn tx_stats(&self) -> TxStats {
        self.tx.stats
    }

    /// Returns the counters of dropped packets.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Returns the hardware address.
    pub fn mac(&self) -> MacAddr {
        self.config.mac
    }

    /// Returns the bytes of the largest IP packet that is not a super-packet.
    pub fn mtu(&self) -> u16 {
        self.config.mtu
    }

    /// Returns the capabilities of the link.
    pub fn link_caps(&self) -> LinkCaps {
        self.caps
    }

    /// Returns the link.
    pub fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Returns a descriptor that becomes readable when a frame may have arrived; `None` if the link has none.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.poll_fd()
    }

    /// Returns true if packets are queued because the link is busy and a descriptor of the link becomes readable when it has
    /// room again ([`Link::room_fd`]). Retrying before that is useless.
    pub fn is_told_of_room(&self) -> bool {
        self.tx.len() > 0 && self.link.tells_of_room()
    }

    /// Returns when [`poll_rx`](Self::poll_rx) has work without an event on the descriptor: when the link has, or at once
    /// if a packet to this NIC itself is queued or a frame has crossed from another shard, or soon if a device is copying.
    pub fn next_due(&self) -> Option<Instant> {
        if self.looped.len() > 0 || self.has_crossed() {
            return Some(Instant::ZERO);
        }
        let is_copying = !self.landing.is_empty() || self.tx_stage.len() > 0;
        let copied = is_copying.then(|| self.last_poll + COPY_POLL);
        [self.link.next_due(), copied].into_iter().flatten().min()
    }

    /// Returns false if the link is down.
    pub fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Returns the state of the link. It is [`LinkState::Gone`] only after the packets that have arrived: until
    /// [`poll_rx`](Self::poll_rx) has returned those that devices are copying, and those that have crossed from another shard, it
    /// is [`LinkState::Down`].
    pub fn link_state(&self) -> LinkState {
        match self.link.state() {
            LinkState::Gone if !self.landing.is_empty() || self.has_crossed() => LinkState::Down,
            state => state,
        }
    }

    /// Returns whether frames from other shards may wait.
    fn has_crossed(&self) -> bool {
        self.crossing
            .as_ref()
            .is_some_and(|it| it.may_have_frames())
    }

    pub(crate) fn rx_queue_count(&self) -> u16 {
        // At most MAX_RX_QUEUES.
        self.queues.len() as u16
    }
}

/// Returns a packet without its payload, for which there was no memory.
fn unplaced(queue: RxQueueId, headers: RxHeaders, landed: &Landed) -> RxPacket {
    RxPacket {
        queue,
        payload: FragList::default(),
        unplaced: headers.payload_len,
        failed: None,
        segments: segments(headers.payload_len, landed.meta.gso_size),
        origin: landed.origin,
        headers,
    }
}

/// Returns the number of segments in a packet: 1, or those of a super-packet.
fn segments(payload_len: usize, gso_size: u16) -> u16 {
    match gso_size {
        0 => 1,
        size => u16::try_from(payload_len.div_ceil(usize::from(size)).max(1)).unwrap_or(u16::MAX),
    }
}
