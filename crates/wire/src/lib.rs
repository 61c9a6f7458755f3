//! Bytes to checked headers and back: Ethernet, ARP, IPv4, IPv6, ICMP, TCP; checksums.

mod tcp_options;
mod time;

pub use tcp_options::{SackBlocks, TcpOptions, Timestamps};
pub use time::Instant;
