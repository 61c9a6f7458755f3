//! Packets on their way in: whose they are, and what they do.

use netmem::{FragList, Payload};
use nic::{Origin, RxPacket};
use steer::RxQueueId;
use tcp::{Control, Disposition, ListenOutcome, Segment, SeqNum};
use wire::{
    Ecn, FourTuple, Instant, MacAddr, Network, RxHeaders, TcpFlags, TcpHeader, Transport, protocol,
};

use crate::Stack;
use crate::demux::Owner;
use crate::drops::DropReason;
use crate::route::Destination;
use crate::socket::SocketKind;
use crate::stack::Burst;

/// A TCP segment with what the connection does not know: who it is for and where it came in.
pub(crate) struct Incoming {
    pub(crate) tuple: FourTuple,
    /// Station that the frame came from; `None`: from ourselves, or from no station's address.
    pub(crate) from: Option<MacAddr>,
    pub(crate) queue: RxQueueId,
    pub(crate) segment: Segment<FragList>,
    /// Payload bytes that found no memory: the segment has none of its payload.
    pub(crate) unplaced: usize,
}

impl Stack {
    /// Deals with one packet from the NIC.
    pub(crate) fn receive(&mut self, packet: RxPacket, now: Instant) {
        match packet.headers.network {
            Network::Arp => {
                self.network
                    .receive_arp(&packet.headers.ethernet, &packet.payload, now);
                self.network.nic_mut().recycle(packet.payload);
            }
            Network::Ipv4(_) | Network::Ipv6(_) => self.receive_ip(packet, now),
            Network::Other => self.drop_packet(packet.payload, DropReason::UnhandledProtocol),
        }
    }

    /// Judges addresses and protocol of an IP packet.
    fn receive_ip(&mut self, packet: RxPacket, now: Instant) {
        let RxPacket {
            queue,
            headers,
            payload,
            unplaced,
            segments,
            origin,
        } = packet;
        let (Some(src), Some(dst)) = (headers.src_ip(), headers.dst_ip()) else {
            return self.drop_packet(payload, DropReason::UnhandledProtocol);
        };
        let destination = self.network.routes().destination(dst);
        // A neighbour that tries an address out asks from the unspecified one.
        let is_solicitation =
            src.is_unspecified() && matches!(headers.transport, Transport::Other(protocol::ICMPV6));
        if destination == Destination::Other {
            return self.drop_packet(payload, DropReason::IpNotForUs);
        }
        // What we sent to ourselves comes from ourselves; from the link it is forged.
        let is_own = origin == Origin::Loop && self.network.routes().is_ours(src);
        if self.network.routes().is_martian_source(src) && !is_own && !is_solicitation {
            return self.drop_packet(payload, DropReason::IpMartianSource);
        }
        match headers.transport {
            Transport::Tcp(tcp) => {
                let is_single =
                    destination == Destination::Ours && !headers.ethernet.dst.is_multicast();
                match headers.four_tuple().filter(|_| is_single) {
                    Some(tuple) => {
                        let segment = into_segment(&tcp, headers.ecn(), segments, payload);
                        self.receive_tcp(
                            Incoming {
                                tuple,
                                from: self.network.station(headers.ethernet.src),
                                queue,
                                segment,
                                unplaced,
                            },
                            now,
                        );
                    }
                    None => self.drop_packet(payload, DropReason::TcpGroupDestination),
                }
            }
            Transport::Other(number) => self.receive_other(number, &headers, payload, now),
            Transport::Udp(_) | Transport::None => {
                self.drop_packet(payload, DropReason::IpNoProtocol)
            }
            Transport::Fragment => self.drop_packet(payload, DropReason::IpFragment),
        }
    }

    fn receive_other(&mut self, number: u8, headers: &RxHeaders, payload: FragList, now: Instant) {
        match (headers.network, number) {
            (Network::Ipv4(ip), protocol::ICMP) => {
                self.receive_icmpv4(&headers.ethernet, &ip, &payload, now)
            }
            (Network::Ipv6(ip), protocol::ICMPV6) => {
                self.receive_icmpv6(&headers.ethernet, &ip, &payload, now)
            }
            _ => self.network.count(DropReason::IpNoProtocol),
        }
        self.network.nic_mut().recycle(payload);
    }

    /// Finds the connection or listener of a segment; a miss is answered by a RST.
    fn receive_tcp(&mut self, incoming: Incoming, now: Instant) {
        match self.sockets.lookup(&incoming.tuple) {
            Some(Owner::Connection(slot)) => self.connection_segment(slot, incoming, now),
            // It comes again; there is nobody who could be told yet. The NIC has counted it.
            _ if incoming.unplaced > 0 => {}
            Some(Owner::Listener(slot)) => self.listener_segment(slot, incoming, None, now),
            None => self.refuse(incoming, now),
        }
    }

    fn refuse(&mut self, incoming: Incoming, now: Instant) {
        let Incoming {
            tuple,
            from,
            segment,
            queue: _,
            unplaced: _,
        } = incoming;
        let reset = Segment::reset_for(&segment, segment.payload.len());
        self.drop_packet(segment.payload, DropReason::TcpNoSocket);
        if let Some(reset) = reset {
            self.network.send_control(&tuple, from, reset, now);
        }
    }

    /// Hands a segment to its connection and does what comes of it.
    fn connection_segment(&mut self, slot: u32, incoming: Incoming, now: Instant) {
        let Incoming {
            tuple,
            from,
            queue,
            segment,
            unplaced,
        } = incoming;
        let Some(mut socket) = self.sockets.at_mut(slot) else {
            return;
        };
        // What a new connection between the same endpoints would begin with, should this one be
        // over.
        let syn = (segment.control == Control::Syn).then(|| without_payload(&segment));
        let disposition = match &mut *socket {
            SocketKind::Connection(connection) => {
                connection.note_arrival(
                    slot,
                    queue.index(),
                    segment.payload.len(),
                    &mut self.windows,
                );
                connection.note_time(segment.seq, segment.payload.len(), now);
                match unplaced {
                    0 => connection.conn.on_segment(segment, now),
                    _ => connection.conn.on_unplaced(segment, now),
                }
            }
            SocketKind::TimeWait(time_wait) => time_wait.state.on_segment(&segment, now),
            SocketKind::Listener(_) => return,
        };
        drop(socket);
        if let (Some(iss), Some(segment)) = (disposition.reopen, syn)
            && let Some(listener) = self.sockets.names().listener(&tuple)
        {
            self.forget_name(slot);
            return self.listener_segment(
                listener,
                Incoming {
                    tuple,
                    from,
                    queue,
                    segment,
                    unplaced,
                },
                Some(iss),
                now,
            );
        }
        self.follow(slot, disposition, now);
    }

    /// Does what a segment's disposition asks for; what can wait waits for the end of the burst.
    pub(crate) fn follow(&mut self, slot: u32, disposition: Disposition, now: Instant) {
        self.note(disposition);
        if let Some(mut socket) = self.sockets.at_mut(slot) {
            socket.note_arrivals();
        }
        if disposition.reply || disposition.closed {
            self.speak(slot, Burst::GoesOn, now);
        }
    }

    /// Counts what was dropped. What else a disposition says has changed is seen when the connection's guard is dropped.
    pub(crate) fn note(&mut self, disposition: Disposition) {
        if let Some(reason) = disposition.drop {
            self.network.count_segment(reason);
        }
    }

    /// Hands a segment to a listener; one that ends a handshake makes a connection.
    fn listener_segment(
        &mut self,
        slot: u32,
        incoming: Incoming,
        iss_floor: Option<SeqNum>,
        now: Instant,
    ) {
        let Incoming {
            tuple,
            from,
            queue,
            segment,
            unplaced: _,
        } = incoming;
        let free = self.rx_free(queue.index());
        let (link, is_full) = (
            self.network.link_limits(tuple.src_ip),
            self.sockets.is_full(),
        );
        let Some(mut listener) = self.sockets.listener_at(slot) else {
            return;
        };
        let half_open = listener.half_open.len();
        let space = self
            .windows
            .newcomer(queue.index(), free, link.mss, half_open);
        let space = space.min(listener.options.rcv_buf);
        listener.half_open.set_rcv_space(space);
        let accept_queue = match is_full {
            true => tcp::AcceptQueue::Full,
            false => listener.accept_queue(),
        };
        let facts = tcp::Incoming {
            link,
            path_mss: self.network.path_mss(tuple.src_ip, now),
            accept_queue,
            iss_floor,
        };
        let (arrived, options) = (segment.payload.len(), listener.options);
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
                    connection.note_arrival(accepted, queue.index(), arrived, &mut self.windows);
                    connection.note_first_time(now);
                }
                self.follow(accepted, disposition, now);
            }
        }
    }

    /// Drops a packet's payload, the fast way home, and counts why.
    fn drop_packet(&mut self, payload: FragList, reason: DropReason) {
        self.network.count(reason);
        self.network.nic_mut().recycle(payload);
    }
}

/// Returns the segment that headers and a payload make.
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
    let Segment {
        seq,
        ack,
        control,
        push,
        ece,
        cwr,
        ae,
        ecn,
        window,
        options,
        payload: _,
        gso_size,
        packets,
    } = *segment;
    Segment {
        seq,
        ack,
        control,
        push,
        ece,
        cwr,
        ae,
        ecn,
        window,
        options,
        payload: FragList::default(),
        gso_size,
        packets,
    }
}

/// Returns the name that TCP knows a connection by.
pub(crate) fn endpoints(tuple: &FourTuple) -> tcp::Endpoints {
    tcp::Endpoints {
        local: std::net::SocketAddr::new(tuple.dst_ip, tuple.dst_port),
        remote: std::net::SocketAddr::new(tuple.src_ip, tuple.src_port),
    }
}
