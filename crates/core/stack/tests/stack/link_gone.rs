//! A link that has ended for good: its connections end at once, after what had arrived.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use devmem_uapi::{Errno, MsgFlags};
use netsim::Side;
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{
    AcceptError, ConnectError, FlushScope, ListenError, Readiness, RecvError, RecvMsg, Secret,
    SendError, SendMsg, SocketId, Stack, StackConfig, Stopped,
};
use tcp::TcpError;
use wire::Instant;

const PORT: u16 = 80;

/// Two stacks. When the second one is dropped, the link of the first one has ended for good.
struct World {
    ours: Stack,
    theirs: Stack,
    now: Instant,
}

fn stack(side: Side, link: WireLink, poll_budget: usize) -> Stack {
    let nic = NicConfig {
        mac: side.mac(),
        host_mem_bytes: 4 << 20,
        ..NicConfig::default()
    };
    let nic = Nic::new(Box::new(link), nic).unwrap();
    let secret = Secret::from_seed(side as u64);
    let config = StackConfig {
        poll_budget,
        ..StackConfig::new(side.ipv4(), 24, secret)
    };
    Stack::new(nic, config).unwrap()
}

impl World {
    /// Returns our stack, and the time, when theirs has sent what was queued and has gone.
    fn left(self) -> (Stack, Instant) {
        let mut theirs = self.theirs;
        theirs.flush(FlushScope::All, self.now);
        (self.ours, self.now)
    }

    fn new() -> Self {
        Self::with_poll_budget(64)
    }

    /// A world whose stacks receive this many packets in a poll.
    fn with_poll_budget(packets: usize) -> Self {
        let (near, far) = WireLink::pair(WireOptions::default()).unwrap();
        Self {
            ours: stack(Side::A, near, packets),
            theirs: stack(Side::B, far, packets),
            now: Instant::ZERO,
        }
    }

    fn run(&mut self) {
        for _ in 0..20 {
            self.now = self.now + Duration::from_millis(5);
            self.ours.poll(self.now);
            self.theirs.poll(self.now);
        }
    }

    /// Connects to the other stack; returns both ends.
    fn connected(&mut self, listener: SocketId) -> (SocketId, SocketId) {
        let remote = SocketAddr::new(Side::B.ipv4(), PORT);
        let ours = self.ours.connect(remote, self.now).unwrap();
        self.run();
        (ours, self.theirs.accept(listener).unwrap().0)
    }
}

fn send(stack: &mut Stack, socket: SocketId, bytes: &[u8]) -> Result<usize, SendError> {
    stack.sendmsg(socket, &SendMsg::new(bytes), MsgFlags::empty())
}

/// Receives at most 100 bytes.
fn receive(stack: &mut Stack, socket: SocketId) -> Result<(Vec<u8>, Stopped), RecvError> {
    let mut bytes = [0; 100];
    let mut message = RecvMsg::with_len(&mut bytes, 100);
    let mut nothing = devmem_uapi::CmsgWriter::new(&mut []);
    let outcome = stack.recvmsg(socket, &mut message, &mut nothing, MsgFlags::empty())?;
    Ok((bytes[..outcome.bytes].to_vec(), outcome.stopped))
}

#[test]
fn connections_of_a_link_that_is_gone_end_at_once_after_what_had_arrived() {
    let mut world = World::new();
    let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
    let listener = world.theirs.listen(any, 4).unwrap();
    let (open, their_open) = world.connected(listener);
    let (ended, their_ended) = world.connected(listener);
    for (socket, bytes) in [(their_open, b"opened"), (their_ended, b"finish")] {
        send(&mut world.theirs, socket, bytes).unwrap();
    }
    world.theirs.shutdown(their_ended, Shutdown::Write).unwrap();
    let here = world.ours.listen(any, 4).unwrap();
    let to_itself = SocketAddr::new(Side::A.ipv4(), PORT);
    let looped = world.ours.connect(to_itself, world.now).unwrap();
    world.run();
    let accepted = world.ours.accept(here).unwrap().0;
    // Nobody has this address.
    let std::net::IpAddr::V4(network) = Side::A.ipv4() else {
        panic!("it is one of IPv4")
    };
    let [a, b, c, _] = network.octets();
    let nobody = SocketAddr::new([a, b, c, 99].into(), PORT);
    let opening = world.ours.connect(nobody, world.now).unwrap();

    let World {
        mut ours,
        theirs,
        mut now,
    } = world;
    let sent = ours.stats().tx_packets;
    drop(theirs);
    ours.poll(now);

    let ours = &mut ours;
    let gone = RecvError::Connection(TcpError::LinkGone);
    assert_eq!(receive(ours, open).unwrap().0, b"opened");
    assert_eq!(receive(ours, open), Err(gone));
    assert_eq!(receive(ours, ended).unwrap().0, b"finish");
    assert_eq!(receive(ours, ended), Ok((Vec::new(), Stopped::Eof)));
    assert_eq!(ours.take_error(ended), Ok(Some(TcpError::LinkGone)));
    assert_eq!(ours.take_error(opening), Ok(Some(TcpError::LinkGone)));
    assert!(matches!(
        send(ours, open, b"late"),
        Err(SendError::Shutdown { .. })
    ));

    // Nobody is told.
    assert_eq!(ours.stats().tx_packets, sent);
    // Between two local addresses nothing has changed.
    send(ours, looped, b"still here").unwrap();
    // One poll sends it, the next one receives it.
    for _ in 0..2 {
        now = now + Duration::from_millis(5);
        ours.poll(now);
    }
    assert_eq!(receive(ours, accepted).unwrap().0, b"still here");
    assert_eq!(ours.accept(here), Err(AcceptError::LinkGone));
}

#[test]
fn what_needs_a_link_that_is_gone_fails_at_once() {
    let mut world = World::new();
    let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
    let here = world.ours.listen(any, 4).unwrap();
    let other = SocketAddr::new(any.ip(), PORT + 1);
    let idle = world.ours.listen(other, 4).unwrap();
    let to_us = SocketAddr::new(Side::A.ipv4(), PORT);
    let theirs = world.theirs.connect(to_us, world.now).unwrap();
    world.run();
    send(&mut world.theirs, theirs, b"last words").unwrap();
    let (mut ours, now) = world.left();
    assert!(ours.take_events().all(|id| id != idle));
    ours.poll(now);

    // A thread that waits for connections is woken.
    assert!(ours.take_events().any(|id| id == idle));
    let ready = ours.readiness(idle).unwrap();
    assert!(ready.contains(Readiness::ACCEPTABLE | Readiness::READABLE));
    assert_eq!(ours.accept(idle), Err(AcceptError::LinkGone));
    // What had arrived is accepted first.
    let (accepted, _) = ours.accept(here).unwrap();
    assert_eq!(receive(&mut ours, accepted).unwrap().0, b"last words");
    assert_eq!(ours.accept(here), Err(AcceptError::LinkGone));
    let them = SocketAddr::new(Side::B.ipv4(), PORT);
    assert_eq!(ours.connect(them, now), Err(ConnectError::LinkGone));
    let other = SocketAddr::new(any.ip(), PORT + 2);
    assert_eq!(ours.listen(other, 4), Err(ListenError::LinkGone));
    assert_eq!(ListenError::LinkGone.errno(), Errno::ENETDOWN);
    // The listener is still there for this host.
    let connected = ours.connect(to_us, now).unwrap();
    for _ in 0..4 {
        ours.poll(now);
    }
    assert_eq!(
        ours.accept(here).unwrap().1,
        ours.local_addr(connected).unwrap()
    );
}

#[test]
fn packets_that_had_arrived_are_received_first_also_by_several_polls() {
    const CONNECTIONS: u8 = 6;
    let mut world = World::with_poll_budget(2);
    let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
    let listener = world.theirs.listen(any, 4).unwrap();
    let sockets: Vec<_> = (0..CONNECTIONS)
        .map(|_| world.connected(listener))
        .collect();
    for (number, (_, theirs)) in (0..).zip(&sockets) {
        send(&mut world.theirs, *theirs, &[number; 10]).unwrap();
    }
    let (mut ours, now) = world.left();
    for _ in 0..CONNECTIONS {
        ours.poll(now);
    }
    for (number, (socket, _)) in (0..).zip(&sockets) {
        let received = receive(&mut ours, *socket).unwrap();
        assert_eq!(received.0, [number; 10]);
        let ended = receive(&mut ours, *socket);
        assert_eq!(ended, Err(RecvError::Connection(TcpError::LinkGone)));
    }
}

#[test]
fn nobody_waits_for_the_answer_of_a_peer_that_has_vanished() {
    let mut world = World::new();
    let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
    let listener = world.theirs.listen(any, 4).unwrap();
    let (open, _theirs) = world.connected(listener);
    // The link stays, and the other stack is not polled any more.
    let World { mut ours, now, .. } = world;
    ours.close(open).unwrap();
    let mut run_for = |duration: Duration| {
        let step = Duration::from_millis(10);
        for steps in 1..=u32::try_from(duration.as_millis() / step.as_millis()).unwrap() {
            ours.poll(now + steps * step);
        }
        (ours.has_unacknowledged_orphan(), ours.stats().orphans)
    };
    assert_eq!(run_for(Duration::from_millis(100)), (true, 1));
    assert_eq!(run_for(Duration::from_secs(2)), (false, 1));
}
