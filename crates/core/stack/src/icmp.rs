//! ICMP: replies to echo requests, passes errors on to their connections, receives neighbour discovery.
//!
//! An error may be forged. It reaches a connection only if the packet that it quotes may be in flight;
//! the connection then applies RFC 5927 (see `tcp`).

use std::net::IpAddr;

use netmem::{FragList, Payload};
use nic::{HeadBuf, Nic, Origin, RateLimit, TxPacket};
use tcp::Unreachable;
use wire::{
    Echo, EchoKind, EtherType, Instant, IpRepr, MacAddr, Quoted, RxHeaders, Undelivered,
    emit_frame_headers, protocol,
};

use crate::drops::DropReason;
use crate::memory::SendPools;
use crate::network::Network;
use crate::route::{Destination, is_unicast};

/// Echo requests answered per second, and errors passed on per second (linux `icmp_msgs_per_sec`).
///
/// The two limits are separate, so that a flood of echo requests does not suppress errors. Neighbour
/// discovery has no limit, as ARP has none: only hosts of the link can send it.
const MESSAGES_PER_SECOND: u64 = 1000;

/// Maximum burst of messages (linux `icmp_msgs_burst`).
const BURST: u64 = 50;

/// Bytes of the longest ICMP message: the maximum of an IP packet.
const MAX_MESSAGE_BYTES: usize = 65_535;

/// Rate limits and buffers of ICMP.
pub(crate) struct Icmp {
    echo_limit: RateLimit,
    pub(crate) error_limit: RateLimit,
    /// The received message.
    message: Vec<u8>,
    /// The reply to it.
    reply: Vec<u8>,
}

/// Meaning of an ICMP error for the segment that it quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IcmpErrorKind {
    /// The packet was too big for a link with this MTU; `None`: the router did not report the MTU.
    TooBig { mtu: Option<u32> },
    /// The packet could not be delivered.
    Unreachable(Unreachable),
}

/// The parts of the stack that handle a message.
pub(crate) struct IcmpContext<'a> {
    pub(crate) nic: &'a mut Nic,
    pub(crate) network: &'a mut Network,
    /// Host memory for replies.
    pub(crate) send_pools: &'a mut SendPools,
    pub(crate) origin: Origin,
    pub(crate) now: Instant,
}

/// An error about a packet that this stack may have sent.
pub(crate) struct IcmpError {
    pub(crate) kind: IcmpErrorKind,
    pub(crate) quoted: Option<Quoted>,
}

impl Icmp {
    pub(crate) fn new() -> Self {
        Self {
            echo_limit: RateLimit::new(MESSAGES_PER_SECOND, BURST),
            error_limit: RateLimit::new(MESSAGES_PER_SECOND, BURST),
            message: Vec::with_capacity(MAX_MESSAGE_BYTES),
            reply: Vec::new(),
        }
    }

    /// Handles the message of a packet with these headers; returns the error that it reports.
    pub(crate) fn receive(
        &mut self,
        cx: IcmpContext<'_>,
        headers: &RxHeaders,
        payload: &FragList,
    ) -> Option<IcmpError> {
        let mut message = std::mem::take(&mut self.message);
        let error = match read(payload, &mut message) {
            true => self.on_message(cx, headers, &message),
            false => cx.ignore(DropReason::IcmpInvalid),
        };
        self.message = message;
        error
    }

    fn on_message(
        &mut self,
        cx: IcmpContext<'_>,
        headers: &RxHeaders,
        message: &[u8],
    ) -> Option<IcmpError> {
        let parsed = match &headers.network {
            wire::Network::Ipv4(_) => wire::Icmp::parse_v4(message),
            wire::Network::Ipv6(ip) => wire::Icmp::parse_v6(ip, message),
            wire::Network::Arp | wire::Network::Other => return None,
        };
        let addresses = headers.src_ip().zip(headers.dst_ip());
        let (Ok(message), Some((peer, local))) = (parsed, addresses) else {
            return cx.ignore(DropReason::IcmpInvalid);
        };
        let is_discovery = matches!(
            message,
            wire::Icmp::NeighborSolicitation(_) | wire::Icmp::NeighborAdvertisement(_)
        );
        // Another station that has a local address says so from that address.
        let is_forged = cx.origin != Origin::Loop && cx.network.routes().is_ours(peer);
        if is_forged && !is_discovery {
            return cx.ignore(DropReason::IpMartianSource);
        }
        let (from, origin, now) = (headers.ethernet.src, cx.origin, cx.now);
        match (message, peer) {
            (wire::Icmp::EchoRequest(echo), _) => {
                let from = cx.network.station(from);
                self.answer_echo(cx, local, peer, from, &echo);
            }
            (wire::Icmp::NeighborSolicitation(asked), IpAddr::V6(peer)) => {
                cx.network
                    .on_solicitation(cx.nic, from, peer, &asked, origin, now);
            }
            (wire::Icmp::NeighborAdvertisement(told), _) => {
                cx.network
                    .on_advertisement(cx.nic, from, &told, origin, now);
            }
            (wire::Icmp::Undelivered { why, quoted }, _) => match meaning(why, peer.is_ipv4()) {
                Some(kind) => return Some(IcmpError { kind, quoted }),
                None => return cx.ignore(DropReason::IcmpIgnored),
            },
            _ => return cx.ignore(DropReason::IcmpIgnored),
        }
        None
    }

    /// Replies to an echo request for a local address. Requests to a broadcast or multicast address are ignored
    /// (RFC 1122 3.2.2.6).
    fn answer_echo(
        &mut self,
        cx: IcmpContext<'_>,
        local: IpAddr,
        peer: IpAddr,
        from: Option<MacAddr>,
        echo: &Echo<'_>,
    ) {
        let IcmpContext {
            nic,
            network,
            send_pools,
            origin: _,
            now,
        } = cx;
        if network.routes().destination(local) != Destination::Ours {
            return network.drops.count(DropReason::IcmpIgnored);
        }
        if !is_unicast(peer) {
            // Only neighbour discovery may have an unspecified source (RFC 4443 2.2, RFC 4291 2.5.2).
            return network.drops.count(DropReason::IpMartianSource);
        }
        if !self.echo_limit.allow(now) {
            return network.drops.count(DropReason::IcmpRateLimited);
        }
        let reply = &mut self.reply;
        reply.resize(echo.message_len(), 0);
        let (number, ethertype, ip) = match (local, peer) {
            (IpAddr::V4(local), IpAddr::V4(peer)) => {
                echo.emit_v4(EchoKind::Reply, reply);
                (protocol::ICMP, EtherType::IPV4, IpRepr::v4(local, peer))
            }
            (IpAddr::V6(local), IpAddr::V6(peer)) => {
                echo.emit_v6(EchoKind::Reply, local, peer, reply);
                (protocol::ICMPV6, EtherType::IPV6, IpRepr::v6(local, peer))
            }
            _ => return,
        };
        let Some(payload) = send_pools.copy(reply) else {
            return network.drops.count(DropReason::TxNoMemory);
        };
        let ethernet = network.ethernet(MacAddr::default(), ethertype);
        let head =
            HeadBuf::with(|out| emit_frame_headers(&ethernet, &ip, number, payload.len(), out));
        let packet = TxPacket {
            head,
            payload,
            checksum: None,
            gso_size: 0,
        };
        network.output(nic, peer, from, packet, now);
    }
}

impl IcmpContext<'_> {
    /// Counts a message that is not used.
    fn ignore(self, reason: DropReason) -> Option<IcmpError> {
        self.network.drops.count(reason);
        None
    }
}

/// Copies a message to `buffer`; returns false if it is not in host memory.
fn read(payload: &FragList, buffer: &mut Vec<u8>) -> bool {
    buffer.clear();
    buffer.resize(payload.len(), 0);
    payload.copy_to(buffer).is_ok()
}

/// Returns what an error means for the connection, if anything.
fn meaning(why: Undelivered, is_v4: bool) -> Option<IcmpErrorKind> {
    let what = match why {
        Undelivered::TooBig { mtu } => return Some(IcmpErrorKind::TooBig { mtu }),
        Undelivered::Unreachable { code } if is_v4 => unreachable_v4(code)?,
        Undelivered::Unreachable { code } => unreachable_v6(code),
        Undelivered::TimeExceeded => Unreachable::Host,
    };
    Some(IcmpErrorKind::Unreachable(what))
}

/// Returns the meaning of a code of "destination unreachable" (RFC 1122 4.2.3.9).
fn unreachable_v4(code: u8) -> Option<Unreachable> {
    match code {
        // Net unreachable, unknown, prohibited, for this type of service.
        0 | 6 | 9 | 11 => Some(Unreachable::Net),
        // Host unreachable, source route failed, unknown, isolated, prohibited, ...
        1 | 5 | 7 | 8 | 10 | 12..=15 => Some(Unreachable::Host),
        2 => Some(Unreachable::Protocol),
        3 => Some(Unreachable::Port),
        _ => None,
    }
}

/// Returns the meaning of a code of ICMPv6 "destination unreachable" (RFC 4443 3.1).
fn unreachable_v6(code: u8) -> Unreachable {
    match code {
        0 => Unreachable::Net,
        4 => Unreachable::Port,
        _ => Unreachable::Host,
    }
}
