//! TCP packets as a script writes them, and as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{Checksum, Ecn, IpRepr, Ipv6Header, RxHeaders, protocol};

/// One TCP option of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opt {
    Nop,
    Mss(u16),
    Wscale(u8),
    SackOk,
    Sack(Vec<(u32, u32)>),
    Ts {
        val: u32,
        ecr: u32,
    },
    /// AccECN's counters in the order of Linux: ECT(1), CE, ECT(0).
    AccEcn([u32; 3]),
    /// Fast Open: the cookie, or the request for one.
    FastOpen(Vec<u8>),
}

/// A TCP segment with numbers relative to the ISNs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub flags: String,
    /// `None`: not compared, and not ECN-capable when it is sent.
    pub ecn: Option<Ecn>,
    pub seq: u32,
    pub len: usize,
    pub ack: Option<u32>,
    /// `None`: not compared.
    pub win: Option<u16>,
    /// `None`: not compared.
    pub options: Option<Vec<Opt>>,
}

const FLAGS: [(char, u16); 9] = [
    ('F', 1),
    ('S', 2),
    ('R', 4),
    ('P', 8),
    ('.', 16),
    ('U', 32),
    ('E', 64),
    ('W', 128),
    ('A', 256),
];

/// The bytes of options; `ts` and `sack` numbers are written as they stand.
pub fn option_bytes(options: &[Opt]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for option in options {
        match option {
            Opt::Nop => bytes.push(1),
            Opt::Mss(mss) => bytes.extend([&[2, 4][..], &mss.to_be_bytes()].concat()),
            Opt::Wscale(shift) => bytes.extend([3, 3, *shift]),
            Opt::SackOk => bytes.extend([4, 2]),
            Opt::Sack(blocks) => {
                bytes.extend([5, 2 + 8 * blocks.len() as u8]);
                for (from, to) in blocks {
                    bytes.extend([from.to_be_bytes(), to.to_be_bytes()].concat());
                }
            }
            Opt::AccEcn(fields) => {
                bytes.extend([174, 11]);
                fields
                    .iter()
                    .for_each(|field| bytes.extend(&field.to_be_bytes()[1..]));
            }
            Opt::FastOpen(cookie) => {
                bytes.extend([34, 2 + cookie.len() as u8]);
                bytes.extend(cookie);
            }
            Opt::Ts { val, ecr } => {
                bytes.extend([8, 10]);
                bytes.extend([val.to_be_bytes(), ecr.to_be_bytes()].concat());
            }
        }
    }
    bytes
}

/// Reads options in their order.
fn read_options(mut bytes: &[u8]) -> Vec<Opt> {
    let word = |b: &[u8]| u32::from_be_bytes(b[..4].try_into().unwrap());
    let mut options = Vec::new();
    while let [kind, rest @ ..] = bytes {
        if *kind <= 1 {
            options.extend((*kind == 1).then_some(Opt::Nop));
            bytes = rest;
            continue;
        }
        let (body, rest) = bytes.split_at(rest[0].into());
        let body = &body[2..];
        options.push(match kind {
            2 => Opt::Mss(u16::from_be_bytes([body[0], body[1]])),
            3 => Opt::Wscale(body[0]),
            4 => Opt::SackOk,
            5 => Opt::Sack(body.chunks(8).map(|b| (word(b), word(&b[4..]))).collect()),
            8 => Opt::Ts {
                val: word(body),
                ecr: word(&body[4..]),
            },
            34 => Opt::FastOpen(body.to_vec()),
            174 if body.len() == 9 => {
                let field =
                    |at: usize| u32::from_be_bytes([0, body[at], body[at + 1], body[at + 2]]);
                Opt::AccEcn([field(0), field(3), field(6)])
            }
            kind => panic!("option {kind}"),
        });
        bytes = rest;
    }
    options
}

/// Ends of a packet.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub src: (IpAddr, u16),
    pub dst: (IpAddr, u16),
}

/// Returns an IP packet with a segment whose numbers are absolute; payload bytes count up from the sequence number.
pub fn build(path: Path, segment: &Segment, payload_from: u32) -> Vec<u8> {
    let options = option_bytes(segment.options.as_deref().unwrap_or_default());
    let mut tcp = Vec::new();
    tcp.extend(path.src.1.to_be_bytes());
    tcp.extend(path.dst.1.to_be_bytes());
    tcp.extend(segment.seq.to_be_bytes());
    tcp.extend(segment.ack.unwrap_or(0).to_be_bytes());
    assert!(
        options.len().is_multiple_of(4),
        "options are padded by the script"
    );
    let bits = FLAGS
        .iter()
        .filter(|(name, _)| segment.flags.contains(*name));
    let [high, low] = bits.map(|(_, bit)| bit).sum::<u16>().to_be_bytes();
    tcp.extend([(5 + options.len() as u8 / 4) << 4 | high, low]);
    tcp.extend(segment.win.unwrap_or(0).to_be_bytes());
    // The last byte is the urgent one.
    let urgent = if segment.flags.contains('U') {
        segment.len
    } else {
        0
    };
    tcp.extend([0; 2]);
    tcp.extend(u16::try_from(urgent).expect("short").to_be_bytes());
    tcp.extend(options);
    tcp.extend(payload(payload_from, segment.len));
    let ecn = segment.ecn.unwrap_or_default();
    let ip = IpRepr::new(path.src.0, path.dst.0).expect("one family");
    let ip = ip.with_tos(ecn.bits());
    let mut sum: Checksum = ip.pseudo_header(protocol::TCP, tcp.len() as u32);
    sum.add_bytes(&tcp);
    let check = sum.finish().to_be_bytes();
    tcp[16..18].copy_from_slice(&check);
    let mut packet = vec![0; Ipv6Header::LEN];
    let ip_len = ip.emit(protocol::TCP, tcp.len(), &mut packet);
    packet.truncate(ip_len);
    packet.extend(tcp);
    packet
}

/// The bytes of the remote end's stream from the relative number `from` on.
pub fn payload(from: u32, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (from as usize + at) as u8 ^ 0x5a)
        .collect()
}

/// A packet of the stack, read: where it goes, the segment with absolute numbers, and its payload.
pub fn read(packet: &[u8]) -> (Path, Segment, Vec<u8>) {
    let v4 = packet[0] >> 4 == 4;
    let (src, dst, at): (IpAddr, IpAddr, usize) = match v4 {
        true => {
            let ip = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
            (ip(12).into(), ip(16).into(), 20)
        }
        false => {
            let ip =
                |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
            (ip(8).into(), ip(24).into(), 40)
        }
    };
    let tos = match v4 {
        true => packet[1],
        false => packet[1] >> 4,
    };
    let tcp = &packet[at..];
    let mut sum = IpRepr::new(src, dst)
        .unwrap()
        .pseudo_header(protocol::TCP, tcp.len() as u32);
    sum.add_bytes(tcp);
    assert_eq!(
        sum.finish(),
        0,
        "the checksum of a packet of the stack is wrong"
    );
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
    let head = usize::from(tcp[12] >> 4) * 4;
    let bits = u16::from_be_bytes([tcp[12] & 1, tcp[13]]);
    let flags = FLAGS.iter().filter(|(_, bit)| bits & bit != 0);
    let segment = Segment {
        flags: flags.map(|(name, _)| *name).collect(),
        ecn: Some(Ecn::from_tos(tos)),
        seq: word(4),
        len: tcp.len() - head,
        ack: (tcp[13] & 16 != 0).then(|| word(8)),
        win: Some(port(14)),
        options: Some(read_options(&tcp[20..head])),
    };
    let path = Path {
        src: (src, port(0)),
        dst: (dst, port(2)),
    };
    (path, segment, tcp[head..].to_vec())
}

/// Only for the type's sake: packets are judged by the stack's own reader, too.
pub fn is_well_formed(packet: &[u8]) -> bool {
    let ethertype = if packet[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    let frame = [&[0; 12][..], &ethertype, packet].concat();
    RxHeaders::parse(&frame, frame.len()).is_ok()
}
