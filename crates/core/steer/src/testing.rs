//! Packets for this crate's tests.

use std::net::IpAddr;

use wire::{
    EtherType, EthernetHeader, IpRepr, MacAddr, RxHeaders, TcpFlags, TcpHeader, TcpOptions,
    UdpHeader, emit_frame_headers, emit_tcp_frame_headers, protocol,
};

/// One packet; tests change fields by struct update.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub src_port: u16,
    pub dst_port: u16,
    pub protocol: u8,
    pub tos: u8,
    pub payload_len: usize,
}

impl Packet {
    /// TCP from 10.77.0.1:40000 to 10.77.0.2:5201 with 100 bytes of payload.
    pub(crate) fn tcp4() -> Self {
        Self {
            src: [10, 77, 0, 1].into(),
            dst: [10, 77, 0, 2].into(),
            src_port: 40_000,
            dst_port: 5201,
            protocol: protocol::TCP,
            tos: 0,
            payload_len: 100,
        }
    }

    /// TCP from [fd00::1]:40000 to [fd00::2]:5201 with 100 bytes of payload.
    pub(crate) fn tcp6() -> Self {
        let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        Self {
            src,
            dst,
            ..Self::tcp4()
        }
    }

    pub(crate) fn headers(self) -> RxHeaders {
        let mut ip = IpRepr::new(self.src, self.dst).unwrap();
        let ethertype = match &mut ip {
            IpRepr::V4(ip) => {
                ip.dscp_ecn = self.tos;
                EtherType::IPV4
            }
            IpRepr::V6(ip) => {
                ip.traffic_class = self.tos;
                EtherType::IPV6
            }
        };
        let (src_port, dst_port) = (self.src_port, self.dst_port);
        let ethernet = EthernetHeader {
            dst: MacAddr([2; 6]),
            src: MacAddr([4; 6]),
            ethertype,
            vlan: None,
        };
        let mut out = [0; 128];
        let len = match self.protocol {
            protocol::TCP => {
                let tcp = TcpHeader {
                    src_port,
                    dst_port,
                    seq: 0,
                    ack: 0,
                    flags: TcpFlags::ACK,
                    window: 0,
                    urgent: 0,
                    options: TcpOptions::default(),
                    header_len: TcpHeader::LEN,
                };
                emit_tcp_frame_headers(&ethernet, &ip, &tcp, self.payload_len, &mut out)
            }
            other => {
                let length = UdpHeader::LEN + self.payload_len;
                let at = emit_frame_headers(&ethernet, &ip, other, length, &mut out);
                let length = u16::try_from(length).unwrap();
                at + UdpHeader {
                    src_port,
                    dst_port,
                    length,
                    checksum: 0,
                }
                .emit(&mut out[at..])
            }
        };
        RxHeaders::parse(&out[..len], len + self.payload_len).unwrap()
    }

    /// The same packet as a first fragment.
    pub(crate) fn fragment(self) -> RxHeaders {
        let headers = self.headers();
        RxHeaders {
            transport: wire::Transport::Fragment,
            ..headers
        }
    }
}

/// A frame that is no IP packet.
pub(crate) fn arp() -> RxHeaders {
    let ethernet = EthernetHeader {
        dst: MacAddr::BROADCAST,
        src: MacAddr([4; 6]),
        ethertype: EtherType::ARP,
        vlan: None,
    };
    let mut out = [0; 60];
    ethernet.emit(&mut out);
    RxHeaders::parse(&out, 60).unwrap()
}
