use std::net::IpAddr;

use proptest::prelude::*;
use wire::protocol;

use super::*;
use crate::testing::{Packet, arp};

/// Microsoft, "Verifying the RSS hash calculation": destination, its port, source, its port, hash
/// over addresses, hash over addresses and ports.
const VECTORS: [(&str, u16, &str, u16, u32, u32); 8] = [
    (
        "161.142.100.80",
        1766,
        "66.9.149.187",
        2794,
        0x323e_8fc2,
        0x51cc_c178,
    ),
    (
        "65.69.140.83",
        4739,
        "199.92.111.2",
        14230,
        0xd718_262a,
        0xc626_b0ea,
    ),
    (
        "12.22.207.184",
        38024,
        "24.19.198.95",
        12898,
        0xd2d0_a5de,
        0x5c2b_394a,
    ),
    (
        "209.142.163.6",
        2217,
        "38.27.205.30",
        48228,
        0x8298_9176,
        0xafc7_327f,
    ),
    (
        "202.188.127.2",
        1303,
        "153.39.163.191",
        44251,
        0x5d18_09c5,
        0x10e8_28a2,
    ),
    (
        "3ffe:2501:200:3::1",
        1766,
        "3ffe:2501:200:1fff::7",
        2794,
        0x2cc1_8cd5,
        0x4020_7d3d,
    ),
    (
        "ff02::1",
        4739,
        "3ffe:501:8::260:97ff:fe40:efab",
        14230,
        0x0f0c_461c,
        0xdde5_1bbf,
    ),
    (
        "fe80::200:f8ff:fe21:67cf",
        38024,
        "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
        44251,
        0x4b61_e985,
        0x02d1_feef,
    ),
];

fn table(queues: &[u16]) -> IndirectionTable {
    IndirectionTable::new(
        &queues.iter().copied().map(RxQueueId).collect::<Vec<_>>(),
        8,
    )
    .unwrap()
}

fn rss() -> Rss {
    Rss::new(ToeplitzKey::MICROSOFT, table(&[0, 1, 2, 3]))
}

fn vector(index: usize) -> (Packet, u32, u32) {
    let (dst, dst_port, src, src_port, addresses, ports) = VECTORS[index];
    let (dst, src): (IpAddr, IpAddr) = (dst.parse().unwrap(), src.parse().unwrap());
    (
        Packet {
            src,
            dst,
            src_port,
            dst_port,
            ..Packet::tcp4()
        },
        addresses,
        ports,
    )
}

#[test]
fn microsofts_vectors_hash_as_published() {
    for index in 0..VECTORS.len() {
        let (packet, addresses, ports) = vector(index);
        assert_eq!(
            rss().hash(&packet.headers()),
            Some(ports),
            "vector {index} as TCP"
        );
        let udp = Packet {
            protocol: protocol::UDP,
            ..packet
        };
        assert_eq!(
            rss().hash(&udp.headers()),
            Some(ports),
            "vector {index} as UDP"
        );
        let icmp = Packet {
            protocol: protocol::ICMP,
            ..packet
        };
        assert_eq!(
            rss().hash(&icmp.headers()),
            Some(addresses),
            "vector {index} as ICMP"
        );
        assert_eq!(
            rss().hash(&packet.fragment()),
            Some(addresses),
            "vector {index} in fragments"
        );
    }
}

#[test]
fn only_the_types_asked_for_are_hashed() {
    for (index, with_ports, addresses_only) in [
        (0, HashTypes::TCP4, HashTypes::IPV4),
        (5, HashTypes::TCP6, HashTypes::IPV6),
    ] {
        let (packet, addresses, ports) = vector(index);
        let headers = packet.headers();
        let hash = |types| Rss { types, ..rss() }.hash(&headers);
        assert_eq!(hash(HashTypes::empty()), None);
        assert_eq!(hash(with_ports), Some(ports));
        assert_eq!(hash(addresses_only), Some(addresses));
        assert_eq!(hash(with_ports | addresses_only), Some(ports));
        assert_eq!(hash(HashTypes::all() - with_ports - addresses_only), None);
    }
}

#[test]
fn a_frame_without_an_ip_packet_has_no_hash() {
    assert_eq!(rss().hash(&arp()), None);
    assert_eq!(rss().queue(&arp()), None);
}

#[test]
fn the_low_bits_of_the_hash_choose_the_entry() {
    let table = table(&[5, 4, 3, 2]);
    for (hash, queue) in [(0, 5), (1, 4), (0xffff_fff2, 3), (u32::MAX, 2)] {
        assert_eq!(table.queue(hash), RxQueueId(queue));
    }
}

#[test]
fn a_table_with_one_queue_selects_it_for_every_packet_with_a_hash() {
    let rss = Rss::new(ToeplitzKey::MICROSOFT, table(&[3, 3]));
    assert_eq!(rss.queue(&Packet::tcp6().headers()), Some(RxQueueId(3)));
    let rss = Rss {
        types: HashTypes::UDP4,
        ..rss
    };
    assert_eq!(rss.queue(&Packet::tcp6().headers()), None);
}

#[test]
fn a_table_has_a_power_of_two_of_entries_up_to_512() {
    let entries = [RxQueueId(0); 1024];
    for (size, ok) in [
        (0, false),
        (1, true),
        (2, true),
        (3, false),
        (128, true),
        (512, true),
        (513, false),
        (1024, false),
    ] {
        let table = IndirectionTable::new(&entries[..size], 1);
        let expected = IndirectionTableError::BadSize { entries: size };
        assert_eq!(table.err(), (!ok).then_some(expected), "{size} entries");
        assert_eq!(
            IndirectionTable::round_robin(size, 1).is_ok(),
            ok,
            "{size} in turn"
        );
    }
    assert!(IndirectionTable::round_robin(usize::MAX, 1).is_err());
}

#[test]
fn a_table_names_only_queues_that_exist() {
    let entries = [RxQueueId(0), RxQueueId(4), RxQueueId(1), RxQueueId(9)];
    let error = |entry, queue, queues| {
        Some(IndirectionTableError::NoSuchQueue {
            entry,
            queue: RxQueueId(queue),
            queues,
        })
    };
    assert_eq!(IndirectionTable::new(&entries, 4).err(), error(1, 4, 4));
    assert_eq!(IndirectionTable::new(&entries, 9).err(), error(3, 9, 9));
    let table = IndirectionTable::new(&entries, 10).unwrap();
    assert_eq!(table.check(10), Ok(()));
    assert_eq!(table.check(5).err(), error(3, 9, 5));
    assert_eq!(table.entries(), entries);
}

#[test]
fn queues_take_turns_by_default() {
    let table = IndirectionTable::round_robin(8, 3).unwrap();
    assert_eq!(
        table.entries().iter().map(|q| q.0).collect::<Vec<_>>(),
        [0, 1, 2, 0, 1, 2, 0, 1]
    );
    assert!(IndirectionTable::round_robin(8, 0).is_err());
}

#[test]
fn the_key_is_not_shown() {
    assert_eq!(format!("{:?}", ToeplitzKey::MICROSOFT), "ToeplitzKey(..)");
}

/// Reference implementation by Microsoft's description: bit by bit, with the key shifted left by one.
fn naive(key: &ToeplitzKey, input: &[u8]) -> u32 {
    let mut hash = 0;
    for bit in 0..input.len() * 8 {
        if input[bit / 8] & (0x80 >> (bit % 8)) != 0 {
            for out in 0..32 {
                let at = bit + out;
                let set = key
                    .0
                    .get(at / 8)
                    .is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0);
                hash ^= u32::from(set) << (31 - out);
            }
        }
    }
    hash
}

proptest! {
    #[test]
    fn any_input_hashes_as_microsoft_writes_it_down(
        key in proptest::collection::vec(any::<u8>(), 40),
        input in proptest::collection::vec(any::<u8>(), 0..=36),
    ) {
        let key = ToeplitzKey(key.try_into().unwrap());
        prop_assert_eq!(key.hash(&input), naive(&key, &input));
    }

    #[test]
    fn input_past_36_bytes_does_not_count(input in proptest::collection::vec(any::<u8>(), 37..80)) {
        let key = ToeplitzKey::MICROSOFT;
        prop_assert_eq!(key.hash(&input), key.hash(&input[..36]));
    }
}
