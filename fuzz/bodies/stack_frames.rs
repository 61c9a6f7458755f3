//! Frames of a peer on the link of a whole stack: TCP segments with nearly correct numbers, ICMP errors that quote sent
//! packets, ARP, neighbour discovery and frames of any bytes, while a program accepts, receives, sends and closes.
//!
//! Input: one byte of set-up, then steps: a byte that selects the step, four bytes of arguments, and for some steps a
//! length and bytes.

use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::Duration;

use devmem_uapi::{CmsgWriter, DmabufId, MsgFlags};
use netmem::{Dmabuf, NiovSize};
use netsim::{RawPeer, RawSegment, Side, ip_frame, tcp_frame};
use nic::{Rings, TcpDataSplit};
use stack::{BindRx, RecvMsg, SendMsg, SocketId};
use steer::RxQueueId;
use wire::{
    ArpPacket, Checksum, EthernetHeader, IpRepr, Ipv6Header, RxHeaders, TcpFlags, TcpOptions,
    Timestamps, checksum, protocol,
};

/// Set-up: device memory is bound for receiving.
const BOUND: u8 = 1;
/// Set-up: the stack already has the peer's hardware address.
const INTRODUCED: u8 = 2;
/// Set-up: ECN as a program may request it.
const ECN: u8 = 4;

/// Maximum number of steps of one run, to limit its time.
const MAX_STEPS: usize = 300;
/// Number of connections of the peer, the second half of them over IPv6.
const FLOWS: u8 = 4;
/// Bytes of device memory, in net_iovs of 4 KiB.
const MEMORY: usize = 256 << 10;
const PORT: u16 = 80;
/// Time after which every connection has ended by itself.
const LONG: Duration = Duration::from_secs(1000);

thread_local! {
    /// Kept from run to run, because mapping it takes longer than most runs. A run reads only bytes that the NIC wrote in the
    /// same run.
    static MEMORIES: Dmabuf = Dmabuf::anonymous(MEMORY).expect("a quarter of a MiB");
}

/// Checks that all frames of the stack can be parsed, and that no socket and no net_iov is left at the end.
pub fn run(data: &[u8]) {
    let Some((&setup, mut steps)) = data.split_first() else {
        return;
    };
    let mut world = World::new(setup);
    for _ in 0..MAX_STEPS {
        let [which, a, b, c, d, rest @ ..] = steps else {
            break;
        };
        steps = world.step(*which, [*a, *b, *c, *d], rest);
    }
    world.finish();
}

/// One connection, at the peer.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// The peer's next sequence number.
    next: u32,
    /// End of the data that the stack has sent.
    acked: u32,
}

struct World {
    peer: RawPeer,
    bound: Option<DmabufId>,
    listeners: Vec<SocketId>,
    sockets: Vec<SocketId>,
    flows: [Flow; FLOWS as usize],
    /// The last frame that the stack has sent.
    last: Vec<u8>,
}

impl World {
    fn new(setup: u8) -> Self {
        let mut peer = RawPeer::with(|nic, stack| {
            nic.host_mem_bytes = 1 << 20;
            stack.send_memory_bytes = 1 << 20;
            if setup & ECN != 0 {
                stack.tcp.ecn.policy = tcp::EcnPolicy::Accurate;
            }
        });
        if setup & INTRODUCED != 0 {
            peer.introduce();
        }
        let bound = (setup & BOUND != 0).then(|| bind(&mut peer));
        let own = [Side::B.ipv4(), Side::B.ipv6()];
        let listeners = own.map(|ip| peer.stack.listen(SocketAddr::new(ip, PORT), 2));
        Self {
            listeners: listeners.into_iter().flatten().collect(),
            peer,
            bound,
            sockets: Vec::new(),
            flows: [Flow::default(); FLOWS as usize],
            last: Vec::new(),
        }
    }

    fn step<'a>(&mut self, which: u8, args: [u8; 4], rest: &'a [u8]) -> &'a [u8] {
        let [a, b, c, d] = args;
        let (mut bytes, mut after) = (&rest[..0], rest);
        if let 0 | 1 = which % 8 {
            let len = rest.first().map_or(0, |len| usize::from(*len));
            let behind = rest.get(1..).unwrap_or_default();
            (bytes, after) = behind.split_at(len.min(behind.len()));
        }
        match which % 8 {
            0 => self.raw_frame(a, bytes),
            1 => self.ip_packet(a, b, bytes),
            2 => self.segment(args, &[]),
            3 => self.segment(args, &vec![0x5a; usize::from(d) * 8]),
            4 => self.complaint(args),
            5 => self.arp(args),
            6 => self.program(args),
            _ => {
                let millis = u64::from(a) * u64::from(b).pow(2);
                self.peer
                    .run_for(Duration::from_millis(millis.min(600_000)));
            }
        }
        let _ = c;
        self.watch();
        after
    }

    /// Parses the frames that the stack has sent.
    fn watch(&mut self) {
        while let Some(frame) = self.peer.receive() {
            let headers = RxHeaders::parse(&frame, frame.len());
            let headers = headers.expect("the stack sends frames that parse");
            assert_eq!(headers.ethernet.src, Side::B.mac());
            if let Some(tcp) = headers.tcp() {
                let ports = u16::from(FLOWS);
                let flow = tcp.dst_port.checked_sub(1000).filter(|flow| *flow < ports);
                if let Some(flow) = flow.and_then(|flow| self.flows.get_mut(usize::from(flow))) {
                    let flags = tcp.flags;
                    let numbers = [TcpFlags::SYN, TcpFlags::FIN].map(|flag| flags.contains(flag));
                    let len = headers.payload_len + numbers.iter().filter(|is| **is).count();
                    let len = u32::try_from(len).expect("a frame is short");
                    flow.acked = tcp.seq.wrapping_add(len);
                }
            }
            self.last = frame;
        }
    }

    /// Sends a frame of any bytes. Flags: 1 it has the stack's destination address, 2 the checksum of its IPv4 header is correct.
    fn raw_frame(&mut self, switches: u8, bytes: &[u8]) {
        let mut frame = bytes.to_vec();
        if switches & 1 != 0
            && let Some(mac) = frame.get_mut(..6)
        {
            mac.copy_from_slice(&Side::B.mac().0);
        }
        if switches & 2 != 0
            && let Some(header) = frame.get_mut(EthernetHeader::LEN..EthernetHeader::LEN + 20)
        {
            header[10..12].fill(0);
            let sum = checksum(header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
        }
        self.peer.send(&frame);
    }

    /// Sends an IP packet, in most cases ICMP. Its checksum is correct if `choice` is even.
    fn ip_packet(&mut self, number: u8, choice: u8, payload: &[u8]) {
        let is_v6 = choice & 2 != 0;
        let number = match (number, is_v6) {
            (0..=200, false) => protocol::ICMP,
            (0..=200, true) => protocol::ICMPV6,
            (other, _) => other,
        };
        let from = match (choice >> 2 & 3, is_v6) {
            (0, true) => "::".parse().expect("an address"),
            (1, true) => "ff02::1".parse().expect("an address"),
            (0, false) => "0.0.0.0".parse().expect("an address"),
            (_, is_v6) => address(Side::A, is_v6),
        };
        let mut ip = IpRepr::new(from, address(Side::B, is_v6)).expect("one family");
        // The hop limit that neighbour discovery requires (RFC 4861 7.1).
        if let IpRepr::V6(ip) = &mut ip
            && choice & 16 == 0
        {
            ip.hop_limit = 255;
        }
        let mut payload = payload.to_vec();
        if choice & 1 == 0 {
            mend(&mut payload, &ip, number);
        }
        self.peer.send(&ip_frame(&ip, number, &payload));
    }

    /// Sends a TCP segment, with flow, flags, and the difference of its numbers to the correct ones.
    fn segment(&mut self, [which, flags, seq, window]: [u8; 4], payload: &[u8]) {
        let at = which % FLOWS;
        let is_v6 = at >= FLOWS / 2;
        let flow = &mut self.flows[usize::from(at)];
        let flags = TcpFlags::from_bits_truncate(u16::from(flags));
        let is_syn = flags.contains(TcpFlags::SYN);
        let near = |number: u32, by: u8| number.wrapping_add_signed(i32::from(by.cast_signed()));
        // The upper bits of `which` select the correct number or another one.
        let seq = if which & 0x40 != 0 {
            near(flow.next, seq)
        } else {
            flow.next
        };
        let ack = if which & 0x80 != 0 {
            near(flow.acked, window)
        } else {
            flow.acked
        };
        let segment = RawSegment {
            seq,
            ack,
            flags,
            window: u16::from(window) << 8,
            urgent: 0,
            options: TcpOptions {
                mss: is_syn.then_some(u16::from(window) * 8),
                window_scale: (is_syn && which & 8 != 0).then_some(window % 15),
                sack_permitted: is_syn && which & 16 != 0,
                timestamps: (which & 32 != 0).then_some(Timestamps {
                    value: seq,
                    echo: ack,
                }),
                ..TcpOptions::default()
            },
            payload,
        };
        if seq == flow.next {
            let numbers = usize::from(is_syn) + usize::from(flags.contains(TcpFlags::FIN));
            let len = u32::try_from(payload.len() + numbers).expect("a segment is short");
            flow.next = seq.wrapping_add(len);
        }
        let port = 1000 + u16::from(at);
        let from = SocketAddr::new(address(Side::A, is_v6), port);
        let to = SocketAddr::new(address(Side::B, is_v6), PORT);
        self.peer.send(&tcp_frame(from, to, &segment));
    }

    /// Sends an ICMP error about the last frame of the stack: type, code, the rest of the header, and the length of the quotation.
    fn complaint(&mut self, [kind, code, told, cut]: [u8; 4]) {
        let Some(packet) = self.last.get(EthernetHeader::LEN..) else {
            return;
        };
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let kinds = if is_v6 { [1, 2, 3, 4] } else { [3, 3, 11, 5] };
        let told = u16::from(told) * 8;
        let mut message = vec![kinds[usize::from(kind % 4)], code % 16, 0, 0, 0, 0];
        message.extend(told.to_be_bytes());
        message.extend(&packet[..packet.len().min(usize::from(cut))]);
        let number = if is_v6 {
            protocol::ICMPV6
        } else {
            protocol::ICMP
        };
        let ip = IpRepr::new(address(Side::A, is_v6), address(Side::B, is_v6));
        let ip = ip.expect("one family");
        mend(&mut message, &ip, number);
        self.peer.send(&ip_frame(&ip, number, &message));
    }

    fn arp(&mut self, [choice, sender, target, mac]: [u8; 4]) {
        let ip = |last: u8| std::net::Ipv4Addr::new(10, 77, 0, last % 4);
        let sender_mac = match mac % 4 {
            0 => wire::MacAddr([mac; 6]),
            _ => Side::A.mac(),
        };
        let request = ArpPacket::request(sender_mac, ip(sender), ip(target));
        let arp = match choice & 1 {
            0 => request,
            _ => request.reply(sender_mac),
        };
        let ethernet = EthernetHeader {
            dst: Side::B.mac(),
            src: sender_mac,
            ethertype: wire::EtherType::ARP,
            vlan: None,
        };
        let mut frame = vec![0; 64];
        let len = wire::emit_arp_frame(&ethernet, &arp, &mut frame);
        self.peer.send(&frame[..len]);
    }

    /// Makes a call of the program.
    fn program(&mut self, [what, which, a, b]: [u8; 4]) {
        let now = self.peer.now();
        let stack = &mut self.peer.stack;
        let chosen = usize::from(which) % self.sockets.len().max(1);
        let socket = self.sockets.get(chosen).copied();
        match (what % 8, socket) {
            (0, _) => {
                let accepted = self
                    .listeners
                    .iter()
                    .filter_map(|id| stack.accept(*id).ok());
                self.sockets.extend(accepted.map(|(id, _)| id));
            }
            (1, _) if self.sockets.len() < 8 => {
                let local = SocketAddr::new(address(Side::B, a & 1 != 0), PORT);
                let port = 1000 + u16::from(b % FLOWS);
                let remote = SocketAddr::new(address(Side::A, a & 1 != 0), port);
                let options = stack.tcp_config().settings;
                self.sockets
                    .extend(stack.connect_from(Some(local), remote, &options, None, now));
            }
            (2 | 3, Some(id)) => {
                let (mut host, mut control) = (vec![0; usize::from(a) * 32], [0; 256]);
                let mut sink = CmsgWriter::new(&mut control);
                let flags = if b & 1 == 0 {
                    MsgFlags::SOCK_DEVMEM
                } else {
                    MsgFlags::empty()
                };
                let _ = stack.recvmsg(id, &mut RecvMsg::new(&mut host), &mut sink, flags);
            }
            (4, Some(id)) => {
                let bytes = vec![b; usize::from(a) * 32];
                let _ = stack.sendmsg(id, &SendMsg::new(&bytes), MsgFlags::empty());
            }
            (5, Some(id)) => {
                let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
                let _ = stack.shutdown(id, how[usize::from(a % 3)]);
            }
            (6, Some(id)) => {
                let _ = stack.close(id);
                self.sockets.swap_remove(chosen);
            }
            (7, Some(id)) if a == 0 => {
                let _ = stack.abort(id);
                self.sockets.swap_remove(chosen);
            }
            _ => {}
        }
        self.peer.poll();
    }

    fn finish(mut self) {
        for id in self.sockets.drain(..).chain(self.listeners.drain(..)) {
            let _ = self.peer.stack.close(id);
        }
        self.peer.run_for(LONG);
        self.watch();
        let stats = self.peer.stack.stats();
        assert_eq!((stats.sockets, stats.orphans, stats.connections), (0, 0, 0));
        if let Some(id) = self.bound {
            let provider = self.peer.stack.provider(id).expect("it is bound");
            self.peer.stack.unbind_rx(id).expect("it is bound");
            assert_eq!(
                provider.free_niovs(),
                provider.area().count(),
                "some net_iovs were not returned"
            );
        }
    }
}

fn bind(peer: &mut RawPeer) -> DmabufId {
    let rings = Rings {
        tcp_data_split: TcpDataSplit::Enabled,
        ..peer.stack.nic().rings()
    };
    peer.stack
        .nic_mut()
        .set_rings(rings)
        .expect("a NIC with header split");
    let request = BindRx {
        dmabuf: MEMORIES.with(Clone::clone),
        niov_size: NiovSize::MIN,
        queues: vec![RxQueueId(0)],
    };
    peer.stack.bind_rx(request).expect("the queue is unused")
}

fn address(side: Side, is_v6: bool) -> IpAddr {
    if is_v6 { side.ipv6() } else { side.ipv4() }
}

/// Corrects the checksum of an ICMP message.
fn mend(message: &mut [u8], ip: &IpRepr, number: u8) {
    if message.len() < 4 {
        return;
    }
    message[2..4].fill(0);
    let len = u32::try_from(message.len()).expect("a message is short");
    let mut sum = match (*ip, number) {
        (IpRepr::V6(Ipv6Header { src, dst, .. }), protocol::ICMPV6) => {
            Checksum::pseudo_v6(src, dst, number, len)
        }
        _ => Checksum::new(),
    };
    sum.add_bytes(message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}
