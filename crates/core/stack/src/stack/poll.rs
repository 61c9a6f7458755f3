//! The poll loop: what is received, what is sent, and in which order.

use nic::LinkState;
use wire::Instant;

use super::Stack;
use crate::config::POLL_BYTES;
use crate::memory::StackMemory;
use crate::socket::agenda::Mark;

/// Maximum number of connections per queue and poll that are offered a larger window after memory was given back.
const STARVED_BUDGET: usize = 64;

/// How many times as much a poll receives while a timer is due: [`Stack::poll_goes_on`].
const LATE_POLLS: usize = 8;

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

/// What is sent of what the socket calls have queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushScope {
    /// All that may leave.
    All,
    /// What fills super-packets, and all that must not wait, for a caller that expects further calls soon: a connection with a
    /// whole super-packet in flight keeps what does not fill another one. [`Stack::wants_flush`] is true then, and the next
    /// poll, or flush, sends it.
    Full,
}

impl Stack {
    /// Receives packets, runs timers that are due, and sends what can be sent.
    ///
    /// It receives up to [`StackConfig::poll_budget`](crate::StackConfig::poll_budget) packets or [`POLL_BYTES`] of payload: eight
    /// times as much if a timer is due, which may wait for one of them, and less if bytes behind a range of
    /// [`Stack::place_next`] have arrived.
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
        let (received, burst) = self.receive_burst(&mut now, clock);
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
        now: &mut Instant,
        clock: &mut dyn FnMut() -> Instant,
    ) -> (usize, Burst) {
        let (mut received, mut bytes, mut polls) = (0, 0, 0);
        while self.poll_goes_on(received, bytes, *now) {
            let whole = (received / self.poll_budget).max(bytes / POLL_BYTES);
            if whole > polls {
                // The peer, or the sender on this host whose timer is due, has waited for these ACKs as long as for a whole poll.
                polls = whole;
                self.flush_arrivals(Burst::GoesOn, *now);
            }
            let Some(packet) = self.nic.poll_rx(*now) else {
                let burst = match received {
                    0 => Burst::Over,
                    _ => Burst::Drained,
                };
                return (received, burst);
            };
            received += 1;
            bytes += packet.headers.payload_len;
            *now = clock();
            self.receive(packet, *now);
        }
        (received, Burst::GoesOn)
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

    /// Sends what `scope` includes of what socket calls have queued since the last poll. Receives nothing.
    pub fn flush(&mut self, scope: FlushScope, now: Instant) {
        self.memory.windows.advance(now);
        self.flush_touched(scope, now);
        self.visit_starved(scope, now);
        self.fail_unresolved(now);
        self.tx_waiting = self.nic.flush_tx(now);
        self.sockets.drain_sends();
        self.check_readiness();
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
            if !self.sockets.clear(Mark::Arrivals, slot) {
                continue;
            }
            self.serve_within(slot, burst, FlushScope::All, now);
            // An ACK that was not sent waits for the link to be empty.
            if burst != Burst::Over {
                self.sockets.hold_ack(slot);
            }
        }
        self.sockets.reuse(Mark::Arrivals, arrived);
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
    pub(super) fn check_readiness(&self) {
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
