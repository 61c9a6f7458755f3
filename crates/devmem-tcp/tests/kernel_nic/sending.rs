//! Sending from device memory.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a send takes a list of ranges"
)]

use std::io::Write;

use devmem_tcp::{Errno, Netdev, Remedy};

use crate::bench::{Bench, PATIENCE, memory};
use crate::common::pattern;

#[test]
fn device_memory_arrives_and_may_change_when_the_send_is_complete() {
    const TEST: &str = "device_memory_arrives_and_may_change_when_the_send_is_complete";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let memory = memory();
    let bytes = pattern(memory.size());
    memory.copy_in(0, &bytes).unwrap();
    let tx = bench.nic.bind_tx(&memory).unwrap();
    let (mut stream, reader) = bench.connect_to_reader();
    let completions = stream.completions();
    completions.set_timeout(Some(PATIENCE));
    let id = stream.send_all(&tx, &[0..memory.size()]).unwrap();
    assert_eq!(id.bytes(), memory.size());
    completions.wait(id).unwrap();
    memory.fill(0..memory.size(), 0xff).unwrap();
    let counts = completions.counts().unwrap();
    assert_eq!((counts.complete, counts.copied), (counts.sent, 0));
    assert_eq!(tx.in_flight(), 0);
    drop(stream);
    assert!(reader.join().unwrap() == bytes, "the bytes differ");
}

#[test]
fn chunks_of_three_bytes_and_many_ranges_keep_their_order() {
    const TEST: &str = "chunks_of_three_bytes_and_many_ranges_keep_their_order";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let memory = memory();
    let bytes = pattern(300_000);
    memory.copy_in(0, &bytes).unwrap();
    let tx = bench.nic.bind_tx(&memory).unwrap();
    let (mut stream, reader) = bench.connect_to_reader();
    // 3,000 ranges in one send, and host bytes between two sends.
    let ranges: Vec<_> = (0..3000).map(|i| i * 100..i * 100 + 3).collect();
    let first = stream.send_all(&tx, &ranges).unwrap();
    stream.write_all(b"host").unwrap();
    for start in (0..300).step_by(3) {
        let _id = stream.send(&tx, &[start..start + 3]).unwrap();
    }
    stream.completions().wait(first).unwrap();
    // The rest completes after the stream is gone, and the binding tells.
    drop(stream);
    let mut expected: Vec<u8> = Vec::new();
    ranges
        .iter()
        .for_each(|r| expected.extend(&bytes[r.clone()]));
    expected.extend(b"host");
    expected.extend(&bytes[..300]);
    assert!(reader.join().unwrap() == expected, "the bytes differ");
    while tx.in_flight() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn an_invalid_send_is_refused_with_the_reason() {
    const TEST: &str = "an_invalid_send_is_refused_with_the_reason";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let memory = memory();
    let tx = bench.nic.bind_tx(&memory).unwrap();
    let listener = bench.listen_at_peer();
    let to = (bench.peer_ip(), listener.local_addr().unwrap().port());
    let mut stream = bench.nic.connect(to).unwrap();
    let size = memory.size();
    let refused = stream.send(&tx, &[0..10, size - 1..size + 1]).unwrap_err();
    assert_eq!(refused.errno(), Errno::EFAULT, "{refused}");
    assert_eq!(stream.completions().pending().unwrap(), 0);
    // A stream by another interface.
    let lo = Netdev::kernel("lo").unwrap();
    let home = lo.listen("127.0.0.1:0").unwrap();
    let mut other = lo.connect(home.local_addr().unwrap()).unwrap();
    let refused = other.send(&tx, &[0..1]).unwrap_err();
    assert!(
        refused.remedy() == Some(Remedy::BindToStreamsNic),
        "{refused}"
    );
}
