//! Path MTUs below the link's MTU, without ICMP errors.

use std::time::Duration;

use super::common::{PORT, drops};
use super::{DeviceSource, Pair, Sink, Source};
use netmem::NiovSize;
use netsim::{Door as _, PairConfig, Pattern, Side};

/// Sends from device memory of A over a path that drops packets of more than `path` bytes; returns the milliseconds it
/// took, how often the segment size was reduced, and the segment size at the end.
fn transfer(mtu: u16, path: u16, ipv6: bool, total: u64) -> (u64, u64, u16) {
    let impairment = format!("mtu={path},delay=5ms").parse().unwrap();
    let mut pair = Pair::new(&PairConfig {
        mtu,
        impairment: Some(impairment),
        ..PairConfig::default()
    });
    let rx = pair.bind(Side::B, 4 << 20, NiovSize::DEFAULT, &[0]);
    let ip = if ipv6 { Side::B.ipv6() } else { Side::B.ipv4() };
    let (receiver, sender) = pair.connect(Side::B, ip, PORT);
    let tx = pair.bind_tx(Side::A, 1 << 20);
    let memory = pair.dmabuf(Side::A, tx).clone();
    let (there, back) = (Pattern::new(1), Pattern::new(2));
    let mut source = DeviceSource::new(&mut pair.a, sender, tx, &memory, there, total);
    drop(memory);
    let mut reply = Source::new(receiver, back, 100_000, 3000);
    let mut sink = Sink::new(receiver, there).with_memory(rx, pair.dmabuf(Side::B, rx));
    let mut answer = Sink::new(sender, back);
    let start = pair.now();
    let mut info = None;
    let ran = pair.run(|pair| {
        // At the end the connection is in TIME-WAIT, without a segment size.
        let now = pair.a.info(sender).unwrap();
        info = now.filter(|info| info.snd_mss > 0).or(info.take());
        let sent = source.run(&mut pair.a).and(answer.run(&mut pair.a));
        sent.and(sink.run(&mut pair.b)).and(reply.run(&mut pair.b))
    });
    assert!(
        ran.is_ok(),
        "{ran:?}: {source:?}, dropped {:?}",
        drops(&pair.b)
    );
    assert_eq!(
        (sink.report().bytes(), answer.report().bytes()),
        (total, 100_000)
    );
    let took = pair.now().saturating_since(start).as_millis() as u64;
    let info = info.unwrap();
    drop((source, sink, answer));
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
    (took, info.mtu_black_holes, info.snd_mss)
}

#[test]
fn a_path_that_swallows_large_packets_is_found_out_and_used() {
    for ipv6 in [false, true] {
        for (mtu, path) in [(1500, 1499), (1500, 1280), (9000, 1500), (9000, 8999)] {
            let (took, black_holes, mss) = transfer(mtu, path, ipv6, 500_000);
            assert_eq!((black_holes, mss), (1, 1024), "{mtu} over {path}, {ipv6}");
            assert!(took < 10_000, "{took} ms, {mtu} over {path}");
        }
    }
}

#[test]
fn a_path_even_narrower_is_found_out_in_the_end() {
    let (took, black_holes, mss) = transfer(1500, 600, false, 100_000);
    assert_eq!((black_holes, mss), (2, 512));
    assert!(took < 60_000, "{took} ms");
}

#[test]
fn a_path_as_wide_as_the_link_is_left_alone() {
    let (_, black_holes, mss) = transfer(1500, 1500, false, 500_000);
    assert_eq!((black_holes, mss), (0, 1448));
}

#[test]
fn after_an_outage_packets_are_as_large_as_before() {
    let mut pair = Pair::new(&PairConfig::default());
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(3);
    let mut source = Source::new(sender, pattern, 60_000_000, 1000);
    let mut sink = Sink::new(receiver, pattern);
    let mss = |pair: &Pair| pair.a.info(sender).unwrap().unwrap().snd_mss;
    let (mut pulled, mut smallest) = (false, u16::MAX);
    let mut last = 0;
    pair.run(|pair| {
        let progress = source.run(&mut pair.a).and(sink.run(&mut pair.b));
        if !pulled && sink.report().bytes() > 1_000_000 {
            pulled = true;
            pair.cable().pull();
            pair.run_for(Duration::from_secs(5));
            pair.cable().plug();
        }
        last = mss(pair).max(last.min(1));
        smallest = smallest.min(last);
        // While segments are small, little is read and much time passes.
        if last == 1024 {
            pair.run_for(Duration::from_secs(1));
        }
        progress
    })
    .unwrap();
    assert_eq!(
        (smallest, last),
        (1024, 1448),
        "and larger ones are tried again"
    );
    assert_eq!(sink.report().bytes(), 60_000_000);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}
