//! Sent packets, and which side computes their checksums.

use std::time::Duration;

use netmem::Payload;
use wire::{Network, RxHeaders, TcpFlags};

use super::harness::*;
use crate::*;

/// Device memory that holds `bytes`, as received.
fn device_payload(bench: &mut Bench, bytes: &[u8]) -> netmem::FragList {
    bench.pass(&tcp(bytes)).payload.into_frags()
}

fn plain_bench() -> Bench {
    Bench::new(PLAIN, NicConfig::default(), vec![opaque(4 << 20, 1, 4096)])
}

#[test]
fn a_link_without_offloads_gets_complete_checksums() {
    let mut bench = plain_bench();
    for v6 in [false, true] {
        for len in [0, 1, 2, 1000, 1401] {
            let segment = Tcp {
                v6,
                ..tcp(&pattern(len, len))
            };
            let packet = packet(&segment, 0);
            bench.nic.transmit(packet, NOW).unwrap();
            let sent = bench.link.lock().sent.pop().unwrap();
            assert_eq!((sent.checksum, sent.gso_size), (None, 0));
            assert_eq!(sent.bytes, segment.frame());
        }
    }
    assert_eq!(bench.nic.tx_stats().software_checksum, 10);
    bench.finish();
}

#[test]
fn checksums_cover_payload_in_device_memory() {
    let mut bench = plain_bench();
    let segment = tcp(&pattern(1, 1333));
    // Odd first frag: the second starts at an odd offset of the sum.
    let mut payload = device_payload(&mut bench, &segment.payload[..777]);
    payload.append(device_payload(&mut bench, &segment.payload[777..]));
    let tx = packet(&segment, 0);
    bench.nic.transmit(TxPacket { payload, ..tx }, NOW).unwrap();
    assert_eq!(bench.link.lock().sent.pop().unwrap().bytes, segment.frame());
    bench.finish();
}

#[test]
fn a_link_with_offloads_gets_partial_checksums_and_super_packets() {
    let mut bench = Bench::with_device(NicConfig::default());
    let segment = tcp(&pattern(1, 60_000));
    let tx = packet(&segment, 1448);
    let checksum = tx.checksum;
    bench.nic.transmit(tx, NOW).unwrap();
    let sent = bench.link.lock().sent.pop().unwrap();
    assert_eq!((sent.checksum, sent.gso_size), (checksum, 1448));
    assert_eq!(sent.bytes.len(), segment.frame().len());
    let stats = bench.nic.tx_stats();
    assert_eq!((stats.packets, stats.frames, stats.software_tso), (1, 1, 0));
    bench.finish();
}

#[test]
fn software_segmentation_makes_the_segments_that_tcp_would_have_made() {
    for v6 in [false, true] {
        let mut bench = plain_bench();
        let flags = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN | TcpFlags::CWR;
        let segment = Tcp {
            v6,
            flags,
            seq: u32::MAX - 2000,
            ..tcp(&pattern(5, 10 * 1400 + 3))
        };
        let mut payload = device_payload(&mut bench, &segment.payload[..5001]);
        payload.append(device_payload(&mut bench, &segment.payload[5001..]));
        let tx = packet(&segment, 1400);
        bench.nic.transmit(TxPacket { payload, ..tx }, NOW).unwrap();
        let sent = std::mem::take(&mut bench.link.lock().sent);
        assert_eq!(sent.len(), 11);
        for (i, frame) in sent.iter().enumerate() {
            let headers = RxHeaders::parse(&frame.bytes, frame.bytes.len()).unwrap();
            let tcp = headers.tcp().unwrap();
            let last = i == 10;
            let part = &segment.payload[i * 1400..(i * 1400 + 1400).min(segment.payload.len())];
            assert_eq!(tcp.seq, segment.seq.wrapping_add(i as u32 * 1400));
            assert_eq!(tcp.flags.contains(TcpFlags::PSH | TcpFlags::FIN), last);
            assert_eq!(tcp.flags.intersects(TcpFlags::PSH | TcpFlags::FIN), last);
            assert_eq!(tcp.flags.contains(TcpFlags::CWR), i == 0);
            assert_eq!(tcp.options, segment.options);
            assert_eq!(&frame.bytes[headers.header_len..], part);
            if let Network::Ipv4(ip) = headers.network {
                assert_eq!(ip.ident, i as u16);
            }
            // The same segment made by itself has the same checksum.
            let flags = tcp.flags;
            let alone = Tcp {
                seq: tcp.seq,
                flags,
                payload: part.to_vec(),
                ..segment.clone()
            };
            let mut expected = alone.frame();
            if !v6 {
                expected[18..20].copy_from_slice(&(i as u16).to_be_bytes());
                expected[24..26].fill(0);
                let sum = wire::checksum(&expected[14..34]);
                expected[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            assert_eq!(frame.bytes, expected, "segment {i}");
        }
        let stats = bench.nic.tx_stats();
        assert_eq!(
            (stats.packets, stats.frames, stats.software_tso),
            (1, 11, 1)
        );
        bench.finish();
    }
}

/// A link with super-packets too long for a length field.
const LONG_PACKETS: LinkCaps = LinkCaps {
    max_super_packet: 160_000,
    ..OFFLOADED
};

#[test]
fn a_super_packet_longer_than_its_length_field_is_sent_whole_or_in_segments() {
    for link_tso in [true, false] {
        let caps = LinkCaps {
            tso: link_tso,
            ..LONG_PACKETS
        };
        let mut bench = Bench::new(caps, NicConfig::default(), vec![]);
        // The shortest one of IPv4 and of IPv6, and a long one.
        for (v6, payload_len) in [
            (false, 65_536 - 20 - 32),
            (true, 65_536 - 32),
            (false, 150_000),
            (true, 150_000),
        ] {
            let segment = Tcp {
                v6,
                ..tcp(&pattern(1, payload_len))
            };
            // At an MTU of 1500: no segment has the option of the super-packet.
            let gso_size = if v6 { 1428 } else { 1448 };
            let tx = packet(&segment, gso_size);
            bench.nic.transmit(tx, NOW).unwrap();
            let sent = std::mem::take(&mut bench.link.lock().sent);
            if link_tso {
                let [whole] = &sent[..] else {
                    panic!("{} frames", sent.len());
                };
                let length_field = if v6 { 18..20 } else { 16..18 };
                assert_eq!(
                    (whole.gso_size, &whole.bytes[length_field]),
                    (gso_size, &[0; 2][..])
                );
                assert_eq!(whole.bytes.len(), segment.head().len() + payload_len);
                assert!(whole.bytes.ends_with(&segment.payload));
            } else {
                let segments = sent.iter().map(|sent| {
                    let headers = RxHeaders::parse(&sent.bytes, sent.bytes.len()).unwrap();
                    assert_eq!(sent.bytes.len(), headers.header_len + headers.payload_len);
                    assert!(headers.payload_len <= usize::from(gso_size));
                    &sent.bytes[headers.header_len..]
                });
                assert_eq!(segments.collect::<Vec<_>>().concat(), segment.payload);
            }
        }
        let tx = packet(&tcp(&pattern(1, 160_000)), 1448);
        let refused = bench.nic.transmit(tx, NOW);
        assert_eq!(refused, Err(DropReason::TxInvalid));
        assert_eq!(bench.nic.drops().get(DropReason::TxInvalid), 1);
        bench.finish();
    }
}

#[test]
fn a_super_packet_that_the_link_has_no_memory_for_is_sent_as_shorter_ones() {
    let mut bench = Bench::new(LONG_PACKETS, NicConfig::default(), vec![]);
    bench.link.lock().takes_bytes = MAX_FRAME_LEN;
    for (turn, v6) in [false, true].into_iter().enumerate() {
        let segment = Tcp {
            v6,
            flags: TcpFlags::ACK | TcpFlags::PSH,
            ..tcp(&pattern(1, 150_000))
        };
        let tx = packet(&segment, 1400);
        // Packets that are not sent at once are sent later.
        bench.link.lock().takes = 1;
        bench.nic.transmit(tx, NOW).unwrap();
        assert_eq!(bench.link.lock().sent.len(), 1);
        bench.link.lock().takes = usize::MAX;
        assert_eq!(bench.nic.flush_tx(NOW), 0);
        let sent = std::mem::take(&mut bench.link.lock().sent);
        let mut seq = segment.seq;
        let mut payload = Vec::new();
        for (at, frame) in sent.iter().enumerate() {
            let headers = RxHeaders::parse(&frame.bytes, frame.bytes.len()).unwrap();
            assert_eq!(frame.bytes.len(), headers.header_len + headers.payload_len);
            let tcp = headers.tcp().unwrap();
            let is_last = at + 1 == sent.len();
            assert_eq!((tcp.seq, tcp.flags.contains(TcpFlags::PSH)), (seq, is_last));
            let what = frame.checksum.unwrap();
            assert_eq!(Some(usize::from(what.start)), headers.l4_offset());
            // Only the last one ends with a segment that is not full.
            assert_eq!(frame.gso_size, 1400);
            assert!(is_last || headers.payload_len.is_multiple_of(1400));
            seq += headers.payload_len as u32;
            payload.extend_from_slice(&frame.bytes[headers.header_len..]);
        }
        assert_eq!((sent.len(), payload), (3, segment.payload));
        let stats = bench.nic.tx_stats();
        let packets = turn as u64 + 1;
        assert_eq!(
            (
                stats.packets,
                stats.frames,
                stats.shortened,
                stats.software_tso
            ),
            (packets, 3 * packets, packets, 0)
        );
    }
    // If the link refuses every length, the packet is dropped and counted.
    bench.link.lock().takes_bytes = 1000;
    let tx = packet(&tcp(&pattern(1, 150_000)), 1400);
    assert_eq!(bench.nic.transmit(tx, NOW), Err(DropReason::TxLinkError));
    assert_eq!(bench.nic.drops().get(DropReason::TxLinkError), 1);
    bench.finish();
}

#[test]
fn a_link_that_refused_long_super_packets_gets_fewer_of_them() {
    let mut bench = Bench::new(LONG_PACKETS, NicConfig::default(), vec![]);
    // Sends a packet as one frame or as three; returns the number of frames.
    let send = |bench: &mut Bench, link_takes: usize| {
        bench.link.lock().takes_bytes = link_takes;
        let tx = packet(&tcp(&pattern(1, 150_000)), 1400);
        bench.nic.transmit(tx, NOW).unwrap();
        std::mem::take(&mut bench.link.lock().sent).len()
    };
    // After the first refusal the next one is tried, after the second one is not, then three are not.
    let takes = [MAX_FRAME_LEN, MAX_FRAME_LEN, usize::MAX, MAX_FRAME_LEN];
    assert_eq!(takes.map(|takes| send(&mut bench, takes)), [3; 4]);
    let frames = [(); 5].map(|()| send(&mut bench, usize::MAX));
    assert_eq!(frames, [3, 3, 3, 1, 1]);
    // A sent one resets the backoff.
    assert_eq!(send(&mut bench, MAX_FRAME_LEN), 3);
    assert_eq!(send(&mut bench, usize::MAX), 1);
    // The backoff is limited: one of 64 is tried.
    for _ in 0..500 {
        assert_eq!(send(&mut bench, MAX_FRAME_LEN), 3);
    }
    let frames = [(); 64].map(|()| send(&mut bench, usize::MAX));
    assert!(frames.contains(&1), "{frames:?}");
    // As one frame or three, each packet counts once.
    assert_eq!(bench.nic.tx_stats().packets, 4 + 5 + 2 + 500 + 64);
    bench.finish();
}

#[test]
fn a_super_packet_of_one_segment_is_an_ordinary_packet() {
    let mut bench = Bench::with_device(NicConfig::default());
    let segment = tcp(&pattern(1, 1400));
    let tx = packet(&segment, 1400);
    bench.nic.transmit(tx, NOW).unwrap();
    assert_eq!(bench.link.lock().sent.pop().unwrap().gso_size, 0);
    bench.finish();
}

#[test]
fn packets_for_a_busy_link_are_sent_later_and_in_order() {
    let mut bench = plain_bench();
    bench.link.lock().takes = 3;
    let segment = |seq| Tcp {
        seq,
        ..tcp(&pattern(seq as usize, 2800))
    };
    for seq in 0..4 {
        let tx = packet(&segment(seq), 1400);
        bench.nic.transmit(tx, NOW).unwrap();
    }
    // 1.5 packets left: the second is cut in the middle.
    assert_eq!(bench.link.lock().sent.len(), 3);
    assert_eq!(bench.nic.flush_tx(NOW), 3);
    bench.link.lock().takes = 2;
    assert!(
        bench.receive().is_none(),
        "receiving also gives the link another chance"
    );
    assert_eq!(bench.link.lock().sent.len(), 5);
    bench.link.lock().takes = usize::MAX;
    assert_eq!(bench.nic.flush_tx(NOW), 0);
    let seqs: Vec<_> = bench
        .link
        .lock()
        .sent
        .iter()
        .map(|frame| {
            RxHeaders::parse(&frame.bytes, frame.bytes.len())
                .unwrap()
                .tcp()
                .unwrap()
                .seq
        })
        .collect();
    assert_eq!(seqs, [0, 1400, 1, 1401, 2, 1402, 3, 1403]);
    assert_eq!(bench.nic.drops().total(), 0);
    bench.finish();
}

#[test]
fn a_busy_link_is_tried_once_for_all_packets_of_one_time() {
    let mut bench = plain_bench();
    bench.link.lock().takes = 1;
    let mut transmit = |now| {
        let tx = packet(&tcp(b"packet"), 0);
        bench.nic.transmit(tx, now).unwrap();
        bench.nic.tx_stats().busy
    };
    assert_eq!([NOW; 4].map(&mut transmit), [0, 1, 1, 1]);
    let later = NOW + Duration::from_nanos(1);
    assert_eq!([later; 3].map(&mut transmit), [2, 2, 2]);
    bench.link.lock().takes = usize::MAX;
    assert_eq!(bench.nic.flush_tx(later), 0, "a flush always tries");
    assert_eq!(bench.link.lock().sent.len(), 7);
    bench.finish();
}

#[test]
fn a_full_transmit_queue_drops_the_newest_packet_and_counts_it() {
    let rings = Rings {
        tx_packets: 2,
        ..NicConfig::default().rings
    };
    let mut bench = Bench::new(
        PLAIN,
        NicConfig {
            rings,
            ..NicConfig::default()
        },
        vec![],
    );
    bench.link.lock().takes = 0;
    let segment = tcp(&pattern(0, 100));
    for _ in 0..2 {
        let tx = packet(&segment, 0);
        assert!(bench.nic.tx_room() > 0);
        bench.nic.transmit(tx, NOW).unwrap();
    }
    assert_eq!(bench.nic.tx_room(), 0);
    let tx = packet(&segment, 0);
    assert_eq!(bench.nic.transmit(tx, NOW), Err(DropReason::TxBusy));
    assert_eq!(bench.dropped(DropReason::TxBusy), 1);
    bench.link.lock().takes = usize::MAX;
    assert_eq!(bench.nic.flush_tx(NOW), 0);
    assert_eq!(bench.link.lock().sent.len(), 2);
    bench.finish();
}

#[test]
fn packets_for_a_link_that_is_down_are_dropped_until_it_is_up() {
    let mut bench = plain_bench();
    let segment = tcp(&pattern(0, 100));
    bench.link.lock().takes = 0;
    let tx = packet(&segment, 0);
    bench.nic.transmit(tx, NOW).unwrap();
    bench.link.lock().up = false;
    let later = NOW + Duration::from_nanos(1);
    let tx = packet(&segment, 0);
    assert_eq!(bench.nic.transmit(tx, later), Err(DropReason::TxLinkDown));
    assert_eq!(
        bench.dropped(DropReason::TxLinkDown),
        2,
        "the one that waited is gone, too"
    );
    assert!(!bench.nic.is_up());
    bench.link.lock().up = true;
    bench.link.lock().takes = usize::MAX;
    let tx = packet(&segment, 0);
    bench.nic.transmit(tx, NOW).unwrap();
    bench.link.lock().refuses = true;
    let tx = packet(&segment, 0);
    assert_eq!(bench.nic.transmit(tx, NOW), Err(DropReason::TxLinkError));
    assert_eq!(bench.dropped(DropReason::TxLinkError), 1);
    bench.finish();
}

#[expect(
    clippy::too_many_lines,
    reason = "one scenario, read from top to bottom"
)]
#[test]
fn invalid_packets_are_refused() {
    let mut bench = plain_bench();
    let segment = tcp(&pattern(0, 1449));
    let tx = packet(&segment, 0);
    let longer = Tcp {
        payload: pattern(0, 9000),
        ..segment.clone()
    };
    let too_long = packet(&longer, 0);
    assert_eq!(
        bench.nic.transmit(too_long, NOW),
        Err(DropReason::TxInvalid)
    );
    let gso_size = 1500;
    let too_long = packet(&longer, gso_size);
    assert_eq!(
        bench.nic.transmit(too_long, NOW),
        Err(DropReason::TxInvalid)
    );
    let huge = Tcp {
        payload: pattern(0, 65_000),
        ..segment.clone()
    };
    let mut payload = host_payload(&huge.payload);
    payload.append(host_payload(&pattern(0, 1000)));
    let template = packet(&huge, 1400);
    let too_long = TxPacket {
        payload,
        ..template
    };
    assert_eq!(
        bench.nic.transmit(too_long, NOW),
        Err(DropReason::TxInvalid)
    );
    let bad_head = TxPacket {
        head: HeadBuf::from_slice(&[0; 13]).unwrap(),
        ..tx
    };
    assert_eq!(
        bench.nic.transmit(bad_head, NOW),
        Err(DropReason::TxInvalid)
    );
    let tx = packet(&segment, 0);
    let checksum = Some(wire::TxChecksum {
        start: 60,
        offset: 60,
    });
    assert_eq!(
        bench.nic.transmit(TxPacket { checksum, ..tx }, NOW),
        Err(DropReason::TxInvalid)
    );
    let tx = packet(&longer, 1400);
    let no_checksum = TxPacket {
        checksum: None,
        ..tx
    };
    assert_eq!(
        bench.nic.transmit(no_checksum, NOW),
        Err(DropReason::TxInvalid)
    );
    let tx = packet(&longer, 1400);
    let no_tcp = TxPacket {
        head: HeadBuf::from_slice(&[0; 66]).unwrap(),
        ..tx
    };
    assert_eq!(bench.nic.transmit(no_tcp, NOW), Err(DropReason::TxInvalid));
    assert!(bench.link.lock().sent.is_empty());
    assert_eq!(bench.dropped(DropReason::TxInvalid), 7);
    bench.finish();
}

#[test]
fn payload_is_dropped_when_the_link_has_it() {
    let mut bench = plain_bench();
    let payload = device_payload(&mut bench, &pattern(0, 4000));
    let watched = payload
        .iter()
        .map(|frag| frag.netmem().share())
        .next()
        .unwrap();
    drop(payload);
    let payload = watched.share();
    let segment = tcp(&pattern(0, 1000));
    let template = packet(&segment, 0);
    bench.link.lock().takes = 0;
    let payload = netmem::FragList::from(netmem::Frag::new(payload, 128, 1000));
    bench.nic.restart_queue(Q1, ProviderChoice::Host).unwrap();
    bench
        .nic
        .transmit(
            TxPacket {
                payload,
                ..template
            },
            NOW,
        )
        .unwrap();
    assert!(!watched.is_sole_owner(), "it is queued");
    bench.link.lock().takes = 1;
    assert_eq!(bench.nic.flush_tx(NOW), 0);
    assert!(watched.is_sole_owner());
    drop(watched);
    bench.finish();
}

#[test]
fn head_buffers_hold_128_bytes() {
    assert!(HeadBuf::from_slice(&[1; 129]).is_none());
    let head = HeadBuf::from_slice(&[1; 128]).unwrap();
    assert_eq!(head.as_slice(), [1; 128]);
    let head = HeadBuf::with(|room| {
        room[..3].copy_from_slice(b"abc");
        3
    });
    assert_eq!(head.as_slice(), b"abc");
}
