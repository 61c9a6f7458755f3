//! Cutting a super-packet, and finishing checksums: what a NIC does when the other side does not.

use std::num::NonZeroU16;

use wire::{
    Checksum, Ipv4Header, Ipv6Header, MAX_HEADER_LEN, Network, RxHeaders, TcpFlags, TcpHeader,
    Transport, TxChecksum, UdpHeader, checksum, fill_checksum, protocol,
};

use crate::env::GsoKind;

/// Offset of the TCP sequence number in its header (RFC 9293 3.1).
const TCP_SEQ: usize = 4;
/// Offset of the TCP control bits.
const TCP_FLAGS: usize = 13;
/// Offset of the UDP length (RFC 768).
const UDP_LENGTH: usize = 4;
/// Offset of the IPv4 total length (RFC 791 3.1).
const IPV4_TOTAL_LEN: usize = 2;
/// Offset of the IPv4 identification.
const IPV4_IDENT: usize = 4;
/// Offset of the IPv4 header checksum.
const IPV4_CHECKSUM: usize = 10;
/// Offset of the IPv6 payload length (RFC 8200 3).
const IPV6_PAYLOAD_LEN: usize = 4;

/// The headers of a frame in host memory, to be changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadBuf {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl HeadBuf {
    /// Copies headers; what a parser accepted fits.
    pub(crate) fn new(head: &[u8]) -> Self {
        let len = head.len().min(MAX_HEADER_LEN);
        let mut bytes = [0; MAX_HEADER_LEN];
        bytes[..len].copy_from_slice(&head[..len]);
        Self { bytes, len }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

/// Where a TCP or UDP packet keeps its checksum; `None` for others.
pub(crate) fn l4_checksum(headers: &RxHeaders) -> Option<TxChecksum> {
    let (start, field) = (headers.l4_offset()?, headers.l4_checksum_offset()?);
    Some(TxChecksum {
        // Both lie in headers of at most MAX_HEADER_LEN bytes.
        start: start as u16,
        offset: (field - start) as u16,
    })
}

/// Returns the sum of the pseudo-header of a TCP or UDP packet with `len` bytes from its transport header on.
pub(crate) fn pseudo_header(headers: &RxHeaders, len: usize) -> Option<Checksum> {
    let protocol = match headers.transport {
        Transport::Tcp(_) => protocol::TCP,
        Transport::Udp(_) => protocol::UDP,
        _ => return None,
    };
    let len = u32::try_from(len).ok()?;
    match &headers.network {
        Network::Ipv4(ip) => Some(Checksum::pseudo_v4(ip.src, ip.dst, protocol, len)),
        Network::Ipv6(ip) => Some(Checksum::pseudo_v6(ip.src, ip.dst, protocol, len)),
        Network::Arp | Network::Other => None,
    }
}

/// Finishes the checksum `what` of a frame that is `head` and `payload`; the field, in `head`, holds the sum of the
/// pseudo-header. False if `what` lies outside `head`: then nothing is done.
pub(crate) fn finish_checksum(head: &mut [u8], payload: &[u8], what: TxChecksum) -> bool {
    let start = usize::from(what.start);
    let field = start + usize::from(what.offset);
    if field + 2 > head.len() {
        return false;
    }
    let mut sum = Checksum::new();
    sum.add_bytes(payload);
    fill_checksum(head, sum.partial(), what);
    // A UDP checksum of 0 would say that there is none (RFC 768); in TCP both zeros are the same number.
    if head[field..field + 2] == [0, 0] {
        head[field..field + 2].fill(0xff);
    }
    true
}

/// A super-packet that is being cut.
#[derive(Debug)]
pub(crate) struct Segmenter<'a> {
    head: HeadBuf,
    headers: RxHeaders,
    rest: &'a [u8],
    size: usize,
    checksum: TxChecksum,
    seq: u32,
    flags: TcpFlags,
    cut: u16,
}

impl<'a> Segmenter<'a> {
    /// Prepares to cut `payload` behind headers `head`, which `headers` describes; `None` if they are not those of
    /// what `kind` says.
    pub(crate) fn new(
        head: &[u8],
        headers: &RxHeaders,
        payload: &'a [u8],
        (kind, size): (GsoKind, NonZeroU16),
    ) -> Option<Self> {
        if !is_kind(headers, kind) {
            return None;
        }
        let (seq, flags) = match &headers.transport {
            Transport::Tcp(tcp) => (tcp.seq, tcp.flags),
            _ => (0, TcpFlags::empty()),
        };
        Some(Self {
            head: HeadBuf::new(head),
            headers: *headers,
            rest: payload,
            size: size.get().into(),
            checksum: l4_checksum(headers)?,
            seq,
            flags,
            cut: 0,
        })
    }

    /// Returns where every segment keeps its checksum, which is still to be finished.
    pub(crate) const fn checksum(&self) -> TxChecksum {
        self.checksum
    }

    /// Returns headers and payload of the next segment; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<(HeadBuf, &'a [u8])> {
        if self.rest.is_empty() {
            return None;
        }
        let (payload, rest) = self.rest.split_at(self.rest.len().min(self.size));
        self.rest = rest;
        let mut head = self.head;
        self.write_ip(head.as_mut_slice(), payload.len());
        self.write_transport(head.as_mut_slice(), payload.len());
        // A segment has at most 65,535 bytes of payload.
        self.seq = self.seq.wrapping_add(payload.len() as u32);
        self.cut = self.cut.wrapping_add(1);
        Some((head, payload))
    }

    fn write_ip(&self, head: &mut [u8], payload_len: usize) {
        let at = self.headers.ethernet.header_len();
        let ip_len = head.len() + payload_len - at;
        match &self.headers.network {
            Network::Ipv4(ip) => {
                put(head, at + IPV4_TOTAL_LEN, ip_len);
                // One identification per packet, counting up, as linux net/ipv4/af_inet.c does.
                let ident = ip.ident.wrapping_add(self.cut);
                put(head, at + IPV4_IDENT, ident.into());
                put(head, at + IPV4_CHECKSUM, 0);
                debug_assert!(ip.header_len >= Ipv4Header::LEN);
                let sum = head.get(at..at + ip.header_len).map_or(0, checksum);
                put(head, at + IPV4_CHECKSUM, sum.into());
            }
            Network::Ipv6(_) => put(head, at + IPV6_PAYLOAD_LEN, ip_len - Ipv6Header::LEN),
            Network::Arp | Network::Other => {}
        }
    }

    fn write_transport(&self, head: &mut [u8], payload_len: usize) {
        let l4 = usize::from(self.checksum.start);
        let l4_len = head.len() + payload_len - l4;
        match self.headers.transport {
            Transport::Tcp(_) => self.write_tcp(head, l4),
            _ => put(head, l4 + UDP_LENGTH, l4_len),
        }
        let pseudo = pseudo_header(&self.headers, l4_len).unwrap_or_default();
        let field = l4 + usize::from(self.checksum.offset);
        put(head, field, pseudo.partial().into());
    }

    fn write_tcp(&self, head: &mut [u8], l4: usize) {
        let mut flags = self.flags;
        if !self.rest.is_empty() {
            flags -= TcpFlags::PSH | TcpFlags::FIN;
        }
        if self.cut > 0 {
            // Congestion window reduced is said once (RFC 3168 6.1.2).
            flags -= TcpFlags::CWR;
        }
        if let Some(field) = head.get_mut(l4 + TCP_FLAGS) {
            *field = flags.low_byte();
        }
        if let Some(field) = head.get_mut(l4 + TCP_SEQ..l4 + TCP_SEQ + 4) {
            field.copy_from_slice(&self.seq.to_be_bytes());
        }
    }
}

/// Tells whether headers are those of a super-packet of a kind.
pub(crate) fn is_kind(headers: &RxHeaders, kind: GsoKind) -> bool {
    match kind {
        GsoKind::Tcp4 => {
            matches!(headers.network, Network::Ipv4(_))
                && matches!(headers.transport, Transport::Tcp(_))
        }
        GsoKind::Tcp6 => {
            matches!(headers.network, Network::Ipv6(_))
                && matches!(headers.transport, Transport::Tcp(_))
        }
        GsoKind::Udp => matches!(headers.transport, Transport::Udp(_)),
    }
}

/// Returns the kind of super-packet that headers are those of.
pub(crate) fn kind_of(headers: &RxHeaders) -> Option<GsoKind> {
    let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp];
    kinds.into_iter().find(|kind| is_kind(headers, *kind))
}

/// Writes a 16-bit field; a value that does not fit cannot come from a frame of at most 64 KiB.
fn put(head: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    if let Some(field) = head.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

const _: () = assert!(TcpHeader::CHECKSUM_OFFSET == 16 && UdpHeader::CHECKSUM_OFFSET == 6);
