//! Bytes received where the program wants them: over a bad wire in virtual time, and between threads in real time.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "a place is a list of ranges"
)]

mod overlap;

use std::io::Write;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use devmem_tcp::{
    BoundRx, BoundTarget, Dmabuf, Error, ErrorKind, Frag, Listener, Netdev, RxBatch, Setup, Stream,
};
use netmem::{FakeDevice, FakePace};

use crate::common::PATIENCE;

const TARGET_BYTES: usize = 1 << 20;

/// Two NICs and a connection; the receiver has a target beside its bound memory.
struct Bench {
    nic: Netdev,
    other: Netdev,
    listener: Listener,
    /// `None` while a thread has it.
    sender: Option<Stream>,
    receiver: Stream,
    memory: Dmabuf,
    target: BoundTarget,
    bound: BoundRx,
    _setup: Setup,
}

impl Bench {
    fn new(impairment: &str) -> Self {
        let (other, nic) =
            Netdev::pair(impairment.parse().expect("an impairment")).expect("a pair");
        let address: SocketAddr = "10.77.0.2:5201".parse().expect("an address");
        let setup = nic.plan_receive(address).apply().expect("applied");
        let memory = Dmabuf::anonymous(4 << 20).expect("memory");
        let bound = nic.bind_rx(&memory, setup.queues()).expect("bound");
        let place = Dmabuf::anonymous(TARGET_BYTES).expect("memory");
        let target = nic.bind_target(&place).expect("bound");
        let listener = nic.listen(address).expect("the port is free");
        let sender = other.connect(address).expect("the listener is there");
        let (receiver, _) = listener.accept().expect("it connected");
        receiver.set_timeout(Some(PATIENCE));
        // From here on, a call that waits for a connection lets virtual time pass.
        listener.set_timeout(Some(Duration::from_millis(5)));
        Self {
            nic,
            other,
            listener,
            sender: Some(sender),
            receiver,
            memory,
            target,
            bound,
            _setup: setup,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let sender = self.sender.as_mut().expect("it is there");
        sender.write_all(bytes).expect("alive");
    }

    /// Receives `range` of the target; returns the bytes that were received in it.
    fn fill(&mut self, range: Range<usize>) -> usize {
        let place = self.target.memory().clone();
        let placed = self
            .receiver
            .place_next(&self.target, std::slice::from_ref(&range));
        placed.expect("the range is inside");
        let (mut batch, mut at, mut direct) = (RxBatch::with_capacity(256), range.start, 0);
        while at < range.end {
            let received = self.receiver.recv_at_most(&mut batch, range.end - at);
            let received = received.expect("alive");
            assert!(received > 0, "the stream ended at {at} of {range:?}");
            for frag in &batch {
                if let Frag::Device { range, dmabuf } = frag
                    && dmabuf == self.target.id()
                {
                    direct += range.len();
                }
            }
            assert_eq!(batch.gather_into(&place, at).expect("it fits"), received);
            at += received;
        }
        direct
    }

    fn finish(self) {
        let Self {
            sender,
            receiver,
            bound,
            target,
            ..
        } = self;
        drop((sender, receiver, target));
        let net_iovs = bound.unbind().net_iovs();
        assert_eq!(net_iovs.home, net_iovs.total, "net_iovs that are not home");
    }

    fn direct_bytes(&self) -> u64 {
        let stats = self.nic.queue_stats();
        stats.iter().map(|queue| queue.direct_bytes).sum()
    }
}

/// The bytes of message `number`.
fn message(number: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 9) ^ (number * 89)) as u8;
    (0..len).map(byte).collect()
}

/// Lengths of messages and where they go: neighbours, gaps and one-byte ranges among them.
const MESSAGES: [(usize, usize); 7] = [
    (0, 100_000),
    (100_000, 1),
    (100_001, 250_000),
    (4096, 65_536),
    (400_000, 3),
    (500_000, 524_288),
    (1_000_000, 48_576),
];

#[test]
fn messages_are_received_at_their_place_over_any_wire() {
    for impairment in [
        "none",
        "loss=3%,seed=1",
        "reorder=5%,dup=5%,seed=2",
        "loss=1%,reorder=2%,dup=1%,corrupt=1%,delay=3ms,seed=3",
    ] {
        let mut bench = Bench::new(impairment);
        let mut sender = bench.sender.take().expect("it is there");
        let writing = std::thread::spawn(move || {
            for (number, (_, len)) in MESSAGES.into_iter().enumerate() {
                sender.write_all(&message(number, len)).expect("alive");
            }
            sender
        });
        let mut direct = 0;
        for (number, (at, len)) in MESSAGES.into_iter().enumerate() {
            direct += bench.fill(at..at + len);
            let place = bench.target.memory().slice(at..at + len).to_vec();
            assert!(
                place == message(number, len),
                "{impairment}: message {number}"
            );
        }
        assert!(direct > 0, "{impairment}");
        assert!(bench.direct_bytes() >= direct as u64, "{impairment}");
        bench.sender = writing.join().ok();
        bench.finish();
    }
}

#[test]
fn nothing_is_written_to_a_range_that_was_ended() {
    let mut bench = Bench::new("none");
    let place = bench.target.memory().clone();
    bench.send(&message(0, 1000));
    bench.fill(0..1000);
    let placed = bench.receiver.place_next(&bench.target, &[1000..9000]);
    placed.expect("inside");
    let ended = bench.receiver.place_next(&bench.target, &[]);
    ended.expect("no range");
    place.fill(0..TARGET_BYTES, 0xee).expect("inside");
    let before = bench.direct_bytes();
    bench.send(&message(1, 8000));
    let mut batch = RxBatch::with_capacity(64);
    let (mut received, mut bytes) = (0, Vec::new());
    while received < 8000 {
        received += bench.receiver.recv(&mut batch).expect("alive");
        for frag in &batch {
            let Frag::Device { range, dmabuf } = frag else {
                panic!("in host memory: {frag:?}");
            };
            assert_ne!(dmabuf, bench.target.id());
            bytes.extend(bench.memory.slice(range).to_vec());
        }
    }
    assert!(bytes == message(1, 8000));
    assert_eq!(bench.direct_bytes(), before);
    let target = place.slice(0..TARGET_BYTES).to_vec();
    assert!(target.iter().all(|byte| *byte == 0xee));
    drop(batch);
    bench.finish();
}

#[test]
fn bytes_that_were_queued_before_are_gathered_and_the_later_ones_are_there() {
    let mut bench = Bench::new("none");
    let bytes = message(3, 300_000);
    bench.send(&bytes[..1000]);
    assert_eq!(bench.receiver.peek(&mut [0; 1000]).expect("alive"), 1000);
    let mut sender = bench.sender.take().expect("it is there");
    let rest = bytes[1000..].to_vec();
    let writing = std::thread::spawn(move || {
        // The receiver has named the place when it waits.
        sender.write_all(&rest).expect("alive");
        sender
    });
    let direct = bench.fill(77..300_077);
    assert!(direct <= 299_000, "1,000 bytes were queued");
    assert!(bench.target.memory().slice(77..300_077).to_vec() == bytes);
    bench.sender = writing.join().ok();
    bench.finish();
}

#[test]
fn behind_a_full_range_few_bytes_are_received_before_the_next_is_named() {
    const HEADER: usize = 16;
    let mut bench = Bench::new("none");
    // The congestion window grows, so that what follows is one burst.
    for number in 0..16 {
        bench.send(&message(number, 250_000));
        bench.fill(0..250_000);
    }
    let bytes = message(1, 100_000 + HEADER + 300_000);
    bench.send(&bytes);
    bench.fill(0..100_000);
    let mut batch = RxBatch::with_capacity(64);
    let header = bench.receiver.recv_at_most(&mut batch, HEADER);
    assert_eq!(header.expect("alive"), HEADER);
    batch.release().expect("they are lent");
    let direct = bench.fill(100_000..400_000);
    assert!(direct > 200_000, "{direct} bytes");
    let place = bench.target.memory().slice(100_000..400_000).to_vec();
    assert!(place == bytes[100_000 + HEADER..]);
    drop(batch);
    bench.finish();
}

#[test]
fn one_message_fills_several_ranges() {
    let mut bench = Bench::new("reorder=2%,dup=2%,loss=1%,seed=4");
    let bytes = message(9, 400_000);
    let ranges = [600_000..700_000, 0..1, 100..100_099, 300_000..500_000];
    let placed = bench.receiver.place_next(&bench.target, &ranges);
    placed.expect("inside");
    let mut sender = bench.sender.take().expect("it is there");
    let sent = bytes.clone();
    let writing = std::thread::spawn(move || {
        sender.write_all(&sent).expect("alive");
        sender
    });
    let (place, mut batch) = (bench.target.memory().clone(), RxBatch::with_capacity(64));
    let mut done = 0;
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let received = bench.receiver.recv_at_most(&mut batch, range.end - at);
            let received = received.expect("alive");
            assert!(received > 0, "the stream ended");
            batch.gather_into(&place, at).expect("it fits");
            at += received;
        }
        assert!(place.slice(range.clone()).to_vec() == bytes[done..done + range.len()]);
        done += range.len();
    }
    assert_eq!(done, bytes.len());
    drop(batch);
    bench.sender = writing.join().ok();
    bench.finish();
}

#[test]
fn after_a_loss_later_bytes_are_received_at_their_place_again() {
    let mut bench = Bench::new("loss=1%,seed=7");
    let placed = bench.receiver.place_next(&bench.target, &[0..TARGET_BYTES]);
    placed.expect("inside");
    let mut sender = bench.sender.take().expect("it is there");
    let writing = std::thread::spawn(move || {
        sender.write_all(&message(1, TARGET_BYTES)).expect("alive");
        sender
    });
    let place = bench.target.memory().clone();
    let (mut batch, mut at) = (RxBatch::with_capacity(64), 0);
    while at < TARGET_BYTES {
        let received = bench.receiver.recv(&mut batch).expect("alive");
        batch.gather_into(&place, at).expect("it fits");
        at += received;
    }
    assert!(place.slice(0..TARGET_BYTES).to_vec() == message(1, TARGET_BYTES));
    let direct = bench.direct_bytes();
    assert!(direct > TARGET_BYTES as u64 / 4, "{direct} bytes");
    drop(batch);
    bench.sender = writing.join().ok();
    bench.finish();
}

#[test]
fn bytes_at_their_place_are_copied_if_they_are_gathered_elsewhere() {
    let mut bench = Bench::new("none");
    let place = bench.target.memory().clone();
    let placed = bench.receiver.place_next(&bench.target, &[100..1100]);
    placed.expect("inside");
    bench.send(&message(2, 1000));
    let (mut batch, mut received) = (RxBatch::with_capacity(64), 0);
    while received < 1000 {
        let len = bench.receiver.recv(&mut batch).expect("alive");
        let gathered = batch.gather_into(&place, 50_000 + received);
        assert_eq!(gathered.expect("it fits"), len);
        received += len;
    }
    assert_eq!(bench.direct_bytes(), 1000);
    for at in [100, 50_000] {
        assert!(
            place.slice(at..at + 1000).to_vec() == message(2, 1000),
            "{at}"
        );
    }
    drop(batch);
    bench.finish();
}

#[test]
fn a_dropped_target_is_filled_as_long_as_its_stream_lives() {
    let mut bench = Bench::new("none");
    let place = bench.target.memory().clone();
    let placed = bench.receiver.place_next(&bench.target, &[0..100_000]);
    placed.expect("inside");
    let again = bench.nic.bind_target(&place).expect("a second binding");
    drop(std::mem::replace(&mut bench.target, again));
    bench.send(&message(5, 100_000));
    let (mut batch, mut at) = (RxBatch::with_capacity(64), 0);
    while at < 100_000 {
        let received = bench.receiver.recv(&mut batch).expect("alive");
        batch.gather_into(&place, at).expect("it fits");
        at += received;
    }
    assert!(place.slice(0..100_000).to_vec() == message(5, 100_000));
    drop(batch);
    bench.finish();
}

#[test]
fn what_cannot_be_placed_is_refused_with_a_remedy() {
    let mut bench = Bench::new("none");
    let refused = |error: Error| (error.kind(), error.errno().0, format!("{error:?}"));
    let outside = TARGET_BYTES - 1..TARGET_BYTES + 1;
    let (kind, errno, text) = refused(
        bench
            .receiver
            .place_next(&bench.target, &[0..1, outside])
            .expect_err("it does not fit"),
    );
    assert_eq!((kind, errno), (ErrorKind::InvalidInput, 14), "{text}");
    assert!(text.contains("name a range"), "{text}");
    let device = FakeDevice::new(FakePace::AtOnce);
    let memory = device.alloc(64 << 10).expect("memory");
    let (kind, _, text) = refused(bench.nic.bind_target(&memory).expect_err("not mapped"));
    assert_eq!(kind, ErrorKind::Unsupported, "{text}");
    assert!(text.contains("receive into bound memory"), "{text}");
    let other = Bench::new("none");
    let (kind, _, text) = refused(
        bench
            .receiver
            .place_next(&other.target, &[0..1])
            .expect_err("of another NIC"),
    );
    assert_eq!(kind, ErrorKind::InvalidInput, "{text}");
    assert!(text.contains("bind_target"), "{text}");
    other.finish();
    bench.finish();
}
