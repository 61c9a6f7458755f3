//! Less memory than promised: a queue is bound to other memory during a stream.

use std::time::Duration;

use netmem::NiovSize;
use netsim::{Door as _, Keep, PairConfig, Pattern, Progress, Side};

use crate::scenarios::common::PORT;
use crate::scenarios::{Pair, Sink, Source};

/// Bytes of the stream per two changes of memory.
const CYCLE: u64 = 1 << 20;

/// Sends a stream of `total` bytes, and binds 1 MiB of memory instead of 64 after `after` of them; every byte must arrive, at the
/// virtual time `within` at the latest.
fn stream(config: &PairConfig, after: u64, total: u64, within: Duration) {
    let (first, second) = (64 << 20, 1 << 20);
    let mut pair = Pair::new(config);
    let id = pair.bind(Side::B, first, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(config.seed);
    let mut source = Source::new(sender, pattern, total, 32 << 10);
    let mut sink = Some(Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id)));
    let mut is_bound = Some(id);
    let outcome = pair.run(|pair| {
        let sent = source.run(&mut pair.a);
        if let Some(id) = is_bound.filter(|_| source.sent() > after) {
            is_bound = None;
            pair.b.unbind(id).unwrap();
            let id = pair.bind(Side::B, second, NiovSize::DEFAULT, &[0]);
            sink = sink
                .take()
                .map(|sink| sink.with_memory(id, pair.dmabuf(Side::B, id)));
        }
        match &mut sink {
            Some(sink) => sent.and(sink.run(&mut pair.b)),
            None => Progress::Done,
        }
    });
    let received = sink.as_ref().map(|sink| sink.report().bytes());
    assert_eq!(
        (outcome, received),
        (Ok(()), Some(total)),
        "seed {}: at {:?}, {:?}",
        config.seed,
        pair.now(),
        pair.b.drops()
    );
    let took = Duration::from_millis(pair.now().as_millis());
    assert!(took < within, "seed {}: {took:?}", config.seed);
    drop(sink);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn a_stream_continues_when_a_64th_of_the_memory_is_bound_instead() {
    for seed in 0..20 {
        let config = PairConfig {
            seed,
            ..PairConfig::default()
        };
        let after = (8 << 20) + seed * 300_000;
        stream(&config, after, 24 << 20, Duration::from_millis(10));
    }
}

#[test]
fn a_stream_of_single_packets_continues_when_a_64th_of_the_memory_is_bound_instead() {
    for seed in 0..4 {
        let config = PairConfig {
            seed,
            impairment: Some("rate=10gbit,delay=2ms,limit=20000".parse().unwrap()),
            wire_frames: 20_000,
            ..PairConfig::default()
        };
        stream(&config, (8 + seed) << 20, 20 << 20, Duration::from_secs(1));
    }
}

/// Unbinds 4 MiB and binds 4 MiB again while a stream runs, 100 times. In between, the queue has 64 MiB of host memory,
/// and the peer is promised more of it than the bound memory can take.
fn rebind_100_times(impairment: Option<&str>) {
    let config = PairConfig {
        impairment: impairment.map(|text| text.parse().unwrap()),
        host_mem_bytes: 64 << 20,
        // Few, so that one turn of the programs receives less than one cycle.
        wire_frames: if impairment.is_some() { 20_000 } else { 6 },
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let pattern = Pattern::new(9);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let total = 102 * CYCLE;
    let mut source = Source::new(sender, pattern, total, 32 << 10);
    let mut sink = Some(Sink::new(receiver, pattern));
    let (mut changes, mut bound, mut last) = (0, None, pair.now());
    let outcome = pair.run(|pair| {
        let sent = source.run(&mut pair.a);
        let received = sink.as_ref().map_or(0, |sink| sink.report().bytes());
        if changes < 200 && received >= (changes + 1) * CYCLE / 2 {
            changes += 1;
            last = pair.now();
            match bound.take() {
                Some(id) => pair.b.unbind(id).unwrap(),
                None => {
                    let id = pair.bind(Side::B, 4 << 20, NiovSize::DEFAULT, &[0]);
                    bound = Some(id);
                    sink = sink
                        .take()
                        .map(|sink| sink.with_memory(id, pair.dmabuf(Side::B, id)));
                }
            }
        }
        assert!(
            pair.now().saturating_since(last) < Duration::from_secs(600),
            "after {changes} changes: {:?}",
            pair.b.drops()
        );
        match &mut sink {
            Some(sink) => sent.and(sink.run(&mut pair.b)),
            None => Progress::Done,
        }
    });
    assert_eq!((outcome, changes), (Ok(()), 200), "{:?}", pair.b.drops());
    drop(sink);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn a_hundred_times_other_memory_of_the_same_size_never_stop_a_stream() {
    rebind_100_times(None);
}

#[test]
fn a_hundred_times_other_memory_of_the_same_size_never_stop_a_stream_with_loss() {
    rebind_100_times(Some("rate=10gbit,delay=200us,limit=20000,loss=0.1%"));
}

#[test]
fn a_stream_with_loss_continues_when_a_64th_of_the_memory_is_bound_instead() {
    for seed in 0..4 {
        let config = PairConfig {
            seed,
            impairment: Some(
                "rate=10gbit,delay=2ms,limit=20000,loss=0.1%"
                    .parse()
                    .unwrap(),
            ),
            wire_frames: 20_000,
            ..PairConfig::default()
        };
        stream(&config, (4 + seed) << 20, 16 << 20, Duration::from_secs(5));
    }
}

/// The window that was promised with the larger memory is withdrawn while a reader keeps all of the smaller one. The
/// sender probes from time to time and does not give up, and receives a window update at once when there is memory.
#[test]
fn a_reader_that_keeps_all_of_the_smaller_memory_for_an_hour_loses_nothing() {
    let mut pair = Pair::new(&PairConfig::default());
    let id = pair.bind(Side::B, 64 << 20, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let (pattern, total) = (Pattern::new(5), 24 << 20);
    let mut source = Source::new(sender, pattern, total, 32 << 10);
    let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
    pair.run(|pair| {
        let progress = source.run(&mut pair.a).and(sink.run(&mut pair.b));
        match sink.report().bytes() > 8 << 20 {
            true => Progress::Done,
            false => progress,
        }
    })
    .unwrap();
    pair.b.unbind(id).unwrap();
    let id = pair.bind(Side::B, 1 << 20, NiovSize::DEFAULT, &[0]);
    let mut sink = sink
        .with_memory(id, pair.dmabuf(Side::B, id))
        .keeping(Keep::Everything);
    let end = pair.now() + Duration::from_secs(3600);
    pair.run(|pair| {
        let progress = source.run(&mut pair.a).and(sink.run(&mut pair.b));
        match pair.now() >= end {
            true => Progress::Done,
            false => progress,
        }
    })
    .unwrap();
    let before = sink.report().bytes();
    assert!(before < total && pair.b.drops()["rx_no_buffers"] > 0);
    let mut sink = sink.keeping(Keep::Nothing);
    sink.release(&mut pair.b, 0);
    let (said, released) = (pair.b.stats().tx_packets, pair.now());
    pair.run_for(Duration::from_millis(1));
    assert!(pair.b.stats().tx_packets > said, "the window opens at once");
    assert!(pair.b.info(receiver).unwrap().unwrap().rcv_wnd > 0);
    pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b)))
        .unwrap();
    assert_eq!(sink.report().bytes(), total);
    // The sender's timer has reached its maximum, and retransmits the segment then (RFC 6298 5.7).
    let took = pair.now().saturating_since(released);
    assert!(took < Duration::from_secs(150), "{took:?}");
    drop(sink);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}
