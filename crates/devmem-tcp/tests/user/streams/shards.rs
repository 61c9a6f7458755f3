//! NICs with several shards on an in-memory wire with as many queues.

use std::sync::Barrier;

use devmem_tcp::{Interest, Poller};
use netmem::{FakeDevice, FakePace};

use super::*;

const SHARDS: usize = 2;

fn open(wire: &str, address: &str) -> Netdev {
    let builder = Netdev::builder(format!("mem:shards-{wire}")).unwrap();
    let builder = builder.address(address).unwrap().shards(SHARDS as u16);
    builder.open().unwrap()
}

fn nics(wire: &str) -> (Netdev, Netdev) {
    (open(wire, "10.77.0.1/24"), open(wire, "10.77.0.2/24"))
}

/// The byte at a position of the stream with this number.
fn byte_at(stream: usize, position: usize) -> u8 {
    (position % 251) as u8 ^ (position >> 12) as u8 ^ (stream as u8) << 6
}

fn content(stream: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte_at(stream, at)).collect()
}

/// Binds memory to all shards of `nic` for what comes to [`LOCAL`].
fn bind(nic: &Netdev, memory: &Dmabuf) -> BoundRx {
    let setup = nic.plan_receive(local()).apply().unwrap();
    nic.bind_rx(memory, setup.queues()).unwrap()
}

fn assert_all_home(bound: BoundRx) {
    let count = bound.unbind().net_iovs();
    assert_eq!(count.home, count.total, "net_iovs that are not home");
}

/// Sends `bytes` from device memory, and ends the stream.
fn send_all(nic: &Netdev, mut stream: Stream, bytes: &[u8]) {
    let memory = Dmabuf::anonymous(bytes.len()).unwrap();
    memory.copy_in(0, bytes).unwrap();
    let tx = nic.bind_tx(&memory).unwrap();
    let mut sent = 0;
    while sent < bytes.len() {
        let range = sent..bytes.len();
        sent += stream
            .send(&tx, std::slice::from_ref(&range))
            .unwrap()
            .bytes();
    }
    stream.completions().wait_all().unwrap();
    assert_eq!(tx.in_flight(), 0);
}

/// Receives to the end; every byte must be that of its position, in the part of the memory that `shard` has.
fn receive_all(stream: &mut Stream, memory: &Dmabuf, number: usize) -> usize {
    stream.set_placement(Placement::Strict);
    stream.set_timeout(Some(PATIENCE));
    let part = memory.size() / SHARDS;
    let (mut batch, mut position) = (RxBatch::with_capacity(64), 0);
    while stream.recv(&mut batch).unwrap() > 0 {
        for frag in &batch {
            let Frag::Device { range, .. } = frag else {
                panic!("in host memory: {frag:?}");
            };
            assert_eq!(range.start / part, stream.shard(), "the part of the shard");
            let bytes = memory.slice(range).to_vec();
            let wrong = (0..bytes.len()).find(|&at| bytes[at] != byte_at(number, position + at));
            assert_eq!(wrong, None, "the first wrong byte after {position}");
            position += bytes.len();
        }
    }
    position
}

#[test]
fn streams_on_both_shards_receive_every_byte_in_the_part_of_their_shard() {
    receive_on_both("shards-streams", Dmabuf::anonymous(16 << 20).unwrap());
}

#[test]
fn streams_on_both_shards_receive_into_memory_of_one_device() {
    let device = FakeDevice::new(FakePace::AfterPolls(2));
    receive_on_both("shards-device", device.alloc(16 << 20).unwrap());
}

/// Receives on two streams of each shard into `memory`.
fn receive_on_both(wire: &str, memory: Dmabuf) {
    const BYTES: usize = 3 << 20;
    let (sender, receiver) = nics(wire);
    let bound = bind(&receiver, &memory);
    let listener = receiver.listen(LOCAL).unwrap();
    listener.set_timeout(Some(PATIENCE));
    std::thread::scope(|scope| {
        for number in 0..2 * SHARDS {
            // One after another, so that the accepted stream is the last one opened.
            let ours = sender.connect(LOCAL).unwrap();
            let (mut theirs, peer) = listener.accept().unwrap();
            assert_eq!(ours.local_addr().unwrap(), peer);
            let shard = number % SHARDS;
            assert_eq!((ours.shard(), theirs.shard()), (shard, shard), "in turn");
            let (sender, memory) = (&sender, &memory);
            scope.spawn(move || send_all(sender, ours, &content(number, BYTES)));
            scope.spawn(move || assert_eq!(receive_all(&mut theirs, memory, number), BYTES));
        }
    });
    // Both ends agree on the shard of each flow.
    assert_eq!((sender.crossed_frames(), receiver.crossed_frames()), (0, 0));
    for nic in [&sender, &receiver] {
        // On a busy machine acknowledgements are late, and TCP sends some segments twice.
        let mut drops = nic.drops();
        drops.retain(|(reason, _)| !reason.starts_with("tcp_"));
        assert_eq!(drops, []);
    }
    drop(listener);
    assert_all_home(bound);
}

#[test]
fn one_thread_per_shard_shares_nothing_with_the_other() {
    const BYTES: usize = 2 << 20;
    let (sender, receiver) = nics("shards-alone");
    let ready = Barrier::new(SHARDS);
    let pairs = sender.shards().into_iter().zip(receiver.shards());
    // What is made from a shard keeps all of them.
    drop((sender, receiver));
    std::thread::scope(|scope| {
        for (number, (sender, receiver)) in pairs.enumerate() {
            let ready = &ready;
            scope.spawn(move || {
                let memory = Dmabuf::anonymous(SHARDS * (8 << 20)).unwrap();
                let bound = bind(&receiver, &memory);
                let listener = receiver.listen(LOCAL).unwrap();
                ready.wait();
                let ours = sender.connect(LOCAL).unwrap();
                drop(sender);
                let (mut theirs, _) = listener.accept().unwrap();
                assert_eq!((ours.shard(), theirs.shard()), (number, number));
                theirs.set_timeout(Some(PATIENCE));
                let sending = std::thread::spawn(move || {
                    let mut ours = ours;
                    ours.write_all(&content(number, BYTES)).unwrap();
                });
                let mut batch = RxBatch::with_capacity(64);
                let mut got = Vec::new();
                while theirs.recv(&mut batch).unwrap() > 0 {
                    got.extend(bytes_of(&batch, &memory));
                }
                sending.join().unwrap();
                assert_eq!(got, content(number, BYTES));
                drop((theirs, batch));
                assert_all_home(bound);
            });
        }
    });
}

#[test]
fn a_reader_that_keeps_the_memory_of_its_shard_does_not_stop_the_other_shard() {
    const BYTES: usize = 6 << 20;
    let (sender, receiver) = nics("shards-keep");
    let memory = Dmabuf::anonymous(4 << 20).unwrap();
    let bound = bind(&receiver, &memory);
    let listener = receiver.listen(LOCAL).unwrap();
    listener.set_timeout(Some(PATIENCE));
    let [keeping, going] = [(); 2].map(|()| {
        let ours = sender.connect(LOCAL).unwrap();
        (ours, listener.accept().unwrap().0)
    });
    std::thread::scope(|scope| {
        let (mut ours, mut theirs) = keeping;
        ours.set_timeout(Some(PATIENCE));
        scope.spawn(move || ours.write_all(&content(0, 4 << 20)).unwrap());
        theirs.set_timeout(Some(PATIENCE));
        // What it does not keep stays queued, up to the memory of the shard.
        let (mut batch, mut kept, mut held) = (RxBatch::with_capacity(64), Vec::new(), 0);
        while held < 1 << 20 {
            held += theirs.recv(&mut batch).unwrap();
            kept.extend(batch.take());
        }
        let (ours, mut other) = going;
        let sender = &sender;
        scope.spawn(move || send_all(sender, ours, &content(1, BYTES)));
        assert_eq!(receive_all(&mut other, &memory, 1), BYTES);
        drop(kept);
        loop {
            match theirs.recv(&mut batch).unwrap() {
                0 => break,
                more => held += more,
            }
        }
        assert_eq!(held, 4 << 20);
    });
    assert_all_home(bound);
}

#[test]
fn a_connection_to_ourselves_is_on_one_shard_at_both_ends() {
    let (nic, _other) = nics("shards-self");
    let listener = nic.listen("10.77.0.1:0").unwrap();
    for _ in 0..4 {
        let mut ours = nic.connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        assert_eq!(ours.shard(), theirs.shard());
        ours.write_all(b"to ourselves").unwrap();
        let mut got = [0; 12];
        theirs.set_timeout(Some(PATIENCE));
        theirs.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"to ourselves");
    }
}

#[test]
fn a_chosen_port_decides_the_shard_and_another_shard_refuses_it() {
    let (sender, receiver) = nics("shards-ports");
    let listener = receiver.listen(LOCAL).unwrap();
    let mut found = [0; SHARDS];
    for port in 4000..4016 {
        let from = ConnectOptions::new().source(([10, 77, 0, 1], port).into());
        let stream = sender.connect_with(LOCAL, &from).unwrap();
        listener.accept().unwrap();
        found[stream.shard()] += 1;
        let other = &sender.shards()[(stream.shard() + 1) % SHARDS];
        let refused = other.connect_with(LOCAL, &from).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrNotAvailable);
        assert!(
            format!("{refused:?}").contains("another shard"),
            "{refused}"
        );
    }
    assert!(found.iter().all(|count| *count > 0), "{found:?}");
}

#[test]
fn the_shards_of_a_nic_give_a_binding_one_id_and_fail_together() {
    let (nic, other) = nics("shards-bind");
    assert!(nic.is_same(&nic.clone()) && !nic.is_same(&other) && !nic.is_same(&nic.shards()[0]));
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    // One shard has given an id more than the other.
    let alone = nic.shards()[1].bind_tx(&memory).unwrap();
    let bound = bind(&nic, &memory);
    assert_ne!(bound.id(), alone.id());
    let count = bound.net_iovs();
    assert_eq!(count.total, 16);
    let refused = nic.shards()[0]
        .bind_rx(&memory, &[RxQueueId(1)])
        .unwrap_err();
    assert!(
        format!("{refused:?}").contains("bound for receiving already"),
        "{refused}"
    );
    assert_all_home(bound);
    // The second shard refuses: a queue of it is bound.
    let taken = nic.shards()[1].plan_receive(local()).apply().unwrap();
    let other = Dmabuf::anonymous(1 << 20).unwrap();
    let first = nic.shards()[1].bind_rx(&other, taken.queues()).unwrap();
    let setup = nic.plan_receive(local()).apply().unwrap();
    assert!(nic.bind_rx(&memory, setup.queues()).is_err());
    drop(first);
    assert_all_home(nic.bind_rx(&memory, setup.queues()).unwrap());
    let small = Dmabuf::anonymous(64 << 10).unwrap();
    let refused = nic.bind_rx(&small, setup.queues()).unwrap_err();
    assert!(
        format!("{refused:?}").contains("fewer net_iovs"),
        "{refused}"
    );
}

#[test]
fn a_link_or_an_option_without_queues_for_shards_is_refused() {
    let refused = |link: &str, change: fn(NetdevBuilder) -> NetdevBuilder| {
        let builder = Netdev::builder(link).unwrap().address("10.77.0.1/24");
        let error = change(builder.unwrap()).open().unwrap_err();
        format!("{error:?}")
    };
    for (link, change, words) in [
        (
            "unix:/none",
            (|it| it.shards(2)) as fn(NetdevBuilder) -> _,
            "a NIC on unix:/none has one shard: its socket is one queue",
        ),
        (
            "unix:/none",
            |it| it.shards(2),
            "open packet:NAME, tap:NAME, macvtap:NAME or mem:NAME",
        ),
        ("mem:shards-none", |it| it.shards(0), "at least one shard"),
        ("mem:shards-many", |it| it.shards(65), "at most 64 shards"),
        (
            "tap:dm9",
            |it| it.shards(2).tap_queues(2),
            "one queue of the link",
        ),
    ] {
        let error = refused(link, change);
        assert!(error.contains(words), "{link}: {error}");
    }
    let _first = open("other", "10.77.0.1/24");
    let error = refused("mem:shards-other", |it| it);
    assert!(error.contains("has 2 shards, this one 1"), "{error}");
}

#[test]
fn a_poller_waits_for_the_streams_of_one_shard() {
    let (a, b) = nics("poller");
    let refused = Poller::new(&b).unwrap_err();
    assert!(
        format!("{refused:?}").contains("Netdev::shards"),
        "{refused}"
    );
    let listener = b.listen(local()).unwrap();
    let pollers: Vec<_> = b
        .shards()
        .iter()
        .map(|it| Poller::new(it).unwrap())
        .collect();
    for _ in 0..SHARDS {
        let mut sender = a.connect(LOCAL).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let watches = [stream.watch(Interest::Receive)];
        let at = stream.shard();
        assert!(!pollers[at].wait(&watches, Duration::ZERO).unwrap());
        sender.write_all(b"x").unwrap();
        assert!(pollers[at].wait(&watches, PATIENCE).unwrap());
        let elsewhere = pollers[1 - at].wait(&watches, PATIENCE).unwrap_err();
        assert!(
            format!("{elsewhere:?}").contains("another shard"),
            "{elsewhere}"
        );
    }
}
