//! What streams, rings and set-ups do with device memory, over the user-space stack.

mod shards;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use devmem_tcp::{
    BindOptions, BoundRx, ConnectOptions, Dmabuf, ErrorKind, Frag, Listener, Netdev, NetdevBuilder,
    NiovSize, Placement, RxBatch, RxQueueId, SendRing, Stream,
};

use crate::common::PATIENCE;

const LOCAL: &str = "10.77.0.2:5201";

fn local() -> SocketAddr {
    LOCAL.parse().unwrap()
}

/// A sender, and a receiver with device memory on `queues` queues.
struct Bench {
    sender: Netdev,
    receiver: Netdev,
    memory: Dmabuf,
    bound: BoundRx,
    listener: Listener,
}

impl Bench {
    fn new(wire: &str, queues: u16) -> Self {
        let link = format!("mem:streams-{wire}");
        let sender = Netdev::user(&link, "10.77.0.1/24").unwrap();
        let receiver = Netdev::builder(&link).unwrap().rx_queues(queues + 1);
        let receiver = receiver.address("10.77.0.2/24").unwrap().open().unwrap();
        let memory = Dmabuf::anonymous(16 << 20).unwrap();
        // The set-up is dropped at the end of the statement: the binding keeps it.
        let bound = receiver.bind_rx(
            &memory,
            receiver
                .plan_receive(local())
                .queues(queues)
                .apply()
                .unwrap()
                .queues(),
        );
        let listener = receiver.listen(LOCAL).unwrap();
        listener.set_timeout(Some(PATIENCE));
        Self {
            sender,
            receiver,
            memory,
            bound: bound.unwrap(),
            listener,
        }
    }

    fn connection(&self, from: u16) -> (Stream, Stream) {
        let from = ConnectOptions::new().source(([10, 77, 0, 1], from).into());
        let sender = self.sender.connect_with(LOCAL, &from).unwrap();
        let (mut receiver, _) = self.listener.accept().unwrap();
        sender.set_timeout(Some(PATIENCE));
        receiver.set_timeout(Some(PATIENCE));
        receiver.set_placement(Placement::Strict);
        (sender, receiver)
    }

    fn finish(self) {
        drop(self.listener);
        let count = self.bound.unbind().net_iovs();
        assert_eq!(count.home, count.total, "net_iovs that are not home");
    }
}

fn bytes_of(batch: &RxBatch, memory: &Dmabuf) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frag in batch {
        let Frag::Device { range, .. } = frag else {
            panic!("in host memory: {frag:?}");
        };
        bytes.extend(memory.slice(range).to_vec());
    }
    bytes
}

#[test]
fn memory_bound_to_the_queues_of_a_dropped_setup_gets_the_payload() {
    let bench = Bench::new("dropped-setup", 1);
    let (mut sender, mut receiver) = bench.connection(40_000);
    sender.write_all(b"payload").unwrap();
    let mut batch = RxBatch::with_capacity(4);
    assert_eq!(receiver.recv(&mut batch).unwrap(), 7);
    assert_eq!(bytes_of(&batch, &bench.memory), b"payload");
    drop((batch, sender, receiver));
    let receiver = bench.receiver.clone();
    bench.finish();
    // With the last binding, the settings go.
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let refused = receiver.bind_rx(&memory, &[RxQueueId(1)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotSetUp, "{refused}");
}

#[test]
fn a_setup_that_outlives_its_binding_restores_when_it_is_dropped() {
    let nic = Netdev::user("mem:outlives", "10.77.0.2/24").unwrap();
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let setup = nic.plan_receive(local()).apply().unwrap();
    for _ in 0..2 {
        drop(nic.bind_rx(&memory, setup.queues()).unwrap());
    }
    let queues = setup.queues().to_vec();
    drop(setup);
    let refused = nic.bind_rx(&memory, &queues).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotSetUp, "{refused}");
}

#[test]
fn frags_that_touch_are_one_frag_with_one_token() {
    let (sender, nic) = Netdev::pair("none".parse().unwrap()).unwrap();
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let setup = nic.plan_receive(local()).apply().unwrap();
    let page = NiovSize::new(4096).unwrap();
    let bound = nic
        .bind_rx_with(&memory, setup.queues(), BindOptions::new().niov_size(page))
        .unwrap();
    let listener = nic.listen(LOCAL).unwrap();
    let mut sender = sender.connect(LOCAL).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let sent: Vec<u8> = (0..60_000).map(|at| (at % 251) as u8).collect();
    sender.write_all(&sent).unwrap();
    let (mut batch, mut received) = (RxBatch::with_capacity(64), Vec::new());
    while received.len() < sent.len() {
        receiver.recv(&mut batch).unwrap();
        let bytes = bytes_of(&batch, &memory);
        assert!(
            batch.len() <= bytes.len() / 8192 + 1,
            "{} frags",
            batch.len()
        );
        received.extend(bytes);
    }
    assert!(received == sent);
    drop((batch, sender, receiver, listener));
    let count = bound.unbind().net_iovs();
    assert_eq!(count.home, count.total, "net_iovs that are not home");
}

#[test]
fn a_frame_is_peeked_and_received_by_its_length_across_packets() {
    let bench = Bench::new("framing", 1);
    let (mut sender, mut receiver) = bench.connection(40_000);
    let bodies: Vec<Vec<u8>> = [1usize, 5_000, 70_000, 3]
        .iter()
        .map(|len| (0..*len).map(|at| (at % 251) as u8).collect())
        .collect();
    let frames = bodies.clone();
    let writing = std::thread::spawn(move || {
        for body in &frames {
            let len = u32::try_from(body.len()).unwrap().to_be_bytes();
            sender.write_all(&len).unwrap();
            sender.write_all(body).unwrap();
        }
    });
    let mut batch = RxBatch::with_capacity(64);
    let mut exactly = |stream: &mut Stream, wanted: usize| {
        let mut bytes = Vec::new();
        while bytes.len() < wanted {
            let left = wanted - bytes.len();
            let received = stream.recv_at_most(&mut batch, left).unwrap();
            assert!((1..=left).contains(&received));
            bytes.extend(bytes_of(&batch, &bench.memory));
        }
        bytes
    };
    for body in &bodies {
        let mut first = [0];
        assert_eq!(receiver.peek(&mut first).unwrap(), 1);
        let mut header = [0; 4];
        receiver.recv_exact(&mut header).unwrap();
        assert_eq!(header[0], first[0], "a peek takes nothing");
        let len = u32::from_be_bytes(header) as usize;
        assert!(exactly(&mut receiver, len) == *body);
    }
    writing.join().unwrap();
    assert_eq!(receiver.recv(&mut batch).unwrap(), 0);
    let stats = receiver.stats();
    assert_eq!(stats.device_frags, stats.tokens_returned, "{stats}");
    drop((batch, receiver));
    bench.finish();
}

#[test]
fn read_copies_bytes_out_of_device_memory() {
    let bench = Bench::new("read-device", 1);
    let (sender, mut receiver) = bench.connection(40_000);
    (&sender).write_all(b"in device memory").unwrap();
    let mut start = [0; 9];
    (&receiver).read_exact(&mut start).unwrap();
    assert_eq!(&start, b"in device");
    let mut batch = RxBatch::with_capacity(4);
    assert_eq!(receiver.recv_at_most(&mut batch, 4).unwrap(), 4);
    assert_eq!(batch.device_bytes(), 4, "a read takes only what it returns");
    batch.release().unwrap();

    let long: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (read, mut bytes) = (long.len(), Vec::new());
    let writing = std::thread::spawn({
        let long = long.clone();
        move || (&sender).write_all(&long).map(|()| sender)
    });
    let rest = (&receiver).take(read as u64 + 3).read_to_end(&mut bytes);
    assert_eq!(rest.unwrap(), read + 3);
    assert!(bytes.starts_with(b"ory") && bytes[3..] == long);
    let stats = receiver.stats();
    assert_eq!(
        (stats.device_bytes, stats.linear_bytes),
        (read as u64 + 16, 0)
    );
    assert_eq!(stats.device_frags, stats.tokens_returned, "{stats}");
    drop((batch, writing.join().unwrap().unwrap(), receiver));
    bench.finish();
}

#[test]
fn receiving_exactly_waits_for_all_bytes_and_leaves_the_later_ones() {
    let bench = Bench::new("recv-exact", 1);
    let (sender, mut receiver) = bench.connection(40_000);
    receiver.recv_exact(&mut []).unwrap();
    let writing = std::thread::spawn(move || {
        // In two packets, of which the second is longer than what is asked for.
        (&sender).write_all(b"he").unwrap();
        (&sender).flush().unwrap();
        (&sender).write_all(b"ader, body").unwrap();
    });
    let mut header = [0; 6];
    receiver.recv_exact(&mut header).unwrap();
    assert_eq!(&header, b"header");
    writing.join().unwrap();
    let mut batch = RxBatch::with_capacity(4);
    assert_eq!(receiver.recv_at_most(&mut batch, 2).unwrap(), 2);
    assert_eq!(batch.device_bytes(), 2, "the body stays in device memory");
    batch.release().unwrap();
    let mut rest = [0; 9];
    let ended = receiver.recv_exact(&mut rest).unwrap_err();
    assert_eq!(ended.kind(), devmem_tcp::ErrorKind::UnexpectedEof);
    assert_eq!(ended.reason(), "the stream ended after 4 of 9 bytes");
    assert_eq!(&rest[..4], b"body");
    let std = std::io::Error::from(ended);
    assert_eq!(std.kind(), std::io::ErrorKind::UnexpectedEof);
    let stats = receiver.stats();
    assert_eq!(stats.device_frags, stats.tokens_returned, "{stats}");
    drop((batch, receiver));
    bench.finish();
}

#[test]
fn listening_into_memory_makes_all_steps_and_its_binding_undoes_them() {
    let open = |address| Netdev::user("mem:listen-into", address).unwrap();
    let (sender, receiver) = (open("10.77.0.1/24"), open("10.77.0.2/24"));
    for address in [LOCAL, "10.77.0.2:0"] {
        let memory = Dmabuf::anonymous(4 << 20).unwrap();
        let (listener, bound) = receiver.listen_into(address, &memory).unwrap();
        let mut stream = sender.connect(listener.local_addr().unwrap()).unwrap();
        stream.write_all(b"into the memory").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.set_placement(Placement::Strict);
        let mut batch = RxBatch::with_capacity(4);
        assert_eq!(accepted.recv(&mut batch).unwrap(), 15);
        assert_eq!(bytes_of(&batch, &memory), b"into the memory");
        let again = receiver.listen_into(LOCAL, &memory).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::InUse, "{again}");
        drop((batch, accepted, stream, listener));
        let count = bound.unbind().net_iovs();
        assert_eq!(count.home, count.total);
        let refused = receiver.bind_rx(&memory, &[RxQueueId(1)]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotSetUp, "{refused}");
    }
}

#[test]
fn threads_that_share_a_stream_read_each_byte_once() {
    const EACH: usize = 500_000;
    let bench = Bench::new("read-shared", 1);
    let (sender, receiver) = bench.connection(40_000);
    let sums = std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut part = vec![0; EACH];
                (&receiver).read_exact(&mut part).unwrap();
                part.iter().map(|byte| u64::from(*byte)).sum::<u64>()
            })
        });
        let bytes: Vec<u8> = (0..2 * EACH as u32).map(|n| (n % 251) as u8).collect();
        (&sender).write_all(&bytes).unwrap();
        let read: u64 = readers.map(|it| it.join().unwrap()).iter().sum();
        let written: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        [read, written]
    });
    assert_eq!(sums[0], sums[1]);
    drop((sender, receiver));
    bench.finish();
}

#[test]
fn the_addresses_of_a_name_are_tried_in_turn() {
    let bench = Bench::new("in-turn", 1);
    let [silent, listening] = ["10.77.0.2:9", LOCAL].map(|at| at.parse().unwrap());
    let addresses: [std::net::SocketAddr; 2] = [silent, listening];
    let stream = bench.sender.connect(&addresses[..]).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), listening);
    let (accepted, _) = bench.listener.accept().unwrap();
    assert!(stream.take_error().unwrap().is_none());
    // With an unread byte and no linger time, dropping it resets.
    accepted.set_linger(Some(Duration::ZERO)).unwrap();
    drop(accepted);
    let refused = bench.sender.connect(&[silent, silent][..]).unwrap_err();
    assert_eq!(refused.kind(), devmem_tcp::ErrorKind::ConnectionRefused);
    let reset = loop {
        if let Some(error) = stream.take_error().unwrap() {
            break error;
        }
        std::thread::yield_now();
    };
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    drop(stream);
    bench.finish();
}

#[test]
fn flows_from_even_ports_use_every_queue_and_the_counters_tell() {
    for queues in [2u16, 4] {
        let bench = Bench::new(&format!("spread-{queues}"), queues);
        let mut flows = vec![0; usize::from(queues) + 1];
        for flow in 0..16 {
            let (mut sender, mut receiver) = bench.connection(40_000 + 2 * flow);
            sender.write_all(&[7; 1000]).unwrap();
            let mut batch = RxBatch::with_capacity(4);
            assert_eq!(receiver.recv(&mut batch).unwrap(), 1000);
            flows[receiver.queue().unwrap().index()] += 1;
        }
        assert_eq!(flows[0], 0, "queue 0 is not for device memory: {flows:?}");
        assert!(flows[1..].iter().all(|count| *count >= 2), "{flows:?}");
        let stats = bench.receiver.queue_stats();
        assert_eq!(stats.len(), flows.len());
        // Queue 0 has the requests for hardware addresses.
        for (stats, flows) in stats.iter().zip(&flows).skip(1) {
            assert_eq!(stats.bytes, flows * 1000, "{stats:?}");
            assert!(stats.split_packets.unwrap() >= *flows, "{stats:?}");
        }
        bench.finish();
    }
}

#[test]
fn a_ring_reuses_its_chunks_and_changes_none_that_is_under_way() {
    const CHUNK: usize = 5000;
    let bench = Bench::new("ring", 1);
    let (mut sender, mut receiver) = bench.connection(40_000);
    let memory = Dmabuf::anonymous(16 << 10).unwrap();
    let tx = bench.sender.bind_tx(&memory).unwrap();
    let sending = std::thread::spawn(move || {
        let (_, half) = sender.split();
        let mut ring = SendRing::new(half, &tx, 100..memory.size(), CHUNK).unwrap();
        assert_eq!(ring.chunks(), 3);
        for round in 0..200u8 {
            let mut slot = ring.next_slot().unwrap();
            assert_eq!(slot.copy_in(&[round; CHUNK + 1]).unwrap(), CHUNK);
            slot.send(CHUNK).unwrap();
            assert!(ring.in_flight() <= 3);
        }
        ring.write_all(b"and host bytes").unwrap();
        ring.finish().unwrap();
        assert_eq!(tx.in_flight(), 0);
        sender.shutdown_write().unwrap();
    });
    let (mut batch, mut bytes) = (RxBatch::with_capacity(64), Vec::new());
    while receiver.recv(&mut batch).unwrap() > 0 {
        bytes.extend(bytes_of(&batch, &bench.memory));
    }
    sending.join().unwrap();
    let expected: Vec<u8> = (0..200u8)
        .flat_map(|round| [round; CHUNK])
        .chain(*b"and host bytes")
        .collect();
    assert!(bytes == expected);
    drop((batch, receiver));
    bench.finish();
}

#[test]
fn a_full_ring_would_block_and_continues_later() {
    let (a, b) = Netdev::pair("seed=1".parse().unwrap()).unwrap();
    let listener = b.listen(LOCAL).unwrap();
    let mut sender = a.connect(LOCAL).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let tx = a.bind_tx(&memory).unwrap();
    sender.set_nonblocking(true);
    let (_, half) = sender.split();
    assert!(SendRing::new(half, &tx, 0..(1 << 20) + 1, 4096).is_err());
    assert!(SendRing::new(half, &tx, 0..4095, 4096).is_err());
    let mut ring = SendRing::new(half, &tx, 0..1 << 20, 512 << 10).unwrap();
    let mut sent = 0;
    // Each attempt moves the clock. One alone may come before an ACK that is delayed; all of them fail when the receiver's
    // window is full.
    while (0..100).any(|_| match ring.next_slot() {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    }) {
        let slot = ring.next_slot().unwrap();
        slot.send(512 << 10).unwrap();
        sent += 512 << 10;
    }
    assert_eq!(ring.in_flight(), 2, "all chunks are under way");
    assert_eq!(ring.finish().unwrap_err().kind(), ErrorKind::WouldBlock);
    receiver.set_timeout(Some(Duration::from_millis(1)));
    let (mut received, mut block) = (0, vec![0; 64 << 10]);
    while received < sent {
        received += receiver.read(&mut block).unwrap_or(0);
        // Queues what is left of the last chunk, as far as there is room.
        let _ = ring.flush();
    }
    let free = (0..10_000).find(|_| ring.next_slot().is_ok());
    assert!(free.is_some(), "the chunks stay taken");
    let finished = (0..10_000).find(|_| ring.finish().is_ok());
    assert!(finished.is_some(), "a refused call can be repeated");
    assert_eq!((ring.in_flight(), ring.sent_bytes()), (0, sent as u64));
}

#[test]
fn a_receiver_that_keeps_its_tokens_takes_no_memory_from_one_on_another_queue() {
    const BYTES: usize = 4 << 20;
    let link = "mem:kept-tokens";
    let sender = Netdev::user(link, "10.77.0.1/24").unwrap();
    let receiver = Netdev::builder(link).unwrap().rx_queues(3);
    let receiver = receiver.address("10.77.0.2/24").unwrap().open().unwrap();
    let setup = receiver.plan_receive(local()).queues(2).apply().unwrap();
    let memories = [0, 1].map(|_| Dmabuf::anonymous(2 << 20).unwrap());
    let bound: Vec<_> = std::iter::zip(&memories, setup.queues())
        .map(|(memory, queue)| receiver.bind_rx(memory, &[*queue]).unwrap())
        .collect();
    let listener = receiver.listen(LOCAL).unwrap();
    // A hash of its addresses and ports selects the queue of a connection.
    let on = |queue: RxQueueId| {
        let connections = std::iter::repeat_with(|| {
            let sender = sender.connect(LOCAL).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.set_timeout(Some(PATIENCE));
            (sender, stream)
        });
        let mut few = connections.take(100);
        few.find(|(_, stream)| stream.queue() == Some(queue))
            .unwrap()
    };
    let send =
        |mut stream: Stream| std::thread::spawn(move || stream.write_all(&vec![7; BYTES]).unwrap());
    let (sender, mut keeper) = on(setup.queues()[0]);
    let kept_from = send(sender);
    let (mut kept, mut batch) = (Vec::new(), RxBatch::with_capacity(64));
    while bound[0].net_iovs().home > bound[0].net_iovs().total / 2 {
        assert!(keeper.recv(&mut batch).unwrap() > 0);
        kept.extend(batch.take());
    }
    let (sender, mut stream) = on(setup.queues()[1]);
    let sending = send(sender);
    let mut received = 0;
    loop {
        match stream.recv(&mut batch).unwrap() {
            0 => break,
            bytes => received += bytes,
        }
    }
    assert_eq!(received, BYTES);
    sending.join().unwrap();
    assert!(bound[0].net_iovs().home <= bound[0].net_iovs().total / 2);
    kept_from.join().unwrap();
    drop((kept, batch, keeper, stream));
}

#[test]
fn close_waits_for_both_directions_and_tells_when_time_is_up() {
    let (a, b) = Netdev::pair("seed=1".parse().unwrap()).unwrap();
    let listener = b.listen(LOCAL).unwrap();
    let mut stream = a.connect(LOCAL).unwrap();
    stream.write_all(b"the last words").unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    drop(stream);
    let still = a.clone();
    // The peer has not closed.
    assert!(!a.close(Duration::from_secs(1)));
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"the last words");
    drop(peer);
    assert!(still.close(PATIENCE));
}

#[test]
fn files_go_into_device_memory_and_out_of_it() {
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..700_000).map(|at| (at % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    assert_eq!(memory.read_from(0..1 << 20, &file).unwrap(), bytes.len());
    let mut copy = Vec::new();
    memory.slice(0..bytes.len()).read_to_end(&mut copy).unwrap();
    assert!(copy == bytes);
    copy.clear();
    memory.write_to(1..bytes.len(), &mut copy).unwrap();
    assert!(copy == bytes[1..]);
}

#[test]
fn a_send_signal_has_an_edge_when_a_full_queue_has_room_again() {
    use rustix::event::{Timespec, epoll};
    let bench = Bench::new("send-signal", 1);
    let (mut sender, mut receiver) = bench.connection(4000);
    sender.set_nonblocking(true);
    let signal = sender.send_signal().unwrap();
    let edges = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let data = epoll::EventData::new_u64(0);
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&edges, &signal, data, flags).unwrap();
    let bytes = vec![7; 1 << 20];
    let (mut sent, mut received) = (0, 0);
    let mut batch = RxBatch::with_capacity(64);
    // Several times full: more than the memory and the buffers between them.
    while sent < 64 << 20 {
        signal.arm();
        match sender.write(&bytes) {
            Ok(written) => sent += written,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                received += receiver.recv(&mut batch).unwrap();
                batch.release().unwrap();
                while receiver_has_more(&mut receiver, &mut batch, &mut received) {}
                let patience = Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                let mut events = [epoll::Event { flags, data }];
                let edge = epoll::wait(&edges, &mut events, Some(&patience));
                assert_eq!(
                    edge,
                    Ok(1),
                    "no edge after {received} of {sent} bytes were received"
                );
            }
        }
    }
    assert!(received > 0, "the queue was never full");
}

fn receiver_has_more(receiver: &mut Stream, batch: &mut RxBatch, received: &mut usize) -> bool {
    receiver.set_nonblocking(true);
    let more = receiver.recv(batch);
    receiver.set_nonblocking(false);
    *received += more.as_ref().unwrap_or(&0);
    more.is_ok()
}

#[test]
fn a_batch_knows_the_memory_of_its_frags_until_it_is_released() {
    let bench = Bench::new("memory-of", 1);
    let (mut sender, mut receiver) = bench.connection(4001);
    sender.write_all(b"payload").unwrap();
    let mut batch = RxBatch::with_capacity(4);
    receiver.recv(&mut batch).unwrap();
    let id = bench.bound.id();
    assert!(batch.memory_of(id).unwrap().is_same(&bench.memory));
    batch.release().unwrap();
    assert!(batch.memory_of(id).is_err());
}
