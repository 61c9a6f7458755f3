//! Header split and buffers.

use super::*;

#[test]
fn a_tcp_packet_is_split_after_its_headers() {
    for (frame, l3) in [
        (Frame::tcp4(1448), l3_type::IPV4),
        (Frame::tcp4(1), l3_type::IPV4),
        (Frame::tcp6(1428).tagged(), l3_type::IPV6),
    ] {
        let (mut bench, mut driver) = up_default();
        let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
        assert!(packet.split);
        assert_eq!(packet.header.len(), frame.header_len());
        assert_eq!(packet.data, frame.payload);
        assert_eq!(packet.frame(), frame.bytes());
        assert_eq!(
            packet.packet_type,
            u16::from(l3) << 3 | u16::from(l4_type::TCP)
        );
        assert_eq!(packet.status & RX_L3_L4_PROCESSED, RX_L3_L4_PROCESSED);
        assert_eq!(packet.status & (RX_CSUM_IP_ERR | RX_CSUM_L4_ERR), 0);
    }
}

#[test]
fn padding_of_short_frames_is_no_payload() {
    let ack = Frame::tcp4(0).without_timestamps();
    for (frame, padded) in [(ack.clone(), 60), (ack.tagged(), 64)] {
        let (mut bench, mut driver) = one_queue(QueueOptions::default());
        let mut bytes = frame.bytes();
        let len = bytes.len();
        assert!(len < padded);
        bytes.resize(padded, 0);
        let packet = receive_one(&mut bench, &mut driver, &bytes);
        assert!(packet.split);
        assert_eq!(packet.frags, [0]);
        assert_eq!(packet.header, bytes[..len]);
    }
}

#[test]
fn what_follows_the_packet_in_a_longer_frame_is_left_to_the_host() {
    let frame = Frame::tcp4(100);
    for offload in [Offload::default(), partial(&frame)] {
        let (mut bench, mut driver) = one_queue(QueueOptions::default());
        let whole = [frame.bytes(), vec![7; 50]].concat();
        let mut sent = whole.clone();
        if offload != Offload::default() {
            sent[..166].copy_from_slice(&frame.unfinished());
        }
        let packet = receive_one_with(&mut bench, &mut driver, &sent, offload);
        assert!(packet.split);
        assert_eq!(packet.frame(), whole);
        assert_eq!(packet.status & RX_CSUM_L4_ERR, 0);
    }
}

#[test]
fn packets_other_than_tcp_are_not_split() {
    let (mut bench, mut driver) = up_default();
    let mut arp = vec![0xff; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    for bytes in [Frame::udp4(100).bytes(), Frame::udp6(100).bytes(), arp] {
        let packet = receive_one(&mut bench, &mut driver, &bytes);
        assert!(!packet.split);
        assert_eq!(packet.data, bytes);
        assert_eq!(packet.header, []);
    }
    assert_eq!(bench.stats().rx.iter().map(|rx| rx.unsplit).sum::<u64>(), 0);
}

#[test]
fn a_queue_without_header_buffers_does_not_split() {
    let (mut bench, mut driver) = up(QueueOptions {
        header_bytes: 0,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(5000).bytes();
    let packet = receive_one(&mut bench, &mut driver, &frame);
    assert!(!packet.split);
    assert_eq!(packet.data, frame);
    assert_eq!(packet.frags, [4096, frame.len() - 4096]);
}

#[test]
fn headers_longer_than_their_buffer_stay_with_the_payload() {
    let (mut bench, mut driver) = up(QueueOptions {
        header_bytes: 64,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(100);
    assert_eq!(frame.header_len(), 66);
    let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
    assert!(!packet.split);
    assert_eq!(
        packet.status & RX_HEADER_BUFFER_OVERFLOW,
        RX_HEADER_BUFFER_OVERFLOW
    );
    assert_eq!(packet.data, frame.bytes());
}

#[test]
fn a_jumbo_packet_fills_buffers_of_either_size() {
    for (buffer_bytes, frags) in [
        (4096, vec![4096, 4096, 756]),
        (2048, vec![2048, 2048, 2048, 2048, 756]),
    ] {
        let (mut bench, mut driver) = up(QueueOptions {
            buffer_bytes,
            ..QueueOptions::default()
        });
        let frame = Frame::tcp4(8948);
        let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
        assert_eq!(packet.frags, frags);
        assert_eq!(packet.data, frame.payload);
    }
}

#[test]
fn payload_that_fills_its_buffers_exactly_uses_no_further_buffer() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let packet = receive_one(&mut bench, &mut driver, &Frame::tcp4(4096).bytes());
    assert_eq!(packet.frags, [4096]);
}

#[test]
fn the_fault_linear_bytes_leaves_payload_bytes_in_the_header_buffer() {
    let (mut bench, mut driver) = up_default();
    bench.set_faults(Faults {
        linear_bytes: 64,
        ..Faults::default()
    });
    for len in [0, 10, 64, 65, 1448] {
        let frame = Frame::tcp4(len);
        let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
        let linear = len.min(64);
        assert_eq!(packet.header.len(), frame.header_len() + linear);
        assert_eq!(packet.data, frame.payload[linear..]);
    }
    bench.set_faults(Faults {
        linear_bytes: u16::MAX,
        ..Faults::default()
    });
    let packet = receive_one(&mut bench, &mut driver, &Frame::tcp4(1448).bytes());
    assert_eq!(packet.header.len(), 256);
}

#[test]
fn the_fault_unsplit_every_leaves_every_kth_packet_unsplit() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    bench.set_faults(Faults {
        unsplit_every: NonZeroU32::new(3),
        ..Faults::default()
    });
    let frame = Frame::tcp4(100).bytes();
    let split: Vec<_> = (0..9)
        .map(|_| receive_one(&mut bench, &mut driver, &frame).split)
        .collect();
    assert_eq!(split, [true, true, false].repeat(3));
    assert_eq!(bench.stats().rx[0].unsplit, 3);
}

#[test]
fn the_fault_rx_buffers_kept_leaves_buffers_unfilled() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    // 255 buffers are posted; the last doorbell was for 224.
    bench.set_faults(Faults {
        rx_buffers_kept: 220,
        ..Faults::default()
    });
    let frame = Frame::tcp4(100).bytes();
    let received: Vec<_> = (0..6).map(|_| bench.receive_plain(&frame)).collect();
    assert_eq!(received[..4], [RxOutcome::Delivered; 4]);
    assert_eq!(received[4..], [RxOutcome::Held; 2]);
    bench.set_faults(Faults::default());
    assert_eq!(bench.receive_plain(&frame), RxOutcome::Delivered);
    assert_eq!(take_rx(&mut bench, &mut driver, 0).len(), 7);
}
