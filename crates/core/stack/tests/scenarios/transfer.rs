//! Whole transfers between two stacks: every byte is verified in place, and every net_iov is given back at the end.

use std::net::IpAddr;

use super::common::{PORT, assert_no_memory_drops, drops};
use super::{Pair, Sink, Source};
use netmem::{Dmabuf, NiovSize};
use netsim::{Door as _, PairConfig, Pattern, Progress, Report, Side};

/// One transfer from A to memory bound at B.
struct Transfer {
    config: PairConfig,
    memory: usize,
    niov_size: NiovSize,
    total: u64,
    chunk: usize,
    ip: IpAddr,
}

impl Default for Transfer {
    fn default() -> Self {
        Self {
            config: PairConfig::default(),
            memory: 4 << 20,
            niov_size: NiovSize::DEFAULT,
            total: 1_000_000,
            chunk: 65_536,
            ip: Side::B.ipv4(),
        }
    }
}

impl Transfer {
    fn run(&self) -> Report {
        let mut pair = Pair::new(&self.config);
        let id = pair.bind(Side::B, self.memory, self.niov_size, &[0]);
        let (receiver, sender) = pair.connect(Side::B, self.ip, PORT);
        let pattern = Pattern::new(self.config.seed);
        let mut source = Source::new(sender, pattern, self.total, self.chunk);
        let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
        let ran = pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b)));
        let report = sink.report();
        assert!(
            ran.is_ok(),
            "{ran:?} after {report:?}, dropped {:?}",
            drops(&pair.b)
        );
        assert_eq!(report.bytes(), self.total);
        assert_eq!(report.freed, report.frags);
        assert_no_memory_drops(&pair.b);
        drop(sink);
        pair.a.close(sender).unwrap();
        pair.b.close(receiver).unwrap();
        pair.finish();
        report
    }
}

#[test]
fn every_byte_lands_in_device_memory() {
    let report = Transfer {
        total: 5_000_000,
        ..Transfer::default()
    }
    .run();
    assert_eq!(report.device_bytes, 5_000_000);
}

#[test]
fn one_poll_receives_what_fits_into_a_cache_and_no_more() {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    let id = pair.bind(Side::B, 32 << 20, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(config.seed);
    let mut source = Source::new(sender, pattern, 40_000_000, 1 << 20);
    let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
    let mut longest = 0;
    pair.run(|pair| {
        let before = sink.report().bytes();
        let progress = source.run(&mut pair.a).and(sink.run(&mut pair.b));
        // Everything that was received since the last call, which was one poll.
        longest = longest.max(sink.report().bytes() - before);
        progress
    })
    .unwrap();
    let most = (stack::POLL_BYTES as u64) + 65_535;
    assert!(
        (stack::POLL_BYTES as u64..most).contains(&longest),
        "{longest} bytes in one poll"
    );
    drop(sink);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn it_does_over_ipv6_too() {
    let report = Transfer {
        ip: Side::B.ipv6(),
        ..Transfer::default()
    }
    .run();
    assert_eq!(report.device_bytes, 1_000_000);
}

#[test]
fn sizes_of_sends_do_not_matter() {
    let small = [1, 2, 3, 7, 8, 16, 31, 63, 64, 65, 127, 255, 512];
    let large = [
        1000,
        1447,
        1448,
        1449,
        2896,
        4095,
        4096,
        4097,
        8192,
        65_536,
        1 << 20,
    ];
    for chunk in small.into_iter().chain(large) {
        let total = (chunk as u64 * 3000).min(700_001);
        let report = Transfer {
            chunk,
            total,
            ..Transfer::default()
        }
        .run();
        assert_eq!(report.device_bytes, total, "{chunk} bytes per send");
    }
}

#[test]
fn sizes_of_packets_and_net_iovs_do_not_matter() {
    for mtu in [1280, 1500, 9000] {
        for niov in [4096, 16_384, 65_536, 1 << 20] {
            let config = PairConfig {
                mtu,
                ..PairConfig::default()
            };
            let niov_size = NiovSize::new(niov).unwrap();
            let report = Transfer {
                config,
                niov_size,
                ..Transfer::default()
            }
            .run();
            assert_eq!(
                report.device_bytes, 1_000_000,
                "MTU {mtu}, net_iovs of {niov} bytes"
            );
        }
    }
}

#[test]
fn a_wire_without_offloads_carries_the_same() {
    let config = PairConfig {
        impairment: Some(nic::Impairment::NONE),
        ..PairConfig::default()
    };
    let report = Transfer {
        config,
        ..Transfer::default()
    }
    .run();
    assert_eq!(report.device_bytes, 1_000_000);
}

#[test]
fn linear_bytes_arrive_in_their_place() {
    for linear_bytes in [1, 64, 100] {
        let config = PairConfig {
            linear_bytes,
            ..PairConfig::default()
        };
        let report = Transfer {
            config,
            total: 300_000,
            ..Transfer::default()
        }
        .run();
        assert!(
            report.linear_bytes > 0 && report.device_bytes > 0,
            "{report:?}"
        );
        assert_eq!(report.readable_bytes, 0);
    }
}

#[test]
fn little_memory_slows_the_sender_and_drops_nothing() {
    for memory in [256 << 10, 512 << 10, 1 << 20] {
        let niov_size = NiovSize::MIN;
        let report = Transfer {
            memory,
            niov_size,
            total: 3_000_000,
            ..Transfer::default()
        }
        .run();
        assert_eq!(report.device_bytes, 3_000_000, "{memory} bytes of memory");
    }
}

#[test]
fn without_a_binding_the_bytes_are_plain() {
    let mut pair = Pair::new(&PairConfig::default());
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(9);
    let mut source = Source::new(sender, pattern, 2_000_000, 50_000);
    let mut sink = Sink::new(receiver, pattern);
    pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b)))
        .unwrap();
    assert_eq!(
        (sink.report().readable_bytes, sink.report().frags),
        (2_000_000, 0)
    );
    assert_no_memory_drops(&pair.b);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn both_directions_at_once() {
    let mut pair = Pair::new(&PairConfig::default());
    let at_a = pair.bind(Side::A, 2 << 20, NiovSize::DEFAULT, &[0]);
    let at_b = pair.bind(Side::B, 2 << 20, NiovSize::DEFAULT, &[0]);
    let (b, a) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let (to_a, to_b) = (Pattern::new(1), Pattern::new(2));
    let mut source_a = Source::new(a, to_b, 1_500_000, 30_000);
    let mut source_b = Source::new(b, to_a, 1_200_000, 7_000);
    let mut sink_a = Sink::new(a, to_a).with_memory(at_a, pair.dmabuf(Side::A, at_a));
    let mut sink_b = Sink::new(b, to_b).with_memory(at_b, pair.dmabuf(Side::B, at_b));
    pair.run(|pair| {
        let at_a = source_a.run(&mut pair.a).and(sink_a.run(&mut pair.a));
        at_a.and(source_b.run(&mut pair.b))
            .and(sink_b.run(&mut pair.b))
    })
    .unwrap();
    assert_eq!(
        (sink_a.report().device_bytes, sink_b.report().device_bytes),
        (1_200_000, 1_500_000)
    );
    drop((sink_a, sink_b));
    pair.a.close(a).unwrap();
    pair.b.close(b).unwrap();
    pair.finish();
}

#[test]
fn a_link_that_is_always_busy_loses_nothing() {
    // One frame fits on the wire and one into the transmit queue: further packets wait, and none is dropped or
    // retransmitted.
    let mut pair = Pair::new(&PairConfig {
        wire_frames: 1,
        ..PairConfig::default()
    });
    for side in [Side::A, Side::B] {
        let nic = pair.side(side).stack_mut().nic_mut();
        let rings = nic::Rings {
            tx_packets: 1,
            ..nic.rings()
        };
        nic.set_rings(rings).unwrap();
    }
    let (b, a) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    // All addresses are announced at once when the link comes up.
    let before = [&pair.a, &pair.b].map(drops);
    let (to_a, to_b) = (Pattern::new(1), Pattern::new(2));
    let mut sources = (
        Source::new(a, to_b, 500_000, 9000),
        Source::new(b, to_a, 500_000, 9000),
    );
    let mut sinks = (Sink::new(a, to_a), Sink::new(b, to_b));
    pair.run(|pair| {
        let at_a = sources.0.run(&mut pair.a).and(sinks.0.run(&mut pair.a));
        at_a.and(sources.1.run(&mut pair.b))
            .and(sinks.1.run(&mut pair.b))
    })
    .unwrap();
    assert_eq!([&pair.a, &pair.b].map(drops), before);
    pair.a.close(a).unwrap();
    pair.b.close(b).unwrap();
    pair.finish();
}

#[test]
fn sixty_four_connections_share_the_memory() {
    let mut pair = Pair::new(&PairConfig::default());
    let id = pair.bind(Side::B, 4 << 20, NiovSize::MIN, &[0]);
    let local = std::net::SocketAddr::new(Side::B.ipv4(), PORT);
    let listener = pair.b.listen(local, 64).unwrap();
    let total = 200_000;
    let (mut sources, mut sinks) = (Vec::new(), Vec::new());
    for number in 0..64 {
        let (receiver, sender) = pair.connect_to(Side::B, listener, local);
        let pattern = Pattern::new(number);
        sources.push(Source::new(sender, pattern, total, 9000));
        sinks.push((
            sender,
            Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id)),
        ));
    }
    pair.run(|pair| {
        let sent = sources
            .iter_mut()
            .map(|source| source.run(&mut pair.a))
            .fold(Progress::Done, Progress::and);
        sinks
            .iter_mut()
            .map(|(_, sink)| sink.run(&mut pair.b))
            .fold(sent, Progress::and)
    })
    .unwrap();
    assert_no_memory_drops(&pair.b);
    for (sender, sink) in sinks {
        assert_eq!(sink.report().device_bytes, total);
        pair.a.close(sender).unwrap();
        pair.b.close(sink.id()).unwrap();
    }
    pair.b.close(listener).unwrap();
    pair.finish();
}

#[test]
fn the_stack_never_reads_payload() {
    let mut pair = Pair::new(&PairConfig::default());
    let opaque = Dmabuf::opaque(4 << 20).unwrap();
    let id = pair.bind_memory(Side::B, opaque.clone(), NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(5);
    let mut source = Source::new(sender, pattern, 3_000_000, 40_000);
    let device = opaque.clone();
    let reader = Box::new(move |offset, out: &mut [u8]| device.device_read(offset as usize, out));
    let mut sink = Sink::new(receiver, pattern).with_reader(id, reader);
    pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b)))
        .unwrap();
    assert_eq!(sink.report().device_bytes, 3_000_000);
    drop((sink, opaque));
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}
