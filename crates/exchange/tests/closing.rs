//! Descriptors of closed endpoints and of connections that never became one, over the kernel's loopback, where each connection has one. The
//! program makes no further call. A separate binary, because it counts the descriptors and threads of the whole process.

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "exchange/world.rs"]
mod world;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use devmem_exchange::{
    Closing, Endpoint, Engine, Fabric, Hello, Listener, Options, Record, TICKET_BYTES,
};
use devmem_tcp::Netdev;

use world::{connect, host};

/// Time after which a test that waits has failed.
const PATIENCE: Duration = Duration::from_secs(100);

/// One test counts at a time, once everything is closed that the tests before it had.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static FIRST: OnceLock<[usize; 2]> = OnceLock::new();
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    wait_for(*FIRST.get_or_init(counts), 0);
    alone
}

/// Counts the descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Counts the threads of this process that close connections. One that was waited for may still be listed, but has begun to exit.
fn threads() -> usize {
    /// Linux include/linux/sched.h
    const PF_EXITING: u64 = 4;
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    // One that ends meanwhile cannot be read.
    let all = all.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let closes = |stat: &String| {
        // proc_pid_stat(5): id, name in parentheses, state, four numbers and the terminal's group, flags.
        let (name, rest) = stat.rsplit_once(") ").unwrap();
        let flags: u64 = rest.split(' ').nth(6).unwrap().parse().unwrap();
        name.ends_with("(devmem-closing") && flags & PF_EXITING == 0
    };
    all.filter(closes).count()
}

/// Waits until as many descriptors and threads are left as `before`, and `more` descriptors.
fn wait_for(before: [usize; 2], more: usize) {
    let expected = [before[0] + more, before[1]];
    let start = Instant::now();
    loop {
        let now = counts();
        if now == expected {
            return;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "descriptors and threads: {now:?}, not {expected:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn counts() -> [usize; 2] {
    [descriptors(), threads()]
}

fn fabric(engine: Engine) -> Fabric {
    let options = Options {
        engine,
        ..Options::default()
    };
    Fabric::open(Netdev::kernel("lo").unwrap(), options).unwrap()
}

/// A peer that keeps its ends open, made of ordinary sockets.
struct Peer(Vec<TcpStream>);

impl Peer {
    /// Connects, and says a hello that names `named` data connections, of which the first `made` ones are made.
    fn new(fabric: &Fabric, listener: &Listener, named: u16, made: usize) -> Self {
        let ticket: [u8; TICKET_BYTES] = listener.ticket().to_bytes();
        let port = u16::from_le_bytes(ticket[54..56].try_into().unwrap());
        let mut control = TcpStream::connect(fabric.address()).unwrap();
        let ip = control.local_addr().unwrap().ip();
        let to = SocketAddr::new(fabric.address().ip(), port);
        let data: Vec<_> = (0..made).map(|_| TcpStream::connect(to).unwrap()).collect();
        let hello = Hello {
            cookie: u64::from_le_bytes(ticket[12..20].try_into().unwrap()),
            streams: named,
            chunk: 4096,
        };
        let mut said = Record::Hello(hello).encode().to_vec();
        for stream in 0..named {
            let made = data.get(usize::from(stream));
            let nowhere = SocketAddr::new(ip, 1 + stream);
            let local = made.map_or(nowhere, |data| data.local_addr().unwrap());
            said.extend(Record::Address { stream, local }.encode());
        }
        control.write_all(&said).unwrap();
        Self(std::iter::once(control).chain(data).collect())
    }

    fn accepted(&self, listener: &Listener) -> Endpoint {
        let start = Instant::now();
        loop {
            if let Some(endpoint) = listener.poll().unwrap() {
                return endpoint;
            }
            assert!(start.elapsed() < PATIENCE, "{} connections", self.0.len());
        }
    }
}

/// An endpoint whose peer stays.
struct Met {
    peer: Peer,
    endpoint: Endpoint,
}

/// What accepts a peer.
struct Host {
    fabric: Fabric,
    listener: Listener,
}

impl Host {
    fn new(engine: Engine) -> Self {
        let fabric = fabric(engine);
        let listener = fabric.listen().unwrap();
        Self { fabric, listener }
    }

    /// Accepts a peer with `streams` data connections.
    fn meet(&self, streams: u16) -> Met {
        let peer = Peer::new(&self.fabric, &self.listener, streams, streams.into());
        let endpoint = peer.accepted(&self.listener);
        Met { peer, endpoint }
    }
}

/// All at a time: each takes as long as a peer is waited for.
#[test]
fn a_closed_endpoint_whose_peer_stays_has_no_descriptor_after_the_promised_time() {
    let _alone = alone();
    let hosts = [Engine::Calls, Engine::Thread].map(|engine| (engine, Host::new(engine)));
    let before = counts();
    let mut peers = Vec::new();
    for (engine, host) in &hosts {
        for closing in [Closing::Linger, Closing::Now] {
            let Met { peer, endpoint } = host.meet(2);
            endpoint.notify(b"the last words").unwrap();
            endpoint.close(closing);
            peers.push((engine, closing, peer));
        }
    }
    let kept = peers.iter().map(|(.., peer)| peer.0.len()).sum();
    wait_for(before, kept);
    for (engine, closing, peer) in peers {
        let mut said = Vec::new();
        (&peer.0[0]).read_to_end(&mut said).unwrap();
        let expected = [Record::Ready, Record::Notify { len: 14 }].map(Record::encode);
        let expected = [&expected.concat(), &b"the last words"[..]].concat();
        assert!(said.starts_with(&expected), "{engine:?}, {closing:?}");
    }
}

#[test]
fn an_endpoint_dropped_with_operations_in_flight_has_no_descriptor_after_the_promised_time() {
    let _alone = alone();
    let accepts = Host::new(Engine::Calls);
    let before = counts();
    let mut met = accepts.meet(1);
    let len = 64 << 20;
    let (_, region) = host(&accepts.fabric, vec![1; len]);
    let room = Record::Posted {
        op: 1,
        part: 0,
        len: len as u64,
        tag: 0,
    };
    met.peer.0[0].write_all(&room.encode()).unwrap();
    met.endpoint.send(&region, 0..len, 0, 1).unwrap();
    while met.endpoint.stats().sent_bytes == 0 {
        met.endpoint.progress();
    }
    drop(met.endpoint);
    assert_eq!(region.users(), 0);
    wait_for(before, met.peer.0.len());
}

#[test]
fn an_endpoint_that_broke_has_no_descriptor_although_the_program_keeps_it() {
    let _alone = alone();
    let accepts = Host::new(Engine::Calls);
    let before = counts();
    let mut met = accepts.meet(1);
    met.peer.0[0].write_all(&[0xff; 64]).unwrap();
    while met.endpoint.cause().is_none() {
        met.endpoint.progress();
    }
    wait_for(before, met.peer.0.len());
}

#[test]
fn half_made_connections_go_with_their_listener_their_peers_and_their_dials() {
    const PEERS: usize = 20;
    let _alone = alone();
    let fabric = fabric(Engine::Calls);
    let listener = fabric.listen().unwrap();
    let before = counts();
    let half_made = |listener: &Listener| -> Vec<Peer> {
        let made = (0..PEERS).map(|number| Peer::new(&fabric, listener, 3, number % 3));
        let made: Vec<_> = made.collect();
        let connections: usize = made.iter().map(|peer| peer.0.len()).sum();
        let start = Instant::now();
        while descriptors() < before[0] + 2 * connections {
            assert!(listener.poll().unwrap().is_none());
            assert!(start.elapsed() < PATIENCE, "{:?}", counts());
        }
        made
    };
    // The peers leave, and the program makes no further call.
    drop(half_made(&listener));
    wait_for(before, 0);
    // The listener is dropped, and the peers stay.
    let peers = half_made(&listener);
    drop(listener);
    let kept: usize = peers.iter().map(|peer| peer.0.len()).sum();
    assert_eq!(descriptors(), before[0] + kept);
    drop(peers);
    wait_for(before, 0);
    // A dial is given up.
    let listener = fabric.listen().unwrap();
    let dials: Vec<_> = (0..PEERS)
        .map(|_| fabric.dial(&listener.ticket()).unwrap())
        .collect();
    drop(dials);
    wait_for(before, 0);
}

/// The thread that closes connections ends with the fabric, which a plugin needs before it is unmapped.
#[test]
fn a_dropped_fabric_leaves_neither_descriptors_nor_threads() {
    let _alone = alone();
    let before = counts();
    let (a, b) = (fabric(Engine::Calls), fabric(Engine::Calls));
    for _ in 0..10 {
        let (ours, theirs) = connect(&a, &b);
        ours.close(Closing::Linger);
        theirs.close(Closing::Linger);
    }
    let listener = b.listen().unwrap();
    let peer = Peer::new(&b, &listener, 1, 0);
    assert!(listener.poll().unwrap().is_none());
    drop((listener, a, b));
    assert_eq!(counts(), [before[0] + peer.0.len(), before[1]]);
}
