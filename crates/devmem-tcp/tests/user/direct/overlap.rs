//! Places that overlap bytes which are still needed: refused, never overwritten.

use std::net::SocketAddr;

use devmem_tcp::{Dmabuf, Error, ErrorKind, Listener, RxBatch, RxQueueId, Stream};

use super::{Bench, PATIENCE, TARGET_BYTES, message};

const LEN: usize = 200_000;

/// Sends `bytes`, and waits until `unread` bytes can be read.
fn arrive(bench: &mut Bench, bytes: &[u8], unread: usize) {
    bench.send(bytes);
    wait_for(&bench.receiver, &bench.listener, unread);
}

/// Lets virtual time pass until `unread` bytes can be read.
fn wait_for(receiver: &Stream, listener: &Listener, unread: usize) {
    for _ in 0..1000 {
        let info = receiver.tcp_info().expect("a user-space stream");
        if info.readable >= unread {
            return;
        }
        assert!(listener.accept().is_err(), "nobody connects");
    }
    panic!("{unread} bytes did not arrive");
}

/// Receives `len` bytes, and gathers them at `at` of the target.
fn receive_to(bench: &mut Bench, batch: &mut RxBatch, len: usize, at: usize) {
    let mut done = 0;
    while done < len {
        let received = bench.receiver.recv_at_most(batch, len - done);
        let received = received.expect("alive");
        let gathered = batch.gather_into(bench.target.memory(), at + done);
        assert_eq!(gathered.expect("nothing there is needed"), received);
        done += received;
    }
}

fn place(bench: &mut Bench, ranges: &[std::ops::Range<usize>]) -> Result<(), Error> {
    bench.receiver.place_next(&bench.target, ranges)
}

/// Returns the text of a refusal, after checking its kind.
fn refusal(placed: Result<(), Error>) -> String {
    let error = placed.expect_err("bytes there are needed");
    assert_eq!(
        (error.kind(), error.errno().0),
        (ErrorKind::InUse, 16),
        "{error}"
    );
    format!("{error:?}")
}

fn assert_place(bench: &Bench, at: usize, bytes: &[u8]) {
    let found = bench.target.memory().slice(at..at + bytes.len()).to_vec();
    let wrong = found.iter().zip(bytes).filter(|(one, other)| one != other);
    assert_eq!(wrong.count(), 0, "wrong bytes at {at}");
}

#[test]
fn a_place_over_unread_bytes_of_an_earlier_one_is_refused() {
    let mut bench = Bench::new("none");
    let bytes = message(1, LEN);
    place(&mut bench, &[0..LEN]).expect("free");
    arrive(&mut bench, &bytes, LEN);
    let overlapping = [
        vec![50_000..50_000 + LEN],
        vec![LEN / 2..LEN, 0..LEN / 2, LEN..2 * LEN],
        vec![LEN - 1..3 * LEN],
        vec![500_000..700_000, 100..200],
    ];
    for ranges in overlapping {
        let text = refusal(place(&mut bench, &ranges));
        assert!(text.contains("were not read"), "{ranges:?}: {text}");
        assert!(text.contains("receive and gather them first"), "{text}");
    }
    // A second binding of the same memory is the same memory.
    let again = bench.nic.bind_target(bench.target.memory()).expect("bound");
    let first = std::mem::replace(&mut bench.target, again);
    refusal(place(&mut bench, &[50_000..50_000 + LEN]));
    drop(first);
    refusal(place(&mut bench, &[50_000..50_000 + LEN]));
    // Elsewhere is free, and moves nothing that has arrived.
    place(&mut bench, &[500_000..500_000 + 2 * LEN]).expect("free");
    let rest = message(2, LEN);
    arrive(&mut bench, &rest, 2 * LEN);
    let mut batch = RxBatch::with_capacity(7);
    receive_to(&mut bench, &mut batch, 2 * LEN, 500_000);
    assert_place(&bench, 500_000, &bytes);
    assert_place(&bench, 500_000 + LEN, &rest);
    drop(batch);
    bench.finish();
}

#[test]
fn a_place_may_be_extended_while_its_first_bytes_are_unread() {
    let mut bench = Bench::new("none");
    let bytes = message(1, 2 * LEN);
    place(&mut bench, &[1000..1000 + LEN]).expect("free");
    arrive(&mut bench, &bytes[..LEN / 2], LEN / 2);
    let pieces = [1000..1000 + LEN / 4, 1000 + LEN / 4..1000 + 2 * LEN];
    place(&mut bench, &pieces).expect("the same place");
    arrive(&mut bench, &bytes[LEN / 2..LEN], LEN);
    let rest = bytes[LEN..].to_vec();
    bench.send(&rest);
    let mut batch = RxBatch::with_capacity(7);
    receive_to(&mut bench, &mut batch, 2 * LEN, 1000);
    assert_place(&bench, 1000, &bytes);
    assert!(bench.direct_bytes() >= 2 * LEN as u64);
    drop(batch);
    bench.finish();
}

#[test]
fn bytes_are_moved_within_a_target_also_where_both_places_overlap() {
    for to in [1, 50_000, LEN - 1, 300_000] {
        let mut bench = Bench::new("none");
        let bytes = message(1, LEN);
        // Not contiguous: the second half is before the first one.
        place(&mut bench, &[100_000..200_000, 0..100_000]).expect("free");
        arrive(&mut bench, &bytes, LEN);
        let mut batch = RxBatch::with_capacity(256);
        assert_eq!(bench.receiver.recv(&mut batch).expect("alive"), LEN);
        let gathered = batch.gather_into(bench.target.memory(), to);
        assert_eq!(gathered.expect("all bytes are of the batch"), LEN);
        assert_place(&bench, to, &bytes);
        drop(batch);
        bench.finish();
    }
}

#[test]
fn a_gather_over_unread_bytes_of_a_place_is_refused() {
    let mut bench = Bench::new("none");
    let bytes = message(1, LEN);
    place(&mut bench, &[0..2 * LEN]).expect("free");
    arrive(&mut bench, &bytes, LEN);
    let mut batch = RxBatch::with_capacity(256);
    let half = bench.receiver.recv_at_most(&mut batch, LEN / 2);
    assert_eq!(half.expect("alive"), LEN / 2);
    for (to, text) in [(LEN / 4, "were not read"), (LEN, "a stream will receive")] {
        let refused = batch.gather_into(bench.target.memory(), to);
        let refused = refused.expect_err("bytes there are needed");
        assert_eq!(refused.errno().0, 16, "{refused}");
        assert!(format!("{refused:?}").contains(text), "{refused}");
    }
    let gathered = batch.gather_into(bench.target.memory(), 0);
    assert_eq!(gathered.expect("it is there"), LEN / 2);
    receive_to(&mut bench, &mut batch, LEN / 2, LEN / 2);
    assert_place(&bench, 0, &bytes);
    drop(batch);
    bench.finish();
}

#[test]
fn a_place_over_a_batch_waits_until_it_is_gathered_or_released() {
    let mut bench = Bench::new("none");
    let bytes = message(1, LEN);
    let mut batch = RxBatch::with_capacity(256);
    for take in [
        |batch: &mut RxBatch, to: &Dmabuf| batch.gather_into(to, 0).expect("there"),
        |batch: &mut RxBatch, to: &Dmabuf| batch.gather_into(to, 500_000).expect("fits"),
        |batch: &mut RxBatch, _: &Dmabuf| batch.release().expect("lent"),
        |batch: &mut RxBatch, _: &Dmabuf| batch.take().len(),
    ] {
        place(&mut bench, &[0..LEN]).expect("free");
        arrive(&mut bench, &bytes, LEN);
        assert_eq!(bench.receiver.recv(&mut batch).expect("alive"), LEN);
        let text = refusal(place(&mut bench, &[LEN - 1..2 * LEN]));
        assert!(text.contains("neither gathered nor released"), "{text}");
        // Another batch must not be gathered over it, either.
        arrive(&mut bench, &bytes[..1000], 1000);
        let mut other = RxBatch::with_capacity(8);
        assert_eq!(bench.receiver.recv(&mut other).expect("alive"), 1000);
        let refused = other.gather_into(bench.target.memory(), LEN - 1);
        let refused = format!("{:?}", refused.expect_err("the batch has bytes there"));
        assert!(
            refused.contains("neither gathered nor released"),
            "{refused}"
        );
        assert!(take(&mut batch, bench.target.memory()) > 0);
        let gathered = other.gather_into(bench.target.memory(), LEN - 1);
        assert_eq!(gathered.expect("free"), 1000);
    }
    drop(batch);
    bench.finish();
}

#[test]
fn two_streams_do_not_receive_in_the_same_place() {
    let mut bench = Bench::new("none");
    let address: SocketAddr = "10.77.0.2:5201".parse().expect("an address");
    let mut sender = bench.other.connect(address).expect("it listens");
    let (mut second, _) = bench.listener.accept().expect("it connected");
    second.set_timeout(Some(PATIENCE));
    place(&mut bench, &[0..LEN]).expect("free");
    let text = refusal(second.place_next(&bench.target, &[LEN - 1..2 * LEN]));
    assert!(text.contains("a stream will receive"), "{text}");
    second
        .place_next(&bench.target, &[LEN..2 * LEN])
        .expect("free");
    arrive(&mut bench, &message(1, LEN), LEN);
    let text = refusal(second.place_next(&bench.target, &[LEN - 1..2 * LEN]));
    assert!(text.contains("were not read"), "{text}");
    std::io::Write::write_all(&mut sender, &message(2, LEN)).expect("alive");
    wait_for(&second, &bench.listener, LEN);
    let mut batch = RxBatch::with_capacity(256);
    receive_to(&mut bench, &mut batch, LEN, 0);
    assert_place(&bench, 0, &message(1, LEN));
    assert_place(&bench, LEN, &message(2, LEN));
    // The bytes of a stream that was dropped are needed by nobody.
    drop((second, sender));
    place(&mut bench, &[LEN..2 * LEN]).expect("free");
    drop(batch);
    bench.finish();
}

#[test]
fn no_byte_is_named_twice_and_no_memory_is_both_bound_and_a_target() {
    let mut bench = Bench::new("none");
    let twice = place(&mut bench, &[0..100, 500..700, 99..101]).expect_err("twice");
    assert!(twice.to_string().contains("bytes 99 to 100"), "{twice}");
    let refused = bench.nic.bind_target(&bench.memory).expect_err("bound");
    assert!(
        format!("{refused:?}").contains("bound for receiving"),
        "{refused}"
    );
    let refused = bench.nic.bind_rx(bench.target.memory(), &[RxQueueId(0)]);
    let refused = format!("{:?}", refused.expect_err("a target"));
    assert!(refused.contains("bound as a target"), "{refused}");
    arrive(&mut bench, &message(1, 1000), 1000);
    let mut batch = RxBatch::with_capacity(8);
    assert_eq!(bench.receiver.recv(&mut batch).expect("alive"), 1000);
    let refused = batch.gather_into(&bench.memory, 1 << 20);
    let refused = format!("{:?}", refused.expect_err("bound for receiving"));
    assert!(refused.contains("gather into other memory"), "{refused}");
    assert!(TARGET_BYTES > 1000 && batch.gather_into(bench.target.memory(), 0).is_ok());
    drop(batch);
    bench.finish();
}
