//! Windows: the memory promised to peers, and tokens that are not given back.

use std::time::Duration;

use super::common::{Bound, PORT, assert_no_memory_drops, drops};
use super::{Pair, Sink, Source};
use devmem_uapi::MsgFlags;
use netmem::NiovSize;
use netsim::{Door as _, Keep, PairConfig, Pattern, Progress, Side};
use stack::{Secret, StackConfig};
use steer::RxQueueId;

const QUEUE: RxQueueId = RxQueueId(0);

/// Checks that the memory set aside for windows is free.
fn assert_promises_kept(pair: &mut Pair) {
    let space = pair.b.rx_space(QUEUE).bytes as u64;
    let promised = pair.b.promised(QUEUE);
    assert!(promised <= space, "{promised} bytes promised, {space} free");
}

/// As [`assert_promises_kept`], if a connection may have probed twice in vain, and got a part of the NIC's own reserve,
/// an eighth of all memory.
fn assert_promises_fit(pair: &mut Pair, memory: u64) {
    let space = pair.b.rx_space(QUEUE).bytes as u64 + memory / 8;
    let promised = pair.b.promised(QUEUE);
    assert!(
        promised <= space,
        "{promised} bytes promised, {space} there"
    );
}

#[test]
fn a_receiver_that_keeps_its_tokens_stalls_the_sender_and_it_resumes() {
    for (memory, niov, chunk) in [
        (1 << 20, 4096, 65_536),
        (1 << 20, 65_536, 10_000),
        (4 << 20, 65_536, 1448),
    ] {
        let mut pair = Pair::new(&PairConfig::default());
        let id = pair.bind(Side::B, memory, NiovSize::new(niov).unwrap(), &[0]);
        let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
        let pattern = Pattern::new(7);
        let total = 6 * memory as u64;
        let mut source = Source::new(sender, pattern, total, chunk);
        let mut sink = Sink::new(receiver, pattern)
            .with_memory(id, pair.dmabuf(Side::B, id))
            .keeping(Keep::Everything);
        let mut stalls = 0;
        while !sink.at_end() {
            let mut quiet_since = pair.now();
            pair.run(|pair| {
                assert_promises_kept(pair);
                let progress = source.run(&mut pair.a).and(sink.run(&mut pair.b));
                if progress == Progress::Worked {
                    quiet_since = pair.now();
                }
                // Ten seconds of zero window probes and no byte: it is stalled.
                let is_stalled = pair.now().saturating_since(quiet_since) > Duration::from_secs(10);
                if is_stalled || sink.at_end() {
                    Progress::Done
                } else {
                    progress
                }
            })
            .unwrap();
            stalls += 1;
            assert!(stalls < 100, "{:?} of {total} bytes", sink.report());
            let (received, kept) = (sink.report().bytes(), sink.kept());
            assert!(kept > 0 && received > 0);
            sink.release(&mut pair.b, 0);
        }
        assert!(
            stalls >= 6,
            "{stalls} stalls: keeping everything must stop the sender each time the memory is full"
        );
        assert_eq!(sink.report().device_bytes, total);
        assert_no_memory_drops(&pair.b);
        drop(sink);
        pair.a.close(sender).unwrap();
        pair.b.close(receiver).unwrap();
        pair.finish();
    }
}

#[test]
fn a_receiver_that_keeps_a_few_tokens_never_stalls() {
    let mut pair = Pair::new(&PairConfig::default());
    let id = pair.bind(Side::B, 1 << 20, NiovSize::MIN, &[0]);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(8);
    let mut source = Source::new(sender, pattern, 10_000_000, 65_536);
    let mut sink = Sink::new(receiver, pattern)
        .with_memory(id, pair.dmabuf(Side::B, id))
        .keeping(Keep::Tokens(40));
    pair.run(|pair| {
        assert_promises_kept(pair);
        source.run(&mut pair.a).and(sink.run(&mut pair.b))
    })
    .unwrap();
    assert_no_memory_drops(&pair.b);
    assert!(pair.now().as_millis() < 2000, "took until {:?}", pair.now());
    sink.release(&mut pair.b, 0);
    drop(sink);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn single_bytes_kept_for_ever_stall_the_sender_too() {
    let config = PairConfig {
        tcp: tcp::Config {
            settings: tcp::Settings {
                nodelay: true,
                ..tcp::Settings::default()
            },
            ..Default::default()
        },
        ..PairConfig::default()
    };
    let mut bound = Bound::with_memory(&config, 256 << 10, NiovSize::MIN);
    let mut kept = Vec::new();
    for _ in 0..3000 {
        bound.send(1);
        kept.push(bound.recv(1, 1, MsgFlags::SOCK_DEVMEM).unwrap());
    }
    assert_no_memory_drops(&bound.pair.b);
    kept.iter().for_each(|received| bound.give_back(received));
    bound.finish();
}

#[test]
fn a_reader_that_sleeps_closes_the_window_and_opens_it_when_it_reads() {
    // More than fits into a send buffer.
    const BYTES: u64 = 12_000_000;
    let mut pair = Pair::new(&PairConfig {
        host_mem_bytes: 1 << 20,
        ..PairConfig::default()
    });
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(4);
    let mut source = Source::new(sender, pattern, BYTES, 65_536);
    // The program does not read for a minute.
    let end = pair.now() + Duration::from_secs(60);
    pair.run(|pair| match pair.now() < end {
        true => source.run(&mut pair.a),
        false => Progress::Done,
    })
    .unwrap();
    assert!(source.sent() < BYTES);
    assert_eq!(pair.a.info(sender).unwrap().unwrap().snd_wnd, 0);
    let unread = pair.b.info(receiver).unwrap().unwrap().readable;
    assert!(unread > 400_000, "{unread} bytes of 1 MiB were used");
    let mut sink = Sink::new(receiver, pattern);
    pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b)))
        .unwrap();
    assert_eq!(sink.report().readable_bytes, BYTES);
    assert_no_memory_drops(&pair.b);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn idle_connections_do_not_starve_a_busy_one() {
    let mut pair = Pair::new(&PairConfig::default());
    let id = pair.bind(Side::B, 1 << 20, NiovSize::MIN, &[0]);
    let local = std::net::SocketAddr::new(Side::B.ipv4(), PORT);
    let listener = pair.b.listen(local, 64).unwrap();
    let idle: Vec<_> = (0..60)
        .map(|_| pair.connect_to(Side::B, listener, local))
        .collect();
    let (receiver, sender) = pair.connect_to(Side::B, listener, local);
    let pattern = Pattern::new(6);
    let mut source = Source::new(sender, pattern, 2_000_000, 65_536);
    let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
    pair.run(|pair| {
        assert_promises_kept(pair);
        source.run(&mut pair.a).and(sink.run(&mut pair.b))
    })
    .unwrap();
    assert!(pair.now().as_millis() < 5000, "took until {:?}", pair.now());
    assert_no_memory_drops(&pair.b);
    drop(sink);
    for (ours, theirs) in idle.into_iter().chain([(receiver, sender)]) {
        pair.a.close(theirs).unwrap();
        pair.b.close(ours).unwrap();
    }
    pair.b.close(listener).unwrap();
    pair.finish();
}

#[test]
fn more_connections_than_memory_can_be_promised_to_open_and_each_that_speaks_gets_through() {
    let mut pair = Pair::new(&PairConfig::default());
    let id = pair.bind(Side::B, 128 << 10, NiovSize::MIN, &[0]);
    let local = std::net::SocketAddr::new(Side::B.ipv4(), PORT);
    let listener = pair.b.listen(local, 16).unwrap();
    let ends: Vec<_> = (0..300)
        .map(|_| pair.connect_to(Side::B, listener, local))
        .collect();
    assert_promises_kept(&mut pair);
    // The last connections were promised nothing; their peers probe, and get a window.
    for (number, &(receiver, sender)) in ends.iter().rev().take(20).enumerate() {
        let pattern = Pattern::new(number as u64);
        let mut source = Source::new(sender, pattern, 100_000, 9000);
        let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
        let before = pair.now();
        pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b)))
            .unwrap();
        assert_eq!(sink.report().device_bytes, 100_000);
        let took = pair.now().saturating_since(before);
        assert!(
            took < Duration::from_secs(5),
            "{took:?} for number {number}"
        );
    }
    assert_no_memory_drops(&pair.b);
    for (receiver, sender) in ends {
        pair.a.close(sender).unwrap();
        pair.b.close(receiver).unwrap();
    }
    pair.b.close(listener).unwrap();
    pair.finish();
}

#[test]
fn connections_that_all_keep_their_tokens_stall_and_all_resume() {
    let mut pair = Pair::new(&PairConfig::default());
    let id = pair.bind(Side::B, 1 << 20, NiovSize::MIN, &[0]);
    let local = std::net::SocketAddr::new(Side::B.ipv4(), PORT);
    let listener = pair.b.listen(local, 64).unwrap();
    let total = 300_000;
    let mut ends = Vec::new();
    for number in 0..12 {
        let (receiver, sender) = pair.connect_to(Side::B, listener, local);
        let pattern = Pattern::new(number);
        let sink = Sink::new(receiver, pattern)
            .with_memory(id, pair.dmabuf(Side::B, id))
            .keeping(Keep::Everything);
        ends.push((sender, Source::new(sender, pattern, total, 20_000), sink));
    }
    let mut rounds = 0;
    while ends.iter().any(|(_, _, sink)| !sink.at_end()) {
        let mut quiet_since = pair.now();
        pair.run(|pair| {
            assert_promises_fit(pair, 1 << 20);
            let turns = ends
                .iter_mut()
                .map(|(_, source, sink)| source.run(&mut pair.a).and(sink.run(&mut pair.b)));
            let progress = turns.fold(Progress::Done, Progress::and);
            if progress == Progress::Worked {
                quiet_since = pair.now();
            }
            let is_stalled = pair.now().saturating_since(quiet_since) > Duration::from_secs(10);
            if is_stalled { Progress::Done } else { progress }
        })
        .unwrap();
        rounds += 1;
        assert!(rounds < 100);
        ends.iter_mut()
            .for_each(|(_, _, sink)| sink.release(&mut pair.b, 0));
    }
    assert!(rounds > 2, "{rounds}");
    assert_no_memory_drops(&pair.b);
    for (sender, _, sink) in ends {
        assert_eq!(sink.report().device_bytes, total);
        pair.a.close(sender).unwrap();
        pair.b.close(sink.id()).unwrap();
    }
    pair.b.close(listener).unwrap();
    assert!(drops(&pair.a).is_empty(), "{:?}", drops(&pair.a));
    pair.finish();
}

/// Sends `total` bytes over 300 Mbit/s with a round trip of 200 ms, which hold 7.5 MB, and returns the milliseconds.
fn long_fat_path(tcp: &tcp::Config, total: u64) -> u64 {
    let mut config = PairConfig {
        impairment: Some("rate=300mbit,delay=100ms,limit=8000".parse().unwrap()),
        wire_frames: 16_384,
        ..PairConfig::default()
    };
    config.tcp = tcp.clone();
    config.tcp.settings.snd_buf_max = 64 << 20;
    let mut pair = Pair::new(&config);
    let id = pair.bind(Side::B, 64 << 20, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let tx = pair.bind_tx(Side::A, 32 << 20);
    let (memory, pattern) = (pair.dmabuf(Side::A, tx).clone(), Pattern::new(3));
    let mut source = super::DeviceSource::new(&mut pair.a, sender, tx, &memory, pattern, total);
    drop(memory);
    let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
    let start = pair.now();
    let ran = pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b)));
    assert!(ran.is_ok(), "{ran:?}, dropped {:?}", drops(&pair.b));
    let took = pair.now().saturating_since(start).as_millis() as u64;
    drop((source, sink));
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
    took
}

#[test]
fn the_default_window_fills_a_long_fat_path_and_six_mebibytes_do_not() {
    const TOTAL: u64 = 64 << 20;
    // 1.8 s on the wire, and ten round trips of slow start.
    let whole = long_fat_path(
        &StackConfig::new(Side::B.ipv4(), 24, Secret::from_seed(1)).tcp,
        TOTAL,
    );
    assert!(whole < 3900, "{whole} ms");
    let mut small = tcp::Config::default();
    small.settings.rcv_buf_max = 6 << 20;
    let limited = long_fat_path(&small, TOTAL);
    println!("{whole} ms, with a window of 6 MiB {limited} ms");
    assert!(
        limited > whole + 100,
        "{limited} ms with 6 MiB, {whole} ms with the default"
    );
}
