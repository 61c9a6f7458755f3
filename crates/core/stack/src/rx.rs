//! Received packets: finds the connection or listener, and passes the segment to it.

use netmem::{FragList, Payload};
use nic::{Origin, Placed, RxPacket};
use steer::RxQueueId;
use tcp::{Control, Disposition, ListenOutcome, Segment, SeqNum};
use wire::{
    Ecn, FourTuple, Instant, MacAddr, Network, RxHeaders, TcpFlags, TcpHeader, Transport, protocol,
};

use crate::Stack;
use crate::demux::TupleOwner;
use crate::direct::{AfterPlacing, Placing};
use crate::drops::DropReason;
use crate::route::Destination;
use crate::socket::SocketKind;
use crate::stack::Burst;

/// A received TCP segment with its four-tuple and its origin.
pub(crate) struct ReceivedSegment {
    pub(crate) tuple: FourTuple,
    /// Station that sent the frame; `None`: this host, or not the address of a station.
    pub(crate) from: Option<MacAddr>,
    pub(crate) queue: RxQueueId,
    pub(crate) segment: Segment<FragList>,
    /// Its payload found no memory: the segment is here without it.
    pub(crate) is_unplaced: bool,
    /// The urgent pointer, if it is significant.
    pub(crate) urgent: Option<u16>,
}

impl Stack {
    /// Handles one packet from the NIC.
    pub(crate) fn receive(&mut self, packet: RxPacket, now: Instant) {
        match packet.headers.network {
            Network::Arp => {
                let payload = packet.payload.into_frags();
                let ethernet = &packet.headers.ethernet;
                self.network
                    .receive_arp(ethernet, &payload, packet.origin, now);
                self.network.recycle(payload);
            }
            Network::Ipv4(_) | Network::Ipv6(_) => self.receive_ip(packet, now),
            Network::Other => self.drop_packet(packet, DropReason::UnhandledProtocol),
        }
    }

    /// Checks the addresses and protocol of an IP packet, and passes it on.
    fn receive_ip(&mut self, packet: RxPacket, now: Instant) {
        let (headers, origin) = (&packet.headers, packet.origin);
        let (Some(src), Some(dst)) = (headers.src_ip(), headers.dst_ip()) else {
            return self.drop_packet(packet, DropReason::UnhandledProtocol);
        };
        let destination = self.network.routes().destination(dst);
        // Duplicate address detection sends solicitations from the unspecified address (RFC 4862 5.4.2), and advertisements from the
        // address that two stations have.
        let may_be_discovery = (src.is_unspecified() || self.network.routes().is_ours(src))
            && matches!(headers.transport, Transport::Other(protocol::ICMPV6));
        if destination == Destination::Other {
            return self.drop_packet(packet, DropReason::IpNotForUs);
        }
        // A local source address is valid in packets that were sent to this host by itself, and forged in others.
        let is_own = origin == Origin::Loop && self.network.routes().is_ours(src);
        if self.network.routes().is_martian_source(src) && !is_own && !may_be_discovery {
            return self.drop_packet(packet, DropReason::IpMartianSource);
        }
        match headers.transport {
            Transport::Tcp(tcp) => {
                let is_single =
                    destination == Destination::Ours && !headers.ethernet.dst.is_multicast();
                match headers.four_tuple().filter(|_| is_single) {
                    Some(tuple) => self.receive_tcp_packet(tuple, &tcp, packet, now),
                    None => self.drop_packet(packet, DropReason::TcpGroupDestination),
                }
            }
            Transport::Other(number) => {
                let (headers, payload) = (packet.headers, packet.payload.into_frags());
                self.receive_other(number, &headers, payload, origin, now);
            }
            Transport::Udp(_) | Transport::None => {
                self.drop_packet(packet, DropReason::IpNoProtocol);
            }
            Transport::Fragment => self.drop_packet(packet, DropReason::IpFragment),
        }
    }

    fn drop_packet(&mut self, packet: RxPacket, reason: DropReason) {
        self.network
            .drop_packet(packet.payload.into_frags(), reason);
    }

    /// Passes on a TCP segment that is for this host alone.
    fn receive_tcp_packet(
        &mut self,
        tuple: FourTuple,
        tcp: &TcpHeader,
        packet: RxPacket,
        now: Instant,
    ) {
        let RxPacket {
            queue,
            headers,
            payload,
            segments,
            origin: _,
        } = packet;
        let (payload, is_unplaced) = match payload {
            Placed::Whole(frags) => (frags, false),
            Placed::Unplaced => (FragList::new(), true),
            Placed::Failed(error) => return self.device_failed(&tuple, *error, now),
        };
        let incoming = ReceivedSegment {
            tuple,
            from: self.network.station(headers.ethernet.src),
            queue,
            segment: into_segment(tcp, headers.ecn(), segments, payload),
            is_unplaced,
            urgent: tcp.flags.contains(TcpFlags::URG).then_some(tcp.urgent),
        };
        self.receive_tcp(incoming, now);
    }

    fn receive_other(
        &mut self,
        number: u8,
        headers: &RxHeaders,
        payload: FragList,
        origin: Origin,
        now: Instant,
    ) {
        match (headers.network, number) {
            (Network::Ipv4(ip), protocol::ICMP) => {
                self.receive_icmpv4(&headers.ethernet, &ip, &payload, now)
            }
            (Network::Ipv6(ip), protocol::ICMPV6) => {
                self.receive_icmpv6(&headers.ethernet, &ip, &payload, origin, now)
            }
            _ => self.network.count(DropReason::IpNoProtocol),
        }
        self.network.recycle(payload);
    }

    /// Finds the connection or listener of a segment; a miss is answered by a RST.
    fn receive_tcp(&mut self, incoming: ReceivedSegment, now: Instant) {
        match self.sockets.lookup(&incoming.tuple) {
            Some(TupleOwner::Connection(slot)) => self.connection_segment(slot, incoming, now),
            // The peer sends the payload again; there is no connection yet. The NIC has counted the drop. A SYN counts
            // without its payload.
            _ if incoming.is_unplaced && incoming.segment.control != Control::Syn => {}
            Some(TupleOwner::Listener(slot)) => self.listener_segment(slot, incoming, None, now),
            None => self.refuse(incoming, now),
        }
    }

    /// Answers a segment without a connection or listener by a RST.
    fn refuse(&mut self, incoming: ReceivedSegment, now: Instant) {
        let ReceivedSegment {
            tuple,
            from,
            segment,
            queue: _,
            is_unplaced: _,
            urgent: _,
        } = incoming;
        let reset = Segment::reset_for(&segment, segment.payload.len());
        self.network
            .drop_packet(segment.payload, DropReason::TcpNoSocket);
        if let Some(reset) = reset {
            self.network.send_control(&tuple, from, reset, now);
        }
    }

    /// Passes a segment to its connection and follows the disposition.
    fn connection_segment(&mut self, slot: u32, incoming: ReceivedSegment, now: Instant) {
        let ReceivedSegment {
            tuple,
            from,
            queue,
            segment,
            is_unplaced,
            urgent,
        } = incoming;
        let Some(mut socket) = self.sockets.at_mut(slot) else {
            return;
        };
        // A SYN may open a new connection between the same endpoints, if this one is in TIME-WAIT.
        let syn = (segment.control == Control::Syn).then(|| without_payload(&segment));
        let mut learned = None;
        let disposition = match &mut *socket {
            SocketKind::Connection(connection) => {
                let (len, windows) = (segment.payload.len(), &mut self.memory.windows);
                connection.note_arrival(slot, queue.index(), len, windows);
                connection.note_time(segment.seq, len, now);
                connection.note_urgent(segment.seq, urgent);
                let (conn, settings) = (&mut connection.conn, &connection.options.tcp);
                let disposition = match is_unplaced {
                    false => conn.on_segment(segment, settings, now),
                    true => conn.on_unplaced(segment, settings, now),
                };
                if disposition.established {
                    learned = connection.conn.take_learned();
                }
                let after = Placing::follow(connection, &mut self.network);
                self.pause |= after == AfterPlacing::Pause;
                disposition
            }
            SocketKind::TimeWait(time_wait) => time_wait.state.on_segment(&segment, now),
            SocketKind::Listener(_) => return,
        };
        drop(socket);
        if let Some(learned) = learned {
            self.tcp.fast_open.learn(tuple.src_ip, &learned);
        }
        if let (Some(iss), Some(segment)) = (disposition.reopen, syn)
            && let Some(listener) = self.sockets.names().listener(&tuple)
        {
            self.forget_name(slot);
            return self.listener_segment(
                listener,
                ReceivedSegment {
                    tuple,
                    from,
                    queue,
                    segment,
                    is_unplaced,
                    urgent,
                },
                Some(iss),
                now,
            );
        }
        self.follow(slot, disposition, now);
    }

    /// Follows the disposition of a segment. Work that is not urgent is done at the end of the burst.
    pub(crate) fn follow(&mut self, slot: u32, disposition: Disposition, now: Instant) {
        self.note(disposition);
        if let Some(mut socket) = self.sockets.at_mut(slot) {
            socket.note_arrivals();
        }
        if disposition.reply || disposition.closed {
            self.serve(slot, Burst::GoesOn, now);
        }
    }

    /// Counts a dropped segment. Other changes are reported when the connection's guard is dropped.
    pub(crate) fn note(&mut self, disposition: Disposition) {
        if let Some(reason) = disposition.drop {
            self.network.count_segment(reason);
        }
    }

    /// Passes a segment to a listener. The end of a handshake creates a connection.
    fn listener_segment(
        &mut self,
        slot: u32,
        incoming: ReceivedSegment,
        iss_floor: Option<SeqNum>,
        now: Instant,
    ) {
        let ReceivedSegment {
            tuple,
            from,
            queue,
            segment,
            ..
        } = incoming;
        let free = self.network.rx_free(queue.index());
        let (link, is_full) = (
            self.network.link_limits(tuple.src_ip),
            self.sockets.is_full(),
        );
        let Some(mut listener) = self.sockets.listener_at(slot) else {
            return;
        };
        let half_open = listener.half_open.len();
        let windows = &mut self.memory.windows;
        let space = windows.newcomer(queue.index(), free, link.mss, half_open);
        listener.half_open.set_rcv_space(space);
        let accept_queue = match is_full {
            true => tcp::AcceptQueue::Full,
            false => listener.accept_queue(),
        };
        let path = self.network.path(tuple.src_ip, now);
        let (arrived, options) = (segment.payload.len(), listener.options);
        let facts = tcp::Incoming {
            settings: &options.tcp,
            link,
            path_mss: path.map(|path| path.mss),
            accept_queue,
            iss_floor,
        };
        let outcome = listener
            .half_open
            .on_segment(&endpoints(&tuple), segment, facts, now);
        let next = listener.half_open.next_timer();
        listener.arm(next);
        drop(listener);
        match outcome {
            ListenOutcome::Dropped(reason) => self.network.count_segment(reason),
            ListenOutcome::Reply(reply, reason) => {
                reason
                    .into_iter()
                    .for_each(|reason| self.network.count_segment(reason));
                self.network
                    .send_syn_ack(&tuple, from, &options, reply, now);
            }
            ListenOutcome::Accepted(conn, disposition) => {
                let Some(accepted) = self.accepted(slot, *conn, tuple) else {
                    return;
                };
                if let Some(mut connection) = self.sockets.connection_at(accepted) {
                    connection.take_path(path);
                    let windows = &mut self.memory.windows;
                    connection.note_arrival(accepted, queue.index(), arrived, windows);
                    connection.note_first_time(now);
                }
                self.follow(accepted, disposition, now);
            }
        }
    }
}

/// Returns the segment of a TCP header and its payload.
fn into_segment(tcp: &TcpHeader, ecn: Ecn, packets: u16, payload: FragList) -> Segment<FragList> {
    let TcpHeader {
        seq,
        ack,
        flags,
        window,
        options,
        src_port: _,
        dst_port: _,
        urgent: _,
        header_len: _,
    } = *tcp;
    let has = |flag| flags.contains(flag);
    Segment {
        seq: SeqNum(seq),
        ack: has(TcpFlags::ACK).then_some(SeqNum(ack)),
        control: Control::from_flags(has(TcpFlags::SYN), has(TcpFlags::FIN), has(TcpFlags::RST)),
        fin_after_syn: has(TcpFlags::SYN) && has(TcpFlags::FIN),
        push: has(TcpFlags::PSH),
        ece: has(TcpFlags::ECE),
        cwr: has(TcpFlags::CWR),
        ae: has(TcpFlags::AE),
        ecn,
        window,
        options,
        payload,
        gso_size: 0,
        packets,
    }
}

fn without_payload(segment: &Segment<FragList>) -> Segment<FragList> {
    Segment {
        payload: FragList::default(),
        ..*segment
    }
}

/// Returns the endpoints of a four-tuple of received packets.
pub(crate) fn endpoints(tuple: &FourTuple) -> tcp::Endpoints {
    tcp::Endpoints {
        local: std::net::SocketAddr::new(tuple.dst_ip, tuple.dst_port),
        remote: std::net::SocketAddr::new(tuple.src_ip, tuple.src_port),
    }
}
