//! A connection between the calls of its program: what it says, what it is promised, how it ends.

use std::net::IpAddr;
use std::time::Duration;

use netmem::FragList;
use nic::RxMemory;
use steer::RxQueueId;
use tcp::{Connection, SeqNum, StateKind, Unreachable};
use wire::{FourTuple, Instant};

use crate::Stack;
use crate::network::{Egress, Network, Speaker, headers_for};
use crate::socket::sockets::ConnectionMut;
use crate::socket::sockopt::Options;
use crate::socket::{ConnectionSocket, Holder, SocketId, SocketKind, TimeWaitSocket};
use crate::stack::Burst;
use crate::window::{Ask, Promise, Windows};

/// Smallest path MTU that is believed of an ICMP error over IPv4 (linux `ip_rt_min_pmtu`); smaller
/// is an attack, or a link nobody should use.
const MIN_PMTU_V4: u32 = 552;

/// Smallest MTU of any link with IPv6 (RFC 8200 5); an error that tells less is ignored (RFC 8201
/// 4).
const MIN_PMTU_V6: u32 = 1280;

/// How much later than now a timer is armed at the earliest.
const TIMER_GRANULARITY: Duration = Duration::from_micros(1);

/// What an ICMP error says has happened to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IcmpKind {
    /// It was too big for a link with this MTU; `None` from a router that does not say.
    TooBig { mtu: Option<u32> },
    /// It could not be delivered.
    Unreachable(Unreachable),
}

impl ConnectionSocket {
    /// Notes that a segment arrived on `queue`, and how much memory its payload took.
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
            self.promise.note_packet(len);
        } else if self.is_receiving() && self.conn.is_rcv_window_shut() && self.is_old {
            self.promise.note_probe();
        }
        self.is_old = true;
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
    /// Makes a socket of a connection that a listener's handshake opened.
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
        let options = from.options;
        let mut connection = self.connection_socket(conn, tuple, next_hop, Holder::AcceptQueue);
        connection.write_low = options.write_low();
        options.apply(&mut connection.conn);
        connection.options = options;
        // The lookup that led to the listener found no connection.
        let id = self.sockets.insert_connection(connection);
        if let Some(mut listener) = self.sockets.listener_at(listener) {
            listener.push(id);
        }
        self.stats.accepts += 1;
        Some(id.slot())
    }

    pub(crate) fn connection_socket(
        &self,
        conn: Connection<FragList>,
        tuple: FourTuple,
        next_hop: IpAddr,
        holder: Holder,
    ) -> ConnectionSocket {
        ConnectionSocket {
            conn,
            tuple,
            is_named: true,
            next_hop,
            promise: Promise::new(0),
            marks: Default::default(),
            read: 0,
            arrival_times: Default::default(),
            is_old: false,
            tokens: Default::default(),
            options: Options::new(&self.tcp.options),
            errors: Default::default(),
            last_sent: None,
            write_low: (self.tcp.options.snd_buf_max / 3).max(1),
            read_shutdown: false,
            holder,
            error: None,
        }
    }

    /// Lets a connection say all it has to say, and sees to what has become of it.
    ///
    /// When the burst is over, that includes every ACK that was held back.
    pub(crate) fn speak(&mut self, slot: u32, burst: Burst, now: Instant) {
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return self.speak_time_wait(slot, now);
        };
        if burst == Burst::Over {
            connection.conn.on_drained();
        }
        if connection.is_receiving() {
            update_window(slot, &mut connection, &mut self.windows, &mut self.network);
            self.pressure.note_holder(slot, &mut connection);
        } else {
            self.windows.release(slot, &mut connection.promise);
        }
        send_all(&mut connection, &mut self.network, now);
        let ended = settle(&mut connection, now);
        drop(connection);
        self.forget_holders();
        self.follow_end(slot, ended);
    }

    fn speak_time_wait(&mut self, slot: u32, now: Instant) {
        let Some(mut socket) = self.sockets.at_mut(slot) else {
            return;
        };
        let SocketKind::TimeWait(time_wait) = &mut *socket else {
            return;
        };
        let (tuple, next_hop) = (time_wait.tuple, time_wait.next_hop);
        if let Some(segment) = time_wait.state.poll_send(now) {
            let (egress, speaker) = (Egress::to(next_hop), Speaker::Answer(None));
            self.network
                .send_segment(&tuple, egress, speaker, segment, now);
        }
        let deadline = time_wait.state.deadline().max(now + TIMER_GRANULARITY);
        socket.arm(Some(deadline));
    }

    /// Gives a connection that got too little window another chance.
    pub(crate) fn visit(&mut self, slot: u32, now: Instant) {
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return;
        };
        Windows::visited(&mut connection.promise);
        drop(connection);
        self.speak(slot, Burst::GoesOn, now);
    }

    /// Sees a connection off that is over.
    fn follow_end(&mut self, slot: u32, (state, holder): (StateKind, Holder)) {
        match (state, holder) {
            (StateKind::Closed, _) => self.on_closed(slot),
            (StateKind::TimeWait, Holder::Nobody) => self.keep_time_wait_only(slot),
            _ => {}
        }
    }

    /// A connection is over: its name is free, its promise void; what can be read stays.
    fn on_closed(&mut self, slot: u32) {
        if self.sockets.at(slot).is_none() {
            return;
        }
        self.forget_name(slot);
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return;
        };
        connection.arm(None);
        self.windows.release(slot, &mut connection.promise);
        let holder = connection.holder;
        drop(connection);
        if holder == Holder::Nobody {
            self.remove(slot);
        }
    }

    /// Takes the four-tuple from a connection, so that another may have it.
    pub(crate) fn forget_name(&mut self, slot: u32) {
        match self.sockets.at(slot) {
            Some(SocketKind::Connection(_)) => self.sockets.forget_name(slot),
            Some(SocketKind::TimeWait(_)) => self.remove(slot),
            Some(SocketKind::Listener(_)) | None => {}
        }
    }

    /// Keeps of a connection in TIME-WAIT that nobody holds only what TIME-WAIT needs.
    fn keep_time_wait_only(&mut self, slot: u32) {
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return;
        };
        let Some(state) = connection.conn.time_wait() else {
            return;
        };
        if !connection.is_named {
            // A new connection has the name, and nothing that comes for it may end here.
            drop(connection);
            return self.remove(slot);
        }
        self.windows.release(slot, &mut connection.promise);
        let time_wait = TimeWaitSocket {
            state,
            tuple: connection.tuple,
            next_hop: connection.next_hop,
        };
        drop(connection);
        self.sockets.keep_time_wait_only(slot, time_wait);
    }

    /// Takes a socket out of the table for good. Its tokens must be home.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(SocketKind::Connection(mut connection)) = self.sockets.remove(slot) {
            self.windows.release(slot, &mut connection.promise);
        }
    }

    /// Lets the time of a socket come.
    pub(crate) fn on_timer(&mut self, slot: u32, now: Instant) {
        let Some(mut socket) = self.sockets.at_mut(slot) else {
            return;
        };
        match &mut *socket {
            SocketKind::Connection(connection) => {
                let disposition = connection.conn.on_timer(now);
                drop(socket);
                self.note(disposition);
                self.speak(slot, Burst::GoesOn, now);
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

    fn repeat_syn_acks(&mut self, slot: u32, now: Instant) {
        loop {
            let Some(mut listener) = self.sockets.listener_at(slot) else {
                return;
            };
            let link = listener.link;
            let Some((endpoints, segment)) = listener.half_open.poll_send(link, now) else {
                let next = listener.half_open.next_timer();
                return listener.arm(next);
            };
            let (options, tuple) = (
                listener.options,
                crate::stack::four_tuple(endpoints.local, endpoints.remote),
            );
            drop(listener);
            self.network
                .send_syn_ack(&tuple, None, &options, segment, now);
        }
    }

    /// Passes an ICMP error on; returns whether a connection has the quoted segment under way.
    pub(crate) fn connection_icmp(
        &mut self,
        tuple: &FourTuple,
        quoted: SeqNum,
        kind: IcmpKind,
        now: Instant,
    ) -> bool {
        let Some(slot) = self.sockets.names().connection(tuple) else {
            return false;
        };
        let Some(mut connection) = self.sockets.connection_at(slot) else {
            return false;
        };
        match kind {
            IcmpKind::TooBig { mtu } => {
                let Some(mtu) = believable_mtu(tuple.src_ip, mtu) else {
                    return false;
                };
                let mss = mtu - headers_for(tuple.src_ip);
                let is_believed = connection.conn.on_mtu(mss, quoted, now);
                drop(connection);
                if is_believed {
                    self.network.note_path_mss(tuple.src_ip, mss, now);
                }
                self.speak(slot, Burst::GoesOn, now);
                is_believed
            }
            IcmpKind::Unreachable(what) => {
                let disposition = connection.conn.on_unreachable(what, quoted);
                drop(connection);
                self.follow(slot, disposition, now);
                true
            }
        }
    }

    /// Tells a connection that its neighbour does not answer.
    pub(crate) fn neighbor_failed(&mut self, owner: SocketId, quoted: SeqNum, now: Instant) {
        let Ok(Some(mut connection)) = self.sockets.connection_mut(owner) else {
            return;
        };
        let disposition = connection.conn.on_unreachable(Unreachable::Host, quoted);
        let ended = settle(&mut connection, now);
        drop(connection);
        self.note(disposition);
        self.follow_end(owner.slot(), ended);
    }
}

/// Sends all that a connection may send now.
fn send_all(connection: &mut ConnectionMut<'_>, network: &mut Network, now: Instant) {
    let speaker = Speaker::Connection(connection.id());
    while network.nic().tx_room() > 0 {
        let Some(segment) = connection.conn.poll_send(now) else {
            return;
        };
        let egress = Egress {
            next_hop: connection.next_hop,
            tos: connection.options.tos,
            hop_limit: connection.options.hop_limit,
        };
        network.send_segment(&connection.tuple, egress, speaker, segment, now);
    }
    // The link is busy: the rest waits for the next poll, unsent and uncounted.
    connection.touch();
}

/// Promises a connection what it may be promised now.
fn update_window(
    slot: u32,
    connection: &mut ConnectionSocket,
    windows: &mut Windows,
    network: &mut Network,
) {
    let nic = network.nic_mut();
    let queue = RxQueueId(u16::try_from(connection.promise.queue()).unwrap_or(u16::MAX));
    let free = nic.rx_space(queue).bytes as u64;
    connection.relax(nic, RxMemory::Queue(queue));
    let ask = Ask {
        outstanding: connection.conn.rcv_outstanding().into(),
        most: u64::from(connection.options.rcv_buf).saturating_sub(connection.unread()),
        delivered: connection.delivered(),
        mss: nic.mtu() - headers_for(connection.tuple.src_ip),
    };
    if free >= u64::from(ask.mss) {
        connection.conn.restore_rcv_window();
    }
    let granted = windows.grant(slot, &mut connection.promise, free, ask);
    let space = granted + connection.conn.out_of_order_len() as u64;
    connection
        .conn
        .set_rcv_space(u32::try_from(space).unwrap_or(u32::MAX));
}

/// Arms a connection's timer, and notes which of its sends are over; returns what has become of it.
///
/// A time that has come already counts as coming right after now: it is the next poll's affair,
/// and this one ends.
fn settle(connection: &mut ConnectionMut<'_>, now: Instant) -> (StateKind, Holder) {
    let soon = now + TIMER_GRANULARITY;
    let armed = connection.armed().filter(|&armed| armed < soon);
    // What is overdue and armed already is not put off: a socket that is touched in
    // every poll would never see its timer fire.
    let next = connection.conn.next_timer().map(|next| match armed {
        Some(armed) if next < soon => armed,
        _ => next.max(soon),
    });
    connection.arm(next);
    let acked = connection.acked_offset();
    connection.errors.collect(acked);
    connection.note_times(now);
    connection.note_draining();
    (connection.conn.state(), connection.holder)
}

/// Returns the path MTU that an ICMP error may have us believe.
fn believable_mtu(peer: IpAddr, told: Option<u32>) -> Option<u16> {
    let least = if peer.is_ipv4() {
        MIN_PMTU_V4
    } else {
        MIN_PMTU_V6
    };
    match told {
        Some(mtu) if peer.is_ipv6() && mtu < least => None,
        // A router from before RFC 1191 names none; the smallest will do.
        told => Some(u16::try_from(told.unwrap_or(least).max(least)).unwrap_or(u16::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_path_mtus_are_not_believed() {
        let (v4, v6) = (
            IpAddr::from([10, 0, 0, 1]),
            IpAddr::from([0x2001, 0, 0, 0, 0, 0, 0, 1]),
        );
        assert_eq!(believable_mtu(v4, Some(1400)), Some(1400));
        assert_eq!(believable_mtu(v4, Some(68)), Some(552));
        assert_eq!(believable_mtu(v4, None), Some(552));
        assert_eq!(believable_mtu(v4, Some(1 << 20)), Some(u16::MAX));
        assert_eq!(believable_mtu(v6, Some(1280)), Some(1280));
        assert_eq!(believable_mtu(v6, Some(1279)), None);
    }
}
