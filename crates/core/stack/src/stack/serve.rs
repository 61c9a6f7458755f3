//! Serves connections, those that have something to do and single ones: grants windows, sends, arms timers, and removes what is over.

use std::time::Duration;

use nic::Nic;
use tcp::StateKind;
use wire::Instant;

use super::Stack;
use super::burst::{Burst, FlushScope};
use crate::network::{Egress, Network, SegmentOwner};
use crate::socket::agenda::Mark;
use crate::socket::connection::{ConnectionSocket, Owner, acked_offset};
use crate::socket::kind::{SocketKind, TimeWaitSocket};
use crate::socket::sockets::ConnectionMut;
use crate::tuple::four_tuple;
use crate::window::Windows;

/// Timeouts in a row, of a connection that used Fast Open, after which the path is taken for one that drops its packets
/// (linux `tcp_fastopen_active_detect_blackhole`).
const BLACK_HOLE_TIMEOUTS: u8 = 2;

/// Minimum time from now for which a timer is armed.
const TIMER_GRANULARITY: Duration = Duration::from_micros(1);

/// Maximum number of connections per queue and poll that are offered a larger window after memory was given back.
const STARVED_BUDGET: usize = 64;

impl Stack {
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

    /// Polls every connection that received segments since it was served for segments to send. When the link is empty, delayed
    /// ACKs are sent, too.
    ///
    /// Before that, a connection is served once per arrival only: of a thousand connections that wait on the link, each poll
    /// receives for a few.
    pub(super) fn flush_arrivals(&mut self, burst: Burst, now: Instant) {
        if burst != Burst::More {
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
    pub(super) fn flush_touched(&mut self, scope: FlushScope, now: Instant) {
        let mut touched = self.sockets.take(Mark::Touched);
        for slot in touched.drain(..) {
            if self.sockets.clear(Mark::Touched, slot) {
                self.serve_within(slot, Burst::More, scope, now);
            }
        }
        // Sockets touched in the meantime wait for the link.
        self.sockets.reuse(Mark::Touched, touched);
    }

    /// Offers a larger window to connections that got too little, on queues where memory was given back.
    pub(super) fn visit_starved(&mut self, scope: FlushScope, now: Instant) {
        note_free(&mut self.memory.windows, &mut self.nic);
        for queue in self.memory.windows.queues() {
            for _ in 0..STARVED_BUDGET {
                let Some(slot) = self.memory.windows.next_starved(queue) else {
                    break;
                };
                self.serve_within(slot, Burst::More, scope, now);
            }
        }
    }

    /// Serves a connection at once; further packets may follow in this burst.
    pub(super) fn serve(&mut self, slot: u32, now: Instant) {
        self.serve_within(slot, Burst::More, FlushScope::All, now);
    }

    /// Grants a connection its window, sends of its segments what `scope` includes, arms its timer, and handles its end.
    ///
    /// When the link is empty, a delayed ACK is sent, too.
    fn serve_within(&mut self, slot: u32, burst: Burst, scope: FlushScope, now: Instant) {
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return self.serve_time_wait(slot, now);
        };
        match burst {
            Burst::More => {}
            Burst::Drained | Burst::Expected => connection.conn.on_drained(),
            Burst::Over => connection.conn.on_idle(),
        }
        if connection.update_window(slot, &mut self.memory.windows, &mut self.nic) {
            connection.mark(Mark::Holder);
        }
        send_all(
            &mut connection,
            &mut self.network,
            &mut self.nic,
            scope,
            now,
        );
        let (state, owner) = finish(&mut connection, now);
        drop(connection);
        self.end_if_over(slot, state, owner);
    }

    /// Sends the reply of a connection in TIME-WAIT, and arms its timer.
    fn serve_time_wait(&mut self, slot: u32, now: Instant) {
        let Some(mut socket) = self.sockets.at_mut(slot) else {
            return;
        };
        let SocketKind::TimeWait(time_wait) = &mut *socket else {
            return;
        };
        let (tuple, egress) = (time_wait.tuple, Egress::to(time_wait.next_hop));
        if let Some(segment) = time_wait.state.poll_send(now) {
            let owner = SegmentOwner::Answer(None);
            self.network
                .send_segment(&mut self.nic, &tuple, egress, owner, segment, now);
        }
        let deadline = time_wait.state.deadline().max(now + TIMER_GRANULARITY);
        socket.arm(Some(deadline));
    }

    /// Handles the expired timer of a socket.
    pub(crate) fn on_timer(&mut self, slot: u32, now: Instant) {
        let Some(mut socket) = self.sockets.at_mut(slot) else {
            return;
        };
        match &mut *socket {
            SocketKind::Connection(connection) => {
                let before = connection.conn.early_timeouts();
                let disposition = connection.conn.on_timer(&connection.options.tcp, now);
                let after = connection.conn.early_timeouts();
                drop(socket);
                if after == Some(BLACK_HOLE_TIMEOUTS) && before != after {
                    self.tcp.fast_open.on_black_hole(now);
                }
                self.network.drops.count_segment(disposition.drop);
                self.serve(slot, now);
            }
            SocketKind::TimeWait(time_wait) => {
                let deadline = time_wait.state.deadline();
                if deadline <= now {
                    drop(socket);
                    self.remove(slot);
                } else {
                    socket.arm(Some(deadline));
                }
            }
            SocketKind::Listener(_) => {
                drop(socket);
                self.repeat_syn_acks(slot, now);
            }
        }
    }

    /// Sends the SYN-ACKs of a listener that are due, and arms its timer.
    fn repeat_syn_acks(&mut self, slot: u32, now: Instant) {
        let Some(mut listener) = self.sockets.listener_at(slot) else {
            return;
        };
        let (link, options) = (listener.link, listener.options);
        while let Some((endpoints, segment)) = listener.half_open.poll_send(link, &options.tcp, now)
        {
            let tuple = four_tuple(endpoints.local, endpoints.remote);
            self.network
                .send_syn_ack(&mut self.nic, &tuple, None, &options, segment, now);
        }
        let next = listener.half_open.next_timer();
        listener.arm(next);
    }

    /// Removes a closed connection; reduces one in TIME-WAIT without a program to a [`TimeWaitSocket`].
    pub(super) fn end_if_over(&mut self, slot: u32, state: StateKind, owner: Owner) {
        match (state, owner) {
            (StateKind::Closed, _) => self.on_closed(slot),
            (StateKind::TimeWait, Owner::Nobody) => self.keep_time_wait_only(slot),
            _ => {}
        }
    }

    /// Releases the four-tuple, timer and promise of a closed connection. A program can still read its data.
    fn on_closed(&mut self, slot: u32) {
        if self.sockets.at(slot).is_none() {
            return;
        }
        self.forget_name(slot);
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return;
        };
        connection.arm(None);
        connection.release_memory(slot, &mut self.memory.windows);
        let owner = connection.owner();
        let is_success = connection.conn.is_early_success();
        drop(connection);
        if is_success {
            self.tcp.fast_open.on_success();
        }
        if owner == Owner::Nobody {
            self.remove(slot);
        }
    }

    /// Releases the four-tuple of a connection for another connection.
    pub(crate) fn forget_name(&mut self, slot: u32) {
        if let Some(mut connection) = self.sockets.connection_at(slot) {
            connection.end_place(&mut self.nic);
        }
        match self.sockets.at(slot) {
            Some(SocketKind::Connection(_)) => self.sockets.forget_name(slot),
            Some(SocketKind::TimeWait(_)) => self.remove(slot),
            Some(SocketKind::Listener(_)) | None => {}
        }
    }

    /// Replaces a connection in TIME-WAIT without a program by a [`TimeWaitSocket`].
    fn keep_time_wait_only(&mut self, slot: u32) {
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return;
        };
        let Some(state) = connection.conn.time_wait() else {
            return;
        };
        if !connection.is_named() {
            // A new connection has the four-tuple, and receives all its segments.
            drop(connection);
            return self.remove(slot);
        }
        connection.release_memory(slot, &mut self.memory.windows);
        let time_wait = TimeWaitSocket {
            state,
            tuple: *connection.tuple(),
            next_hop: connection.next_hop(),
        };
        drop(connection);
        self.sockets.keep_time_wait_only(slot, time_wait);
    }

    /// Removes a socket from the table. Its tokens must have been released.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(SocketKind::Connection(mut connection)) = self.sockets.remove(slot) {
            connection.release_memory(slot, &mut self.memory.windows);
        }
    }
}

/// Notes memory that was given back on queues where connections wait for more: [`Stack::visit_starved`] serves those that can have some.
pub(super) fn note_free(windows: &mut Windows, nic: &mut Nic) {
    for queue in windows.queues() {
        if windows.has_starved(queue) {
            windows.note_free(queue, nic.rx_space(queue).bytes as u64);
        }
    }
}

/// Sends all segments that a connection may send now, except those that `scope` lets wait.
fn send_all(
    connection: &mut ConnectionMut<'_>,
    network: &mut Network,
    nic: &mut Nic,
    scope: FlushScope,
    now: Instant,
) {
    let owner = SegmentOwner::Connection(connection.id());
    while nic.tx_room() > 0 {
        let it = &mut **connection;
        if scope == FlushScope::Full && it.conn.may_gather(&it.options.tcp, now) {
            // The next poll sends it, together with what is queued until then.
            connection.mark(Mark::Touched);
            return;
        }
        let Some(segment) = it.conn.poll_send(&it.options.tcp, now) else {
            return;
        };
        let egress = Egress {
            next_hop: it.next_hop(),
            tos: it.options.tos,
            hop_limit: it.options.hop_limit,
            ident: it.writer.identify(it.options.may_fragment, &segment),
        };
        network.send_segment(nic, it.tuple(), egress, owner, segment, now);
    }
    // The link is busy: the rest stays in the send queue until the next poll.
    connection.mark(Mark::Touched);
}

/// Arms the timer of a connection, and notes what has become of its sends; returns its state and owner.
///
/// A deadline that has passed already is armed for just after `now`, so that the next poll handles it and this
/// poll ends.
pub(super) fn finish(connection: &mut ConnectionMut<'_>, now: Instant) -> (StateKind, Owner) {
    let soon = now + TIMER_GRANULARITY;
    let armed = connection.armed().filter(|&armed| armed < soon);
    // An armed deadline that is due is not moved: otherwise the timer of a socket that is touched in every poll
    // would never fire.
    let next = connection.conn.next_timer().map(|next| match armed {
        Some(armed) if next < soon => armed,
        _ => next.max(soon),
    });
    connection.arm(next);
    if connection.writer.errors.has_unfinished() {
        let ConnectionSocket { conn, writer, .. } = &mut **connection;
        writer.errors.collect(acked_offset(conn));
        writer.note_times(conn, now);
        if writer.is_draining(conn) {
            connection.mark(Mark::Draining);
        }
    }
    let has_unsent = connection.conn.sent_offset() < connection.conn.pushed_offset();
    connection.set_mark(Mark::Unsent, has_unsent);
    (connection.conn.state(), connection.owner())
}
