//! Received packets: finds the connection or listener, and passes the segment to it.

use netmem::{FragList, Payload};
use nic::{Origin, Placed, RxPacket};
use tcp::{Connection, Control, Disposition, ListenOutcome, Segment, SeqNum};
use wire::{Ecn, FourTuple, Instant, Network, RxHeaders, TcpFlags, TcpHeader, Transport, protocol};

use super::Stack;
use crate::drops::DropReason;
use crate::received::ReceivedSegment;
use crate::route::Destination;
use crate::socket::agenda::Mark;
use crate::socket::connection::{ConnectionSocket, Owner};
use crate::socket::demux::TupleOwner;
use crate::socket::kind::SocketKind;
use crate::tuple::endpoints;

impl Stack {
    /// Handles one packet from the NIC: checks the addresses and protocol of an IP packet, and passes it on.
    pub(crate) fn receive(&mut self, packet: RxPacket, now: Instant) {
        let (headers, origin) = (&packet.headers, packet.origin);
        let (Some(src), Some(dst)) = (headers.src_ip(), headers.dst_ip()) else {
            return self.receive_without_ip(packet, now);
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
                    Some(tuple) => self.receive_tcp(tuple, &tcp, packet, now),
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

    fn receive_without_ip(&mut self, packet: RxPacket, now: Instant) {
        if packet.headers.network != Network::Arp {
            return self.drop_packet(packet, DropReason::UnhandledProtocol);
        }
        let payload = packet.payload.into_frags();
        let ethernet = &packet.headers.ethernet;
        self.network
            .receive_arp(&mut self.nic, ethernet, &payload, packet.origin, now);
        self.nic.recycle(payload);
    }

    fn drop_packet(&mut self, packet: RxPacket, reason: DropReason) {
        self.network.drops.count(reason);
        self.nic.recycle(packet.payload.into_frags());
    }

    /// Makes a segment of a TCP packet that is for this host alone, and passes it to its connection or listener; a miss is answered
    /// by a RST.
    fn receive_tcp(&mut self, tuple: FourTuple, tcp: &TcpHeader, packet: RxPacket, now: Instant) {
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
        match self.sockets.names.lookup(&tuple) {
            Some(TupleOwner::Connection(slot)) => self.connection_segment(slot, incoming, now),
            // The peer sends the payload again; there is no connection yet. The NIC has counted the drop. A SYN counts
            // without its payload.
            _ if is_unplaced && incoming.segment.control != Control::Syn => {}
            Some(TupleOwner::Listener(slot)) => self.listener_segment(slot, incoming, None, now),
            None => self.refuse(incoming, now),
        }
    }

    fn receive_other(
        &mut self,
        number: u8,
        headers: &RxHeaders,
        payload: FragList,
        origin: Origin,
        now: Instant,
    ) {
        match (&headers.network, number) {
            (Network::Ipv4(_), protocol::ICMP) | (Network::Ipv6(_), protocol::ICMPV6) => {
                self.receive_icmp(headers, &payload, origin, now)
            }
            _ => self.network.drops.count(DropReason::IpNoProtocol),
        }
        self.nic.recycle(payload);
    }

    /// Answers a segment without a connection or listener by a RST.
    fn refuse(&mut self, incoming: ReceivedSegment, now: Instant) {
        let ReceivedSegment {
            tuple,
            from,
            segment,
            ..
        } = incoming;
        let reset = Segment::reset_for(&segment);
        self.network.drops.count(DropReason::TcpNoSocket);
        self.nic.recycle(segment.payload);
        if let Some(reset) = reset {
            self.network
                .send_control(&mut self.nic, &tuple, from, reset, now);
        }
    }

    /// Passes a segment to its connection and follows the disposition. Work that is not urgent is done at the end of the burst.
    fn connection_segment(&mut self, slot: u32, incoming: ReceivedSegment, now: Instant) {
        let Some(mut socket) = self.sockets.at_mut(slot) else {
            return;
        };
        // A SYN may open a new connection between the same endpoints, if this one is in TIME-WAIT.
        let again = incoming.syn();
        let disposition = match &mut *socket {
            SocketKind::Connection(connection) => {
                let windows = &mut self.memory.windows;
                let disposition = connection.on_segment(slot, incoming, windows, now);
                if disposition.established
                    && let Some(learned) = connection.conn.take_learned()
                {
                    let peer = connection.tuple().src_ip;
                    self.tcp.fast_open.learn(peer, &learned);
                }
                self.pause |= connection.advance_place(&mut self.nic);
                disposition
            }
            SocketKind::TimeWait(time_wait) => time_wait.state.on_segment(&incoming.segment, now),
            SocketKind::Listener(_) => return,
        };
        socket.mark(Mark::Arrivals);
        drop(socket);
        if let (Some(iss), Some(syn)) = (disposition.reopen, again)
            && let Some(listener) = self.sockets.names.listener(&syn.tuple)
        {
            self.forget_name(slot);
            return self.listener_segment(listener, syn, Some(iss), now);
        }
        self.follow(slot, disposition, now);
    }

    /// Counts a segment that was dropped, and serves the connection at once if a reply is due, or it has ended.
    pub(super) fn follow(&mut self, slot: u32, disposition: Disposition, now: Instant) {
        self.network.drops.count_segment(disposition.drop);
        if disposition.reply || disposition.closed {
            self.serve(slot, now);
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
        let free = self.nic.rx_space(queue).bytes as u64;
        let (link, is_full) = (
            self.network.link_limits(&self.nic, tuple.src_ip),
            self.sockets.is_full(),
        );
        let Some(mut listener) = self.sockets.listener_at(slot) else {
            return;
        };
        let half_open = listener.half_open.len();
        let windows = &mut self.memory.windows;
        let space = windows.newcomer(queue, free, link.mss, half_open);
        listener.half_open.set_rcv_space(space);
        let accept_queue = match is_full {
            true => tcp::AcceptQueue::Full,
            false => listener.accept_queue(),
        };
        let path = self.path_mtus.get(tuple.src_ip, now);
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
            ListenOutcome::Dropped(reason) => self.network.drops.count_segment(reason),
            ListenOutcome::Reply(reply, reason) => {
                self.network.drops.count_segment(reason);
                self.network
                    .send_syn_ack(&mut self.nic, &tuple, from, &options, reply, now);
            }
            ListenOutcome::Accepted(conn, disposition) => {
                let Some(accepted) = self.accepted(slot, *conn, tuple) else {
                    return;
                };
                if let Some(mut connection) = self.sockets.connection_at(accepted) {
                    connection.writer.take_path(path);
                    let windows = &mut self.memory.windows;
                    connection.note_first(accepted, queue, arrived, windows, now);
                    connection.mark(Mark::Arrivals);
                }
                self.follow(accepted, disposition, now);
            }
        }
    }

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
            ConnectionSocket::new(conn, from.options, tuple, next_hop, Owner::AcceptQueue);
        // The lookup that led to the listener found no connection.
        let id = self.sockets.insert_connection(connection);
        if let Some(mut listener) = self.sockets.listener_at(listener) {
            listener.push(id);
        }
        self.stats.accepts += 1;
        self.turns += 1;
        Some(id.slot())
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
