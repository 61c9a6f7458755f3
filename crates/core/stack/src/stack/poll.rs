//! The poll loop: what is received, what is sent, and in which order.

use nic::LinkState;
use wire::Instant;

use super::Stack;
use super::burst::{Burst, FlushScope};
use crate::config::POLL_BYTES;
use crate::memory::StackMemory;
use crate::socket::agenda::Mark;

/// How many times as much a poll receives while a timer is due: [`Stack::poll_goes_on`].
const LATE_POLLS: usize = 8;

/// When a poll that has received something receives no more, if its budget does not end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollUntil {
    /// The link is found empty.
    Empty,
    /// The link is likely to be empty, or is found empty: after as many packets as have come together before. A look that finds
    /// nothing is a system call on most links, between a message and the program that waits for it.
    ///
    /// For a caller that sleeps only on the descriptors of the links, after [`Nic::prepare_sleep`](nic::Nic::prepare_sleep), and
    /// not past [`Stack::next_deadline`]: a packet that did come after that one ends the sleep at once.
    LikelyEmpty,
}

/// Result of one poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PollOutcome {
    /// Packets taken from the NIC.
    pub received: usize,
    /// Something was received or sent: poll again before sleeping.
    pub worked: bool,
}

impl Stack {
    /// Receives packets, runs timers that are due, and sends what can be sent.
    ///
    /// It receives up to [`StackConfig::poll_budget`](crate::StackConfig::poll_budget) packets or [`POLL_BYTES`] of payload: eight
    /// times as much if a timer is due, which may wait for one of them, and less if bytes behind a range of
    /// [`Stack::place_next`] have arrived.
    pub fn poll(&mut self, now: Instant) -> PollOutcome {
        self.poll_by(PollUntil::Empty, &mut || now)
    }

    /// As [`Stack::poll`], but for when it ends, and with a clock that is read again after each packet.
    ///
    /// The thread may be descheduled after it has read the clock, and then receive packets that arrived later. With the
    /// old time, round trips would seem too short, and the minimum round-trip time is kept for minutes.
    pub fn poll_by(&mut self, until: PollUntil, clock: &mut dyn FnMut() -> Instant) -> PollOutcome {
        let mut now = clock();
        self.last_poll = now;
        self.pause = false;
        self.memory.windows.advance(now);
        self.network.watch_link(&mut self.nic, now);
        let sent_before = self.network.tx_packets();
        let (received, burst) = self.receive_burst(until, &mut now, clock);
        self.stats.rx_packets += received as u64;
        // After all packets that had arrived.
        if matches!(burst, Burst::Drained | Burst::Over)
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
        let StackMemory {
            windows, pressure, ..
        } = memory;
        pressure.relieve(windows, sockets, nic, &mut network.drops, now);
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

    /// Receives packets, and sets `now` by the clock after each; returns how many, and whether more may follow.
    fn receive_burst(
        &mut self,
        until: PollUntil,
        now: &mut Instant,
        clock: &mut dyn FnMut() -> Instant,
    ) -> (usize, Burst) {
        let (mut received, mut bytes, mut polls) = (0, 0, 0);
        self.arrivals.on_poll(self.turns);
        while self.poll_goes_on(received, bytes, *now) {
            let whole = (received / self.poll_budget).max(bytes / POLL_BYTES);
            if whole > polls {
                // The peer, or the sender on this host whose timer is due, has waited for these ACKs as long as for a whole poll.
                polls = whole;
                self.flush_arrivals(Burst::More, *now);
            }
            let Some(packet) = self.nic.poll_rx(*now) else {
                self.arrivals.on_empty_link();
                let burst = match received {
                    0 => Burst::Over,
                    _ => Burst::Drained,
                };
                return (received, burst);
            };
            received += 1;
            let len = packet.headers.payload_len;
            bytes += len;
            *now = clock();
            self.receive(packet, *now);
            let is_last = self.arrivals.on_packet(len, self.turns);
            if is_last && until == PollUntil::LikelyEmpty && !self.pause {
                return (received, Burst::Expected);
            }
        }
        (received, Burst::More)
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
            || self.last_burst == Burst::More
            || self.sockets.any(Mark::HeldAck)
            || self.memory.windows.any_to_visit()
            || self.tx_waiting > 0 && !told_of_room
    }

    /// Compares the readiness of every socket with what was reported of it, in debug builds: a difference means that a
    /// socket changed without a [`SocketMut`](crate::socket::sockets::SocketMut).
    ///
    /// A stack with many sockets is not checked: tests with thousands of connections would spend their time here.
    pub(super) fn check_readiness(&self) {
        #[cfg(debug_assertions)]
        if self.sockets.len() <= 64
            && let Some((id, reported, now)) = self.sockets.unreported()
        {
            panic!("{id} was reported as {reported:?} and is {now:?}");
        }
    }

    /// Passes neighbours that did not answer on to the connections that need them, as unreachable hosts.
    pub(super) fn fail_unresolved(&mut self, now: Instant) {
        while let Some((owner, quoted)) = self.network.pop_failed() {
            self.neighbor_failed(owner, quoted, now);
        }
    }

    fn fire_timers(&mut self, now: Instant) {
        while let Some(slot) = self.sockets.pop_due(now) {
            self.on_timer(slot, now);
        }
    }
}
