//! Whole transfers between two stacks: every byte verified where it lies, every net_iov home at the end.

use netmem::NiovSize;
use netsim::{Keep, Pair, PairConfig, Pattern, Side, Sink, Source};

const PORT: u16 = 5201;

/// Sends `total` bytes in pieces of `chunk` from A to bound memory at B.
fn transfer(config: &PairConfig, total: u64, chunk: usize) -> netsim::Report {
    let mut pair = Pair::new(config);
    let id = pair.bind(Side::B, 4 << 20, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(config.seed);
    let mut source = Source::new(sender, pattern, total, chunk);
    let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id)).keeping(Keep::Nothing);
    pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b))).unwrap();
    let report = sink.report();
    assert_eq!(report.bytes(), total);
    drop(sink);
    let now = pair.now();
    pair.a.close(sender, now).unwrap();
    pair.b.close(receiver, now).unwrap();
    pair.finish();
    report
}

#[test]
fn a_transfer_lands_in_device_memory() {
    let report = transfer(&PairConfig::default(), 3_000_000, 65_536);
    assert_eq!(report.device_bytes, 3_000_000);
}
