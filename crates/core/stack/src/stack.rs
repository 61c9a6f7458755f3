//! The stack and its poll loop.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use netmem::{DmabufError, PoolError};
use nic::{LinkState, Nic, RxSpace};
use steer::RxQueueId;
use thiserror::Error;
use wire::{FourTuple, Instant};

use crate::claims::{AddressCheck, AddressConflicts, Claims};
use crate::config::{POLL_BYTES, StackConfig};
use crate::drops::DropReason;
use crate::icmp::Icmp;
use crate::memory::{Lending, StackMemory};
use crate::network::Network;
use crate::path_mtu::PathMtus;
use crate::route::{AddressError, Routes};
use crate::socket::SocketId;
use crate::socket::agenda::Mark;
use crate::socket::sockets::Sockets;
use crate::tcp_setup::TcpSetup;

/// Maximum number of connections per queue and poll that are offered a larger window after memory was given back.
const STARVED_BUDGET: usize = 64;

/// How many times as much a poll receives while a timer is due: [`Stack::poll_goes_on`].
const LATE_POLLS: usize = 8;

/// Why a stack could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StackError {
    /// An address or gateway is invalid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The host memory for sending could not be allocated.
    #[error("{bytes} bytes of host memory for sending: {source}")]
    SendMemory {
        /// Requested size.
        bytes: usize,
        /// Cause.
        source: DmabufError,
    },
    /// The page pool for sending could not be created.
    #[error(transparent)]
    SendPool(#[from] PoolError),
    /// The NIC's MTU is too small for IP.
    #[error(
        "an MTU of {mtu} bytes is less than the {least} that hosts must take; use a link with a \
         larger one"
    )]
    Mtu {
        /// MTU of the NIC.
        mtu: u16,
        /// Minimum MTU.
        least: u16,
    },
}

/// Result of one poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PollOutcome {
    /// Packets taken from the NIC.
    pub received: usize,
    /// Something was received or sent: poll again before sleeping.
    pub worked: bool,
}

/// Whether more packets may follow in this burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Burst {
    /// More may follow: an ACK may be delayed to cover them.
    GoesOn,
    /// The link is empty: delayed ACKs are sent, except soon after others.
    Drained,
    /// The link is empty, and was when the poll began: delayed ACKs are sent.
    Over,
}

/// Counters of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StackStats {
    /// Packets taken from the NIC.
    pub rx_packets: u64,
    /// Packets handed to the NIC.
    pub tx_packets: u64,
    /// Connections opened by this stack.
    pub connects: u64,
    /// Connections opened through a listener.
    pub accepts: u64,
    /// Current number of sockets of all kinds.
    pub sockets: usize,
    /// Current number of orphaned connections (closed by the program, but not finished).
    pub orphans: usize,
    /// Current number of four-tuples in use, TIME-WAIT included.
    pub connections: usize,
    /// Current number of known neighbours, at most [`MAX_NEIGHBORS`](crate::MAX_NEIGHBORS).
    pub neighbors: usize,
    /// Current number of neighbours that are being resolved, with packets waiting.
    pub neighbors_asked: usize,
}

/// What is sent of what the socket calls have queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushScope {
    /// All that may leave.
    All,
    /// What fills super-packets, and all that must not wait for further calls.
    Full,
}

/// A TCP/IP stack on one NIC. It has one owner, no thread and no clock, and does I/O only through the NIC.
///
/// Socket calls change state and send nothing; the next [`Stack::poll`] or [`Stack::flush`] sends.
pub struct Stack {
    pub(crate) nic: Nic,
    pub(crate) network: Network,
    pub(crate) sockets: Sockets,
    pub(crate) memory: StackMemory,
    pub(crate) icmp: Icmp,
    pub(crate) tcp: TcpSetup,
    /// Path MTUs that connections have discovered.
    pub(crate) path_mtus: PathMtus,
    pub(crate) stats: StackStats,
    poll_budget: usize,
    /// See [`Stack::turns`].
    pub(crate) turns: u64,
    /// The current poll receives no more: see [`AfterPlacing`](crate::direct::AfterPlacing).
    pub(crate) pause: bool,
    /// Packets in the NIC's queues, because the link was busy.
    tx_waiting: usize,
    /// The link has ended for good, and the connections were told.
    was_link_gone: bool,
    /// How the last poll ended.
    last_burst: Burst,
    last_poll: Instant,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack")
            .field("nic", &self.nic)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Stack {
    /// Creates a stack on `nic`.
    ///
    /// # Errors
    /// [`StackError`]: an invalid address, an MTU that is too small, or no memory.
    pub fn new(nic: Nic, config: StackConfig) -> Result<Self, StackError> {
        let StackConfig {
            ifindex,
            addresses,
            lent,
            address_check,
            conflicts,
            local_ports,
            gateways,
            point_to_point,
            any_local,
            tcp,
            secret,
            max_sockets,
            max_orphans,
            send_memory_bytes,
            poll_budget,
            path_mtus,
        } = config;
        let mut routes = Routes::new(nic.mac(), &addresses, &gateways)?;
        let claims = match point_to_point {
            None => claims(address_check, &mut routes, conflicts),
            Some(_) => Claims::new(AddressCheck::Never, [], conflicts),
        };
        let lending = match nic.link_caps().lends {
            true => Lending::Yes,
            false => Lending::No,
        };
        let all = routes.all_addresses().chain(lent.iter().map(|it| it.ip));
        let (mtu, least) = (nic.mtu(), least_mtu(all));
        if mtu < least {
            return Err(StackError::Mtu { mtu, least });
        }
        let mut stack = Self {
            memory: StackMemory::new(nic.channels().rx.into(), send_memory_bytes, lending)?,
            network: Network::new(
                nic.mac(),
                ifindex,
                routes.with_any_local(any_local),
                point_to_point,
                claims,
                secret.key("neighbors"),
            ),
            nic,
            sockets: Sockets::new(max_sockets, max_orphans, local_ports, &secret),
            icmp: Icmp::new(),
            tcp: TcpSetup::new(tcp, &secret),
            path_mtus,
            stats: StackStats::default(),
            poll_budget: poll_budget.max(1),
            turns: 0,
            pause: false,
            tx_waiting: 0,
            was_link_gone: false,
            last_burst: Burst::Over,
            last_poll: Instant::ZERO,
        };
        for lent in &lent {
            stack.add_address(lent, Instant::ZERO)?;
        }
        Ok(stack)
    }

    /// Receives up to [`StackConfig::poll_budget`] packets or [`POLL_BYTES`] of payload (eight times as much if a timer is due,
    /// which may wait for one of them; less if bytes behind a range of [`Stack::place_next`] have arrived), runs timers that are due, and sends what can be sent.
    pub fn poll(&mut self, now: Instant) -> PollOutcome {
        self.poll_by(&mut || now)
    }

    /// As [`Stack::poll`], with a clock that is read again after each packet.
    ///
    /// The thread may be descheduled after it has read the clock, and then receive packets that arrived later. With the
    /// old time, round trips would seem too short, and the minimum round-trip time is kept for minutes.
    pub fn poll_by(&mut self, clock: &mut dyn FnMut() -> Instant) -> PollOutcome {
        let mut now = clock();
        self.last_poll = now;
        self.pause = false;
        self.memory.windows.advance(now);
        self.network.watch_link(&mut self.nic, now);
        let sent_before = self.network.tx_packets();
        let (mut received, mut bytes, mut polls) = (0, 0, 0);
        let mut burst = Burst::GoesOn;
        while self.poll_goes_on(received, bytes, now) {
            let whole = (received / self.poll_budget).max(bytes / POLL_BYTES);
            if whole > polls {
                // The peer, or the sender on this host whose timer is due, has waited for these ACKs as long as for a whole poll.
                polls = whole;
                self.flush_arrivals(Burst::GoesOn, now);
            }
            let Some(packet) = self.nic.poll_rx(now) else {
                burst = match received {
                    0 => Burst::Over,
                    _ => Burst::Drained,
                };
                break;
            };
            received += 1;
            bytes += packet.headers.payload_len;
            now = clock();
            self.receive(packet, now);
        }
        self.stats.rx_packets += received as u64;
        // After all packets that had arrived.
        if burst != Burst::GoesOn
            && self.nic.link_state() == LinkState::Gone
            && !std::mem::replace(&mut self.was_link_gone, true)
        {
            self.end_connections_of_link(now);
        }
        self.give_up_addresses(now);
        self.last_burst = burst;
        self.flush_arrivals(burst, now);
        let Self {
            memory,
            sockets,
            network,
            nic,
            ..
        } = self;
        memory.relieve(sockets, nic, &mut network.drops, now);
        self.flush_touched(FlushScope::All, now);
        self.fire_timers(now);
        self.visit_starved(FlushScope::All, now);
        self.network.poll_neighbors(&mut self.nic, now);
        self.network.poll_claims(&mut self.nic, now);
        self.fail_unresolved(now);
        self.tx_waiting = self.nic.flush_tx(now);
        self.fail_untransmitted(now);
        let drained = self.sockets.drain_sends();
        self.check_readiness();
        PollOutcome {
            received,
            worked: received > 0 || drained || self.network.tx_packets() != sent_before,
        }
    }

    /// Returns whether a poll that has received `received` packets with `bytes` of payload receives more.
    ///
    /// A timer that is due makes it longer: the ACK that the timer waits for may stand behind what this poll took. A thread
    /// that was descheduled for some milliseconds would send probes and retransmissions of bytes that have arrived.
    fn poll_goes_on(&self, received: usize, bytes: usize, now: Instant) -> bool {
        let longest = |times: usize| {
            received < self.poll_budget.saturating_mul(times) && bytes < POLL_BYTES * times
        };
        let is_timer_due = || self.sockets.next_timer().is_some_and(|at| at <= now);
        !self.pause && (longest(1) || is_timer_due() && longest(LATE_POLLS))
    }

    /// Sends what socket calls have queued since the last poll. Receives nothing.
    pub fn flush(&mut self, now: Instant) {
        self.flush_within(FlushScope::All, now);
    }

    /// As [`Stack::flush`], for a caller that expects further calls soon: a connection with a whole super-packet in flight keeps
    /// what does not fill another one. [`Stack::wants_flush`] is true then, and the next poll, or flush, sends it.
    pub fn flush_full(&mut self, now: Instant) {
        self.flush_within(FlushScope::Full, now);
    }

    fn flush_within(&mut self, scope: FlushScope, now: Instant) {
        self.memory.windows.advance(now);
        self.flush_touched(scope, now);
        self.visit_starved(scope, now);
        self.fail_unresolved(now);
        self.tx_waiting = self.nic.flush_tx(now);
        self.sockets.drain_sends();
        self.check_readiness();
    }

    /// Returns how often the program or a peer has done what the other one is likely to follow up at once: bytes that a call has
    /// queued to send, connections that have begun, and those that the program has ended.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Returns when [`Stack::poll`] was called last; [`Instant::ZERO`] before the first time.
    pub fn last_poll(&self) -> Instant {
        self.last_poll
    }

    /// Returns the time at which [`Stack::poll`] has to be called even if nothing arrives; a time in the past
    /// means at once.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.wants_flush() {
            return Some(self.last_poll);
        }
        let deadlines = [
            self.sockets.next_timer(),
            self.network.next_deadline(),
            self.nic.next_due(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Returns whether there is work now: a socket call queued something, the link was busy, or a poll ended before
    /// the link was empty. Packets for a busy link whose file descriptor becomes writable do not count.
    pub fn wants_flush(&self) -> bool {
        let told_of_room = self.nic.is_told_of_room();
        let is_held_up = || told_of_room && self.nic.tx_room() == 0;
        self.sockets.any(Mark::Touched) && !is_held_up()
            || self.last_burst == Burst::GoesOn
            || self.sockets.any(Mark::HeldAck)
            || self.memory.windows.any_to_visit()
            || self.tx_waiting > 0 && !told_of_room
    }

    /// Returns whether a connection has bytes that were never sent: they wait for an ACK, a timer, or the next poll.
    pub fn has_unsent(&self) -> bool {
        self.sockets.any(Mark::Unsent)
    }

    /// Returns whether [`Stack::take_events`] will return any. An expired timer may change a socket without sending.
    pub fn has_events(&self) -> bool {
        self.sockets.any(Mark::Event)
    }

    /// Returns the sockets whose readiness has changed since the last call.
    pub fn take_events(&mut self) -> impl Iterator<Item = SocketId> + '_ {
        self.check_readiness();
        self.sockets.take_events()
    }

    /// Returns all counters of dropped packets with their stable names: those of the NIC, the stack and the
    /// connections.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let nic = self.nic.drops().iter();
        nic.chain(self.network.drops.iter())
    }

    /// Returns the number of packets that the stack dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.network.drops.get(reason)
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

    /// Returns the NIC, to read its settings and counters.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Returns the NIC, to change its settings. Only [`Stack::bind_rx`] and [`Stack::unbind_rx`] restart queues
    /// with bound memory.
    pub fn nic_mut(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// Returns the free receive memory of `queue`.
    pub fn rx_space(&mut self, queue: RxQueueId) -> RxSpace {
        self.nic.rx_space(queue)
    }

    /// Returns the local addresses, including the link-local one.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.network.routes().addresses()
    }

    /// Returns the counters of the host memory for payload to be sent.
    pub fn send_pool_stats(&self) -> netmem::PoolStats {
        self.memory.send_pools.stats()
    }

    /// Returns whether there is host memory for payload to be sent: sends that found none can be retried.
    pub fn has_send_memory(&self) -> bool {
        self.memory.send_pools.has_room()
    }

    /// Returns how many bytes of the memory of `queue` are set aside for windows of peers that are not idle: promised
    /// and not yet received.
    pub fn promised(&self, queue: RxQueueId) -> u64 {
        self.memory.windows.promised(queue)
    }

    /// Polls every connection that received segments since it was served for segments to send. When the link is empty, delayed
    /// ACKs are sent, too.
    ///
    /// Before that, a connection is served once per arrival only: of a thousand connections that wait on the link, each poll
    /// receives for a few.
    fn flush_arrivals(&mut self, burst: Burst, now: Instant) {
        if burst != Burst::GoesOn {
            self.sockets.release_held_acks();
        }
        let mut arrived = self.sockets.take(Mark::Arrivals);
        for slot in arrived.drain(..) {
            if self.sockets.clear(Mark::Arrivals, slot) {
                self.serve_arrivals(slot, burst, now);
            }
        }
        self.sockets.reuse(Mark::Arrivals, arrived);
    }

    /// Serves a connection that received segments; an ACK that is not sent yet waits for the link to be empty.
    fn serve_arrivals(&mut self, slot: u32, burst: Burst, now: Instant) {
        self.serve(slot, burst, now);
        if burst != Burst::Over {
            self.sockets.hold_ack(slot);
        }
    }

    /// Polls every touched connection for segments to send.
    fn flush_touched(&mut self, scope: FlushScope, now: Instant) {
        let mut touched = self.sockets.take(Mark::Touched);
        for slot in touched.drain(..) {
            if self.sockets.clear(Mark::Touched, slot) {
                self.serve_within(slot, Burst::GoesOn, scope, now);
            }
        }
        // Sockets touched in the meantime wait for the link.
        self.sockets.reuse(Mark::Touched, touched);
    }

    /// Compares the readiness of every socket with what was reported of it, in debug builds: a difference means that a
    /// socket changed without a [`SocketMut`](crate::socket::sockets::SocketMut).
    ///
    /// A stack with many sockets is not checked: tests with thousands of connections would spend their time here.
    fn check_readiness(&self) {
        #[cfg(debug_assertions)]
        if self.sockets.len() <= 64
            && let Some((id, reported, now)) = self.sockets.unreported()
        {
            panic!("{id} was reported as {reported:?} and is {now:?}");
        }
    }

    /// Passes neighbours that did not answer on to the connections that need them, as unreachable hosts.
    fn fail_unresolved(&mut self, now: Instant) {
        while let Some((owner, quoted)) = self.network.pop_failed() {
            self.neighbor_failed(owner, quoted, now);
        }
    }

    /// Returns whether the link has ended for good. It stays so while late frames of other shards arrive.
    pub(crate) fn is_link_gone(&self) -> bool {
        self.was_link_gone || self.nic.link_state() == LinkState::Gone
    }

    fn fire_timers(&mut self, now: Instant) {
        while let Some(slot) = self.sockets.pop_due(now) {
            self.on_timer(slot, now);
        }
    }

    /// Offers a larger window to connections that got too little, on queues where memory was given back.
    fn visit_starved(&mut self, scope: FlushScope, now: Instant) {
        for queue in self.memory.windows.queues() {
            if self.memory.windows.has_starved(queue) {
                let free = self.nic.rx_space(queue).bytes as u64;
                self.memory.windows.note_free(queue, free);
            }
            for _ in 0..STARVED_BUDGET {
                let Some(slot) = self.memory.windows.next_starved(queue) else {
                    break;
                };
                self.serve_within(slot, Burst::GoesOn, scope, now);
            }
        }
    }
}

/// Returns the claims to the addresses of `routes`, which are not used yet if other stations are asked first.
fn claims(check: AddressCheck, routes: &mut Routes, conflicts: AddressConflicts) -> Claims {
    let addresses: Vec<IpAddr> = match check {
        AddressCheck::Never => Vec::new(),
        _ => routes.all_addresses().collect(),
    };
    if check == AddressCheck::AskFirst {
        routes.doubt_all();
    }
    Claims::new(check, addresses, conflicts)
}

/// Smallest MTU of a link for IPv6, in bytes (RFC 8200 5).
pub const MIN_IPV6_MTU: u16 = 1280;

/// Returns the smallest MTU that the address families allow (for IPv4: RFC 791 3.2 and linux).
fn least_mtu(mut addresses: impl Iterator<Item = IpAddr>) -> u16 {
    if addresses.any(|ip| ip.is_ipv6()) {
        MIN_IPV6_MTU
    } else {
        576
    }
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
