//! Frames for tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use gve::{ChecksumState, Gso, GsoKind, Offload};
use wire::{
    EtherType, EthernetHeader, IpRepr, MacAddr, RxHeaders, TcpFlags, TcpHeader, TcpOptions,
    Timestamps, TxChecksum, UdpHeader, emit_frame_headers, emit_tcp_frame_headers, fill_checksum,
    protocol,
};

/// Description of a frame.
#[derive(Clone, Debug)]
pub struct Frame {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: u32,
    pub flags: TcpFlags,
    pub udp: bool,
    pub vlan: Option<u16>,
    pub has_timestamps: bool,
    pub payload: Vec<u8>,
}

/// Bytes that depend on their position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8)
        .collect()
}

impl Frame {
    pub fn tcp4(payload_len: usize) -> Self {
        Self {
            src: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
            dst: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
            src_port: 40_000,
            dst_port: 5201,
            seq: 1000,
            flags: TcpFlags::ACK | TcpFlags::PSH,
            udp: false,
            vlan: None,
            has_timestamps: true,
            payload: pattern(payload_len),
        }
    }

    pub fn tcp6(payload_len: usize) -> Self {
        Self {
            src: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
            dst: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
            ..Self::tcp4(payload_len)
        }
    }

    pub fn udp4(payload_len: usize) -> Self {
        Self {
            udp: true,
            ..Self::tcp4(payload_len)
        }
    }

    pub fn udp6(payload_len: usize) -> Self {
        Self {
            udp: true,
            ..Self::tcp6(payload_len)
        }
    }

    pub fn with_port(self, src_port: u16) -> Self {
        Self { src_port, ..self }
    }

    pub fn tagged(self) -> Self {
        Self {
            vlan: Some(7),
            ..self
        }
    }

    pub fn without_timestamps(self) -> Self {
        Self {
            has_timestamps: false,
            ..self
        }
    }

    /// Returns the frame with the sum of the pseudo-header in its checksum field.
    pub fn unfinished(&self) -> Vec<u8> {
        let ip = IpRepr::new(self.src, self.dst).expect("one family");
        let ethernet = EthernetHeader {
            dst: MacAddr([2, 0, 0, 0, 0, 1]),
            src: MacAddr([2, 0, 0, 0, 0, 2]),
            ethertype: match ip {
                IpRepr::V4 { .. } => EtherType::IPV4,
                IpRepr::V6 { .. } => EtherType::IPV6,
            },
            vlan: self.vlan,
        };
        let mut out = [0; 256];
        let len = self.payload.len();
        let head = match self.udp {
            true => emit_udp(&ethernet, &ip, self, &mut out),
            false => emit_tcp_frame_headers(&ethernet, &ip, &self.tcp(), len, &mut out),
        };
        [&out[..head], &self.payload].concat()
    }

    /// Returns the whole frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.unfinished();
        fill_checksum(&mut bytes, 0, self.checksum());
        bytes
    }

    /// Returns the frame as a driver writes it for segmentation: the pseudo-header's sum does not include the length.
    pub fn for_tso(&self) -> Vec<u8> {
        let mut bytes = self.unfinished();
        let TxChecksum { start, offset } = self.checksum();
        let field = usize::from(start + offset);
        let ip = IpRepr::new(self.src, self.dst).expect("one family");
        let sum = ip.pseudo_header(self.protocol(), 0).partial();
        bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    pub fn checksum(&self) -> TxChecksum {
        let ip = if self.src.is_ipv4() { 20 } else { 40 };
        let tag = if self.vlan.is_some() { 4 } else { 0 };
        TxChecksum {
            start: 14 + tag + ip,
            offset: if self.udp { 6 } else { 16 },
        }
    }

    pub fn header_len(&self) -> usize {
        self.unfinished().len() - self.payload.len()
    }

    /// Returns the metadata of the frame as a super-packet.
    pub fn gso(&self, size: u16) -> Offload {
        let kind = match (self.udp, self.src.is_ipv4()) {
            (true, _) => GsoKind::Udp,
            (false, true) => GsoKind::Tcp4,
            (false, false) => GsoKind::Tcp6,
        };
        Offload {
            checksum: ChecksumState::Partial(self.checksum()),
            gso: Some(Gso {
                kind,
                size: NonZeroU16::new(size).expect("segments have bytes"),
            }),
        }
    }

    fn protocol(&self) -> u8 {
        match self.udp {
            true => protocol::UDP,
            false => protocol::TCP,
        }
    }

    fn tcp(&self) -> TcpHeader {
        TcpHeader {
            src_port: self.src_port,
            dst_port: self.dst_port,
            seq: self.seq,
            ack: 1,
            flags: self.flags,
            window: 512,
            urgent: 0,
            options: TcpOptions {
                timestamps: self
                    .has_timestamps
                    .then_some(Timestamps { value: 1, echo: 2 }),
                ..TcpOptions::default()
            },
            header_len: if self.has_timestamps { 32 } else { 20 },
        }
    }
}

fn emit_udp(ethernet: &EthernetHeader, ip: &IpRepr, frame: &Frame, out: &mut [u8]) -> usize {
    let len = UdpHeader::LEN + frame.payload.len();
    let at = emit_frame_headers(ethernet, ip, protocol::UDP, len, out);
    let length = u16::try_from(len).expect("a datagram");
    let udp = UdpHeader {
        src_port: frame.src_port,
        dst_port: frame.dst_port,
        length,
        checksum: ip.pseudo_header(protocol::UDP, length.into()).partial(),
    };
    at + udp.emit(&mut out[at..])
}

/// Parses a frame and checks its transport checksum.
pub fn checked(bytes: &[u8]) -> RxHeaders {
    let headers = RxHeaders::parse(bytes, bytes.len()).expect("headers");
    let (src, dst) = (headers.src_ip().expect("IP"), headers.dst_ip().expect("IP"));
    let ip = IpRepr::new(src, dst).expect("one family");
    let l4 = headers.l4_offset().expect("TCP or UDP");
    let segment = &bytes[l4..headers.header_len + headers.payload_len];
    let protocol = match headers.tcp() {
        Some(_) => protocol::TCP,
        None => protocol::UDP,
    };
    let mut sum = ip.pseudo_header(protocol, segment.len() as u32);
    sum.add_bytes(segment);
    assert_eq!(sum.finish(), 0, "transport checksum");
    headers
}

/// Returns the payload of a parsed frame.
pub fn payload<'a>(bytes: &'a [u8], headers: &RxHeaders) -> &'a [u8] {
    &bytes[headers.header_len..headers.header_len + headers.payload_len]
}
