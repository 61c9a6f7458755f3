//! Memory has one receive binding at a time: what is lent from one is never lent by a second, nor written over.

use std::io::Write;
use std::net::SocketAddr;

use devmem_tcp::{
    BindError, BoundRx, Dmabuf, Errno, Frag, Listener, Netdev, RxBatch, RxFrag, RxQueueId, Setup,
    Stream,
};

use crate::common::PATIENCE;

const PORT: u16 = 5201;

/// A receiver with two queues for device memory, and a sender on the other end of a wire.
struct World {
    sender: Netdev,
    receiver: Netdev,
    setup: Setup,
    listener: Listener,
    local: SocketAddr,
}

impl World {
    fn on(sender: Netdev, receiver: Netdev, ip: &str) -> Self {
        let local = SocketAddr::new(ip.parse().unwrap(), PORT);
        let setup = receiver.plan_receive(local).apply().unwrap();
        let listener = receiver.listen(local).unwrap();
        listener.set_timeout(Some(PATIENCE));
        Self {
            sender,
            receiver,
            setup,
            listener,
            local,
        }
    }

    /// In real time.
    fn wire(name: &str) -> Self {
        let end = |ip: &str| {
            let builder = Netdev::builder(format!("mem:in-use-{name}")).unwrap();
            let builder = builder.address(ip).unwrap().rx_queues(4);
            builder.open().unwrap()
        };
        Self::on(end("10.77.0.1/24"), end("10.77.0.2/24"), "10.77.0.2")
    }

    /// In virtual time.
    fn pair() -> Self {
        let (sender, receiver) = Netdev::pair("none".parse().unwrap()).unwrap();
        Self::on(sender, receiver, "10.77.0.2")
    }

    /// One NIC that sends to itself.
    fn loopback() -> Self {
        let (nic, _other) = Netdev::pair("none".parse().unwrap()).unwrap();
        Self::on(nic.clone(), nic, "10.77.0.1")
    }

    fn bind(&self, memory: &Dmabuf) -> Result<BoundRx, BindError> {
        self.receiver.bind_rx(memory, self.setup.queues())
    }

    fn connection(&self) -> (Stream, Stream) {
        let sender = self.sender.connect(self.local).unwrap();
        let (receiver, _) = self.listener.accept().unwrap();
        sender.set_timeout(Some(PATIENCE));
        receiver.set_timeout(Some(PATIENCE));
        (sender, receiver)
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at % 251) as u8 ^ (at >> 13) as u8 ^ seed)
        .collect()
}

/// Sends `bytes` and keeps every frag of them.
fn receive(world: &World, bytes: &[u8]) -> Vec<RxFrag> {
    let (mut sender, mut receiver) = world.connection();
    let mut batch = RxBatch::with_capacity(64);
    let mut frags = Vec::new();
    for piece in bytes.chunks(64 << 10) {
        sender.write_all(piece).unwrap();
        let mut received = 0;
        while received < piece.len() {
            received += receiver.recv(&mut batch).unwrap();
            frags.extend(batch.take());
        }
    }
    frags
}

fn ranges(frags: &[RxFrag]) -> Vec<std::ops::Range<usize>> {
    let range = |frag: &RxFrag| match frag.as_frag() {
        Frag::Device { range, .. } => range,
        Frag::Linear(_) => panic!("it is split"),
    };
    frags.iter().map(range).collect()
}

/// How many net_iovs of 64 KiB the frags lie in.
fn net_iovs(frags: &[RxFrag]) -> usize {
    let of_frags = ranges(frags).into_iter();
    let numbers = of_frags.flat_map(|range| range.start >> 16..=(range.end - 1) >> 16);
    numbers.collect::<std::collections::HashSet<_>>().len()
}

fn bytes_of(frags: &[RxFrag], memory: &Dmabuf) -> Vec<u8> {
    let ranges = ranges(frags).into_iter();
    ranges
        .flat_map(|range| memory.slice(range).to_vec())
        .collect()
}

/// Checks that a bind was refused because the memory is in use, in words that have all of `words`.
fn refused(bound: Result<BoundRx, BindError>, words: &[&str]) {
    let error = bound.map(drop).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY, "{error}");
    let text = format!("{error:?}");
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

/// Holds frags, binds their memory again on `second`, and lets more data come if that works: the bytes that are held
/// must stay, and be lent to nobody else.
fn held_frags_stay(first: &World, second: &World) {
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let sent = pattern(256 << 10, 0);
    let bound = first.bind(&memory).unwrap();
    let held = receive(first, &sent);
    assert!(bytes_of(&held, &memory) == sent);
    drop(bound);
    let again = second.bind(&memory);
    if again.is_ok() {
        let more = receive(second, &pattern(512 << 10, 0x55));
        assert!(bytes_of(&held, &memory) == sent, "the held bytes changed");
        let overlap = |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| {
            a.start < b.end && b.start < a.end
        };
        for one in ranges(&held) {
            let twice = ranges(&more).into_iter().find(|other| overlap(&one, other));
            assert_eq!(twice, None, "{one:?} is lent twice");
        }
    }
    let lent = net_iovs(&held);
    assert!(lent > 1, "{lent}");
    let pieces = format!(
        "{} KiB of the memory ({lent} net_iovs of 64 KiB)",
        64 * lent
    );
    refused(again, &[&pieces, "still lent", "return the frags"]);
    assert!(bytes_of(&held, &memory) == sent);
    // One of several is enough, and with the last the memory is free at once.
    let mut held = held;
    held.truncate(1);
    refused(second.bind(&memory), &["64 KiB of the memory (1 net_iov)"]);
    drop(held);
    let bound = second.bind(&memory).unwrap();
    let more = pattern(100_000, 3);
    assert!(bytes_of(&receive(second, &more), &memory) == more);
    drop(bound);
}

#[test]
fn a_held_frag_is_not_overwritten_by_the_same_nic_bound_again() {
    let world = World::wire("held");
    held_frags_stay(&world, &world);
}

#[test]
fn a_held_frag_is_not_overwritten_by_the_same_nic_bound_again_in_virtual_time() {
    let world = World::pair();
    held_frags_stay(&world, &world);
}

#[test]
fn a_held_frag_is_not_overwritten_by_another_nic() {
    held_frags_stay(&World::wire("held-a"), &World::wire("held-b"));
}

#[test]
fn bound_memory_is_refused_on_other_queues_and_other_nics_and_the_holder_is_named() {
    let (world, other) = (World::wire("bound-a"), World::wire("bound-b"));
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let bound = world.bind(&memory).unwrap();
    let words = [
        "bound for receiving already",
        "rx queue 3",
        "10.77.0.2",
        "drop",
    ];
    refused(
        world.receiver.bind_rx(&memory.clone(), &[RxQueueId(1)]),
        &words,
    );
    refused(other.bind(&memory), &words);
    // A queue that is taken is said to be: as the kernel says it.
    let taken = world.bind(&memory).unwrap_err();
    assert_eq!(taken.errno(), Errno::EEXIST, "{taken}");
    // Other memory is free, and sending from bound memory is allowed.
    let second = Dmabuf::anonymous(1 << 20).unwrap();
    let _second = other.bind(&second).unwrap();
    let _tx = world.receiver.bind_tx(&memory).unwrap();
    drop(bound);
    let _bound = world.receiver.bind_rx(&memory, &[RxQueueId(1)]).unwrap();
}

#[test]
fn data_that_a_socket_has_not_delivered_keeps_the_memory() {
    let world = World::pair();
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let bound = world.bind(&memory).unwrap();
    let (mut sender, mut receiver) = world.connection();
    sender.write_all(&pattern(1000, 1)).unwrap();
    // The second of two sends waits in the socket when the first was received.
    let mut batch = RxBatch::with_capacity(1);
    assert!(receiver.recv(&mut batch).unwrap() > 0);
    sender.write_all(&pattern(1000, 2)).unwrap();
    // Another connection's handshake: the wire has moved everything when it is done.
    drop(world.connection());
    batch.release().unwrap();
    drop(bound);
    refused(world.bind(&memory), &["still lent", "receive or close"]);
    drop(receiver);
    let _bound = world.bind(&memory).unwrap();
}

#[test]
fn memory_is_bound_again_and_again_when_all_of_it_was_given_back() {
    for world in [World::wire("again"), World::pair(), World::loopback()] {
        let memory = Dmabuf::anonymous(1 << 20).unwrap();
        for round in 0..20 {
            let bound = world.bind(&memory).unwrap();
            let bytes = pattern(300_000, round);
            let frags = receive(&world, &bytes);
            assert!(bytes_of(&frags, &memory) == bytes);
            drop(frags);
            drop(bound);
        }
    }
}

/// A send names bytes of the memory, not net_iovs of a receive binding: it does not keep the memory from being bound,
/// and what was lent stays lent until it was given back.
#[test]
fn received_frags_are_sent_in_place_and_the_memory_is_bound_again() {
    for world in [World::pair(), World::loopback()] {
        let memory = Dmabuf::anonymous(1 << 20).unwrap();
        for round in 0..10 {
            let bound = world.bind(&memory).unwrap();
            let tx = world.receiver.bind_tx(&memory).unwrap();
            let bytes = pattern(100_000, round);
            let (mut there, mut back) = world.connection();
            there.write_all(&bytes).unwrap();
            let mut batch = RxBatch::with_capacity(64);
            let (mut held, mut received) = (Vec::new(), 0);
            while received < bytes.len() {
                received += back.recv(&mut batch).unwrap();
                held.extend(batch.take());
            }
            let id = back.send_all(&tx, &ranges(&held)).unwrap();
            let mut echoed = 0;
            while echoed < bytes.len() {
                echoed += there.recv(&mut batch).unwrap();
            }
            back.completions().wait(id).unwrap();
            assert!(bytes_of(&held, &memory) == bytes);
            batch.release().unwrap();
            drop((held, there, back, bound, tx));
        }
    }
}
