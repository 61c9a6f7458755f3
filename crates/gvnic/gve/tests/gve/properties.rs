//! Properties of random sequences: frames sent, segmented and held back, queues restarted.

use std::num::NonZeroU32;

use crate::common::frames::{Frame, checked, payload};
use crate::common::{take_rx, up};
use gve::{ChecksumState, Faults, RxOutcome, WireFeatures};
use gve_driver::{QueueOptions, RxPacket, Tso, TxRequest};
use proptest::prelude::*;

fn frame(max_payload: usize) -> impl Strategy<Value = Frame> {
    let kinds = prop::sample::select(vec![0, 1, 2, 3]);
    (kinds, any::<bool>(), 0..max_payload, any::<u16>()).prop_map(|(kind, tagged, len, port)| {
        let frame = match kind {
            0 => Frame::tcp4(len),
            1 => Frame::tcp6(len),
            2 => Frame::udp4(len),
            _ => Frame::udp6(len),
        };
        let frame = frame.with_port(port);
        if tagged { frame.tagged() } else { frame }
    })
}

fn options() -> impl Strategy<Value = QueueOptions> {
    let buffers = prop::sample::select(vec![2048, 4096]);
    let headers = prop::sample::select(vec![0, 64, 128, 256, 1023]);
    (buffers, headers, any::<bool>()).prop_map(|(buffer_bytes, header_bytes, rsc)| QueueOptions {
        pairs: 1,
        buffer_bytes,
        header_bytes,
        rsc,
        ..QueueOptions::default()
    })
}

/// One event of a receiving device.
#[derive(Clone, Debug)]
enum Event {
    Frame(Frame),
    SuperPacket(Frame, u16),
    Read,
    Faults(Faults),
}

fn event() -> impl Strategy<Value = Event> {
    let faults = (0..300u16, 0..5u32, 0..250u16).prop_map(|(linear_bytes, every, kept)| Faults {
        linear_bytes,
        unsplit_every: NonZeroU32::new(every),
        rx_buffers_kept: kept,
    });
    prop_oneof![
        6 => frame(8800).prop_map(Event::Frame),
        3 => (frame(60_000), 500..9000u16).prop_map(|(frame, size)| Event::SuperPacket(frame, size)),
        3 => Just(Event::Read),
        1 => faults.prop_map(Event::Faults),
    ]
}

/// Returns the payload of all packets: the same whether a super-packet was coalesced or segmented.
fn payloads<'a>(packets: impl IntoIterator<Item = &'a RxPacket>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for packet in packets {
        let frame = packet.frame();
        let headers = wire::RxHeaders::parse(&frame, frame.len()).expect("headers");
        bytes.extend_from_slice(payload(&frame, &headers));
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn accepted_frames_reach_the_guest_in_order(
        options in options(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        let (mut bench, mut driver) = up(options);
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        let mut lost = false;
        for event in events {
            match event {
                Event::Frame(frame) => match bench.receive_plain(&frame.bytes()) {
                    RxOutcome::Dropped(_) => {}
                    _ => expected.extend_from_slice(&frame.payload),
                },
                Event::SuperPacket(frame, size) => {
                    let drops = bench.stats().rx[0].drops;
                    bench.receive(&frame.unfinished(), frame.gso(size));
                    // Some of its segments may be lost; it is not reported which.
                    lost |= bench.stats().rx[0].drops != drops;
                    expected.extend_from_slice(&frame.payload);
                }
                Event::Read => got.extend(take_rx(&mut bench, &mut driver, 0)),
                Event::Faults(faults) => bench.set_faults(faults),
            }
        }
        bench.set_faults(Faults::default());
        for _ in 0..300 {
            bench.poll();
            got.extend(take_rx(&mut bench, &mut driver, 0));
        }
        prop_assert_eq!(bench.stats().rx[0].backlog, 0);
        prop_assert_eq!(driver.posted(0), 255, "one completion for each buffer taken");
        prop_assert!(got.iter().all(|packet| !packet.is_damaged()));
        for packet in got.iter().filter(|packet| packet.rsc.is_none()) {
            checked(&packet.frame());
        }
        if !lost {
            prop_assert_eq!(payloads(&got), expected);
        }
    }

    #[test]
    fn sent_frames_are_complete_for_all_buffer_sizes_and_doorbells(
        frames in prop::collection::vec((frame(8000), 100..9000u16, 0..8u16), 1..40),
        features in 0..16u8,
        room in 0..5usize,
    ) {
        let (mut bench, mut driver) = up(QueueOptions { pairs: 1, ..QueueOptions::default() });
        bench.wire.features = WireFeatures::from_bits_truncate(features);
        let mut sent = Vec::new();
        for (frame, buffer_bytes, less) in &frames {
            let bytes = frame.unfinished();
            let request = TxRequest {
                buffer_bytes: *buffer_bytes,
                checksum: true,
                ..TxRequest::plain(&bytes)
            };
            bench.wire.room = room;
            if driver.push(0, &request).is_none() {
                // The ring is full: let the wire accept frames again.
                bench.wire.room = usize::MAX;
                driver.ring_tx(&mut bench, 0, 0);
                bench.resume_tx();
                driver.poll_tx(0).expect("no gVNIC would do this");
                prop_assert!(driver.push(0, &request).is_some());
            }
            let descriptors = 1 + bytes.len().div_ceil(usize::from(*buffer_bytes)) as u16;
            driver.ring_tx(&mut bench, 0, (*less).min(descriptors));
            driver.poll_tx(0).expect("no gVNIC would do this");
            sent.extend(bench.take_sent());
        }
        bench.wire.room = usize::MAX;
        driver.ring_tx(&mut bench, 0, 0);
        bench.resume_tx();
        sent.extend(bench.take_sent());
        prop_assert_eq!(sent.len(), frames.len());
        for (sent, (frame, ..)) in sent.iter().zip(&frames) {
            match sent.offload.checksum {
                ChecksumState::Partial(_) => prop_assert_eq!(&sent.bytes, &frame.unfinished()),
                _ => {
                    checked(&sent.bytes);
                    prop_assert_eq!(&sent.bytes, &frame.bytes());
                }
            }
        }
    }

    #[test]
    fn a_super_packet_is_segmented_alike_on_transmit_and_receive(frame in frame(60_000), mss in 88..9000u16) {
        prop_assume!(!frame.payload.is_empty());
        // Segments of at most the largest MTU.
        let mss = mss.min(8900);
        let (mut from, mut sender) = up(QueueOptions { pairs: 1, ..QueueOptions::default() });
        from.wire.features = WireFeatures::empty();
        let bytes = frame.for_tso();
        let request = TxRequest {
            checksum: true,
            tso: Some(Tso { mss, header_len: frame.header_len() as u8 }),
            ..TxRequest::plain(&bytes)
        };
        crate::common::send_done(&mut from, &mut sender, &request);
        let cut_by_sender: Vec<_> = from.take_sent().into_iter().map(|sent| sent.bytes).collect();
        let (mut to, mut receiver) = up(QueueOptions {
            pairs: 1,
            rx_entries: 1024,
            ..QueueOptions::default()
        });
        to.receive(&frame.unfinished(), frame.gso(mss));
        let cut_by_receiver: Vec<_> = take_rx(&mut to, &mut receiver, 0)
            .iter()
            .map(RxPacket::frame)
            .collect();
        prop_assert_eq!(cut_by_sender, cut_by_receiver);
    }
}
