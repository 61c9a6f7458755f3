//! After each call that changes a socket, its reported state is its current state.

use std::net::{Ipv4Addr, Shutdown, SocketAddr};

use devmem_uapi::{CmsgSink, DevmemCmsg, MsgFlags, NoSpace};
use nic::{Nic, NicConfig, WireLink, WireOptions};
use wire::Instant;

use super::super::sockopt::SocketOption;
use super::super::timestamps::{StampIds, Timestamping};
use super::*;
use crate::socket::readiness::Readiness;
use crate::{FlushScope, RecvMsg, Secret, SendMsg, Stack, StackConfig};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 5201;

/// A stack with connections to itself, in virtual time.
pub(crate) struct World {
    pub(crate) stack: Stack,
    now: Instant,
    /// The other end of the wire, without which the link would be gone.
    _far: WireLink,
}

struct NoMessages;

impl CmsgSink for NoMessages {
    fn push(&mut self, _: DevmemCmsg) -> Result<(), NoSpace> {
        Err(NoSpace)
    }

    fn room(&self) -> usize {
        0
    }
}

impl World {
    fn new() -> Self {
        Self::with_poll_budget(crate::config::POLL_BUDGET)
    }

    /// Returns a world in which each poll receives at most `packets`.
    fn with_poll_budget(packets: usize) -> Self {
        Self::with(NicConfig::default(), |config| config.poll_budget = packets)
    }

    /// Returns a world with a NIC of this configuration, and what `set` changes of the stack's.
    pub(crate) fn with(nic: NicConfig, set: impl FnOnce(&mut StackConfig)) -> Self {
        let (link, far) = WireLink::pair(WireOptions::default()).unwrap();
        let nic = Nic::new(Box::new(link), nic).unwrap();
        let mut config = StackConfig::new(ADDRESS.into(), 24, Secret::from_seed(1));
        set(&mut config);
        Self {
            stack: Stack::new(nic, config).unwrap(),
            now: Instant::ZERO,
            _far: far,
        }
    }

    /// Makes one call, and checks the reported states.
    #[track_caller]
    pub(crate) fn call<R>(&mut self, call: impl FnOnce(&mut Stack, Instant) -> R) -> R {
        let result = call(&mut self.stack, self.now);
        assert_eq!(self.stack.sockets.unreported(), None);
        result
    }

    /// Polls until only timers are left.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        for _ in 0..1000 {
            self.now = self.now + std::time::Duration::from_micros(10);
            let outcome = self.call(|stack, now| stack.poll(now));
            if !outcome.worked && !self.stack.wants_flush() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    #[track_caller]
    pub(crate) fn set(&mut self, id: SocketId, option: SocketOption) {
        self.call(|stack, _| stack.set_option(id, option)).unwrap();
    }

    /// Sends until the send queue is full; returns the number of bytes.
    #[track_caller]
    pub(crate) fn fill(&mut self, id: SocketId, flags: MsgFlags) -> usize {
        let mut sent = 0;
        while let Ok(n) =
            self.call(|stack, _| stack.sendmsg(id, &SendMsg::new(&[7; 10_000]), flags))
        {
            sent += n;
        }
        sent
    }

    #[track_caller]
    pub(crate) fn receive(
        &mut self,
        id: SocketId,
        flags: MsgFlags,
    ) -> Result<usize, crate::RecvError> {
        let mut bytes = [0; 30_000];
        let outcome = self.call(|stack, _| {
            stack.recvmsg(id, &mut RecvMsg::new(&mut bytes), &mut NoMessages, flags)
        });
        outcome.map(|outcome| outcome.bytes)
    }

    fn has(&self, id: SocketId, readiness: Readiness) -> bool {
        self.stack.readiness(id).unwrap().contains(readiness)
    }

    fn events(&mut self) -> Vec<SocketId> {
        self.stack.take_events().collect()
    }

    /// Returns a listener.
    #[track_caller]
    pub(crate) fn listener(&mut self) -> SocketId {
        let local = SocketAddr::from((ADDRESS, PORT));
        self.call(|stack, _| stack.listen(local, 8)).unwrap()
    }

    /// Returns the ends of a connection: of the one that connects, and of the one that the listener accepts.
    #[track_caller]
    pub(crate) fn pair(&mut self, listener: SocketId) -> (SocketId, SocketId) {
        let to = SocketAddr::from((ADDRESS, PORT));
        let opener = self.call(|stack, now| stack.connect(to, now)).unwrap();
        self.run();
        let (accepted, _) = self.call(|stack, _| stack.accept(listener)).unwrap();
        (opener, accepted)
    }
}

#[test]
fn no_call_and_no_poll_changes_a_socket_without_comparing_its_readiness() {
    let mut world = World::new();
    let local = SocketAddr::from((ADDRESS, PORT));
    let listener = world.call(|stack, _| stack.listen(local, 8)).unwrap();
    world
        .call(|stack, _| stack.set_backlog(listener, 4))
        .unwrap();
    let (opener, accepted) = world.pair(listener);
    world.set(opener, SocketOption::Zerocopy(true));
    let stamps = Timestamping {
        received: true,
        acked: true,
        ids: StampIds::FromAcked,
        ..Timestamping::default()
    };
    world.set(opener, SocketOption::Timestamping(stamps));
    world.set(accepted, SocketOption::Timestamping(stamps));
    world.set(opener, SocketOption::SndBuf(40_000));

    assert!(world.has(opener, Readiness::WRITABLE));
    assert!(world.fill(opener, MsgFlags::ZEROCOPY) > 0);
    assert!(!world.has(opener, Readiness::WRITABLE));
    world.events();
    world.set(opener, SocketOption::SndBuf(400_000));
    assert!(world.has(opener, Readiness::WRITABLE));
    assert_eq!(world.events(), [opener], "before any poll");
    world.set(opener, SocketOption::NotsentLowat(1));
    assert!(!world.has(opener, Readiness::WRITABLE));
    assert_eq!(world.events(), [opener]);
    world
        .call(|stack, _| stack.set_quick_acks(accepted, true))
        .unwrap();
    world.run();
    assert!(world.has(opener, Readiness::ERROR_QUEUE | Readiness::WRITABLE));
    assert!(world.has(accepted, Readiness::READABLE));

    world.receive(opener, MsgFlags::ERRQUEUE).unwrap_err();
    while world.call(|stack, _| stack.completion(opener)).is_ok() {}
    world.receive(accepted, MsgFlags::PEEK).unwrap();
    while world.receive(accepted, MsgFlags::empty()).is_ok() {}
    world.call(|stack, _| stack.dontneed(accepted, &[])).ok();
    assert!(!world.has(accepted, Readiness::READABLE));

    world
        .call(|stack, _| stack.shutdown(opener, Shutdown::Write))
        .unwrap();
    world
        .call(|stack, _| stack.shutdown(accepted, Shutdown::Read))
        .unwrap();
    world.run();
    world.call(|stack, now| stack.flush(FlushScope::All, now));
    assert!(world.has(accepted, Readiness::READ_CLOSED));
    world.call(|stack, _| stack.close(accepted)).unwrap();
    world.run();
    world.call(|stack, _| stack.close(opener)).unwrap();
    world.run();
    world.call(|stack, _| stack.close(listener)).unwrap();
}

#[test]
fn a_flush_of_full_super_packets_leaves_the_rest_to_the_next_poll() {
    const SEND: usize = 10_000;
    let mut world = World::new();
    let local = SocketAddr::from((ADDRESS, PORT));
    let listener = world.call(|stack, _| stack.listen(local, 8)).unwrap();
    let (opener, accepted) = world.pair(listener);
    let send = |world: &mut World| {
        let message = SendMsg::new(&[7; SEND]);
        let sent = world.call(|stack, _| stack.sendmsg(opener, &message, MsgFlags::empty()));
        assert_eq!(sent, Ok(SEND));
    };
    // The congestion window grows to several super-packets.
    world.fill(opener, MsgFlags::empty());
    while world.stack.has_unsent() {
        world.run();
        while world.receive(accepted, MsgFlags::empty()).is_ok() {}
    }
    world.run();
    let before = world.stack.stats().tx_packets;
    let mut waited = 0;
    for _ in 0..20 {
        send(&mut world);
        world.call(|stack, now| stack.flush(FlushScope::Full, now));
        waited += usize::from(world.stack.wants_flush());
    }
    let packets = world.stack.stats().tx_packets - before;
    // Seven sends until a super-packet is in flight, and then one packet for six or seven sends.
    assert!((9..=10).contains(&packets), "{packets}");
    assert!(waited > 10, "{waited}");
    world.call(|stack, now| stack.flush(FlushScope::All, now));
    assert!(!world.stack.wants_flush());
    send(&mut world);
    world.call(|stack, now| stack.flush(FlushScope::Full, now));
    assert!(world.stack.wants_flush() && world.stack.has_unsent());
    world.run();
    assert!(!world.stack.wants_flush() && !world.stack.has_unsent());
    send(&mut world);
    world.call(|stack, _| stack.abort(opener)).unwrap();
    world.run();
    assert!(
        !world.stack.has_unsent(),
        "a closed connection is not counted"
    );
}

#[test]
fn ends_by_error_are_reported_too() {
    let mut world = World::new();
    let local = SocketAddr::from((ADDRESS, PORT));
    let refused = world.call(|stack, now| stack.connect(local, now)).unwrap();
    world.run();
    assert!(world.has(refused, Readiness::ERROR));
    let told = world.call(|stack, _| stack.take_error(refused)).unwrap();
    assert!(told.is_some());
    world.call(|stack, _| stack.close(refused)).unwrap();

    let listener = world.call(|stack, _| stack.listen(local, 8)).unwrap();
    let (opener, accepted) = world.pair(listener);
    world.fill(opener, MsgFlags::empty());
    world.call(|stack, _| stack.abort(accepted)).unwrap();
    world.run();
    assert!(world.has(opener, Readiness::ERROR));
    world.receive(opener, MsgFlags::empty()).unwrap_err();
    world.call(|stack, _| stack.close(opener)).unwrap();
    // A connection waits to be accepted when the listener is closed.
    let waiting = world.call(|stack, now| stack.connect(local, now)).unwrap();
    world.run();
    assert!(world.has(listener, Readiness::ACCEPTABLE));
    world.call(|stack, _| stack.close(listener)).unwrap();
    world.run();
    assert!(world.has(waiting, Readiness::ERROR));
    world.call(|stack, _| stack.close(waiting)).unwrap();
}

#[test]
fn a_change_past_the_guard_is_noticed_and_the_next_guard_reports_it() {
    let mut world = World::new();
    let local = SocketAddr::from((ADDRESS, PORT));
    let listener = world.call(|stack, _| stack.listen(local, 8)).unwrap();
    let sockets = &mut world.stack.sockets;
    let SocketKind::Listener(queue) = &mut sockets.table.get_mut(listener).unwrap().kind else {
        panic!("it listens");
    };
    queue.push(listener);
    let (id, reported, now) = sockets.unreported().unwrap();
    assert_eq!((id, reported), (listener, Snapshot::NONE));
    assert!(now.readiness.contains(Readiness::ACCEPTABLE));
    drop(sockets.get_mut(listener));
    assert_eq!(sockets.unreported(), None);
    assert_eq!(world.events(), [listener]);
}

#[test]
fn polls_that_go_on_serve_each_connection_once_and_the_empty_link_sends_its_ack() {
    const CONNECTIONS: usize = 5;
    let mut world = World::with_poll_budget(1);
    let local = SocketAddr::from((ADDRESS, PORT));
    let listener = world.call(|stack, _| stack.listen(local, 8)).unwrap();
    let pairs: Vec<_> = (0..CONNECTIONS).map(|_| world.pair(listener)).collect();
    world.run();
    for (opener, _) in &pairs {
        let message = SendMsg::new(&[7; 100]);
        let sent = world.call(|stack, _| stack.sendmsg(*opener, &message, MsgFlags::empty()));
        assert_eq!(sent, Ok(100));
    }
    world.call(|stack, now| stack.flush(FlushScope::All, now));
    let acks_sent = world.stack.stats().tx_packets;
    for received in 1..=CONNECTIONS {
        assert_eq!(world.call(|stack, now| stack.poll(now)).received, 1);
        let sockets = &mut world.stack.sockets;
        assert!(!sockets.any(Mark::Arrivals), "they were served");
        assert_eq!(sockets.agenda.listed(Mark::HeldAck), received);
        // From now on it would send the ACK if it was served.
        let mut first = sockets.connection_at(pairs[0].1.slot()).unwrap();
        first.conn.set_quick_acks(true);
        drop(first);
        assert!(world.stack.wants_flush());
    }
    assert_eq!(world.stack.stats().tx_packets, acks_sent);
    // Further segments on a connection: it is listed once.
    let (opener, accepted) = pairs[1];
    world.set(opener, SocketOption::NoDelay(true));
    for _ in 0..2 {
        let message = SendMsg::new(&[7; 100]);
        let sent = world.call(|stack, _| stack.sendmsg(opener, &message, MsgFlags::empty()));
        assert_eq!(sent, Ok(100));
        world.call(|stack, now| stack.flush(FlushScope::All, now));
        assert_eq!(world.call(|stack, now| stack.poll(now)).received, 1);
    }
    // When the link is empty, all are served once, also one that has received another segment meanwhile.
    let sockets = &mut world.stack.sockets;
    assert_eq!(sockets.agenda.listed(Mark::HeldAck), CONNECTIONS);
    sockets
        .connection_at(accepted.slot())
        .unwrap()
        .mark(Mark::Arrivals);
    sockets.release_held_acks();
    assert!(!sockets.any(Mark::HeldAck));
    assert_eq!(sockets.agenda.listed(Mark::Arrivals), CONNECTIONS);
    world.call(|stack, _| stack.close(accepted)).unwrap();
    world.run();
    assert!(!world.stack.sockets.any(Mark::HeldAck));
    for (opener, _) in pairs.iter().filter(|(_, peer)| *peer != accepted) {
        let info = world.stack.info(*opener).unwrap().unwrap();
        assert_eq!(info.unacked, 0, "{info:?}");
    }
}
