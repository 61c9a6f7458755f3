//! Bytes to checked headers and back: virtio-net, Ethernet, ARP, IPv4, IPv6, ICMP, TCP; checksums.
//!
//! Key types: [`RxHeaders`] (the headers of one received frame, lengths and checksums verified
//! once), [`TcpOptions`] (the options of one TCP header) and [`Checksum`] (an Internet checksum
//! computed in pieces, some of them elsewhere). [`Instant`] is here too, because every crate above
//! needs the same clock type.
//!
//! In the walk of a received segment this crate is step 2, `RxHeaders::parse(header_buf)`; in the
//! walk of a send it is step 6, [`emit_tcp_frame_headers`].
//!
//! Nothing here allocates, reads a clock, keeps state or decides policy. TCP payload is never read:
//! the caller, if it may read the payload, verifies the TCP checksum with [`Checksum::add_partial`].

#![forbid(unsafe_code)]

mod accecn;
mod arp;
mod checksum;
mod drop_reasons;
mod ecn;
mod emit;
mod ethernet;
mod fast_open;
mod head;
mod icmp;
mod ipv4;
mod ipv6;
mod jumbo;
mod parse_error;
pub mod protocol;
mod rx_headers;
mod segmentation;
mod tcp;
mod time;
mod tx_checksum;
mod udp;
mod vnet;

pub use accecn::AccEcn;
pub use arp::{ARP_LEN, ArpOperation, ArpPacket};
pub use checksum::{Checksum, checksum};
pub use ecn::{Ecn, Marking, has_cwr, mark_ce};
pub use emit::{
    IpRepr, emit_arp_frame, emit_frame_headers, emit_tcp_frame_headers, fill_checksum,
    tcp_tx_checksum,
};
pub use ethernet::{EtherType, EthernetHeader, MacAddr, MacAddrParseError};
pub use fast_open::{FastOpen, FastOpenCookie, FastOpenForm};
pub use icmp::{
    Echo, EchoKind, Icmp, IcmpError, NeighborAdvertisement, NeighborSolicitation, Quoted,
    Undelivered, solicited_node,
};
pub use ipv4::Ipv4Header;
pub use ipv6::{Ipv6Header, MAX_EXTENSION_HEADERS, MAX_EXTENSION_LEN};
pub use jumbo::{segment_headers_len, shorten_big_headers};
pub use parse_error::{ParseError, TcpOptionsError};
pub use rx_headers::{FourTuple, MAX_HEADER_LEN, Network, RxHeaders, Transport};
pub use segmentation::SegmentHeaders;
pub use tcp::{MAX_WINDOW_SCALE, SackBlocks, TcpFlags, TcpHeader, TcpOptions, Timestamps};
pub use time::Instant;
pub use tx_checksum::TxChecksum;
pub use udp::UdpHeader;
pub use vnet::{ChecksumState, Gso, GsoKind, Offload, VnetHeader};
