//! Sending from device memory with the typed API, over the in-memory wire.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a send takes a list of ranges"
)]

use std::io::Write;
use std::time::Duration;

use devmem_tcp::{
    ConnectOptions, Dmabuf, EarlyCookie, EarlyData, Errno, ErrorKind, Frag, Netdev, Remedy,
    RxBatch, SendId, Stream,
};

use crate::common::pattern;

const PORT: u16 = 5201;

/// Two NICs, a connection from the first to the second.
fn connected(impairment: &str) -> (Netdev, Netdev, Stream, Stream) {
    let (a, b) = Netdev::pair(impairment.parse().expect("an impairment")).expect("a pair");
    let listener = b.listen(("10.77.0.2", PORT)).expect("the port is free");
    let sender = a.connect(("10.77.0.2", PORT)).expect("it listens");
    let (receiver, _) = listener.accept().expect("it connected");
    (a, b, sender, receiver)
}

fn device(bytes: &[u8]) -> Dmabuf {
    let size = bytes.len().next_multiple_of(4096).max(4096);
    let memory = Dmabuf::anonymous(size).expect("memory");
    memory.copy_in(0, bytes).expect("it fits");
    memory
}

/// Receives `len` bytes.
fn receive(stream: &mut Stream, len: usize) -> Vec<u8> {
    let mut batch = RxBatch::with_capacity(64);
    let mut received = Vec::new();
    while received.len() < len && stream.recv(&mut batch).expect("alive") > 0 {
        for frag in &batch {
            match frag {
                Frag::Linear(bytes) => received.extend_from_slice(bytes),
                Frag::Device { .. } => panic!("nothing is bound for receiving"),
            }
        }
    }
    received
}

#[test]
fn a_send_completes_and_its_bytes_may_change_then() {
    for impairment in ["", "loss=3%,reorder=2%,seed=5"] {
        let (a, _b, mut sender, mut receiver) = connected(impairment);
        let bytes = pattern(300_000);
        let memory = device(&bytes);
        let tx = a.bind_tx(&memory).expect("bound");
        let reader = std::thread::spawn(move || {
            let received = receive(&mut receiver, 300_000);
            (received, receiver)
        });
        let id = sender
            .send_all(&tx, &[0..100_000, 100_000..300_000])
            .expect("queued");
        assert_eq!(id.bytes(), 300_000);
        let completions = sender.completions();
        completions.wait(id).expect("it completes");
        memory.fill(0..300_000, 0xff).expect("inside");
        assert!(completions.is_complete(id).expect("alive"));
        assert_eq!(
            (completions.pending().expect("alive"), tx.in_flight()),
            (0, 0)
        );
        let counts = completions.counts().expect("alive");
        assert!(
            counts.sent > 0 && counts.complete == counts.sent,
            "{counts:?}"
        );
        assert_eq!(counts.copied, 0, "device memory is never copied");
        let (received, _receiver) = reader.join().expect("no panic");
        assert!(received == bytes, "with '{impairment}'");
    }
}

#[test]
fn more_than_the_send_buffer_and_more_ranges_than_one_message_are_one_send() {
    let (a, _b, mut sender, mut receiver) = connected("");
    let bytes = pattern(8 << 20);
    let memory = device(&bytes);
    let tx = a.bind_tx(&memory).expect("bound");
    let reader = std::thread::spawn(move || receive(&mut receiver, (8 << 20) + 6000));
    let mut ranges: Vec<_> = vec![0..8 << 20, 5..5];
    ranges.extend((0..3000).map(|i| i * 10..i * 10 + 2));
    let id = sender.send(&tx, &ranges).expect("queued");
    assert_eq!(id.bytes(), (8 << 20) + 6000);
    sender.completions().wait(id).expect("it completes");
    drop(sender);
    let received = reader.join().expect("no panic");
    let expected: Vec<u8> = ranges
        .iter()
        .flat_map(|range| bytes[range.clone()].iter().copied())
        .collect();
    assert!(received == expected);
}

#[test]
fn host_and_device_bytes_keep_their_order() {
    let (a, _b, mut sender, mut receiver) = connected("");
    let memory = device(b"device");
    let tx = a.bind_tx(&memory).expect("bound");
    sender.write_all(b"host ").expect("queued");
    let id = sender.send(&tx, &[0..6]).expect("queued");
    sender.write_all(b" host").expect("queued");
    assert_eq!(receive(&mut receiver, 16), b"host device host");
    sender.completions().wait(id).expect("it completes");
}

#[test]
fn completions_are_reported_once_and_in_order_of_sends() {
    let (a, _b, mut sender, mut receiver) = connected("");
    let memory = device(&pattern(4096));
    let tx = a.bind_tx(&memory).expect("bound");
    let completions = sender.completions();
    assert_eq!(completions.try_next().expect("alive"), None);
    let nothing = sender.send(&tx, &[]).expect("nothing to queue");
    assert!(completions.is_complete(nothing).expect("alive"));
    let ids: Vec<_> = (0..3)
        .map(|_| sender.send(&tx, &[0..1000]).expect("queued"))
        .collect();
    assert!(!completions.is_complete(ids[0]).expect("alive"));
    completions.wait_all().expect("they complete");
    let told = completions.try_next().expect("alive").expect("news");
    assert!(ids.iter().all(|id| told.contains(*id)));
    assert_eq!(completions.try_next().expect("alive"), None);
    let later = sender.send(&tx, &[0..1]).expect("queued");
    completions.wait(later).expect("it completes");
    let told = completions.try_next().expect("alive").expect("news");
    assert!(told.contains(later) && !told.contains(ids[2]));
    assert_eq!(receive(&mut receiver, 3001).len(), 3001);
}

#[test]
fn a_non_blocking_send_queues_as_much_as_fits() {
    let (a, _b, mut sender, mut receiver) = connected("");
    let bytes = pattern(64 << 20);
    let memory = device(&bytes);
    let tx = a.bind_tx(&memory).expect("bound");
    sender.set_nonblocking(true);
    let id = sender.send(&tx, &[0..64 << 20]).expect("some of it");
    assert!(id.bytes() > 0 && id.bytes() < 64 << 20);
    let refused = sender
        .completions()
        .wait(id)
        .expect_err("the peer does not read");
    assert!(refused.kind() == ErrorKind::WouldBlock);
    let received = receive(&mut receiver, id.bytes());
    assert!(received == bytes[..id.bytes()]);
    let completions = sender.completions();
    completions.set_timeout(Some(Duration::from_secs(1)));
    completions.wait(id).expect("now it completes");
}

#[test]
fn completions_outlive_the_stream() {
    let (a, _b, mut sender, mut receiver) = connected("");
    let memory = device(&pattern(100_000));
    let tx = a.bind_tx(&memory).expect("bound");
    let id = sender.send(&tx, &[0..100_000]).expect("queued");
    let completions = sender.completions();
    drop(sender);
    let reader = std::thread::spawn(move || receive(&mut receiver, usize::MAX).len());
    completions.wait(id).expect("it completes");
    drop(completions);
    assert_eq!(
        reader.join().expect("no panic"),
        100_000,
        "and the end of the stream came"
    );
}

#[test]
fn a_binding_of_another_nic_is_refused() {
    let (a, b, mut sender, _receiver) = connected("");
    let memory = device(b"x");
    let (here, there) = (
        a.bind_tx(&memory).expect("bound"),
        b.bind_tx(&memory).expect("bound"),
    );
    assert_eq!(here.id(), there.id(), "the id alone would not tell");
    let refused = sender.send(&there, &[0..1]).expect_err("another NIC's");
    assert!(refused.remedy() == Some(Remedy::BindToStreamsNic));
    let error = std::io::Error::from(refused);
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(format!("{error:?}").contains("bind_tx"), "{error}");
}

#[test]
fn a_range_outside_the_memory_is_refused_whole() {
    let (a, _b, mut sender, _receiver) = connected("");
    let memory = device(b"x");
    let tx = a.bind_tx(&memory).expect("bound");
    let refused = sender
        .send_all(&tx, &[0..10, 4095..4097])
        .expect_err("past the end");
    assert_eq!(refused.errno(), Errno::EFAULT);
    assert_eq!(sender.completions().pending().expect("alive"), 0);
}

#[test]
fn readiness_follows_the_completions() {
    use std::os::fd::AsRawFd;
    let (a, _b, mut sender, mut receiver) = connected("");
    let memory = device(&pattern(4096));
    let tx = a.bind_tx(&memory).expect("bound");
    let completions = sender.completions();
    let fd = completions.readiness_fd().expect("an fd").as_raw_fd();
    let ready = || {
        std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))
            .map(|info| !info.contains("eventfd-count:                0"))
    };
    assert!(!ready().expect("Linux"));
    let id = sender.send(&tx, &[0..4096]).expect("queued");
    assert_eq!(receive(&mut receiver, 4096).len(), 4096);
    // Somebody has to move the stacks; the receiver's wait for nothing does.
    receiver.set_timeout(Some(Duration::from_millis(200)));
    let _ = receiver.recv(&mut RxBatch::with_capacity(1));
    assert!(ready().expect("Linux"));
    assert!(
        completions
            .try_next()
            .expect("alive")
            .expect("news")
            .contains(id)
    );
    assert!(!ready().expect("Linux"));
}

/// Opens a connection to a listener that allows Fast Open, whose cookie is known; returns the receiver's end.
fn opened_with(a: &Netdev, b: &Netdev, data: EarlyData<'_>) -> (Stream, SendId, Stream) {
    let listener = b.listen(("10.77.0.2", PORT)).expect("the port is free");
    listener.set_fast_open(4).expect("a number");
    let options = ConnectOptions::new();
    let first = a.connect_with_data(("10.77.0.2", PORT), &options, EarlyData::Host(&[]));
    let (first, nothing) = first.expect("it listens");
    assert_eq!(nothing.bytes(), 0);
    drop((first, listener.accept().expect("it connected")));
    let (stream, sent) = a
        .connect_with_data(("10.77.0.2", PORT), &options, data)
        .expect("it listens");
    let (receiver, _) = listener.accept().expect("it connected");
    (stream, sent, receiver)
}

#[test]
fn a_syn_carries_the_first_host_bytes_and_the_rest_follows() {
    for len in [12, 1400, 20_000] {
        let (a, b) = Netdev::pair("seed=1".parse().expect("an impairment")).expect("a pair");
        let bytes = pattern(len);
        let (stream, sent, mut receiver) = opened_with(&a, &b, EarlyData::Host(&bytes));
        assert_eq!(sent.bytes(), len);
        let info = stream.tcp_info().expect("it is open");
        assert!(info.syn_data_acked && info.bytes_retrans == 0, "{info:?}");
        assert_eq!(receive(&mut receiver, len), bytes);
        assert!(stream.completions().is_complete(sent).expect("it is open"));
    }
}

#[test]
fn a_syn_carries_the_first_device_bytes_and_all_of_them_complete() {
    for len in [1000, 20_000] {
        let (a, b) = Netdev::pair("seed=1".parse().expect("an impairment")).expect("a pair");
        let bytes = pattern(len);
        let memory = device(&bytes);
        let tx = a.bind_tx(&memory).expect("bound");
        let ranges = [0..300, 300..len];
        let (stream, sent, mut receiver) = opened_with(&a, &b, EarlyData::Device(&tx, &ranges));
        assert_eq!(sent.bytes(), len);
        assert!(stream.tcp_info().expect("it is open").syn_data_acked);
        assert_eq!(receive(&mut receiver, len), bytes);
        stream.completions().wait(sent).expect("acknowledged");
        assert_eq!(tx.in_flight(), 0);
    }
}

#[test]
fn a_first_syn_carries_data_where_neither_side_needs_a_cookie() {
    let (a, b) = Netdev::pair("seed=1".parse().expect("an impairment")).expect("a pair");
    let listener = b.listen(("10.77.0.2", PORT)).expect("the port is free");
    listener.set_fast_open(4).expect("a number");
    let bytes = pattern(1000);
    let memory = device(&bytes);
    let tx = a.bind_tx(&memory).expect("bound");
    let ranges = [0..1000];
    // The listener needs a cookie, then not, then again; no connection ever requests one.
    for accepted in [
        EarlyCookie::Needed,
        EarlyCookie::NotNeeded,
        EarlyCookie::Needed,
    ] {
        listener.set_early_cookie(accepted).expect("a listener");
        for data in [EarlyData::Host(&bytes), EarlyData::Device(&tx, &ranges)] {
            let options = ConnectOptions::new().early_cookie(EarlyCookie::NotNeeded);
            let connected = a.connect_with_data(("10.77.0.2", PORT), &options, data);
            let (stream, sent) = connected.expect("it listens");
            let info = stream.tcp_info().expect("it is open");
            assert_eq!(info.syn_data_acked, accepted == EarlyCookie::NotNeeded);
            let (mut receiver, _) = listener.accept().expect("it connected");
            assert_eq!(receive(&mut receiver, 1000), bytes);
            assert_eq!(sent.bytes(), 1000);
        }
    }
}

#[test]
fn data_that_no_syn_carried_follows_the_handshake() {
    let (a, b) = Netdev::pair("seed=1".parse().expect("an impairment")).expect("a pair");
    let listener = b.listen(("10.77.0.2", PORT)).expect("the port is free");
    let memory = device(&pattern(5000));
    let tx = a.bind_tx(&memory).expect("bound");
    for fast_open in [false, true] {
        // The second listener would give a cookie, but none is known yet.
        listener.set_fast_open(fast_open.into()).expect("a number");
        let data = EarlyData::Device(&tx, &[0..5000]);
        let connected = a.connect_with_data(("10.77.0.2", PORT), &ConnectOptions::new(), data);
        let (stream, sent) = connected.expect("it listens");
        assert_eq!(sent.bytes(), 5000);
        assert!(!stream.tcp_info().expect("it is open").syn_data_acked);
        let (mut receiver, _) = listener.accept().expect("it connected");
        assert_eq!(receive(&mut receiver, 5000), pattern(5000));
        stream.completions().wait(sent).expect("acknowledged");
    }
}

#[test]
fn early_data_that_cannot_be_sent_is_refused_before_anything_is() {
    let (a, b) = Netdev::pair("seed=1".parse().expect("an impairment")).expect("a pair");
    let listener = b.listen(("10.77.0.2", PORT)).expect("the port is free");
    let memory = device(&pattern(4096));
    let (here, elsewhere) = (
        a.bind_tx(&memory).expect("bound"),
        b.bind_tx(&memory).expect("bound"),
    );
    let refused = |tx, ranges: &[_]| {
        let data = EarlyData::Device(tx, ranges);
        let connected = a.connect_with_data(("10.77.0.2", PORT), &ConnectOptions::new(), data);
        connected.map(drop).expect_err("nothing can be sent")
    };
    let outside = refused(&here, &[0..5000]);
    assert_eq!(outside.errno(), Errno::EFAULT, "{outside}");
    let other = refused(&elsewhere, &[0..10]);
    assert_eq!(other.errno(), Errno::ENODEV, "{other}");
    assert!(
        other
            .remedy()
            .is_some_and(|remedy| remedy == Remedy::BindToStreamsNic)
    );
    listener.set_nonblocking(true);
    assert!(listener.accept().is_err(), "no SYN was sent");
}
