//! fork(2) while other threads are in calls: what a child has of its parent's NICs, and what the parent notices of it.

#[path = "common/bench.rs"]
mod bench;
mod common;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use devmem_tcp::{BoundTx, Dmabuf, Errno, Frag, Netdev, RxBatch, Stream};
use netmem::in_child;

use bench::{Bench, LOCAL};
use common::{byte_at, collect};

/// Everything that a program may hold of a NIC.
struct World {
    bench: Bench,
    tx_memory: Dmabuf,
    tx: BoundTx,
}

impl World {
    fn new(wire: &str) -> Self {
        let bench = Bench::new(wire);
        let tx_memory = Dmabuf::anonymous(8 << 20).unwrap();
        let tx = bench.sender.bind_tx(&tx_memory).unwrap();
        Self {
            bench,
            tx_memory,
            tx,
        }
    }
}

/// Receives to the end of the stream, verifying.
fn receive_all(stream: &mut Stream, memory: &Dmabuf, received: &AtomicUsize) {
    let mut batch = RxBatch::with_capacity(64);
    while stream.recv(&mut batch).unwrap() > 0 {
        let (at, mut bytes) = (received.load(Ordering::Relaxed), Vec::new());
        collect(&batch, memory, &mut bytes);
        let mut numbered = bytes.iter().zip(at..);
        assert!(
            numbered.all(|(byte, at)| *byte == byte_at(at)),
            "the bytes from {at} on"
        );
        received.store(at + bytes.len(), Ordering::Relaxed);
    }
}

fn send_some(stream: &mut Stream, from: usize, len: usize) {
    let bytes: Vec<u8> = (from..from + len).map(byte_at).collect();
    stream.write_all(&bytes).unwrap();
}

/// A transfer in a world of this process's own.
fn transfer(wire: &str) {
    let bench = Bench::new(wire);
    let (mut sender, mut receiver) = bench.connection();
    send_some(&mut sender, 0, 300_000);
    drop(sender);
    let received = AtomicUsize::new(0);
    receive_all(&mut receiver, &bench.memory, &received);
    assert_eq!(received.into_inner(), 300_000);
}

/// Makes every call on handles of the parent, then drops them. Returns what was not refused, as a number.
#[expect(clippy::too_many_lines, reason = "one line for each call")]
fn every_call_is_refused(world: World, streams: (Stream, Stream), mut batch: RxBatch) -> u8 {
    let (mut to, mut from) = streams;
    let completions = to.completions();
    let address = LOCAL.parse().unwrap();
    let dead = Errno::EOWNERDEAD;
    let mut wrong = 0;
    let mut check = |refused: bool| wrong += u8::from(!refused);
    check(
        from.recv(&mut batch)
            .is_err_and(|error| error.errno() == dead),
    );
    check(batch.release().is_err_and(|error| error.errno() == dead));
    check(to.write(b"x").is_err());
    check(
        to.send(&world.tx, &[0..1, 2..3])
            .is_err_and(|error| error.errno() == dead),
    );
    check(
        to.send_host_all(&vec![0; 9].into())
            .is_err_and(|error| error.errno() == dead),
    );
    check(
        to.shutdown_write()
            .is_err_and(|error| error.errno() == dead),
    );
    check(to.readiness_fd().is_err() && to.tcp_info().is_none());
    check(to.peer_addr().is_err() && to.local_addr().is_err());
    check(
        completions
            .wait_all()
            .is_err_and(|error| error.errno() == dead),
    );
    check(completions.try_next().is_err() && completions.counts().is_err());
    check(
        world
            .bench
            .listener
            .accept()
            .is_err_and(|error| error.errno() == dead),
    );
    check(world.bench.listener.local_addr().is_err());
    check(
        world
            .bench
            .sender
            .connect(LOCAL)
            .is_err_and(|error| error.errno() == dead),
    );
    check(
        world
            .bench
            .sender
            .listen("10.77.0.1:1")
            .is_err_and(|error| error.errno() == dead),
    );
    let (queues, other) = (world.bench.setup.queues(), &world.tx_memory);
    check(
        world
            .bench
            .receiver
            .bind_rx(other, queues)
            .is_err_and(|error| error.errno() == dead),
    );
    check(
        world
            .bench
            .receiver
            .bind_tx(other)
            .is_err_and(|error| error.errno() == dead),
    );
    check(world.bench.receiver.plan_receive(address).apply().is_err());
    check(world.bench.receiver.tx_stats().is_none());
    check(world.bench.receiver.drops().is_empty() && world.bench.receiver.addresses().is_empty());
    check(world.tx.in_flight() == 0 && world.bench.bound.net_iovs().total > 0);
    // Everything is dropped here: bindings, settings, connections, the NICs.
    drop((batch, from, to, completions));
    drop(world);
    wrong
}

/// Tells the sender to stop when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the forking thread holds at the fork; the child takes its copy out.
type Held = Option<(World, (Stream, Stream), RxBatch)>;

/// Forks again and again while two threads send and receive, which must go on after each child.
fn under_traffic(world: World, child: fn(&mut Held) -> u8) -> (World, Stream) {
    let (mut sender, mut receiver) = world.bench.connection();
    // A frag that is lent at the fork.
    let (mut second, mut third) = world.bench.connection();
    send_some(&mut second, 0, 1000);
    let mut batch = RxBatch::with_capacity(4);
    assert_eq!(third.recv(&mut batch).unwrap(), 1000);
    let memory = world.bench.memory.clone();
    let mut held = Some((world, (second, third), batch));
    let (stop, received) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                send_some(&mut sender, sent, 50_000);
                sent += 50_000;
            }
            sender.shutdown_write().unwrap();
            sent
        });
        let receiving = scope.spawn(|| receive_all(&mut receiver, &memory, &received));
        // Also when something below fails: the scope waits for its threads.
        let stop = Stop(&stop);
        for _ in 0..20 {
            let before = received.load(Ordering::Relaxed);
            assert_eq!(in_child(|| child(&mut held)), Some(0));
            while received.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
        }
        drop(stop);
        receiving.join().unwrap();
        assert_eq!(received.load(Ordering::Relaxed), sending.join().unwrap());
    });
    drop((sender, receiver));
    let (world, (mut second, third), mut batch) = held.take().unwrap();
    // What the child gave back and undid is as it was here.
    let (mut fourth, mut fifth) = world.bench.connection();
    send_some(&mut fourth, 0, 1000);
    let mut split = RxBatch::with_capacity(4);
    assert_eq!(fifth.recv(&mut split).unwrap(), 1000);
    assert_eq!(split.device_bytes(), 1000, "the NIC is still set up");
    drop((fourth, fifth, split));
    let mut bytes = vec![0; 1000];
    let range = match batch.iter().next().unwrap() {
        Frag::Device { range, .. } => range,
        Frag::Linear(_) => panic!("it is split"),
    };
    memory
        .slice(range.clone())
        .copy_to(&mut bytes[..range.len()]);
    assert!((0..range.len()).all(|at| bytes[at] == byte_at(at)));
    assert!(batch.release().unwrap() > 0);
    second.write_all(b"the connection is alive").unwrap();
    drop(second);
    (world, third)
}

/// Undoes everything and checks that all memory is back.
fn finish((world, mut stream): (World, Stream)) {
    let mut batch = RxBatch::with_capacity(4);
    let mut bytes = 0;
    loop {
        match stream.recv(&mut batch).unwrap() {
            0 => break,
            received => bytes += received,
        }
    }
    assert_eq!(bytes, b"the connection is alive".len());
    drop(stream);
    world.bench.finish();
}

#[test]
fn a_child_is_refused_every_call_and_drops_everything_without_the_parent_noticing() {
    let world = World::new("fork-calls");
    finish(under_traffic(world, |held| {
        let (world, streams, batch) = held.take().expect("as the parent has it");
        every_call_is_refused(world, streams, batch)
    }));
}

#[test]
fn a_child_has_nics_of_its_own_even_on_a_wire_of_the_same_name() {
    let world = World::new("fork-own");
    finish(under_traffic(world, |held| {
        transfer("fork-own");
        drop(held.take());
        transfer("fork-own");
        0
    }));
}

#[test]
fn memory_of_a_child_is_a_separate_copy_and_may_be_bound_there() {
    let world = World::new("fork-memory");
    finish(under_traffic(world, |held| {
        let (parents, _streams, _batch) = held.as_ref().expect("as the parent has it");
        let memory = parents.bench.memory.clone();
        let link = "mem:fork-memory";
        let nic = Netdev::user(link, "10.77.0.2/24").unwrap();
        let setup = nic.plan_receive(LOCAL.parse().unwrap()).apply().unwrap();
        let bound = nic.bind_rx(&memory, setup.queues());
        u8::from(bound.is_err())
    }));
}

#[test]
fn copies_of_a_virtual_time_pair_in_a_child_are_refused_and_dropped() {
    let (a, b) = Netdev::pair("none".parse().unwrap()).unwrap();
    let listener = b.listen(LOCAL).unwrap();
    let stream = a.connect(LOCAL).unwrap();
    let mut held = Some((a, b, listener, stream));
    let code = in_child(|| {
        let (a, b, listener, mut stream) = held.take().expect("as the parent has it");
        let refused = stream.write(b"x").is_err() && listener.accept().is_err();
        drop((a, b, listener, stream));
        u8::from(!refused)
    });
    assert_eq!(code, Some(0));
    let (_a, _b, listener, mut stream) = held.take().unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    stream.write_all(b"hello").unwrap();
    let mut batch = RxBatch::with_capacity(4);
    assert_eq!(accepted.recv(&mut batch).unwrap(), 5);
}

/// Interfaces of the kernel are refused in the same way; sockets of the kernel stay open in the parent.
#[test]
fn copies_of_the_kernels_interface_in_a_child_are_refused_and_dropped() {
    let lo = Netdev::kernel("lo").unwrap();
    let listener = lo.listen("127.0.0.1:0").unwrap();
    let sender = lo.connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    let mut held = Some((lo, listener, sender, receiver));
    let code = in_child(|| {
        let (lo, listener, mut sender, mut receiver) = held.take().expect("as the parent has it");
        let dead = Errno::EOWNERDEAD;
        let mut batch = RxBatch::with_capacity(4);
        let refused = sender.write(b"x").is_err()
            && sender
                .shutdown_write()
                .is_err_and(|error| error.errno() == dead)
            && receiver
                .recv(&mut batch)
                .is_err_and(|error| error.errno() == dead)
            && listener.accept().is_err_and(|error| error.errno() == dead)
            && lo
                .connect("127.0.0.1:1")
                .is_err_and(|error| error.errno() == dead);
        drop((lo, listener, sender, receiver));
        // Found anew, it is this process's.
        let own = Netdev::kernel("lo").unwrap().listen("127.0.0.1:0").is_ok();
        u8::from(!refused || !own)
    });
    assert_eq!(code, Some(0));
    let (_lo, _listener, mut sender, mut receiver) = held.take().unwrap();
    sender.write_all(b"hello").unwrap();
    let mut batch = RxBatch::with_capacity(4);
    assert_eq!(receiver.recv(&mut batch).unwrap(), 5);
}
