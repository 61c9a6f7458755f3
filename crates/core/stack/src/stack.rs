//! The stack as its owner sees it: made once, polled, asked.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use netmem::{DmabufError, HostProvider, NiovSize, PagePool, PoolConfig, PoolError};
use nic::Nic;
use thiserror::Error;
use wire::{FourTuple, Instant};

use crate::binding::Bindings;
use crate::config::StackConfig;
use crate::drops::DropReason;
use crate::icmp;
use crate::network::Network;
use crate::pressure::Pressure;
use crate::random::Secret;
use crate::rate_limit::RateLimit;
use crate::route::{AddressError, Routes};
use crate::socket::SocketId;
use crate::socket::sockets::Sockets;
use crate::window::Windows;
use devmem_uapi::IfIndex;

/// Connections short of window that are looked at in one poll when memory came home.
const STARVED_BUDGET: usize = 64;

/// Bytes of the longest ICMP message: what an IP packet can hold.
const SCRATCH_BYTES: usize = 65_535;

/// Why there is no stack.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StackError {
    /// An address or gateway cannot be.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The memory for sending cannot be had.
    #[error("{bytes} bytes of host memory for sending: {source}")]
    SendMemory {
        /// What was asked for.
        bytes: usize,
        /// Why not.
        source: DmabufError,
    },
    /// The page pool for sending cannot be made.
    #[error(transparent)]
    SendPool(#[from] PoolError),
    /// The NIC's MTU is too small for IP.
    #[error(
        "an MTU of {mtu} bytes is less than the {least} that hosts must take; use a link with a \
         larger one"
    )]
    Mtu {
        /// The NIC's.
        mtu: u16,
        /// The smallest there may be.
        least: u16,
    },
}

/// What one poll did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PollOutcome {
    /// Packets taken from the NIC.
    pub received: usize,
    /// Something was received or sent: it is worth polling again before sleeping.
    pub worked: bool,
}

/// Whether more is on its way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Burst {
    /// Perhaps: an ACK may wait for more to acknowledge.
    GoesOn,
    /// The link is empty: nothing is gained by waiting.
    Over,
}

/// Counters of the stack's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StackStats {
    /// Packets taken from the NIC.
    pub rx_packets: u64,
    /// Packets handed to the NIC.
    pub tx_packets: u64,
    /// Connections opened by us.
    pub connects: u64,
    /// Connections that became open through a listener.
    pub accepts: u64,
    /// Sockets there are now, all kinds.
    pub sockets: usize,
    /// Connections that finish by themselves now.
    pub orphans: usize,
    /// Four-tuples in use now, TIME-WAIT included.
    pub connections: usize,
    /// Neighbours that are known now, at most [`MAX_NEIGHBORS`](crate::MAX_NEIGHBORS).
    pub neighbors: usize,
    /// Neighbours that packets wait for now, asked for and without an answer.
    pub neighbors_asked: usize,
}

/// A TCP/IP stack on one NIC. One owner; no thread, no clock, no I/O but through the NIC.
///
/// Socket calls change state and send nothing: the next [`Stack::poll`] or [`Stack::flush`] does.
pub struct Stack {
    pub(crate) network: Network,
    pub(crate) ifindex: IfIndex,
    /// Settings of TCP for connections that begin from now on; those before may still share others.
    pub(crate) tcp: Arc<tcp::Config>,
    pub(crate) sockets: Sockets,
    pub(crate) isns: tcp::IsnGenerator,
    pub(crate) secret: Secret,
    pub(crate) windows: Windows,
    pub(crate) pressure: Pressure,
    pub(crate) bindings: Bindings,
    pub(crate) echo_limit: RateLimit,
    pub(crate) complaints_limit: RateLimit,
    /// Host memory for payload on its way out.
    pub(crate) send_pool: PagePool,
    pub(crate) stats: StackStats,
    /// An ICMP message, while it is dealt with.
    pub(crate) scratch: Vec<u8>,
    /// The answer to it.
    pub(crate) reply: Vec<u8>,
    poll_budget: usize,
    last_poll: Instant,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack")
            .field("nic", self.network.nic())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Stack {
    /// Puts a stack on `nic`.
    ///
    /// # Errors
    /// [`StackError`]: addresses that cannot be, or no memory.
    pub fn new(nic: Nic, config: StackConfig) -> Result<Self, StackError> {
        let StackConfig {
            ifindex,
            addresses,
            gateways,
            point_to_point,
            any_local,
            tcp,
            secret,
            max_sockets,
            max_orphans,
            send_memory_bytes,
            poll_budget,
        } = config;
        let routes = Routes::new(nic.mac(), &addresses, &gateways)?;
        let (mtu, least) = (nic.mtu(), least_mtu(&addresses));
        if mtu < least {
            return Err(StackError::Mtu { mtu, least });
        }
        let windows = Windows::new(nic.channels().rx.into());
        Ok(Self {
            ifindex,
            tcp: Arc::new(tcp),
            network: Network::new(
                nic,
                routes.with_any_local(any_local),
                point_to_point,
                secret.key("neighbors"),
            ),
            sockets: Sockets::new(max_sockets, max_orphans, &secret),
            isns: tcp::IsnGenerator::new(secret.key("initial sequence numbers")),
            secret,
            windows,
            pressure: Pressure::default(),
            bindings: Bindings::default(),
            echo_limit: RateLimit::new(icmp::MESSAGES_PER_SECOND, icmp::BURST),
            complaints_limit: RateLimit::new(icmp::MESSAGES_PER_SECOND, icmp::BURST),
            send_pool: send_pool(send_memory_bytes)?,
            stats: StackStats::default(),
            scratch: Vec::with_capacity(SCRATCH_BYTES),
            reply: Vec::new(),
            poll_budget: poll_budget.max(1),
            last_poll: Instant::ZERO,
        })
    }

    /// Takes what the NIC has received, at most a budget of it, lets timers run, and sends what
    /// there is to send.
    pub fn poll(&mut self, now: Instant) -> PollOutcome {
        self.poll_by(&mut || now)
    }

    /// As [`Stack::poll`], by a clock that runs meanwhile: it is read again after each packet.
    ///
    /// A thread that the machine stopped between a look at the clock and the link finds packets there that came later
    /// than that. A round trip would seem shorter than any is, and the smallest one is remembered for minutes.
    pub fn poll_by(&mut self, clock: &mut dyn FnMut() -> Instant) -> PollOutcome {
        let mut now = clock();
        self.last_poll = now;
        self.network.watch_link(now);
        let sent_before = self.network.tx_packets();
        let mut received = 0;
        let mut burst = Burst::GoesOn;
        while received < self.poll_budget {
            let Some(packet) = self.network.nic_mut().poll_rx(now) else {
                burst = Burst::Over;
                break;
            };
            received += 1;
            now = clock();
            self.receive(packet, now);
        }
        self.stats.rx_packets += received as u64;
        self.flush_arrivals(burst, now);
        self.relieve_memory(now);
        self.flush_touched(now);
        self.fire_timers(now);
        self.visit_starved(now);
        self.network.poll_neighbors(now);
        self.tell_failed(now);
        self.network.flush_tx(now);
        let drained = self.sockets.drain_sends();
        self.check_readiness();
        PollOutcome {
            received,
            worked: received > 0 || drained || self.network.tx_packets() != sent_before,
        }
    }

    /// Sends what socket calls left to be sent since the last poll; receives nothing.
    pub fn flush(&mut self, now: Instant) {
        self.flush_touched(now);
        self.visit_starved(now);
        self.tell_failed(now);
        self.network.flush_tx(now);
        self.sockets.drain_sends();
        self.check_readiness();
    }

    /// Returns when [`Stack::poll`] has something to do even if nothing arrives; a time in the past
    /// means at once.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.wants_flush() {
            return Some(self.last_poll);
        }
        let deadlines = [self.sockets.next_timer(), self.network.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Returns whether something waits to be done now: a socket call left it, the link was busy, or a
    /// poll ended before the link was empty. What waits for a link whose fd says when it is not busy
    /// any more waits for that.
    pub fn wants_flush(&self) -> bool {
        self.sockets.any_touched() && !self.network.is_held_up()
            || self.sockets.any_arrivals()
            || self.windows.any_to_visit()
            || self.network.wants_flush()
    }

    /// Returns whether [`Stack::take_events`] has any: a timer that ran out may concern a socket, and sends nothing.
    pub fn has_events(&self) -> bool {
        self.sockets.has_events()
    }

    /// Takes the sockets whose readiness changed since they were last taken.
    pub fn take_events(&mut self) -> impl Iterator<Item = SocketId> + '_ {
        self.check_readiness();
        self.sockets.take_events()
    }

    /// Returns every counter of dropped packets with its stable name: the NIC's, the stack's, the
    /// connections'.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let nic = self.network.nic().drops().iter();
        nic.chain(self.network.drops().iter())
    }

    /// Returns how many packets were dropped for one of the stack's own reasons.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.network.drops().get(reason)
    }

    /// Returns the counters.
    pub fn stats(&self) -> StackStats {
        let (neighbors, neighbors_asked) = self.network.neighbors();
        StackStats {
            tx_packets: self.network.tx_packets(),
            sockets: self.sockets.len(),
            orphans: self.sockets.orphans(),
            connections: self.sockets.names().connections(),
            neighbors,
            neighbors_asked,
            ..self.stats
        }
    }

    /// Returns whether a connection that finishes by itself has sent data, or a FIN, that the peer has not acknowledged.
    pub fn has_unacknowledged_orphan(&self) -> bool {
        self.sockets.has_unacknowledged_orphan()
    }

    /// Returns the NIC: its settings, its counters.
    pub fn nic(&self) -> &Nic {
        self.network.nic()
    }

    /// Returns the NIC for changing its settings. Queues with memory bound to them are restarted by
    /// [`Stack::bind_rx`] and [`Stack::unbind_rx`] only.
    pub fn nic_mut(&mut self) -> &mut Nic {
        self.network.nic_mut()
    }

    /// Returns our addresses, the link-local one included.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.network.routes().addresses()
    }

    /// Returns the memory in use for payload on its way out.
    pub fn send_pool_stats(&self) -> netmem::PoolStats {
        self.send_pool.stats()
    }

    /// Returns how many bytes of the memory of `queue` are promised to peers, and not arrived.
    pub fn promised(&self, queue: steer::RxQueueId) -> u64 {
        self.windows.promised(queue.index())
    }

    /// Lets every connection that segments arrived for say what it has to say. When the link is
    /// empty, that includes every ACK that was held back for more to acknowledge.
    fn flush_arrivals(&mut self, burst: Burst, now: Instant) {
        let mut batch = self.sockets.take_arrivals();
        batch.retain(|&slot| {
            // A slot stands there twice when a closed socket's successor has it, and counts once.
            let waits = self.sockets.take_arrival_mark(slot);
            if waits {
                self.speak(slot, burst, now);
            }
            waits && burst == Burst::GoesOn
        });
        self.sockets.put_back_arrivals(batch);
    }

    /// Lets every touched connection say what it has to say.
    fn flush_touched(&mut self, now: Instant) {
        let mut batch = self.sockets.take_touched();
        for slot in batch.drain(..) {
            if self.sockets.untouch(slot) {
                self.speak(slot, Burst::GoesOn, now);
            }
        }
        // Sockets that were touched meanwhile wait for the link; the allocation is kept.
        self.sockets.reuse_touched(batch);
    }

    /// Compares what every socket is ready for with what was reported of it, in builds for tests: a difference would be
    /// a socket that changed behind [`SocketMut`](crate::socket::sockets::SocketMut)'s back.
    fn check_readiness(&self) {
        #[cfg(debug_assertions)]
        if let Some((id, reported, now)) = self.sockets.unreported() {
            panic!("{id} was reported as {reported:?} and is {now:?}");
        }
    }

    /// Tells connections whose neighbours did not answer.
    fn tell_failed(&mut self, now: Instant) {
        while let Some((owner, quoted)) = self.network.pop_failed() {
            self.neighbor_failed(owner, quoted, now);
        }
    }

    fn fire_timers(&mut self, now: Instant) {
        while let Some(slot) = self.sockets.pop_due(now) {
            self.on_timer(slot, now);
        }
    }

    /// Gives connections that got too little window another chance where memory has come home.
    fn visit_starved(&mut self, now: Instant) {
        for queue in 0..self.windows.queues() {
            if self.windows.has_starved(queue) {
                let free = self.rx_free(queue);
                self.windows.note_free(queue, free);
            }
            for _ in 0..STARVED_BUDGET {
                let Some(slot) = self.windows.next_starved(queue) else {
                    break;
                };
                self.visit(slot, now);
            }
        }
    }

    /// Returns the payload bytes that may be promised of a queue's memory.
    pub(crate) fn rx_free(&mut self, queue: usize) -> u64 {
        let Ok(queue) = u16::try_from(queue) else {
            return 0;
        };
        self.network
            .nic_mut()
            .rx_space(steer::RxQueueId(queue))
            .bytes as u64
    }
}

/// Returns the smallest MTU that the address families allow (RFC 791 3.2: 576 as linux has it, RFC
/// 8200 5: 1280).
fn least_mtu(addresses: &[(IpAddr, u8)]) -> u16 {
    if addresses.iter().any(|(ip, _)| ip.is_ipv6()) {
        1280
    } else {
        576
    }
}

fn send_pool(bytes: usize) -> Result<PagePool, StackError> {
    let provider = HostProvider::new(bytes, NiovSize::MIN);
    let provider = provider.map_err(|source| StackError::SendMemory { bytes, source })?;
    Ok(PagePool::create(Arc::new(provider), PoolConfig::default())?)
}

/// Returns the four-tuple of packets from `remote` to `local`.
pub(crate) fn four_tuple(local: SocketAddr, remote: SocketAddr) -> FourTuple {
    FourTuple {
        src_ip: remote.ip(),
        dst_ip: local.ip(),
        src_port: remote.port(),
        dst_port: local.port(),
    }
}
