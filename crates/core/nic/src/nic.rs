//! The device: receive, transmit, and the memory in between.

mod pressure;
mod restart;
mod settings;
mod shard;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use netmem::{CopyEngine, FragList, Netmem, Payload, PoolStats};
use steer::{Rss, Rules, RxQueueId, Steering, ToeplitzKey};
use wire::{EthernetHeader, Instant, MacAddr};

use crate::arrival::Arrival;
use crate::config::{NicConfig, NicError};
use crate::conveyor::Conveyed;
use crate::crossing::Crossing;
use crate::ddp::DdpTable;
use crate::drops::{DropReason, Drops};
use crate::features::{Rings, default_table};
use crate::fill::RxSpace;
use crate::frame::RxFrame;
use crate::link::{Link, LinkCaps, LinkState, MAX_FRAME_LEN};
use crate::loopback::{self, LoopQueue};
use crate::packet::{FailedTx, Origin, Placed, RxPacket, TxPacket};
use crate::restart_error::RestartError;
use crate::rx::RxSide;
use crate::rx_queue::{RxQueue, RxQueueInfo};
use crate::stats::{RxQueueStats, TxStats};
use crate::tx_queue::{Offloads, TxContext, TxQueue};
use crate::tx_stage::TxStage;

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
    config: NicConfig,
    rings: Rings,
    steering: Steering,
    rx: RxSide,
    tx: TxQueue,
    looped: LoopQueue,
    tx_stage: TxStage,
    /// Sent packets whose payload a device failed to copy, for [`Nic::take_failed_tx`].
    failed_tx: VecDeque<FailedTx>,
    /// The other shards, if there are any.
    pub(crate) crossing: Option<Box<Crossing>>,
    /// Time of the last poll.
    last_poll: Instant,
    drops: Drops,
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            caps,
            config,
            rx,
            drops,
            ..
        } = self;
        f.debug_struct("Nic")
            .field("link", caps)
            .field("config", config)
            .field("queues", &rx.queues)
            .field("drops", drops)
            .finish_non_exhaustive()
    }
}

impl Nic {
    /// Creates a NIC on `link`.
    ///
    /// # Errors
    /// [`NicError`]: a setting is out of range, or there is no memory.
    pub fn new(link: Box<dyn Link>, config: NicConfig) -> Result<Self, NicError> {
        let caps = link.caps();
        config.check(&caps)?;
        let NicConfig {
            rx_queues, rings, ..
        } = config;
        Ok(Self {
            link,
            caps,
            rings,
            steering: Steering {
                rss: Rss::new(ToeplitzKey::MICROSOFT, default_table(rx_queues)),
                rules: Rules::default(),
            },
            rx: RxSide::new(&config, caps)?,
            tx: TxQueue::new(rings.tx_packets),
            looped: LoopQueue::default(),
            tx_stage: TxStage::new(),
            failed_tx: VecDeque::new(),
            crossing: None,
            last_poll: Instant::ZERO,
            drops: Drops::default(),
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
            if let Some(conveyed) = self.rx.landing.pop() {
                return Some(self.copied(conveyed));
            }
            let Some(arrival) = self.next_arrival(now) else {
                self.rx.landing.submit();
                let conveyed = self.rx.landing.pop()?;
                return Some(self.copied(conveyed));
            };
            match self.accept(arrival) {
                Ok(None) => {}
                Ok(Some(packet)) => {
                    if packet.origin == Origin::Link {
                        self.link.accepted(&packet);
                    }
                    let is_staged = self.rx.queues[packet.queue.index()].is_staged();
                    if is_staged && packet.payload.is_remote() {
                        self.rx.landing.push_staged(packet);
                    } else if self.rx.landing.is_empty() {
                        return Some(packet);
                    } else {
                        self.rx.landing.push(packet);
                    }
                }
                Err(reason) => self.drops.count(reason),
            }
        }
        None
    }

    /// Returns a packet whose payload has been copied by a device; without payload if the device has failed.
    fn copied(&mut self, conveyed: Conveyed<RxPacket>) -> RxPacket {
        let Conveyed { packet, failed } = conveyed;
        let Some(error) = failed else { return packet };
        self.drops.count(DropReason::RxDeviceFailed);
        RxPacket {
            payload: Placed::Failed(Box::new(error)),
            ..packet
        }
    }

    /// Returns what arrives next. The link and the queue of packets to this NIC itself take turns while both have frames.
    ///
    /// While the host memory of a queue is full of payload that a device is copying, nothing is read: the link keeps it.
    fn next_arrival(&mut self, now: Instant) -> Option<Arrival> {
        if !self.rx.is_open() {
            return None;
        }
        let is_crossing_turn = self.crossing.as_mut().is_some_and(|it| it.take_turn());
        let crossed = is_crossing_turn.then(|| self.crossed()).flatten();
        if crossed.is_some() {
            return crossed;
        }
        let looped = self.looped.take_turn().then(|| self.looped()).flatten();
        looped
            .or_else(|| self.rx.receive(&mut *self.link, &mut self.drops, now))
            .or_else(|| self.looped())
            .or_else(|| self.crossed())
    }

    fn looped(&mut self) -> Option<Arrival> {
        let packet = self.looped.pop()?;
        Some(packet.arrive(&mut self.rx.head))
    }

    /// Returns a frame that arrived at another shard.
    fn crossed(&mut self) -> Option<Arrival> {
        let frame = self.crossing.as_mut()?.receive()?;
        Some(self.rx.crossed(frame))
    }

    /// Validates a frame, selects its queue and places its payload. `None`: the frame has crossed to the shard of its flow.
    fn accept(&mut self, arrival: Arrival) -> Result<Option<RxPacket>, DropReason> {
        let mut frame = RxFrame {
            rx: &mut self.rx,
            arrival,
        };
        if frame.arrival.len > self.caps.max_rx_frame() {
            return Err(DropReason::RxOversize);
        }
        let headers = frame.parse()?;
        let EthernetHeader { dst, vlan, .. } = headers.ethernet;
        if dst != self.config.mac && !dst.is_multicast() {
            return Err(DropReason::RxNotForUs);
        }
        if vlan.is_some_and(|control| control & VLAN_ID_MASK != 0) {
            return Err(DropReason::RxVlan);
        }
        if let Some(crossing) = &mut self.crossing
            && crossing.takes(&frame, &headers, &mut self.drops, self.last_poll)
        {
            return Ok(None);
        }
        let verdict = frame.verify(&headers)?;
        let queue = self
            .steering
            .select_queue(&headers, frame.rx.queues.len())?;
        let payload = match frame.place(&headers, queue, self.rings.tcp_data_split) {
            Ok(frags) => Placed::Whole(frags),
            Err(reason @ (DropReason::RxNoBuffers | DropReason::RxNoHostBuffers))
                if headers.tcp().is_some() =>
            {
                self.drops.count(reason);
                Placed::Unplaced
            }
            Err(reason) => return Err(reason),
        };
        let packet = RxPacket {
            queue,
            segments: segments(headers.payload_len, frame.arrival.meta.gso_size),
            origin: frame.arrival.origin,
            headers,
            payload,
        };
        if let Placed::Whole(_) = packet.payload {
            self.rx.note(&packet, verdict);
        }
        Ok(Some(packet))
    }

    /// Sends a packet, or queues it until the link has room; a packet from this NIC to itself does not pass the link. The
    /// payload is dropped, which completes the send, as soon as the link has the packet.
    ///
    /// # Errors
    /// The packet was dropped, and counted under this [`DropReason`].
    pub fn transmit(&mut self, packet: TxPacket, now: Instant) -> Result<(), DropReason> {
        if let Some(crossing) = &self.crossing
            && packet.payload.is_empty()
        {
            crossing.note_sent(packet.head.as_slice());
        }
        let sent = match self.tx_stage.takes(&packet) {
            false => self.transmit_from_host(packet, now),
            true if self.tx_room() == 0 => Err(DropReason::TxBusy),
            true => {
                self.tx_stage.push(packet);
                Ok(())
            }
        };
        sent.inspect_err(|reason| self.drops.count(*reason))
    }

    /// Sends a packet with payload that the CPU can access.
    fn transmit_from_host(&mut self, packet: TxPacket, now: Instant) -> Result<(), DropReason> {
        if loopback::is_own(self.config.mac, &packet) {
            return self.send_looped(packet);
        }
        let (queue, mut context) = self.tx_parts(now);
        queue.transmit(packet, &mut context)
    }

    /// Queues a packet to this NIC itself for the next [`Nic::poll_rx`], without computing a checksum or cutting segments.
    fn send_looped(&mut self, packet: TxPacket) -> Result<(), DropReason> {
        if packet.frame_len() > MAX_FRAME_LEN {
            return Err(DropReason::TxInvalid);
        }
        if self.tx_room() == 0 {
            return Err(DropReason::TxBusy);
        }
        self.tx.stats.looped += 1;
        self.looped.push(packet);
        Ok(())
    }

    /// Sends queued packets until the link is busy; returns how many are still queued.
    pub fn flush_tx(&mut self, now: Instant) -> usize {
        while let Some(Conveyed { packet, failed }) = self.tx_stage.pop() {
            if let Some(error) = failed {
                self.drops.count(DropReason::TxDeviceFailed);
                self.failed_tx.push_back(FailedTx { packet, error });
            } else if let Err(reason) = self.transmit_from_host(packet, now) {
                self.drops.count(reason);
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
            port: self.rx.host.port(),
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

    /// Allocates the host memory that is needed to send from memory of the device of `engine`. The NIC keeps it for all later
    /// bindings.
    ///
    /// # Errors
    /// [`RestartError`]: there is no memory, or the device does not accept it.
    pub fn prepare_tx(&mut self, engine: &Arc<dyn CopyEngine>) -> Result<(), RestartError> {
        self.tx_stage.prepare(engine)
    }

    /// Removes a packet that was not sent because a device failed to copy its payload. Its connection cannot continue.
    pub fn take_failed_tx(&mut self) -> Option<FailedTx> {
        self.failed_tx.pop_front()
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            checksum: self.caps.tx_checksum,
            tso: self.caps.tx_checksum && self.caps.tso,
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
        let mut fills = self
            .rx
            .queues
            .iter_mut()
            .map(|queue| &mut queue.memory.fill);
        let fill = fills.find(|fill| fill.pool.id() == pool);
        fill.unwrap_or(&mut self.rx.host).pool.recycle(netmem);
    }

    /// Returns the places that connections choose for their next payload.
    pub fn ddp(&mut self) -> &mut DdpTable {
        &mut self.rx.ddp
    }

    /// Returns the free memory of `queue`; all 0 for a queue that does not exist.
    pub fn rx_space(&mut self, queue: RxQueueId) -> RxSpace {
        self.rx.space(queue)
    }

    /// Returns facts about one queue.
    pub fn queue_info(&self, queue: RxQueueId) -> Option<RxQueueInfo> {
        self.rx.queue(queue).map(RxQueue::info)
    }

    /// Returns the counters of one queue.
    pub fn queue_stats(&self, queue: RxQueueId) -> Option<RxQueueStats> {
        self.rx.queue(queue).map(RxQueue::stats)
    }

    /// Returns the counters of one queue's page pool.
    pub fn pool_stats(&self, queue: RxQueueId) -> Option<PoolStats> {
        self.rx.queue(queue).map(RxQueue::pool_stats)
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

    /// Prepares for a sleep on the descriptors of the link, as [`Link::prepare_sleep`].
    pub fn prepare_sleep(&mut self) -> bool {
        self.link.prepare_sleep()
    }

    /// The sleep is over, as [`Link::end_sleep`].
    pub fn end_sleep(&mut self) {
        self.link.end_sleep();
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
        let is_copying = !self.rx.landing.is_empty() || self.tx_stage.len() > 0;
        let copied = is_copying.then(|| self.last_poll + COPY_POLL);
        [self.link.next_due(), copied].into_iter().flatten().min()
    }

    /// Returns false if the link is down.
    pub fn is_up(&self) -> bool {
        self.link.state() == LinkState::Up
    }

    /// Returns the state of the link. It is [`LinkState::Gone`] only after the packets that have arrived: until
    /// [`poll_rx`](Self::poll_rx) has returned those that devices are copying, and those that have crossed from another shard, it
    /// is [`LinkState::Down`].
    pub fn link_state(&self) -> LinkState {
        match self.link.state() {
            LinkState::Gone if !self.rx.landing.is_empty() || self.has_crossed() => LinkState::Down,
            state => state,
        }
    }

    /// Returns whether frames from other shards may wait.
    fn has_crossed(&self) -> bool {
        self.crossing
            .as_ref()
            .is_some_and(|it| it.may_have_frames())
    }

    /// Returns the number of queues.
    pub fn rx_queue_count(&self) -> u16 {
        // At most MAX_RX_QUEUES.
        self.rx.queues.len() as u16
    }
}

/// Returns the number of segments in a packet: 1, or those of a super-packet.
fn segments(payload_len: usize, gso_size: u16) -> u16 {
    match gso_size {
        0 => 1,
        size => u16::try_from(payload_len.div_ceil(usize::from(size)).max(1)).unwrap_or(u16::MAX),
    }
}
