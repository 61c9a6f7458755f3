//! The queue of a TAP that the frames of a connection are sent on.

use ::wire::{EtherType, EthernetHeader, protocol};

/// Returns the queue to send a frame on: the same for all frames of a connection. The kernel delivers the packets of a
/// connection to the queue that last sent one (linux drivers/net/tun.c `tun_flow_update`), so a connection that changed its
/// queue would be received out of order.
pub(super) fn queue_of(head: &[u8], queues: usize) -> usize {
    let hash = flow_hash(head).unwrap_or(0);
    // Less than `queues`, and evenly distributed, as the hash is.
    ((u64::from(hash) * queues as u64) >> 32) as usize
}

/// Returns a hash of the addresses and ports of a frame of this stack; `None` for a frame without ports.
fn flow_hash(head: &[u8]) -> Option<u32> {
    let ethernet = EthernetHeader::parse(head).ok()?;
    let ip = head.get(ethernet.header_len()..)?;
    let (addresses, ports_at) = match ethernet.ethertype {
        EtherType::IPV4 => (ip.get(12..20)?, 4 * usize::from(ip.first()? & 0x0f)),
        // Only the jumbo payload option (8 bytes) may be between the header and TCP; long packets have it.
        EtherType::IPV6 if *ip.get(6)? == protocol::HOP_BY_HOP => (ip.get(8..40)?, 48),
        EtherType::IPV6 => (ip.get(8..40)?, 40),
        _ => return None,
    };
    let ports = ip.get(ports_at..ports_at + 4)?;
    let words = addresses.chunks_exact(4).chain([ports]);
    let hash = words.fold(0_u64, |hash, word| {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        let hash = (hash ^ u64::from(word)).wrapping_mul(GOLDEN_RATIO);
        hash ^ hash >> 32
    });
    Some(hash as u32)
}

/// 2^64 divided by the golden ratio: a multiplication by it distributes neighbouring numbers evenly (Knuth, The Art of
/// Computer Programming 3, 6.4).
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of an Ethernet frame with TCP over IPv6.
    fn head_v6() -> Vec<u8> {
        let mut head = vec![0; 14 + 40 + 20];
        head[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
        head[14] = 0x60;
        head[14 + 6] = protocol::TCP;
        for (at, byte) in head[22..58].iter_mut().enumerate() {
            *byte = at as u8;
        }
        head
    }

    #[test]
    fn a_long_packet_with_a_jumbo_payload_option_has_the_hash_of_its_connection() {
        let short = head_v6();
        let mut long = short.clone();
        long[14 + 6] = protocol::HOP_BY_HOP;
        long.splice(54..54, [protocol::TCP, 0, 0xc2, 4, 0, 1, 0, 0]);
        assert!(flow_hash(&short).is_some());
        assert_eq!(flow_hash(&long), flow_hash(&short));
    }

    #[test]
    fn a_frame_without_ports_has_no_hash_and_one_queue() {
        let mut arp = head_v6();
        arp[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
        for head in [&arp[..], &head_v6()[..57], &arp[..9], &[]] {
            assert_eq!((flow_hash(head), queue_of(head, 8)), (None, 0));
        }
    }
}
