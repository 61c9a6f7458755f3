//! Failures that connections learn from elsewhere: ICMP errors, silent neighbours, a link that is gone, devices that cannot copy.

use std::net::IpAddr;

use netmem::{DeviceError, FragList};
use tcp::{Connection, SeqNum, TcpError, Unreachable};
use wire::{FourTuple, Instant};

use super::Stack;
use super::serve::finish;
use crate::icmp::IcmpErrorKind;
use crate::path_mtu::{PathMtu, headers_for};
use crate::socket::agenda::Mark;
use crate::socket::connection::ConnectionSocket;
use crate::socket::demux::TupleOwner;
use crate::socket::error::AcceptError;
use crate::socket::id::SocketId;
use crate::tuple::endpoints;

/// Smallest size to which an ICMP error reduces packets over IPv4 (linux `ip_rt_min_pmtu`): a smaller one is
/// probably an attack. If it is genuine, routers have to fragment the packets (linux locks the path MTU, and clears DF).
const MIN_PMTU_V4: u32 = 552;

/// Minimum MTU of a link with IPv6 (RFC 8200 5); an error with a smaller one is discarded (RFC 8201 4): links with less fragment
/// and reassemble below IPv6.
const MIN_PMTU_V6: u32 = 1280;

impl Stack {
    /// Passes an ICMP error on to its connection; returns whether the quoted segment may be in flight.
    pub(crate) fn connection_icmp(
        &mut self,
        tuple: &FourTuple,
        quoted: SeqNum,
        kind: IcmpErrorKind,
        now: Instant,
    ) -> bool {
        let slot = match (self.sockets.names.lookup(tuple), kind) {
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
        let (state, owned_by) = finish(&mut connection, now);
        drop(connection);
        self.network.drops.count_segment(disposition.drop);
        self.end_if_over(owner.slot(), state, owned_by);
    }

    /// Ends the connections to peers behind the link, which is gone for good: retransmissions would go on for minutes. Those
    /// between two local addresses do not need it. Listening sockets accept what is queued, and then fail.
    pub(crate) fn end_connections_of_link(&mut self, now: Instant) {
        let routes = self.network.routes();
        let is_behind = |it: &ConnectionSocket| !routes.is_ours(it.tuple().src_ip);
        self.sockets.end_listeners(AcceptError::LinkGone, |_| true);
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
        let slot = self.sockets.names.connection(tuple);
        self.end_connections(slot, |conn| conn.fail(error), now);
    }
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
