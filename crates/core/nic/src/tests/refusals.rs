//! Frames that are dropped, each with its reason.

use wire::{ChecksumState, MacAddr, TcpOptions};

use super::harness::*;
use crate::*;

fn plain(payload: &[u8]) -> Tcp {
    Tcp {
        options: TcpOptions::default(),
        ..tcp(payload)
    }
}

/// Rewrites the IPv4 header checksum after a change.
fn reseal(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = wire::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn mutated(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = plain(&pattern(0, 400)).frame();
    change(&mut frame);
    frame
}

#[expect(clippy::too_many_lines, reason = "one row for each case")]
fn bad_frames() -> Vec<(DropReason, Vec<u8>)> {
    vec![
        (DropReason::RxRunt, vec![]),
        (DropReason::RxRunt, vec![0; 13]),
        (DropReason::RxTruncated, mutated(|frame| frame.truncate(20))),
        (
            DropReason::RxTruncated,
            mutated(|frame| frame.truncate(100)),
        ),
        (DropReason::RxBadIpHeader, mutated(|frame| frame[14] = 0x65)),
        (DropReason::RxBadIpHeader, mutated(|frame| frame[14] = 0x44)),
        (DropReason::RxBadIpChecksum, mutated(|frame| frame[25] ^= 1)),
        (
            DropReason::RxBadIpHeader,
            mutated(|frame| {
                frame[16..18].copy_from_slice(&[0, 10]);
                reseal(frame);
            }),
        ),
        (
            DropReason::RxBadTcpHeader,
            mutated(|frame| frame[46] = 0x40),
        ),
        (DropReason::RxBadChecksum, mutated(|frame| frame[60] ^= 1)),
        (
            DropReason::RxBadChecksum,
            mutated(|frame| frame[453] ^= 0x80),
        ),
        (DropReason::RxNotForUs, mutated(|frame| frame[5] = 9)),
        (
            DropReason::RxVlan,
            Tcp {
                vlan: Some(0x2005),
                ..plain(b"x")
            }
            .frame(),
        ),
        (
            DropReason::RxBadUdpHeader,
            mutated(|frame| {
                frame[23] = 17;
                frame[38..40].fill(0xff);
                reseal(frame);
            }),
        ),
        (DropReason::RxBadExtensionHeaders, {
            // A chain of destination options without an end.
            let mut frame = Tcp {
                v6: true,
                ..plain(&[])
            }
            .frame();
            frame.truncate(54);
            frame[20] = 60;
            for _ in 0..60 {
                frame.extend_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0]);
            }
            let len = (frame.len() - 54) as u16;
            frame[18..20].copy_from_slice(&len.to_be_bytes());
            frame
        }),
        (DropReason::RxOversize, vec![0; MAX_FRAME_LEN + 1]),
        (DropReason::RxOversize, vec![0; 200_000]),
    ]
}

#[test]
fn every_bad_frame_is_dropped_with_its_reason_and_uses_no_memory() {
    for delivery in [Delivery::Scatter, Delivery::Whole] {
        let mut bench = Bench::with_device(NicConfig::default());
        bench.pass(&tcp(&pattern(1, 1000)));
        let space = bench.nic.rx_space(Q1);
        for (reason, frame) in bad_frames() {
            let before = bench.dropped(reason);
            bench.link.deliver(frame, UNVERIFIED, delivery);
            assert!(bench.receive().is_none(), "{reason:?} passes");
            assert_eq!(
                bench.dropped(reason),
                before + 1,
                "{reason:?}: {:?}",
                bench.nic.drops()
            );
        }
        assert_eq!(bench.nic.drops().total(), bad_frames().len() as u64);
        assert_eq!(bench.nic.rx_space(Q1), space);
        bench.pass(&tcp(&pattern(2, 1000)));
        bench.finish();
    }
}

#[test]
fn poll_rx_returns_after_64_bad_frames() {
    let mut bench = Bench::with_device(NicConfig::default());
    for _ in 0..1000 {
        bench.link.scatter(vec![0; 13], UNVERIFIED);
    }
    bench.link.scatter(tcp(b"good").frame(), UNVERIFIED);
    assert!(bench.receive().is_none());
    assert!(bench.dropped(DropReason::RxRunt) < 100);
    let mut polls = 1;
    while bench.receive().is_none() {
        polls += 1;
        assert!(polls < 100);
    }
    assert_eq!(bench.dropped(DropReason::RxRunt), 1000);
    bench.finish();
}

#[test]
fn broadcast_and_multicast_frames_are_accepted() {
    let mut bench = Bench::with_device(NicConfig::default());
    for mac in [MacAddr::BROADCAST, MacAddr([0x33, 0x33, 0, 0, 0, 1])] {
        let mut frame = tcp(b"for all").frame();
        frame[..6].copy_from_slice(&mac.0);
        bench.link.scatter(frame, UNVERIFIED);
        assert!(bench.receive().is_some());
    }
    bench.finish();
}

#[test]
fn a_frame_with_a_priority_tag_is_accepted() {
    let mut bench = Bench::with_device(NicConfig::default());
    let packet = bench.pass(&Tcp {
        vlan: Some(0xe000),
        ..tcp(&pattern(0, 2000))
    });
    assert!(all_in(packet.payload.frags().unwrap(), 1));
    drop(packet);
    bench.finish();
}

#[test]
fn checksums_are_verified_over_header_device_memory_and_spill() {
    let devices = vec![opaque(65_536, 1, 65_536), opaque(4 << 20, 2, 4096)];
    let mut bench = Bench::new(OFFLOADED, NicConfig::default(), devices);
    for v6 in [false, true] {
        for (port, len) in [
            (5202, 0),
            (5202, 1),
            (5202, 1447),
            (5202, 33_333),
            (5201, 777),
            (80, 64_999),
        ] {
            let good = Tcp {
                v6,
                dst_port: port,
                ..tcp(&pattern(len, len))
            };
            bench.link.scatter(good.frame(), UNVERIFIED);
            let packet = bench.receive().expect("a good checksum passes");
            assert_eq!(bench.read(packet.payload.frags().unwrap()), good.payload);
            bench.nic.recycle(packet.payload.into_frags());
            for at in [good.head().len() - 1, good.frame().len() - 1] {
                let mut bad = good.frame();
                bad[at] ^= 0x10;
                bench.link.scatter(bad, UNVERIFIED);
                assert!(bench.receive().is_none(), "flipped bit at {at}");
            }
        }
    }
    let dropped = bench.dropped(DropReason::RxBadChecksum);
    assert_eq!((dropped, bench.nic.drops().total()), (24, 24));
    let verified: u64 = [Q0, Q1, Q2]
        .map(|queue| bench.nic.queue_stats(queue).unwrap().checksum_verified)
        .iter()
        .sum();
    assert_eq!(verified, 12);
    bench.finish();
}

#[test]
fn a_checksum_that_the_link_knows_is_not_computed() {
    let mut bench = Bench::with_device(NicConfig::default());
    let mut bad = tcp(&pattern(0, 1000)).frame();
    bad[500] ^= 1;
    for (checksum, passes) in [
        (PARTIAL.checksum, true),
        (ChecksumState::Verified, true),
        (ChecksumState::Unknown, false),
    ] {
        bench.link.scatter(
            bad.clone(),
            VnetMeta {
                checksum,
                ..PARTIAL
            },
        );
        assert_eq!(bench.receive().is_some(), passes, "{checksum:?}");
    }
    assert_eq!(bench.nic.queue_stats(Q1).unwrap().checksum_trusted, 2);
    bench.finish();
}

#[test]
fn udp_without_a_checksum_passes_over_ipv4_only() {
    let mut bench = Bench::with_device(NicConfig::default());
    let mut frame = plain(&pattern(0, 100)).frame();
    frame[23] = 17;
    let len = (frame.len() - 34) as u16;
    frame[38..40].copy_from_slice(&len.to_be_bytes());
    frame[40..42].fill(0);
    reseal(&mut frame);
    bench.link.scatter(frame.clone(), UNVERIFIED);
    assert!(bench.receive().is_some());
    frame[40] = 1;
    bench.link.scatter(frame, UNVERIFIED);
    assert!(bench.receive().is_none());
    let mut frame = Tcp {
        v6: true,
        ..plain(&pattern(0, 100))
    }
    .frame();
    frame[20] = 17;
    let len = (frame.len() - 54) as u16;
    frame[58..60].copy_from_slice(&len.to_be_bytes());
    frame[60..62].fill(0);
    bench.link.scatter(frame, UNVERIFIED);
    assert!(bench.receive().is_none());
    assert_eq!(bench.dropped(DropReason::RxBadChecksum), 2);
    bench.finish();
}

#[test]
fn a_failed_receive_is_counted_and_the_link_is_used_again() {
    let mut bench = Bench::with_device(NicConfig::default());
    bench.link.lock().rx_fails = 2;
    bench.link.scatter(tcp(b"later").frame(), PARTIAL);
    assert!(bench.receive().is_none());
    assert!(bench.receive().is_none());
    assert_eq!(bench.dropped(DropReason::RxLinkError), 2);
    assert!(bench.receive().is_some());
    bench.finish();
}
