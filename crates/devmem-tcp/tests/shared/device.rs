//! The same with device memory. The kernel's side needs a NIC that can: `DEVMEM_TEST_NIC` names it, and the namespace
//! `peer` (or `DEVMEM_TEST_PEER`) has the other end of its cable; the lab has both.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a send takes a list of ranges"
)]

use std::env;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use devmem_linux::netif;
use devmem_linux::netns::NetNs;
use devmem_linux::test_util::{GuestHas, skip_outside_guest};
use devmem_tcp::{BindError, Dmabuf, Error, Netdev, Placement, RxBatch, RxQueueId, Stream};

use crate::common::{PATIENCE, collect, pattern};
use crate::world::{Seen, receive};

const PORT: u16 = 5202;
const MEMORY_BYTES: usize = 16 << 20;
/// Lists of queues that no NIC binds, whatever the memory.
const WRONG_QUEUES: [(&str, &[RxQueueId]); 3] = [
    ("no queue", &[]),
    ("no such queue", &[RxQueueId(999)]),
    (
        "one that exists and one that does not",
        &[RxQueueId(1), RxQueueId(999)],
    ),
];

/// A NIC that supports device memory, and a program at the other end of its link.
struct World {
    nic: Netdev,
    ip: IpAddr,
    peer: Peer,
}

/// The program at the other end: on our stack, or on the kernel's in another namespace.
enum Peer {
    User(Netdev),
    Kernel(NetNs),
}

impl World {
    fn user() -> Self {
        static WIRES: AtomicU32 = AtomicU32::new(0);
        let number = WIRES.fetch_add(1, Ordering::Relaxed);
        let wire = &format!("mem:shared-device-{number}");
        Self {
            nic: Netdev::user(wire, "10.77.0.2/24").unwrap(),
            ip: Ipv4Addr::new(10, 77, 0, 2).into(),
            peer: Peer::User(Netdev::user(wire, "10.77.0.1/24").unwrap()),
        }
    }

    fn kernel() -> Option<Self> {
        let nic = Netdev::kernel(&env::var("DEVMEM_TEST_NIC").ok()?).unwrap();
        let peer = env::var("DEVMEM_TEST_PEER").unwrap_or("peer".to_owned());
        let ip = nic.addresses().into_iter().find(IpAddr::is_ipv4).unwrap();
        let peer = Peer::Kernel(NetNs::open(&peer).unwrap());
        Some(Self { nic, ip, peer })
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, PORT)
    }

    /// Device memory that the NIC can reach.
    fn memory(&self) -> Dmabuf {
        match self.peer {
            Peer::User(_) => Dmabuf::anonymous(MEMORY_BYTES).unwrap(),
            Peer::Kernel(_) => devmem_tcp::memory::dma_heap("system", MEMORY_BYTES)
                .or_else(|_| devmem_tcp::memory::udmabuf(MEMORY_BYTES))
                .unwrap(),
        }
    }

    /// Has the other end connect, write `bytes`, and close.
    fn peer_writes(&self, bytes: Vec<u8>) -> JoinHandle<()> {
        let address = self.address();
        match &self.peer {
            Peer::User(nic) => {
                let nic = nic.clone();
                std::thread::spawn(move || {
                    nic.connect(address).unwrap().write_all(&bytes).unwrap();
                })
            }
            Peer::Kernel(namespace) => {
                let mut stream = namespace
                    .run(move || TcpStream::connect(address).unwrap())
                    .unwrap();
                std::thread::spawn(move || stream.write_all(&bytes).unwrap())
            }
        }
    }

    /// Connects to the other end, which reads to the end of the stream.
    fn connect_to_reader(&self) -> (Stream, JoinHandle<Vec<u8>>) {
        let (stream, reader) = match &self.peer {
            Peer::User(nic) => {
                let listener = nic.listen(("10.77.0.1", PORT)).unwrap();
                let stream = self.nic.connect(("10.77.0.1", PORT)).unwrap();
                let (mut peer, _) = listener.accept().unwrap();
                let read = move || receive(&mut peer, usize::MAX);
                (stream, std::thread::spawn(read))
            }
            Peer::Kernel(namespace) => {
                let open = || {
                    let all = netif::interfaces().unwrap().into_iter();
                    let all = all.flat_map(|(index, ..)| netif::addresses(index).unwrap());
                    let mut v4 = all.filter(|ip| ip.is_ipv4() && !ip.is_loopback());
                    TcpListener::bind((v4.next().unwrap(), 0)).unwrap()
                };
                let listener = namespace.run(open).unwrap();
                let stream = self.nic.connect(listener.local_addr().unwrap()).unwrap();
                let (mut peer, _) = listener.accept().unwrap();
                let read = move || {
                    let mut bytes = Vec::new();
                    peer.read_to_end(&mut bytes).unwrap();
                    bytes
                };
                (stream, std::thread::spawn(read))
            }
        };
        stream.set_timeout(Some(PATIENCE));
        (stream, reader)
    }
}

/// Runs a scenario on both backends and compares what it saw. There is one NIC: the tests take turns.
fn on_both(test: &str, scenario: fn(&World, &mut Seen)) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut user, mut kernel) = (Seen::default(), Seen::default());
    scenario(&World::user(), &mut user);
    match World::kernel() {
        None => skip_outside_guest(
            test,
            GuestHas::Nic,
            "DEVMEM_TEST_NIC names no NIC: user space alone",
        ),
        Some(world) => {
            scenario(&world, &mut kernel);
            assert_eq!(user, kernel, "left user space, right the kernel");
        }
    }
}

#[test]
fn a_steered_flow_lands_in_device_memory_alone() {
    on_both(
        "a_steered_flow_lands_in_device_memory_alone",
        |world, seen| {
            let memory = world.memory();
            let setup = world.nic.plan_receive(world.address()).apply().unwrap();
            seen.note("queues", setup.queues().len());
            seen.note("queue 0", setup.queues().contains(&RxQueueId(0)));
            seen.note("drifts", setup.verify().len());
            let bound = world.nic.bind_rx(&memory, setup.queues()).unwrap();
            let listener = world.nic.listen(world.address()).unwrap();
            let sent = pattern(2_000_000);
            let writer = world.peer_writes(sent.clone());
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_timeout(Some(PATIENCE));
            stream.set_placement(Placement::Strict);
            let target = Dmabuf::anonymous(4 << 20).unwrap();
            let (mut batch, mut bytes, mut at) = (RxBatch::with_capacity(32), Vec::new(), 0);
            while stream.recv(&mut batch).unwrap() > 0 {
                assert!(batch.len() <= 32, "{} frags", batch.len());
                collect(&batch, &memory, &mut bytes);
                at += batch.gather_into(&target, at).unwrap();
            }
            writer.join().unwrap();
            assert!(bytes == sent, "the bytes differ");
            assert!(
                target.slice(0..at).to_vec() == sent,
                "the gathered bytes differ"
            );
            let stats = stream.stats();
            seen.note("in device memory", stats.device_bytes);
            seen.note("in host memory", stats.linear_bytes);
            let lent = stats.device_frags - stats.tokens_returned;
            seen.note("lent and not returned", lent);
            drop(bound);
        },
    );
}

#[test]
fn a_bound_queue_is_refused_and_free_once_it_is_unbound() {
    on_both(
        "a_bound_queue_is_refused_and_free_once_it_is_unbound",
        |world, seen| {
            let memory = world.memory();
            let early = world.nic.bind_rx(&memory, &[RxQueueId(1)]);
            seen.refusal("before header split", early, BindError::errno);
            let setup = world.nic.plan_receive(world.address()).apply().unwrap();
            let bound = world.nic.bind_rx(&memory, setup.queues()).unwrap();
            let again = world.nic.bind_rx(&memory, setup.queues());
            seen.refusal("bound already", again, BindError::errno);
            for (what, queues) in WRONG_QUEUES {
                let wrong = world.nic.bind_rx(&memory, queues);
                seen.refusal(what, wrong, BindError::errno);
            }
            drop(bound);
            let after = world.nic.bind_rx(&memory, setup.queues());
            seen.note("afterwards", after.is_ok());
        },
    );
}

/// Memory that is bound already, on this NIC and then on another one.
#[test]
fn what_is_wrong_with_the_queues_is_said_before_that_the_memory_is_in_use() {
    on_both(
        "what_is_wrong_with_the_queues_is_said_before_that_the_memory_is_in_use",
        |world, seen| {
            let memory = world.memory();
            let bind = |queues: &[RxQueueId]| world.nic.bind_rx(&memory, queues);
            let elsewhere = Netdev::user("mem:shared-elsewhere", "10.77.1.2/24").unwrap();
            let there = elsewhere.plan_receive((Ipv4Addr::new(10, 77, 1, 2), PORT).into());
            let there = there.apply().unwrap();
            let bound_there = elsewhere.bind_rx(&memory, there.queues()).unwrap();
            seen.refusal("without split", bind(&[RxQueueId(1)]), BindError::errno);
            let setup = world.nic.plan_receive(world.address()).apply().unwrap();
            for (what, queues) in WRONG_QUEUES {
                seen.refusal(what, bind(queues), BindError::errno);
            }
            seen.refusal("lent to another", bind(setup.queues()), BindError::errno);
            drop(bound_there);
            let _bound = bind(setup.queues()).unwrap();
            for (what, queues) in WRONG_QUEUES {
                seen.refusal(what, bind(queues), BindError::errno);
            }
            let taken = setup.queues()[0];
            let mut others = [1, 2].map(RxQueueId).into_iter();
            let free = others.find(|queue| *queue != taken).unwrap();
            seen.refusal("a free queue", bind(&[free]), BindError::errno);
            seen.refusal("a taken one, too", bind(&[free, taken]), BindError::errno);
            let other = world.memory();
            let again = world.nic.bind_rx(&other, &[taken]);
            seen.refusal("a taken queue, free memory", again, BindError::errno);
        },
    );
}

#[test]
fn unbinding_in_mid_transfer_loses_nothing() {
    on_both("unbinding_in_mid_transfer_loses_nothing", |world, seen| {
        let memory = world.memory();
        let setup = world.nic.plan_receive(world.address()).apply().unwrap();
        let bound = world.nic.bind_rx(&memory, setup.queues()).unwrap();
        let listener = world.nic.listen(world.address()).unwrap();
        let sent = pattern(12_000_000);
        let writer = world.peer_writes(sent.clone());
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_timeout(Some(PATIENCE));
        let (mut batch, mut bytes) = (RxBatch::with_capacity(8), Vec::new());
        while bytes.len() < 1_000_000 {
            assert!(stream.recv(&mut batch).unwrap() > 0);
            collect(&batch, &memory, &mut bytes);
        }
        let unbound = bound.unbind();
        while stream.recv(&mut batch).unwrap() > 0 {
            collect(&batch, &memory, &mut bytes);
        }
        writer.join().unwrap();
        assert!(bytes == sent, "the bytes differ");
        let stats = stream.stats();
        seen.note("some in device memory", stats.device_bytes > 0);
        seen.note("some in host memory", stats.linear_bytes > 0);
        seen.note("all", stats.device_bytes + stats.linear_bytes);
        drop((stream, batch));
        // The kernel's page pool looks once a second whether its last net_iov is home.
        let until = Instant::now() + PATIENCE;
        let home = || {
            let count = unbound.net_iovs();
            count.home == count.total
        };
        while !home() && Instant::now() < until {
            std::thread::yield_now();
        }
        seen.note("all home", home());
    });
}

#[test]
fn device_memory_is_sent_without_a_copy() {
    on_both("device_memory_is_sent_without_a_copy", |world, seen| {
        let memory = world.memory();
        let bytes = pattern(4_000_000);
        memory.copy_in(0, &bytes).unwrap();
        let tx = world.nic.bind_tx(&memory).unwrap();
        let (mut stream, reader) = world.connect_to_reader();
        let id = stream.send_all(&tx, &[5..6, 100..2_000_000]).unwrap();
        stream.write_all(b"host").unwrap();
        let last = stream.send_all(&tx, &[2_000_000..4_000_000]).unwrap();
        seen.note("queued", id.bytes() + last.bytes());
        let past = stream.send(&tx, &[0..1, MEMORY_BYTES - 1..MEMORY_BYTES + 1]);
        seen.refusal("past the end", past, Error::errno);
        let completions = stream.completions();
        completions.wait(last).unwrap();
        seen.note("the first", completions.is_complete(id).unwrap());
        let counts = completions.counts().unwrap();
        seen.note("copied", counts.copied);
        seen.note("pending", completions.pending().unwrap());
        seen.note("in flight", tx.in_flight());
        // Complete: these bytes may change.
        memory.fill(0..4_000_000, 0xff).unwrap();
        drop(stream);
        let mut expected = bytes[5..6].to_vec();
        expected.extend(&bytes[100..2_000_000]);
        expected.extend(b"host");
        expected.extend(&bytes[2_000_000..]);
        assert!(reader.join().unwrap() == expected, "the bytes differ");
    });
}
