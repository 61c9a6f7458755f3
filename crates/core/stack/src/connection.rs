//! Work on a connection outside of socket calls: sending, granting its window, timers, errors, its end.

use std::net::IpAddr;
use std::time::Duration;

use netmem::{DeviceError, FragList};
use nic::RxMemory;
use steer::RxQueueId;
use tcp::{Connection, Segment, SeqNum, StateKind, TcpError, Unreachable};
use wire::{FourTuple, Instant};

use crate::Stack;
use crate::demux::TupleOwner;
use crate::direct::Placing;
use crate::memory::StackMemory;
use crate::network::{Egress, Network, SegmentOwner, headers_for};
use crate::path_mtu::PathMtu;
use crate::socket::sockets::{ConnectionMut, Sockets};
use crate::socket::sockopt::SocketSettings;
use crate::socket::{ConnectionSocket, Holder, ListenerEnd, SocketId, SocketKind, TimeWaitSocket};
use crate::stack::{Burst, FlushScope};
use crate::window::{Ask, Promise, Windows};

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

/// Meaning of an ICMP error for the segment that it quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IcmpErrorKind {
    /// The packet was too big for a link with this MTU; `None`: the router did not report the MTU.
    TooBig { mtu: Option<u32> },
    /// The packet could not be delivered.
    Unreachable(Unreachable),
}

impl ConnectionSocket {
    pub(crate) fn new(
        conn: Connection<FragList>,
        options: SocketSettings,
        tuple: FourTuple,
        next_hop: IpAddr,
        holder: Holder,
    ) -> Self {
        Self {
            conn,
            tuple,
            is_named: true,
            next_hop,
            promise: Promise::new(0),
            marks: Default::default(),
            read: 0,
            arrival_times: Default::default(),
            urgent: None,
            is_old: false,
            placing: None,
            lent_places: None,
            tokens: Default::default(),
            options,
            errors: Default::default(),
            last_sent: None,
            routers_fragment: false,
            next_ident: None,
            read_shutdown: false,
            holder,
            error: None,
        }
    }

    /// Notes that a segment with `len` bytes of payload arrived on `queue`.
    pub(crate) fn note_arrival(
        &mut self,
        slot: u32,
        queue: usize,
        len: usize,
        windows: &mut Windows,
    ) {
        if self.promise.queue() != queue {
            windows.migrate(slot, &mut self.promise, queue);
        }
        if len > 0 {
            windows.note_packet(&mut self.promise, len);
        } else if self.is_receiving() && self.conn.is_rcv_window_shut() && self.is_old {
            self.promise.note_probe();
        }
        self.is_old = true;
    }

    /// Takes over what an earlier connection discovered about the path.
    pub(crate) fn take_path(&mut self, path: Option<PathMtu>) {
        self.routers_fragment = path.is_some_and(|path| path.routers_fragment);
    }

    /// Returns the identification of a packet that routers may fragment, and those of the packets of a super-packet after
    /// it; `None`: they must not. It begins at the low bits of a sequence number, which is not predictable.
    fn identify(&mut self, segment: &Segment<FragList>) -> Option<u16> {
        if !self.options.may_fragment && !self.routers_fragment {
            return None;
        }
        let ident = self.next_ident.unwrap_or(segment.seq.0 as u16);
        let packets = u16::try_from(segment.gso_segments()).unwrap_or(u16::MAX);
        self.next_ident = Some(ident.wrapping_add(packets));
        Some(ident)
    }

    /// Returns whether the peer may still send payload.
    fn is_receiving(&self) -> bool {
        let state = self.conn.state();
        use StateKind::{Established, FinWait1, FinWait2, SynReceived, SynSent};
        matches!(
            state,
            SynSent | SynReceived | Established | FinWait1 | FinWait2
        )
    }
}

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

    /// Grants a connection its window, sends its segments, arms its timer, and handles its end.
    ///
    /// When the link is empty, a delayed ACK is sent, too.
    pub(crate) fn serve(&mut self, slot: u32, burst: Burst, now: Instant) {
        self.serve_within(slot, burst, FlushScope::All, now);
    }

    /// As [`Stack::serve`]; sends what `scope` includes.
    pub(crate) fn serve_within(
        &mut self,
        slot: u32,
        burst: Burst,
        scope: FlushScope,
        now: Instant,
    ) {
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return serve_time_wait(slot, &mut self.sockets, &mut self.network, now);
        };
        match burst {
            Burst::GoesOn => {}
            Burst::Drained => connection.conn.on_drained(),
            Burst::Over => connection.conn.on_idle(),
        }
        let StackMemory {
            windows, pressure, ..
        } = &mut self.memory;
        if connection.is_receiving() {
            update_window(slot, &mut connection, windows, &mut self.network);
            pressure.note_holder(slot, &mut connection);
        } else {
            windows.release(slot, &mut connection.promise);
        }
        send_all(&mut connection, &mut self.network, scope, now);
        let (state, holder) = settle(&mut connection, now);
        drop(connection);
        pressure.forget_holders(&mut self.sockets);
        self.follow_end(slot, state, holder);
    }

    /// Removes a closed connection; reduces one in TIME-WAIT without a program to a [`TimeWaitSocket`].
    fn follow_end(&mut self, slot: u32, state: StateKind, holder: Holder) {
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
        self.memory.windows.release(slot, &mut connection.promise);
        let holder = connection.holder;
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
            Placing::end(&mut connection, &mut self.network);
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
        if !connection.is_named {
            // A new connection has the four-tuple, and receives all its segments.
            drop(connection);
            return self.remove(slot);
        }
        self.memory.windows.release(slot, &mut connection.promise);
        let time_wait = TimeWaitSocket {
            state,
            tuple: connection.tuple,
            next_hop: connection.next_hop,
        };
        drop(connection);
        self.sockets.keep_time_wait_only(slot, time_wait);
    }

    /// Removes a socket from the table. Its tokens must have been released.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(SocketKind::Connection(mut connection)) = self.sockets.remove(slot) {
            self.memory.windows.release(slot, &mut connection.promise);
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
                self.note(disposition);
                self.serve(slot, Burst::GoesOn, now);
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
                repeat_syn_acks(slot, &mut self.sockets, &mut self.network, now);
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
                    it.routers_fragment |= path.routers_fragment;
                }
                drop(connection);
                if is_believed {
                    self.network.note_path(tuple.src_ip, path, now);
                }
                self.serve(slot, Burst::GoesOn, now);
                is_believed
            }
            IcmpErrorKind::Unreachable(what) => {
                let disposition = connection.conn.on_unreachable(what, quoted);
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
        let is_there = half_open.on_unreachable(&crate::rx::endpoints(tuple), what, quoted);
        let next = half_open.next_timer();
        listener.arm(next);
        is_there
    }

    /// Handles a connection with a neighbour that does not answer, as an unreachable host.
    pub(crate) fn neighbor_failed(&mut self, owner: SocketId, quoted: SeqNum, now: Instant) {
        let Ok(Some(mut connection)) = self.sockets.connection_mut(owner) else {
            return;
        };
        let ip = connection.next_hop;
        let what = Unreachable::NextHop {
            ip,
            is_router: ip != connection.tuple.src_ip,
        };
        let disposition = connection.conn.on_unreachable(what, quoted);
        let (state, holder) = settle(&mut connection, now);
        drop(connection);
        self.note(disposition);
        self.follow_end(owner.slot(), state, holder);
    }

    /// Ends the connections to peers behind the link, which is gone for good: retransmissions would go on for minutes. Those
    /// between two local addresses do not need it. Listening sockets accept what is queued, and then fail.
    pub(crate) fn end_connections_of_link(&mut self, now: Instant) {
        let routes = self.network.routes();
        let is_behind = |it: &ConnectionSocket| !routes.is_ours(it.tuple.src_ip);
        self.sockets.end_listeners(ListenerEnd::LinkGone, |_| true);
        for slot in self.sockets.connections(is_behind) {
            let Some(mut connection) = self.sockets.connection_at(slot) else {
                continue;
            };
            connection.conn.on_unusable(TcpError::LinkGone);
            drop(connection);
            self.serve(slot, Burst::GoesOn, now);
        }
    }

    /// Ends the connections of packets that were not sent because a device could not copy their payload.
    pub(crate) fn fail_untransmitted(&mut self, now: Instant) {
        while let Some((tuple, error)) = self.network.pop_untransmitted() {
            self.device_failed(&tuple, error, now);
        }
    }

    /// Ends a connection because a device could not copy its payload.
    pub(crate) fn device_failed(&mut self, tuple: &FourTuple, error: DeviceError, now: Instant) {
        let Some(slot) = self.sockets.names().connection(tuple) else {
            return;
        };
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return;
        };
        let DeviceError {
            call, name, code, ..
        } = error;
        let error = TcpError::DeviceFailed { call, name, code };
        connection.conn.fail(error);
        drop(connection);
        self.serve(slot, Burst::GoesOn, now);
    }
}

/// Sends the reply of a connection in TIME-WAIT, and arms its timer.
fn serve_time_wait(slot: u32, sockets: &mut Sockets, network: &mut Network, now: Instant) {
    let Some(mut socket) = sockets.at_mut(slot) else {
        return;
    };
    let SocketKind::TimeWait(time_wait) = &mut *socket else {
        return;
    };
    let (tuple, next_hop) = (time_wait.tuple, time_wait.next_hop);
    if let Some(segment) = time_wait.state.poll_send(now) {
        let (egress, owner) = (Egress::to(next_hop), SegmentOwner::Answer(None));
        network.send_segment(&tuple, egress, owner, segment, now);
    }
    let deadline = time_wait.state.deadline().max(now + TIMER_GRANULARITY);
    socket.arm(Some(deadline));
}

/// Sends the SYN-ACKs of a listener that are due, and arms its timer.
fn repeat_syn_acks(slot: u32, sockets: &mut Sockets, network: &mut Network, now: Instant) {
    loop {
        let Some(mut listener) = sockets.listener_at(slot) else {
            return;
        };
        let it = &mut *listener;
        let Some((endpoints, segment)) = it.half_open.poll_send(it.link, &it.options.tcp, now)
        else {
            let next = it.half_open.next_timer();
            return listener.arm(next);
        };
        let (options, tuple) = (
            listener.options,
            crate::stack::four_tuple(endpoints.local, endpoints.remote),
        );
        drop(listener);
        network.send_syn_ack(&tuple, None, &options, segment, now);
    }
}

/// Sends all segments that a connection may send now, except those that `scope` lets wait.
fn send_all(
    connection: &mut ConnectionMut<'_>,
    network: &mut Network,
    scope: FlushScope,
    now: Instant,
) {
    let owner = SegmentOwner::Connection(connection.id());
    while network.nic().tx_room() > 0 {
        let it = &mut **connection;
        if scope == FlushScope::Full && it.conn.may_gather(&it.options.tcp, now) {
            // The next poll sends it, together with what is queued until then.
            connection.touch();
            return;
        }
        let Some(segment) = it.conn.poll_send(&it.options.tcp, now) else {
            return;
        };
        let egress = Egress {
            next_hop: it.next_hop,
            tos: it.options.tos,
            hop_limit: it.options.hop_limit,
            ident: it.identify(&segment),
        };
        network.send_segment(&it.tuple, egress, owner, segment, now);
    }
    // The link is busy: the rest stays in the send queue until the next poll.
    connection.touch();
}

/// Grants a connection its receive window.
fn update_window(
    slot: u32,
    connection: &mut ConnectionSocket,
    windows: &mut Windows,
    network: &mut Network,
) {
    let queue = RxQueueId(u16::try_from(connection.promise.queue()).unwrap_or(u16::MAX));
    let free = network.rx_space(queue).bytes as u64;
    let nic = network.nic();
    connection.relax(nic, RxMemory::Queue(queue));
    let ask = Ask {
        outstanding: connection.conn.rcv_outstanding().into(),
        most: u64::from(connection.options.tcp.rcv_buf_max).saturating_sub(connection.unread()),
        delivered: connection.delivered(),
        mss: nic.mtu() - headers_for(connection.tuple.src_ip),
    };
    if free >= u64::from(ask.mss) {
        connection.conn.restore_rcv_window();
    }
    let granted = windows.grant(slot, &mut connection.promise, free, ask);
    let space = granted + connection.conn.out_of_order_len() as u64;
    let space = u32::try_from(space).unwrap_or(u32::MAX);
    connection
        .conn
        .set_rcv_space(space, &connection.options.tcp);
}

/// Arms the timer of a connection, and collects its completed sends; returns its state and holder.
///
/// A deadline that has passed already is armed for just after `now`, so that the next poll handles it and this
/// poll ends.
fn settle(connection: &mut ConnectionMut<'_>, now: Instant) -> (StateKind, Holder) {
    let soon = now + TIMER_GRANULARITY;
    let armed = connection.armed().filter(|&armed| armed < soon);
    // An armed deadline that is due is not moved: otherwise the timer of a socket that is touched in every poll
    // would never fire.
    let next = connection.conn.next_timer().map(|next| match armed {
        Some(armed) if next < soon => armed,
        _ => next.max(soon),
    });
    connection.arm(next);
    let acked = connection.acked_offset();
    connection.errors.collect(acked);
    connection.note_times(now);
    connection.note_draining();
    connection.note_unsent();
    (connection.conn.state(), connection.holder)
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
