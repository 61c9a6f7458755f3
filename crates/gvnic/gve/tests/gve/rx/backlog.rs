//! Queues without buffers, rings and interrupts.

use super::*;

#[test]
fn a_queue_without_buffers_holds_frames_then_drops_and_affects_no_other_queue() {
    let (mut bench, mut driver) = up(QueueOptions {
        pairs: 4,
        ..QueueOptions::default()
    });
    // Tries ports until there is a flow for each of two queues.
    let mut ports = [0; 4];
    for port in (1..200).rev() {
        bench.receive_plain(&Frame::tcp4(1).with_port(port).bytes());
        for queue in 0..4 {
            if !take_rx(&mut bench, &mut driver, queue).is_empty() {
                ports[usize::from(queue)] = port;
            }
        }
    }
    assert!(ports.iter().all(|port| *port != 0), "{ports:?}");
    let starved = Frame::tcp4(4000).with_port(ports[3]).bytes();
    let other = Frame::tcp4(100).with_port(ports[1]).bytes();
    let (mut delivered, mut held, mut dropped) = (0usize, 0usize, 0usize);
    for _ in 0..2000 {
        match bench.receive_plain(&starved) {
            RxOutcome::Delivered => delivered += 1,
            RxOutcome::Held => held += 1,
            RxOutcome::Dropped(reason) => {
                assert_eq!(reason, DropReason::NoBuffers);
                dropped += 1;
            }
        }
        assert_eq!(bench.receive_plain(&other), RxOutcome::Delivered);
        assert_eq!(take_rx(&mut bench, &mut driver, 1).len(), 1);
    }
    assert!(delivered < 256, "{delivered}");
    assert_eq!(held, 256);
    assert_eq!(dropped, 2000 - delivered - held);
    let stats = bench.stats().rx[3];
    assert_eq!((stats.backlog, stats.drops), (256, dropped as u64));
    // The driver posts buffers again: the held frames arrive in order, then new ones.
    let mut got = 0;
    for _ in 0..8 {
        got += take_rx(&mut bench, &mut driver, 3).len();
    }
    assert_eq!(got, delivered + held);
    assert_eq!(bench.stats().rx[3].backlog, 0);
    assert_eq!(bench.receive_plain(&starved), RxOutcome::Delivered);
}

#[test]
fn a_queue_without_buffers_interrupts_the_driver_repeatedly() {
    let (mut bench, mut driver) = one_queue(QueueOptions {
        rsc: true,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(64_000);
    while bench.receive(&frame.unfinished(), frame.gso(1448)) == RxOutcome::Delivered {}
    let start = bench.now;
    bench.take_irqs();
    driver.enable_irq(&mut bench, 4, None);
    driver.enable_irq(&mut bench, 4, None);
    bench.take_irqs();
    let every = std::time::Duration::from_millis(20);
    for round in 1..=3 {
        let due = bench.device.poll_at().expect("the queue starves");
        assert_eq!(due, start + every * round);
        bench.poll();
        assert_eq!(bench.take_irqs(), [], "not before its time");
        bench.now = due;
        bench.poll();
        assert_eq!(bench.take_irqs(), [4]);
        driver.enable_irq(&mut bench, 4, None);
    }
    take_rx(&mut bench, &mut driver, 0);
    assert_eq!(bench.stats().rx[0].backlog, 0);
    assert!(
        bench.device.poll_at() > Some(bench.now + every),
        "only statistics are due"
    );
}

#[test]
fn the_backlog_is_bounded_in_bytes_too() {
    let (mut bench, mut driver) = up(QueueOptions {
        pairs: 1,
        rsc: true,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(64_000);
    let received: Vec<_> = (0..100)
        .map(|_| bench.receive(&frame.unfinished(), frame.gso(1448)))
        .collect();
    let held = received
        .iter()
        .filter(|one| **one == RxOutcome::Held)
        .count();
    assert_eq!(held, (1 << 20) / frame.unfinished().len());
    driver.restart_rx(&mut bench, 0).unwrap();
    assert_eq!(
        bench.stats().rx[0].backlog,
        0,
        "the backlog is dropped with its queue"
    );
    let packet = receive_one_with(
        &mut bench,
        &mut driver,
        &frame.unfinished(),
        frame.gso(1448),
    );
    assert_eq!(packet.data, frame.payload);
}

#[test]
fn held_frames_keep_their_order() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let frames: Vec<_> = (0..400u32)
        .map(|seq| {
            Frame {
                seq,
                ..Frame::tcp4(20)
            }
            .bytes()
        })
        .collect();
    for frame in &frames {
        bench.receive_plain(frame);
    }
    let mut got = Vec::new();
    for _ in 0..4 {
        got.extend(take_rx(&mut bench, &mut driver, 0));
    }
    let got: Vec<_> = got.iter().map(RxPacket::frame).collect();
    assert_eq!(got, frames);
}

#[test]
fn rings_wrap_for_more_than_64_k_descriptors() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let small = Frame::tcp4(40);
    let large = Frame::tcp4(8900);
    let (mut buffers, mut packets) = (0, 0);
    while buffers < 70_000 {
        let frame = if packets % 5 == 0 { &large } else { &small };
        let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
        assert_eq!(packet.data, frame.payload);
        buffers += packet.frags.len();
        packets += 1;
    }
    assert_eq!(bench.stats().rx[0].packets, packets);
}

#[test]
fn interrupts_of_a_queue_respect_its_interval() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let frame = Frame::tcp4(1).bytes();
    let interval = std::time::Duration::from_micros(20);
    driver.enable_irq(&mut bench, 4, Some(20));
    bench.take_irqs();
    bench.receive_plain(&frame);
    assert_eq!(bench.take_irqs(), [4]);
    let first = bench.now;
    driver.enable_irq(&mut bench, 4, None);
    bench.receive_plain(&frame);
    bench.poll();
    assert_eq!(bench.take_irqs(), []);
    assert_eq!(bench.device.poll_at(), Some(first + interval));
    bench.now = first + interval;
    bench.poll();
    assert_eq!(bench.take_irqs(), [4]);
}

#[test]
fn a_buffer_outside_of_memory_ends_the_packet_and_returns_its_buffers() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let (buffers, _) = driver.rx_rings(0);
    // Address of the second buffer.
    bench.ram.put(buffers + 32 + 8, &u64::MAX.to_le_bytes());
    let dropped = RxOutcome::Dropped(DropReason::BadAddress);
    assert_eq!(bench.receive_plain(&Frame::tcp4(8000).bytes()), dropped);
    let packets = driver.poll_rx(0).unwrap();
    assert_eq!(packets.len(), 1);
    assert!(packets[0].is_damaged());
    driver.refill(&mut bench, 0, usize::MAX);
    let packet = receive_one(&mut bench, &mut driver, &Frame::tcp4(8000).bytes());
    assert!(!packet.is_damaged());
}

#[test]
fn two_devices_back_to_back_carry_a_stream() {
    for (features, rsc) in [
        (gve::WireFeatures::all(), true),
        (gve::WireFeatures::all(), false),
        (gve::WireFeatures::empty(), true),
    ] {
        let options = QueueOptions {
            rsc,
            ..QueueOptions::default()
        };
        let (mut from, mut sender) = up(options);
        let (mut to, mut receiver) = up(options);
        from.wire.features = features;
        let mut got = Vec::new();
        let mut expected = Vec::new();
        for round in 0..40u32 {
            let seq = round * 30_000;
            let frame = Frame {
                seq,
                ..Frame::tcp4(30_000)
            };
            expected.extend_from_slice(&frame.payload);
            let bytes = frame.for_tso();
            let request = gve_driver::TxRequest {
                buffer_bytes: 4096,
                checksum: true,
                tso: Some(gve_driver::Tso {
                    mss: 1448,
                    header_len: 66,
                }),
                ..gve_driver::TxRequest::plain(&bytes)
            };
            crate::common::send_done(&mut from, &mut sender, &request);
            for sent in from.take_sent() {
                assert_eq!(to.receive(&sent.bytes, sent.offload), RxOutcome::Delivered);
            }
            for packet in take_all_rx(&mut to, &mut receiver) {
                assert_eq!(packet.status & RX_L3_L4_PROCESSED, RX_L3_L4_PROCESSED);
                got.extend_from_slice(&packet.data);
            }
        }
        assert_eq!(got, expected);
        assert_eq!(to.stats().device.drops, 0);
    }
}
