//! Sending: buffers, offloads, completions, a busy wire.

use crate::common::frames::{Frame, checked, payload};
use crate::common::{Bench, send_done, up, up_default};
use gve::{ChecksumState, GsoKind, Offload, WireFeatures};
use gve_driver::{BarAccess, Driver, QueueOptions, Tso, TxRequest};

fn tso(frame: &Frame, mss: u16) -> Option<Tso> {
    Some(Tso {
        mss,
        header_len: u8::try_from(frame.header_len()).unwrap(),
    })
}

#[test]
fn a_frame_is_sent_unchanged() {
    let (mut bench, mut driver) = up_default();
    for len in [0, 1, 60, 373 - 66, 374 - 66, 375 - 66, 1448, 8934] {
        let frame = Frame::tcp4(len).bytes();
        for buffer_bytes in [1, 14, 100, 1000, 16_383] {
            if frame.len() / usize::from(buffer_bytes) > 100 {
                continue;
            }
            let request = TxRequest {
                buffer_bytes,
                ..TxRequest::plain(&frame)
            };
            send_done(&mut bench, &mut driver, &request);
            let sent = bench.take_sent();
            assert_eq!(sent.len(), 1);
            assert_eq!(sent[0].bytes, frame, "{len} in {buffer_bytes}");
            assert_eq!(sent[0].offload, Offload::default());
        }
    }
}

#[test]
fn a_completion_interrupts_the_block_of_the_queue() {
    let (mut bench, mut driver) = up_default();
    bench.take_irqs();
    let frame = Frame::tcp4(10).bytes();
    driver
        .send(&mut bench, 2, &TxRequest::plain(&frame))
        .unwrap();
    assert_eq!(bench.take_irqs(), [2]);
    driver
        .send(&mut bench, 2, &TxRequest::plain(&frame))
        .unwrap();
    assert_eq!(bench.take_irqs(), [], "masked until it is enabled again");
    driver.enable_irq(&mut bench, 2, None);
    assert_eq!(bench.take_irqs(), [2]);
}

#[test]
fn a_partial_checksum_is_passed_to_a_wire_that_completes_it() {
    for frame in [
        Frame::tcp4(100),
        Frame::tcp6(101),
        Frame::udp4(5),
        Frame::udp6(0).tagged(),
    ] {
        let (mut bench, mut driver) = up_default();
        let bytes = frame.unfinished();
        let request = TxRequest {
            checksum: true,
            ..TxRequest::plain(&bytes)
        };
        send_done(&mut bench, &mut driver, &request);
        let sent = bench.take_sent();
        assert_eq!(sent[0].bytes, bytes);
        assert_eq!(sent[0].offload, crate::common::partial(&frame));
    }
}

#[test]
fn a_partial_checksum_is_completed_for_a_wire_that_does_not_complete_it() {
    for frame in [
        Frame::tcp4(1000),
        Frame::tcp6(101),
        Frame::udp4(5),
        Frame::udp6(0).tagged(),
    ] {
        let (mut bench, mut driver) = up_default();
        bench.wire.features = WireFeatures::empty();
        let request_bytes = frame.unfinished();
        let request = TxRequest {
            checksum: true,
            ..TxRequest::plain(&request_bytes)
        };
        send_done(&mut bench, &mut driver, &request);
        let sent = bench.take_sent();
        assert_eq!(sent[0].offload, Offload::default());
        checked(&sent[0].bytes);
        assert_eq!(sent[0].bytes, frame.bytes());
    }
}

#[test]
fn a_super_packet_is_passed_whole_to_a_wire_that_accepts_it() {
    for (frame, kind) in [
        (Frame::tcp4(40_000), GsoKind::Tcp4),
        (Frame::tcp6(65_000).tagged(), GsoKind::Tcp6),
        (Frame::udp4(20_000), GsoKind::Udp),
    ] {
        let (mut bench, mut driver) = up_default();
        let bytes = frame.for_tso();
        let request = TxRequest {
            tso: tso(&frame, 1400),
            checksum: true,
            ..TxRequest::plain(&bytes)
        };
        send_done(&mut bench, &mut driver, &request);
        let sent = bench.take_sent();
        assert_eq!(sent.len(), 1);
        let gso = sent[0].offload.gso.expect("a super-packet");
        assert_eq!((gso.kind, gso.size.get()), (kind, 1400));
        assert_eq!(
            sent[0].bytes,
            frame.unfinished(),
            "the pseudo-header includes the length"
        );
        let checksum = ChecksumState::Partial(frame.checksum());
        assert_eq!(sent[0].offload.checksum, checksum);
    }
}

#[test]
fn a_super_packet_is_segmented_for_a_wire_that_does_not_accept_it() {
    for features in [WireFeatures::empty(), WireFeatures::CHECKSUM] {
        for frame in [
            Frame::tcp4(40_001),
            Frame::tcp6(40_000),
            Frame::udp4(4200),
            Frame::udp6(4201).tagged(),
        ] {
            let (mut bench, mut driver) = up_default();
            bench.wire.features = features;
            let bytes = frame.for_tso();
            let request = TxRequest {
                tso: tso(&frame, 1400),
                checksum: true,
                ..TxRequest::plain(&bytes)
            };
            send_done(&mut bench, &mut driver, &request);
            let mut got = Vec::new();
            let sent = bench.take_sent();
            assert_eq!(sent.len(), frame.payload.len().div_ceil(1400));
            for (index, mut segment) in sent.into_iter().enumerate() {
                if let ChecksumState::Partial(what) = segment.offload.checksum {
                    wire::fill_checksum(&mut segment.bytes, 0, what);
                }
                assert_eq!(segment.offload.gso, None);
                let headers = checked(&segment.bytes);
                if let Some(tcp) = headers.tcp() {
                    assert_eq!(tcp.seq, 1000 + 1400 * index as u32);
                }
                got.extend_from_slice(payload(&segment.bytes, &headers));
            }
            assert_eq!(got, frame.payload);
            assert_eq!(bench.stats().tx[0].segmented, 1);
        }
    }
}

#[test]
fn segmentation_that_a_busy_wire_interrupts_continues_where_it_stopped() {
    let (mut bench, mut driver) = up_default();
    bench.wire.features = WireFeatures::empty();
    let frame = Frame::tcp4(10_000);
    let bytes = frame.for_tso();
    let request = TxRequest {
        tso: tso(&frame, 1000),
        checksum: true,
        ..TxRequest::plain(&bytes)
    };
    bench.wire.room = 3;
    let tag = driver.send(&mut bench, 0, &request).unwrap();
    assert_eq!(driver.poll_tx(0).unwrap().tags, []);
    for _ in 0..3 {
        bench.wire.room = 3;
        bench.resume_tx();
    }
    assert_eq!(driver.poll_tx(0).unwrap().tags, [tag]);
    let seqs: Vec<_> = bench
        .take_sent()
        .iter()
        .map(|sent| checked(&sent.bytes).tcp().unwrap().seq)
        .collect();
    let expected: Vec<_> = (0..10).map(|index| 1000 + 1000 * index).collect();
    assert_eq!(seqs, expected);
    assert!(!bench.device.tx_blocked());
}

#[test]
fn a_busy_wire_keeps_packets_in_the_ring_in_order() {
    let (mut bench, mut driver) = up_default();
    bench.wire.room = 0;
    let frames: Vec<_> = (0..5)
        .map(|port| Frame::tcp4(50).with_port(port).bytes())
        .collect();
    for frame in &frames {
        driver
            .send(&mut bench, 1, &TxRequest::plain(frame))
            .unwrap();
    }
    assert!(bench.device.tx_blocked());
    assert_eq!(driver.poll_tx(1).unwrap().tags, []);
    for _ in &frames {
        bench.wire.room = 1;
        bench.resume_tx();
    }
    assert!(!bench.device.tx_blocked());
    assert_eq!(driver.poll_tx(1).unwrap().tags.len(), 5);
    let sent: Vec<_> = bench
        .take_sent()
        .into_iter()
        .map(|sent| sent.bytes)
        .collect();
    assert_eq!(sent, frames);
}

#[test]
fn a_doorbell_in_the_middle_of_a_packet_waits_for_the_rest() {
    let (mut bench, mut driver) = up_default();
    let frame = Frame::tcp4(1000).bytes();
    let request = TxRequest {
        buffer_bytes: 300,
        ..TxRequest::plain(&frame)
    };
    let tag = driver.push(0, &request).unwrap();
    for less in [4, 3, 2, 1] {
        driver.ring_tx(&mut bench, 0, less);
        assert_eq!(bench.take_sent(), []);
        assert_eq!(driver.poll_tx(0).unwrap().tags, []);
    }
    driver.ring_tx(&mut bench, 0, 0);
    assert_eq!(bench.take_sent()[0].bytes, frame);
    assert_eq!(driver.poll_tx(0).unwrap().tags, [tag]);
}

#[test]
fn rings_wrap_for_more_than_64_k_descriptors() {
    let (mut bench, mut driver) = up_default();
    let frame = Frame::tcp4(40).bytes();
    let request = TxRequest {
        buffer_bytes: 40,
        ..TxRequest::plain(&frame)
    };
    let (mut sent, mut reports) = (0, 0);
    // General context and three buffers each.
    while sent * 4 < 70_000 {
        driver
            .send(&mut bench, 0, &request)
            .expect("the ring never fills");
        let done = driver.poll_tx(0).unwrap();
        assert_eq!(done.tags.len(), 1);
        reports += done.reports;
        sent += 1;
        assert_eq!(bench.take_sent().len(), 1);
    }
    assert!(
        reports > 1900,
        "descriptor completions for every 32: {reports}"
    );
}

/// Writes a descriptor at the start of a ring and rings the doorbell.
fn raw(bench: &mut Bench, driver: &Driver, descs: &[[u8; 16]]) {
    bench.ram.put(driver.tx_ring(0), descs.as_flattened());
    bench.write(2, 256 * 4, &(descs.len() as u32).to_le_bytes());
}

fn buffer(addr: u64, len: u16, flags: u8) -> [u8; 16] {
    let mut desc = [0; 16];
    desc[..8].copy_from_slice(&addr.to_le_bytes());
    desc[8] = 0xc | flags;
    desc[14..].copy_from_slice(&len.to_le_bytes());
    desc
}

const EOP: u8 = 1 << 5;

#[test]
fn invalid_descriptors_are_counted_and_completed() {
    let memory = crate::common::RAM_BASE;
    let context = |kind: u8| {
        let mut desc = [0; 16];
        desc[8] = kind;
        desc
    };
    for descs in [
        vec![[0; 16]],
        vec![[0xff; 16]],
        vec![buffer(memory, 13, EOP)],
        vec![buffer(memory, 0, EOP)],
        vec![
            buffer(memory, 100, 0),
            context(0x4),
            buffer(memory, 100, EOP),
        ],
        vec![
            buffer(memory, 100, 0),
            context(0x5),
            buffer(memory, 100, EOP),
        ],
        vec![context(0x5), context(0x5), buffer(memory, 100, EOP)],
        vec![buffer(memory, 9000, 0), buffer(memory, 9000, EOP)],
        vec![buffer(memory, 100, 0); 200],
    ] {
        let (mut bench, driver) = up_default();
        raw(&mut bench, &driver, &descs);
        assert_eq!(bench.take_sent(), [], "{descs:?}");
        assert_eq!(bench.stats().tx[0].malformed, 1, "{descs:?}");
    }
}

#[test]
fn buffers_outside_of_memory_are_counted_and_completed() {
    for addr in [
        0,
        crate::common::RAM_BASE - 1,
        u64::MAX,
        u64::MAX - 50,
        1 << 40,
    ] {
        for descs in [
            vec![buffer(addr, 100, EOP)],
            vec![buffer(addr, 1000, EOP)],
            vec![
                buffer(crate::common::RAM_BASE, 1000, 0),
                buffer(addr, 100, EOP),
            ],
        ] {
            let (mut bench, mut driver) = up_default();
            raw(&mut bench, &driver, &descs);
            assert_eq!(bench.take_sent(), [], "{addr:#x}");
            assert_eq!(bench.stats().tx[0].bad_address, 1, "{addr:#x}");
            let frame = Frame::tcp4(1).bytes();
            bench.ram.put(driver.tx_ring(0), &[0; 16 * 2]);
            assert!(driver.push(0, &TxRequest::plain(&frame)).is_some());
        }
    }
}

#[test]
fn an_offload_that_does_not_fit_its_headers_is_refused() {
    let good = Frame::tcp4(5000);
    let bytes = good.for_tso();
    let header_len = u8::try_from(good.header_len()).unwrap();
    for (mss, header_len) in [
        (0, header_len),
        (87, header_len),
        (1400, header_len - 1),
        (1400, 0),
        (1400, 255),
    ] {
        let (mut bench, mut driver) = up_default();
        let request = TxRequest {
            tso: Some(Tso { mss, header_len }),
            ..TxRequest::plain(&bytes)
        };
        send_done(&mut bench, &mut driver, &request);
        assert_eq!(bench.take_sent(), []);
        assert_eq!(bench.stats().tx[0].bad_offload, 1);
    }
    let (mut bench, mut driver) = up_default();
    let garbage = [0x55; 100];
    let request = TxRequest {
        checksum: true,
        ..TxRequest::plain(&garbage)
    };
    send_done(&mut bench, &mut driver, &request);
    assert_eq!(bench.stats().tx[0].bad_offload, 1);
}

#[test]
fn doorbells_without_a_queue_are_counted() {
    let (mut bench, _driver) = up_default();
    bench.take_irqs();
    let before = bench.stats();
    let word = 1u32.to_le_bytes();
    bench.write(2, 8 * 4, &word);
    bench.write(2, (256 + 4) * 4, &word);
    bench.write(2, (512 + 4) * 4, &word);
    bench.write(2, 1023 * 4, &word);
    bench.write(2, u64::MAX - 3, &word);
    bench.write(2, 256 * 4 + 1, &word);
    bench.write(2, 256 * 4, &word[..3]);
    bench.write(2, 256 * 4, &[]);
    bench.write(2, 256 * 4, &256u32.to_le_bytes());
    bench.write(2, 512 * 4, &u32::MAX.to_le_bytes());
    assert_eq!(bench.stats().device.bad_doorbells, 10);
    assert_eq!((bench.stats().tx, bench.stats().rx), (before.tx, before.rx));
    assert_eq!(bench.take_irqs(), []);
}

#[test]
fn the_largest_ring_works() {
    let (mut bench, mut driver) = up(QueueOptions {
        pairs: 1,
        tx_entries: 4096,
        rx_entries: 4096,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(40).bytes();
    for _ in 0..3000 {
        send_done(&mut bench, &mut driver, &TxRequest::plain(&frame));
        bench.receive_plain(&frame);
        assert_eq!(crate::common::take_rx(&mut bench, &mut driver, 0).len(), 1);
    }
}
