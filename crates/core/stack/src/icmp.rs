//! ICMP: answers echo, passes errors on to the connections they are about, speaks neighbour
//! discovery.
//!
//! An error is only a claim. It reaches a connection if the packet it quotes is one that the
//! connection may have under way; what the connection makes of it is RFC 5927's business (see
//! `tcp`).

use std::net::IpAddr;

use netmem::{FragList, Payload};
use nic::{HeadBuf, TxPacket};
use tcp::Unreachable;
use wire::{
    Echo, EchoKind, EtherType, EthernetHeader, FourTuple, Icmpv4, Icmpv6, Instant, IpRepr,
    Ipv4Header, Ipv6Header, MacAddr, Quoted, emit_frame_headers, protocol,
};

use crate::Stack;
use crate::connection::IcmpKind;
use crate::drops::DropReason;
use crate::route::{Destination, is_unicast};

/// Echo requests answered in a second (linux `icmp_msgs_per_sec`), and as many errors passed on.
///
/// Each has a bucket of its own, so that a flood of pings silences no router. Neighbour discovery,
/// which only the link's own hosts can send, has no limit, as ARP has none.
pub(crate) const MESSAGES_PER_SECOND: u64 = 1000;

/// Messages that may come at once (linux `icmp_msgs_burst`).
pub(crate) const BURST: u64 = 50;

/// What an error says has happened to a packet of ours.
struct Complaint {
    kind: IcmpKind,
    quoted: Option<Quoted>,
}

impl Stack {
    /// Deals with an ICMP message over IPv4.
    pub(crate) fn receive_icmpv4(
        &mut self,
        ethernet: &EthernetHeader,
        ip: &Ipv4Header,
        payload: &FragList,
        now: Instant,
    ) {
        let mut buffer = std::mem::take(&mut self.scratch);
        if read(payload, &mut buffer) {
            match Icmpv4::parse(&buffer) {
                Ok(message) => self.on_icmpv4(ethernet, ip, &message, now),
                Err(_) => self.network.count(DropReason::IcmpInvalid),
            }
        } else {
            self.network.count(DropReason::IcmpInvalid);
        }
        self.scratch = buffer;
    }

    /// Deals with an ICMP message over IPv6.
    pub(crate) fn receive_icmpv6(
        &mut self,
        ethernet: &EthernetHeader,
        ip: &Ipv6Header,
        payload: &FragList,
        now: Instant,
    ) {
        let mut buffer = std::mem::take(&mut self.scratch);
        if read(payload, &mut buffer) {
            match Icmpv6::parse(ip, &buffer) {
                Ok(message) => self.on_icmpv6(ethernet, ip, &message, now),
                Err(_) => self.network.count(DropReason::IcmpInvalid),
            }
        } else {
            self.network.count(DropReason::IcmpInvalid);
        }
        self.scratch = buffer;
    }

    fn on_icmpv4(
        &mut self,
        ethernet: &EthernetHeader,
        ip: &Ipv4Header,
        message: &Icmpv4<'_>,
        now: Instant,
    ) {
        match *message {
            Icmpv4::EchoRequest(echo) => {
                let from = self.network.station(ethernet.src);
                self.answer_echo(ip.dst.into(), ip.src.into(), from, &echo, now);
            }
            Icmpv4::DestinationUnreachable {
                code: 4,
                mtu,
                quoted,
            } => {
                self.on_complaint(
                    Complaint {
                        kind: IcmpKind::TooBig {
                            mtu: mtu.map(u32::from),
                        },
                        quoted,
                    },
                    now,
                );
            }
            Icmpv4::DestinationUnreachable { code, quoted, .. } => match unreachable_v4(code) {
                Some(kind) => self.on_complaint(Complaint { kind, quoted }, now),
                None => self.network.count(DropReason::IcmpIgnored),
            },
            Icmpv4::TimeExceeded { quoted, .. } => {
                self.on_complaint(
                    Complaint {
                        kind: IcmpKind::Unreachable(Unreachable::Host),
                        quoted,
                    },
                    now,
                );
            }
            Icmpv4::EchoReply(_) | Icmpv4::Other { .. } => {
                self.network.count(DropReason::IcmpIgnored)
            }
        }
    }

    fn on_icmpv6(
        &mut self,
        ethernet: &EthernetHeader,
        ip: &Ipv6Header,
        message: &Icmpv6<'_>,
        now: Instant,
    ) {
        match *message {
            Icmpv6::EchoRequest(echo) => {
                let from = self.network.station(ethernet.src);
                self.answer_echo(ip.dst.into(), ip.src.into(), from, &echo, now);
            }
            Icmpv6::PacketTooBig { mtu, quoted } => {
                self.on_complaint(
                    Complaint {
                        kind: IcmpKind::TooBig { mtu: Some(mtu) },
                        quoted,
                    },
                    now,
                );
            }
            Icmpv6::DestinationUnreachable { code, quoted } => {
                self.on_complaint(
                    Complaint {
                        kind: unreachable_v6(code),
                        quoted,
                    },
                    now,
                );
            }
            Icmpv6::TimeExceeded { quoted, .. } => {
                self.on_complaint(
                    Complaint {
                        kind: IcmpKind::Unreachable(Unreachable::Host),
                        quoted,
                    },
                    now,
                );
            }
            Icmpv6::NeighborSolicitation(solicitation) => {
                self.network
                    .on_solicitation(ethernet.src, ip.src, &solicitation, now);
            }
            Icmpv6::NeighborAdvertisement(advertisement) => {
                self.network.on_advertisement(&advertisement, now)
            }
            Icmpv6::EchoReply(_) | Icmpv6::Other { .. } => {
                self.network.count(DropReason::IcmpIgnored)
            }
        }
    }

    /// Answers a ping to one of our addresses; one to everybody is nobody's business (RFC 1122
    /// 3.2.2.6).
    fn answer_echo(
        &mut self,
        ours: IpAddr,
        peer: IpAddr,
        from: Option<MacAddr>,
        echo: &Echo<'_>,
        now: Instant,
    ) {
        if self.network.routes().destination(ours) != Destination::Ours {
            return self.network.count(DropReason::IcmpIgnored);
        }
        if !is_unicast(peer) {
            // Neighbour discovery alone may come from nobody (RFC 4443 2.2, RFC 4291 2.5.2).
            return self.network.count(DropReason::IpMartianSource);
        }
        if !self.echo_limit.allow(now) {
            return self.network.count(DropReason::IcmpRateLimited);
        }
        let mut message = std::mem::take(&mut self.reply);
        message.resize(echo.message_len(), 0);
        let (number, ethertype, ip) = match (ours, peer) {
            (IpAddr::V4(ours), IpAddr::V4(peer)) => {
                echo.emit_v4(EchoKind::Reply, &mut message);
                (protocol::ICMP, EtherType::IPV4, IpRepr::v4(ours, peer))
            }
            (IpAddr::V6(ours), IpAddr::V6(peer)) => {
                echo.emit_v6(EchoKind::Reply, ours, peer, &mut message);
                (protocol::ICMPV6, EtherType::IPV6, IpRepr::v6(ours, peer))
            }
            _ => return,
        };
        let payload = FragList::from_host_bytes(&mut self.send_pool, &message);
        self.reply = message;
        let Some(payload) = payload else {
            return self.network.count(DropReason::TxNoMemory);
        };
        let ethernet = self.network.ethernet(MacAddr::default(), ethertype);
        let head =
            HeadBuf::with(|out| emit_frame_headers(&ethernet, &ip, number, payload.len(), out));
        self.network.output(
            peer,
            from,
            TxPacket {
                head,
                payload,
                checksum: None,
                gso_size: 0,
            },
            now,
        );
    }

    /// Passes an error on to the connection whose packet it quotes.
    fn on_complaint(&mut self, complaint: Complaint, now: Instant) {
        if !self.complaints_limit.allow(now) {
            return self.network.count(DropReason::IcmpRateLimited);
        }
        let Complaint { kind, quoted } = complaint;
        let Some(quoted) = quoted.filter(|quoted| quoted.protocol == protocol::TCP) else {
            return self.network.count(DropReason::IcmpIgnored);
        };
        // The quoted packet is one we sent: its source is us.
        let tuple = FourTuple {
            src_ip: quoted.dst,
            dst_ip: quoted.src,
            src_port: quoted.dst_port,
            dst_port: quoted.src_port,
        };
        if !self.connection_icmp(&tuple, tcp::SeqNum(quoted.seq), kind, now) {
            self.network.count(DropReason::IcmpNoConnection);
        }
    }
}

/// Copies a message to `buffer`; false if it is not in host memory.
fn read(payload: &FragList, buffer: &mut Vec<u8>) -> bool {
    buffer.clear();
    buffer.resize(payload.len(), 0);
    let mut rest = buffer.as_mut_slice();
    payload.iter().all(|frag| {
        let (out, behind) = std::mem::take(&mut rest).split_at_mut(frag.len());
        rest = behind;
        frag.is_readable() && frag.copy_to(0, out).is_ok()
    })
}

/// Returns what code of "destination unreachable" means for a connection (RFC 1122 4.2.3.9).
fn unreachable_v4(code: u8) -> Option<IcmpKind> {
    match code {
        // Net unreachable, unknown, prohibited, for this type of service.
        0 | 6 | 9 | 11 => Some(IcmpKind::Unreachable(Unreachable::Net)),
        // Host unreachable, source route failed, unknown, isolated, prohibited, ...
        1 | 5 | 7 | 8 | 10 | 12..=15 => Some(IcmpKind::Unreachable(Unreachable::Host)),
        2 => Some(IcmpKind::Unreachable(Unreachable::Protocol)),
        3 => Some(IcmpKind::Unreachable(Unreachable::Port)),
        _ => None,
    }
}

/// Returns what a code of ICMPv6 "destination unreachable" means for a connection (RFC 4443 3.1).
fn unreachable_v6(code: u8) -> IcmpKind {
    match code {
        0 => IcmpKind::Unreachable(Unreachable::Net),
        4 => IcmpKind::Unreachable(Unreachable::Port),
        _ => IcmpKind::Unreachable(Unreachable::Host),
    }
}
