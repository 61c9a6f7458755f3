use std::io::Write;

use devmem_tcp::{BoundRx, DmabufId, Netdev, Setup, Stream};
use netmem::{FakeDevice, FakePace, Lane};

use super::*;

/// A connection that is received into memory of a device, which copies when it has been asked twice.
struct World {
    device: FakeDevice,
    memory: Dmabuf,
    rx: BoundRx,
    _setup: Setup,
    sender: Stream,
    receiver: Stream,
}

impl World {
    fn new() -> Self {
        let device = FakeDevice::new(FakePace::AfterPolls(1));
        let memory = device.alloc(4 << 20).expect("memory");
        Self::receiving_into(memory, device)
    }

    fn receiving_into(memory: Dmabuf, device: FakeDevice) -> Self {
        let (nic, other) = Netdev::pair("".parse().expect("no impairment")).expect("a pair");
        let address = "10.77.0.1:5201".parse().expect("an address");
        let setup = nic.plan_receive(address).queues(1).apply();
        let setup = setup.expect("applied");
        let rx = nic.bind_rx(&memory, setup.queues()).expect("bound");
        let listener = nic.listen(address).expect("the port is free");
        let sender = other.connect(address).expect("the listener is there");
        let (receiver, _) = listener.accept().expect("it connected");
        Self {
            device,
            memory,
            rx,
            _setup: setup,
            sender,
            receiver,
        }
    }

    /// Returns a reader whose device copies `enough` bytes together.
    fn reader(&self, enough: usize) -> ReadBack {
        let mut reader = ReadBack::new(&self.memory).expect("host memory");
        if let Some(copier) = &mut reader.copier {
            copier.enough = enough;
        }
        reader
    }

    /// Sends bytes that are one packet, and receives them.
    fn batch(&mut self, connection: u64, bytes: &[u8]) -> Unread {
        self.sender.write_all(bytes).expect("it is connected");
        let mut batch = RxBatch::with_capacity(16);
        let received = self.receiver.recv(&mut batch).expect("it is connected");
        assert_eq!(received, bytes.len(), "one packet");
        assert_eq!(batch.device_bytes(), bytes.len());
        Unread { connection, batch }
    }

    fn assert_all_home(self) {
        drop((self.sender, self.receiver));
        let net_iovs = self.rx.unbind().net_iovs();
        assert_eq!(net_iovs.home, net_iovs.total);
    }
}

/// Bytes that were looked at, with their connections.
#[derive(Default)]
struct Seen(Vec<(u64, Vec<u8>)>);

impl Seen {
    fn look(&mut self) -> impl FnMut(u64, &[u8]) -> io::Result<()> {
        |connection, bytes| {
            self.0.push((connection, bytes.to_vec()));
            Ok(())
        }
    }
}

fn numbers(batches: &[Unread]) -> Vec<u64> {
    batches.iter().map(|unread| unread.connection).collect()
}

fn is_copied(reader: &mut ReadBack) -> bool {
    let copier = reader.copier.as_mut().expect("the device copies");
    let started = copier.started.as_mut().expect("a copy was started");
    started.gather.is_done().expect("the device is not lost")
}

#[test]
fn a_batch_is_copied_while_the_next_one_is_received() {
    let mut world = World::new();
    let (mut reader, mut seen) = (world.reader(1), Seen::default());
    let first = world.batch(0, b"first");
    assert!(reader.pass(first, seen.look()).expect("started").is_empty());
    assert!(!is_copied(&mut reader), "it was not waited for");
    let second = world.batch(1, b"second");
    let mut done = reader.pass(second, seen.look()).expect("copied");
    assert_eq!(numbers(&done), [0]);
    assert_eq!(seen.0, [(0, b"first".to_vec())]);
    assert!(!is_copied(&mut reader), "it was not waited for");
    let third = world.batch(2, b"the third one");
    done = reader.pass(third, seen.look()).expect("copied");
    assert_eq!(numbers(&done), [1]);
    done = reader.finish(seen.look()).expect("copied");
    assert_eq!(numbers(&done), [2]);
    assert!(!reader.has_batches());
    let expected = [
        b"first".to_vec(),
        b"second".to_vec(),
        b"the third one".to_vec(),
    ];
    assert_eq!(seen.0, (0..).zip(expected).collect::<Vec<_>>());
    drop(done);
    world.assert_all_home();
}

#[test]
fn batches_wait_for_each_other_until_they_are_worth_a_copy_and_no_longer() {
    let mut world = World::new();
    let (mut reader, mut seen) = (world.reader(10), Seen::default());
    let mut done = Vec::new();
    for (connection, bytes) in [(7, b"1234"), (8, b"5678"), (7, b"abcd")] {
        let before = world.device.submissions().len();
        let unread = world.batch(connection, bytes);
        let received = world.device.submissions().len();
        done.extend(reader.pass(unread, seen.look()).expect("taken over"));
        let started = world.device.submissions().len() - received;
        assert_eq!(
            (received - before, started),
            (1, usize::from(bytes == b"abcd"))
        );
    }
    done.extend(
        reader
            .pass(world.batch(9, b"rest"), seen.look())
            .expect("taken over"),
    );
    assert!(done.is_empty() && seen.0.is_empty());
    done = reader.finish(seen.look()).expect("copied");
    assert_eq!(numbers(&done), [7, 8, 7, 9]);
    let expected = [(7, b"1234"), (8, b"5678"), (7, b"abcd"), (9, b"rest")];
    assert_eq!(
        seen.0,
        expected.map(|(number, bytes)| (number, bytes.to_vec()))
    );
    assert!(reader.finish(seen.look()).expect("nothing").is_empty());
    drop(done);
    world.assert_all_home();
}

#[test]
fn while_nothing_arrives_a_copy_that_runs_is_asked_and_not_waited_for() {
    let mut world = World::new();
    let (mut reader, mut seen) = (world.reader(5), Seen::default());
    let [first, second] = [b"first", b"last "].map(|bytes| world.batch(0, bytes));
    let rest = world.batch(1, b"rest");
    assert!(reader.pass(first, seen.look()).expect("started").is_empty());
    assert!(reader.pass(rest, seen.look()).expect("it waits").is_empty());
    // The device is asked about the first copy, then twice about that of the rest, which was started when the first one was done.
    let mut done = Vec::new();
    for (number, expected) in [None, Some(0), None, Some(1), None].into_iter().enumerate() {
        done = reader.advance(seen.look()).expect("the device is not lost");
        assert_eq!(numbers(&done), Vec::from_iter(expected), "call {number}");
    }
    assert!(
        reader
            .pass(second, seen.look())
            .expect("started")
            .is_empty()
    );
    assert_eq!(world.device.waited(Lane::Gather), 0);
    assert_eq!(numbers(&reader.finish(seen.look()).expect("copied")), [0]);
    assert_eq!(world.device.waited(Lane::Gather), 1);
    drop(done);
    world.assert_all_home();
}

#[test]
fn batches_that_wait_hold_a_part_of_the_memory_only() {
    let device = FakeDevice::new(FakePace::AtOnce);
    for (size, enough) in [
        (1 << 20, 64 << 10),
        (16 << 20, 1 << 20),
        (64 << 20, 1 << 20),
    ] {
        let memory = device.alloc(size).expect("memory");
        let reader = ReadBack::new(&memory).expect("host memory");
        assert_eq!(reader.copier.expect("the device copies").enough, enough);
    }
}

#[test]
fn memory_that_the_cpu_can_access_is_looked_at_at_once() {
    /// More than a list of one batch has.
    const ROOM: usize = 100;
    let memory = Dmabuf::anonymous(4 << 20).expect("memory");
    let mut world = World::receiving_into(memory, FakeDevice::new(FakePace::AtOnce));
    let (mut reader, mut seen) = (world.reader(1 << 20), Seen::default());
    for (connection, bytes) in [(3, b"one"), (4, b"two")] {
        let unread = world.batch(connection, bytes);
        let mut done = reader.pass(unread, seen.look()).expect("it is mapped");
        assert_eq!(numbers(&done), [connection]);
        assert!(connection == 3 || done.capacity() >= ROOM, "another list");
        done.clear();
        done.reserve(ROOM);
        reader.reuse(done);
        assert_eq!(seen.0.pop(), Some((connection, bytes.to_vec())));
        assert!(!reader.has_batches());
    }
    world.assert_all_home();
}

#[test]
fn linear_bytes_keep_their_place_among_those_that_were_copied() {
    let window = Dmabuf::anonymous(4096).expect("memory");
    window.copy_in(10, b"abcdefgh").expect("inside");
    let device = |range| Frag::Device {
        range,
        dmabuf: DmabufId(1),
    };
    let frags = [
        Frag::Linear(b"1"),
        device(4000..4002),
        device(100..103),
        Frag::Linear(b"23"),
        Frag::Linear(b"4"),
        device(0..3),
    ];
    let (mut seen, mut block) = (Vec::new(), [0; 4]);
    let mut look = |bytes: &[u8]| seen.write_all(bytes);
    look_at_copy(&window, 10, frags, &mut block, &mut look).expect("inside");
    assert_eq!(seen, b"1abcde234fgh");
}

#[test]
fn a_device_that_is_lost_is_an_error_and_all_memory_comes_home() {
    let mut world = World::new();
    let mut reader = world.reader(1);
    let [first, second] = [b"first", b"after"].map(|bytes| world.batch(0, bytes));
    let look = |_: u64, _: &[u8]| Ok(());
    assert!(reader.pass(first, look).expect("started").is_empty());
    world.device.lose();
    let error = reader.pass(second, look).expect_err("it is lost");
    assert!(error.to_string().contains("FAKE_LOST"), "{error}");
    drop(reader);
    world.assert_all_home();
}

#[test]
fn an_error_of_the_output_ends_the_reading_and_all_memory_comes_home() {
    let mut world = World::new();
    let mut reader = world.reader(1);
    let [first, second] = [b"first", b"after"].map(|bytes| world.batch(0, bytes));
    let look = |_: u64, _: &[u8]| Err(io::ErrorKind::StorageFull.into());
    assert!(reader.pass(first, look).expect("started").is_empty());
    let error = reader.pass(second, look).expect_err("it is full");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    drop(reader);
    world.assert_all_home();
}
