//! Work on a connection outside of socket calls: sending, granting its window, timers, errors, its end.

use std::net::IpAddr;
use std::time::Duration;

use netmem::{DeviceError, FragList};
use nic::Nic;
use tcp::{Connection, SeqNum, StateKind, TcpError, Unreachable};
use wire::{FourTuple, Instant};

use super::Stack;
use super::poll::{Burst, FlushScope};
use crate::demux::TupleOwner;
use crate::icmp::IcmpErrorKind;
use crate::network::{Egress, Network, SegmentOwner};
use crate::path_mtu::{PathMtu, headers_for};
use crate::socket::agenda::Mark;
use crate::socket::connection::{ConnectionSocket, Holder};
use crate::socket::id::SocketId;
use crate::socket::kind::{SocketKind, TimeWaitSocket};
use crate::socket::listener::ListenerEnd;
use crate::socket::sockets::ConnectionMut;
use crate::tuple::{endpoints, four_tuple};

/// Smallest size to which an ICMP error reduces packets over IPv4 (linux `ip_rt_min_pmtu`): a smaller one is
/// probably an attack. If it is genuine, routers have to fragment the packets (linux locks the path MTU, and clears DF).
const MIN_PMTU_V4: u32 = 552;

/// Minimum MTU of a link with IPv6 (RFC 8200 5); an error with a smaller one is discarded (RFC 8201 4): links with less fragment
/// and reassemble below IPv6.
const MIN_PMTU_V6: u32 = 1280;

/// Timeouts in a row, of a connection that used Fast Open, after which the path is taken for one that drops its packets
/// (linux `tcp_fastopen_active_detect_blackhole`).
const BLACK_HOLE_TIMEOUTS: u8 = 2;

/// Minimum time from now for which a timer is armed.
const TIMER_GRANULARITY: Duration = Duration::from_micros(1);

impl Stack {
    /// Creates the socket of a connection that a listener has opened, in the accept queue of the listener.
    pub(crate) fn accepted(
        &mut self,
        listener: u32,
        conn: Connection<FragList>,
        tuple: FourTuple,
    ) -> Option<u32> {
        let next_hop = self.network.routes().next_hop(tuple.src_ip).ok()?;
        let Some(SocketKind::Listener(from)) = self.sockets.at(listener) else {
            return None;
        };
        let connection =
            ConnectionSocket::new(conn, from.options, tuple, next_hop, Holder::AcceptQueue);
        // The lookup that led to the listener found no connection.
        let id = self.sockets.insert_connection(connection);
        if let Some(mut listener) = self.sockets.listener_at(listener) {
            listener.push(id);
        }
        self.stats.accepts += 1;
        self.turns += 1;
        Some(id.slot())
    }

    /// Serves a connection at once; further packets may follow in this burst.
    pub(super) fn serve(&mut self, slot: u32, now: Instant) {
        self.serve_within(slot, Burst::GoesOn, FlushScope::All, now);
    }

    /// Grants a connection its window, sends of its segments what `scope` includes, arms its timer, and handles its end.
    ///
    /// When the link is empty, a delayed ACK is sent, too.
    pub(crate) fn serve_within(
        &mut self,
        slot: u32,
        burst: Burst,
        scope: FlushScope,
        now: Instant,
    ) {
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return self.serve_time_wait(slot, now);
        };
        match burst {
            Burst::GoesOn => {}
            Burst::Drained => connection.conn.on_drained(),
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
        let (state, holder) = finish(&mut connection, now);
        drop(connection);
        self.end_if_over(slot, state, holder);
    }

    /// Removes a closed connection; reduces one in TIME-WAIT without a program to a [`TimeWaitSocket`].
    fn end_if_over(&mut self, slot: u32, state: StateKind, holder: Holder) {
        match (state, holder) {
            (StateKind::Closed, _) => self.on_closed(slot),
            (StateKind::TimeWait, Holder::Nobody) => self.keep_time_wait_only(slot),
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
        connection.memory.release(slot, &mut self.memory.windows);
        let holder = connection.holder();
        let is_success = connection.conn.is_early_success();
        drop(connection);
        if is_success {
            self.tcp.fast_open.on_success();
        }
        if holder == Holder::Nobody {
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
        connection.memory.release(slot, &mut self.memory.windows);
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
            connection.memory.release(slot, &mut self.memory.windows);
        }
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

    /// Passes an ICMP error on to its connection; returns whether the quoted segment may be in flight.
    pub(crate) fn connection_icmp(
        &mut self,
        tuple: &FourTuple,
        quoted: SeqNum,
        kind: IcmpErrorKind,
        now: Instant,
    ) -> bool {
        let slot = match (self.sockets.lookup(tuple), kind) {
            (Some(TupleOwner::Connection(slot)), _) => slot,
            (Some(TupleOwner::Listener(slot)), IcmpErrorKind::Unreachable(what)) => {
                return self.half_open_unreachable(slot, tuple, what, quoted);
            }
            _ => return false,
        };
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return false;
        };
        match kind {
            IcmpErrorKind::TooBig { mtu } => {
                let Some(path) = believable_path(tuple.src_ip, mtu) else {
                    return false;
                };
                let it = &mut *connection;
                let is_believed = it.conn.on_mtu(path.mss, quoted, &it.options.tcp, now);
                if is_believed {
                    it.writer.note_path(&path);
                }
                drop(connection);
                if is_believed {
                    self.path_mtus.note(tuple.src_ip, path, now);
                }
                self.serve(slot, now);
                is_believed
            }
            IcmpErrorKind::Unreachable(what) => {
                let disposition = connection.conn.on_unreachable(what, quoted);
                connection.mark(Mark::Arrivals);
                drop(connection);
                self.follow(slot, disposition, now);
                true
            }
        }
    }

    /// Passes an ICMP error about a SYN-ACK on to the listener; returns whether the half-open connection is there.
    fn half_open_unreachable(
        &mut self,
        slot: u32,
        tuple: &FourTuple,
        what: Unreachable,
        quoted: SeqNum,
    ) -> bool {
        let Some(mut listener) = self.sockets.listener_at(slot) else {
            return false;
        };
        let half_open = &mut listener.half_open;
        let is_there = half_open.on_unreachable(&endpoints(tuple), what, quoted);
        let next = half_open.next_timer();
        listener.arm(next);
        is_there
    }

    /// Handles a connection with a neighbour that does not answer, as an unreachable host.
    pub(crate) fn neighbor_failed(&mut self, owner: SocketId, quoted: SeqNum, now: Instant) {
        let Ok(Some(mut connection)) = self.sockets.connection_mut(owner) else {
            return;
        };
        let ip = connection.next_hop();
        let what = Unreachable::NextHop {
            ip,
            is_router: ip != connection.tuple().src_ip,
        };
        let disposition = connection.conn.on_unreachable(what, quoted);
        let (state, holder) = finish(&mut connection, now);
        drop(connection);
        self.network.drops.count_segment(disposition.drop);
        self.end_if_over(owner.slot(), state, holder);
    }

    /// Ends the connections to peers behind the link, which is gone for good: retransmissions would go on for minutes. Those
    /// between two local addresses do not need it. Listening sockets accept what is queued, and then fail.
    pub(crate) fn end_connections_of_link(&mut self, now: Instant) {
        let routes = self.network.routes();
        let is_behind = |it: &ConnectionSocket| !routes.is_ours(it.tuple().src_ip);
        self.sockets.end_listeners(ListenerEnd::LinkGone, |_| true);
        let slots = self.sockets.connections(is_behind);
        self.end_connections(slots, |conn| conn.on_unusable(TcpError::LinkGone), now);
    }

    /// Ends connections, and sends what they may still send.
    pub(super) fn end_connections(
        &mut self,
        slots: impl IntoIterator<Item = u32>,
        end: impl Fn(&mut Connection<FragList>),
        now: Instant,
    ) {
        for slot in slots {
            let Some(mut connection) = self.sockets.connection_at(slot) else {
                continue;
            };
            end(&mut connection.conn);
            drop(connection);
            self.serve(slot, now);
        }
    }

    /// Ends the connections of packets that were not sent because a device could not copy their payload.
    pub(crate) fn fail_untransmitted(&mut self, now: Instant) {
        while let Some(failed) = self.nic.take_failed_tx() {
            if let Some(tuple) = failed.four_tuple() {
                self.device_failed(&tuple.reversed(), failed.error, now);
            }
        }
    }

    /// Ends a connection because a device could not copy its payload.
    pub(crate) fn device_failed(&mut self, tuple: &FourTuple, error: DeviceError, now: Instant) {
        let DeviceError {
            call, name, code, ..
        } = error;
        let error = TcpError::DeviceFailed { call, name, code };
        let slot = self.sockets.names().connection(tuple);
        self.end_connections(slot, |conn| conn.fail(error), now);
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

/// Arms the timer of a connection, and notes what has become of its sends; returns its state and holder.
///
/// A deadline that has passed already is armed for just after `now`, so that the next poll handles it and this
/// poll ends.
fn finish(connection: &mut ConnectionMut<'_>, now: Instant) -> (StateKind, Holder) {
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
        writer.collect(conn);
        writer.note_times(conn, now);
        if writer.is_draining(conn) {
            connection.mark(Mark::Draining);
        }
    }
    let has_unsent = connection.conn.sent_offset() < connection.conn.pushed_offset();
    connection.set_mark(Mark::Unsent, has_unsent);
    (connection.conn.state(), connection.holder())
}

/// Returns what an ICMP error says about a path, if it is acceptable.
fn believable_path(peer: IpAddr, told: Option<u32>) -> Option<PathMtu> {
    let least = match peer {
        IpAddr::V4(_) => MIN_PMTU_V4,
        IpAddr::V6(_) => MIN_PMTU_V6,
    };
    // Routers older than RFC 1191 report no MTU: assume less than the smallest.
    let is_less = told.is_none_or(|mtu| mtu < least);
    if peer.is_ipv6() && told.is_some() && is_less {
        return None;
    }
    let mtu = u16::try_from(told.unwrap_or(least).max(least)).unwrap_or(u16::MAX);
    Some(PathMtu {
        mss: mtu - headers_for(peer),
        routers_fragment: peer.is_ipv4() && is_less,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_path_mtus_are_not_accepted_and_below_the_smallest_one_routers_fragment() {
        let (v4, v6) = (
            IpAddr::from([10, 0, 0, 1]),
            IpAddr::from([0x2001, 0, 0, 0, 0, 0, 0, 1]),
        );
        let path =
            |peer, told| believable_path(peer, told).map(|path| (path.mss, path.routers_fragment));
        assert_eq!(path(v4, Some(1400)), Some((1360, false)));
        assert_eq!(path(v4, Some(552)), Some((512, false)));
        assert_eq!(path(v4, Some(551)), Some((512, true)));
        assert_eq!(path(v4, Some(68)), Some((512, true)));
        assert_eq!(path(v4, None), Some((512, true)));
        assert_eq!(path(v4, Some(1 << 20)), Some((u16::MAX - 40, false)));
        assert_eq!(path(v6, Some(1280)), Some((1220, false)));
        assert_eq!(path(v6, Some(1279)), None);
        assert_eq!(path(v6, None), Some((1220, false)));
    }
}
