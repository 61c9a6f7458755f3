//! Header split: headers to host memory, payload elsewhere.

use wire::{RxHeaders, Transport};

/// Returns whether the payload of a packet is split from its headers: that of TCP. The TCP header of an IP fragment may be in
/// another packet.
#[inline]
pub fn is_split(headers: &RxHeaders) -> bool {
    matches!(headers.transport, Transport::Tcp(_))
}

#[cfg(test)]
mod tests {
    use wire::protocol;

    use super::*;
    use crate::testing::{Packet, arp};

    #[test]
    fn tcp_is_split_also_without_payload() {
        let ack = Packet {
            payload_len: 0,
            ..Packet::tcp4()
        };
        for packet in [Packet::tcp4(), Packet::tcp6(), ack] {
            assert!(is_split(&packet.headers()));
        }
    }

    #[test]
    fn other_packets_and_fragments_stay_whole() {
        let udp = Packet {
            protocol: protocol::UDP,
            ..Packet::tcp4()
        };
        for headers in [udp.headers(), arp(), Packet::tcp4().fragment()] {
            assert!(!is_split(&headers), "{headers:?}");
        }
    }
}
