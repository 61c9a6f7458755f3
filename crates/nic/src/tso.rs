//! Cutting a super-packet into segments when the link does not.

use netmem::{FragList, Payload};
use wire::{
    Checksum, Ipv4Header, Ipv6Header, Network, RxHeaders, TcpFlags, TxChecksum, checksum, protocol,
};

use crate::packet::{HeadBuf, TxPacket};

/// Offset of the TCP sequence number in its header (RFC 9293 3.1).
const TCP_SEQ: usize = 4;
/// Offset of the TCP control bits.
const TCP_FLAGS: usize = 13;
/// Offset of the TCP checksum.
const TCP_CHECKSUM: usize = 16;
/// Offset of the IPv4 total length (RFC 791 3.1).
const IPV4_TOTAL_LEN: usize = 2;
/// Offset of the IPv4 identification.
const IPV4_IDENT: usize = 4;
/// Offset of the IPv4 header checksum.
const IPV4_CHECKSUM: usize = 10;
/// Offset of the IPv6 payload length (RFC 8200 3).
const IPV6_PAYLOAD_LEN: usize = 4;

/// A super-packet that is being cut.
#[derive(Debug)]
pub(crate) struct Segmenter {
    head: HeadBuf,
    rest: FragList,
    gso_size: usize,
    checksum: TxChecksum,
    ip: IpFields,
    /// Where the TCP header starts.
    l4: usize,
    seq: u32,
    flags: TcpFlags,
    sent_segments: u16,
}

/// What of the IP header changes from segment to segment.
#[derive(Clone, Copy, Debug)]
enum IpFields {
    V4 { at: usize, header: Ipv4Header },
    V6 { at: usize, header: Ipv6Header },
}

impl Segmenter {
    /// Prepares to cut `packet`; `None` if its headers are not those of a TCP packet with a checksum
    /// to finish.
    pub(crate) fn new(packet: TxPacket) -> Option<Self> {
        let (ip, l4, seq, flags) = facts(&packet)?;
        let TxPacket {
            head,
            payload,
            checksum,
            gso_size,
        } = packet;
        let gso_size = usize::from(gso_size).max(1);
        let checksum = checksum?;
        Some(Self {
            head,
            rest: payload,
            gso_size,
            checksum,
            ip,
            l4,
            seq,
            flags,
            sent_segments: 0,
        })
    }

    /// Returns the next segment, its checksum still to be finished; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<TxPacket> {
        if self.rest.is_empty() {
            return None;
        }
        let payload = self.rest.split_off_front(self.gso_size);
        let mut head = self.head;
        self.write_ip(head.as_mut_slice(), payload.len());
        self.write_tcp(head.as_mut_slice(), payload.len());
        self.seq = self.seq.wrapping_add(payload.len() as u32);
        self.sent_segments = self.sent_segments.wrapping_add(1);
        Some(TxPacket {
            head,
            payload,
            checksum: Some(self.checksum),
            gso_size: 0,
        })
    }

    fn write_ip(&self, head: &mut [u8], payload_len: usize) {
        let end = head.len() + payload_len;
        match self.ip {
            IpFields::V4 { at, header } => {
                put(head, at + IPV4_TOTAL_LEN, (end - at) as u16);
                // One identification per packet, counting up (linux net/ipv4/af_inet.c inet_gso_segment).
                put(
                    head,
                    at + IPV4_IDENT,
                    header.ident.wrapping_add(self.sent_segments),
                );
                put(head, at + IPV4_CHECKSUM, 0);
                let sum = head.get(at..at + header.header_len).map_or(0, checksum);
                put(head, at + IPV4_CHECKSUM, sum);
            }
            IpFields::V6 { at, .. } => {
                put(
                    head,
                    at + IPV6_PAYLOAD_LEN,
                    (end - at - Ipv6Header::LEN) as u16,
                );
            }
        }
    }

    fn write_tcp(&self, head: &mut [u8], payload_len: usize) {
        let Self {
            l4,
            seq,
            sent_segments,
            ..
        } = *self;
        let mut flags = self.flags;
        if !self.rest.is_empty() {
            flags -= TcpFlags::PSH | TcpFlags::FIN;
        }
        if sent_segments > 0 {
            // Congestion window reduced is said once (RFC 3168 6.1.2).
            flags -= TcpFlags::CWR;
        }
        if let Some(field) = head.get_mut(l4 + TCP_FLAGS) {
            *field = flags.low_byte();
        }
        if let Some(field) = head.get_mut(l4 + TCP_SEQ..l4 + TCP_SEQ + 4) {
            field.copy_from_slice(&seq.to_be_bytes());
        }
        // For the link, or this NIC, to finish: the pseudo-header with the segment's own length.
        let len = (head.len() - l4 + payload_len) as u32;
        let pseudo = match self.ip {
            IpFields::V4 { header, .. } => {
                Checksum::pseudo_v4(header.src, header.dst, protocol::TCP, len)
            }
            IpFields::V6 { header, .. } => {
                Checksum::pseudo_v6(header.src, header.dst, protocol::TCP, len)
            }
        };
        put(head, l4 + TCP_CHECKSUM, pseudo.partial());
    }
}

fn facts(packet: &TxPacket) -> Option<(IpFields, usize, u32, TcpFlags)> {
    let headers = RxHeaders::parse(packet.head.as_slice(), packet.frame_len()).ok()?;
    let tcp = headers.tcp()?;
    let l4 = headers.l4_offset()?;
    let at = headers.ethernet.header_len();
    let ip = match headers.network {
        Network::Ipv4(header) => IpFields::V4 { at, header },
        Network::Ipv6(header) => IpFields::V6 { at, header },
        Network::Arp | Network::Other => return None,
    };
    let whole_head = headers.header_len == packet.head.as_slice().len();
    whole_head.then_some((ip, l4, tcp.seq, tcp.flags))
}

/// Writes a big-endian field; one outside the head is not written.
fn put(head: &mut [u8], at: usize, value: u16) {
    if let Some(field) = head.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}
