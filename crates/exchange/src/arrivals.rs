//! Connections that are not part of an endpoint yet: control streams, which are recognised by the cookie in their hello, and data streams,
//! recognised by the address of the peer. Anybody can make them, so their number and their time are bounded, and none outlives its peer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use devmem_tcp::{Stream, tcp::TcpState};
use rustix::io::Errno;

use crate::control::Control;
use crate::keep_alive;
use crate::limits::{MAX_STREAMS, is_chunk};
use crate::record::{Hello, Record};

/// How long a connection may stay without being part of an endpoint.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most control connections whose hello is not complete, and most data connections that no hello has named; more are closed, the oldest
/// first.
const MAX_STRANGERS: usize = 4096;

/// Most connections of complete hellos that are not endpoints, the data connections that they name included.
const MAX_INTRODUCED: usize = 4096;

/// Connections that one turn accepts, and hellos that it looks at, of each kind.
const TURN: usize = 64;

/// Time between two looks at the age of all connections.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// A control connection that has not said everything.
struct Unfinished {
    control: Control,
    peer: IpAddr,
    hello: Option<Hello>,
    addresses: Vec<SocketAddr>,
    since: Instant,
}

/// A control connection whose hello is complete. It waits for its data connections, and for the poll of its listener.
struct Introduced {
    control: Control,
    hello: Hello,
    addresses: Vec<SocketAddr>,
    since: Instant,
}

/// The connections of an endpoint.
pub(crate) struct Complete {
    pub(crate) control: Control,
    pub(crate) hello: Hello,
    pub(crate) streams: Vec<Stream>,
}

/// The listening sockets of a fabric, and the connections that are not part of an endpoint yet.
pub(crate) struct Arrivals {
    control: devmem_tcp::Listener,
    data: devmem_tcp::Listener,
    /// Looked at in turn, as the next.
    unfinished: VecDeque<Unfinished>,
    introduced: VecDeque<Introduced>,
    /// By the address of the peer.
    streams: HashMap<SocketAddr, (Stream, Instant)>,
    /// Of the listeners that exist.
    cookies: HashSet<u64>,
    strangers: u64,
    swept: Option<Instant>,
}

impl Arrivals {
    pub(crate) fn new(control: devmem_tcp::Listener, data: devmem_tcp::Listener) -> Self {
        Self {
            control,
            data,
            unfinished: VecDeque::new(),
            introduced: VecDeque::new(),
            streams: HashMap::new(),
            cookies: HashSet::new(),
            strangers: 0,
            swept: None,
        }
    }

    /// Adds a listener.
    pub(crate) fn open(&mut self, cookie: u64) {
        self.cookies.insert(cookie);
    }

    /// Removes a listener, and closes what belongs to it. Without another one that is everything.
    pub(crate) fn close(&mut self, cookie: u64) {
        self.cookies.remove(&cookie);
        if self.cookies.is_empty() {
            self.unfinished.clear();
            self.introduced.clear();
            self.streams.clear();
            return;
        }
        let is_its = |hello: &Hello| hello.cookie == cookie;
        let (its, others) = std::mem::take(&mut self.introduced)
            .into_iter()
            .partition(|it| is_its(&it.hello));
        self.introduced = others;
        let (unfinished, others) = std::mem::take(&mut self.unfinished)
            .into_iter()
            .partition(|it: &Unfinished| it.hello.as_ref().is_some_and(is_its));
        self.unfinished = others;
        let its: VecDeque<Introduced> = its;
        let unfinished: VecDeque<Unfinished> = unfinished;
        its.iter().for_each(|it| self.drop_streams(&it.addresses));
        let unfinished = unfinished.iter();
        unfinished.for_each(|it| self.drop_streams(&it.addresses));
    }

    pub(crate) fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Accepts connections that are established.
    pub(crate) fn accept(&mut self, now: Instant) -> Result<(), devmem_tcp::Error> {
        for _ in 0..TURN {
            let Some((stream, peer)) = self.accept_one(|arrivals| &arrivals.control)? else {
                break;
            };
            self.unfinished.push_back(Unfinished {
                control: Control::new(stream),
                peer: peer.ip().to_canonical(),
                hello: None,
                addresses: Vec::new(),
                since: now,
            });
            if self.unfinished.len() > MAX_STRANGERS {
                self.drop_oldest_newcomer();
            }
        }
        for _ in 0..TURN {
            let Some((stream, peer)) = self.accept_one(|arrivals| &arrivals.data)? else {
                break;
            };
            self.streams.insert(peer, (stream, now));
        }
        if self.streams.len() > MAX_STRANGERS {
            self.drop_oldest_streams();
        }
        Ok(())
    }

    /// Accepts a connection. If the process has no descriptor left for it, but has connections that nobody may ever need, the oldest of
    /// them makes room for the next attempt.
    fn accept_one(
        &mut self,
        of: impl Fn(&Self) -> &devmem_tcp::Listener,
    ) -> Result<Option<(Stream, SocketAddr)>, devmem_tcp::Error> {
        match of(self).accept() {
            Ok((stream, peer)) => {
                keep_alive(&stream);
                Ok(Some((stream, peer)))
            }
            Err(error) if error.kind().is_not_ready() => Ok(None),
            Err(error) if is_out_of_descriptors(&error) && self.make_room() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn make_room(&mut self) -> bool {
        if self.drop_oldest_newcomer() {
            return true;
        }
        let named = self.named();
        let unnamed = self
            .streams
            .iter()
            .filter(|(peer, _)| !named.contains(peer));
        let oldest = unnamed.min_by_key(|(_, (_, since))| *since);
        if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
            self.streams.remove(&oldest);
            self.strangers += 1;
            return true;
        }
        self.drop_oldest_incomplete()
    }

    /// Reads what has arrived of hellos, and closes what has ended or waits for too long. Returns how many connections are left.
    pub(crate) fn tidy(&mut self, now: Instant) -> usize {
        self.read_newcomers();
        self.look_for_peers();
        let is_due = |swept: Instant| now.saturating_duration_since(swept) >= SWEEP_INTERVAL;
        if self.half_made() > 0 && self.swept.is_none_or(is_due) {
            self.swept = Some(now);
            self.sweep(now);
        }
        self.half_made()
    }

    fn half_made(&self) -> usize {
        self.unfinished.len() + self.introduced.len() + self.streams.len()
    }

    /// Reads what unfinished say.
    fn read_newcomers(&mut self) {
        for _ in 0..self.unfinished.len().min(TURN) {
            let Some(mut newcomer) = self.unfinished.pop_front() else {
                return;
            };
            match newcomer.read(&self.cookies) {
                Step::Waits => self.unfinished.push_back(newcomer),
                Step::Stranger => {
                    self.strangers += 1;
                    self.drop_streams(&newcomer.addresses);
                }
                Step::Complete(hello) => self.introduce(Introduced {
                    control: newcomer.control,
                    hello,
                    addresses: newcomer.addresses,
                    since: newcomer.since,
                }),
            }
        }
    }

    fn introduce(&mut self, new: Introduced) {
        let cost = |it: &Introduced| 1 + it.addresses.len();
        let mut all = cost(&new) + self.introduced.iter().map(cost).sum::<usize>();
        while all > MAX_INTRODUCED {
            if !self.drop_oldest_incomplete() {
                // Those that are complete wait for the program: as in a full backlog, the newcomer has to try again.
                self.strangers += 1;
                return self.drop_streams(&new.addresses);
            }
            all = cost(&new) + self.introduced.iter().map(cost).sum::<usize>();
        }
        self.introduced.push_back(new);
    }

    /// Closes what belongs to peers that have closed. Until they have an answer they say nothing more, so nothing is read: in virtual time that
    /// would move the clock.
    fn look_for_peers(&mut self) {
        for _ in 0..self.introduced.len().min(TURN) {
            let Some(it) = self.introduced.pop_front() else {
                return;
            };
            if is_open(&it.control.stream) {
                self.introduced.push_back(it);
            } else {
                self.strangers += 1;
                self.drop_streams(&it.addresses);
            }
        }
    }

    /// Closes what waits for too long, and data connections whose peer has closed.
    fn sweep(&mut self, now: Instant) {
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < PATIENCE;
        let before = self.half_made();
        self.streams.retain(|_, (stream, _)| is_open(stream));
        let streams = &self.streams;
        self.unfinished.retain(|it| is_fresh(it.since));
        self.introduced
            .retain(|it| is_fresh(it.since) || it.is_complete(streams));
        let named = self.named();
        self.streams
            .retain(|peer, (_, since)| is_fresh(*since) || named.contains(peer));
        self.strangers += (before - self.half_made()) as u64;
    }

    /// Returns the addresses of data connections that hellos have named.
    fn named(&self) -> HashSet<SocketAddr> {
        let unfinished = self.unfinished.iter().flat_map(|it| &it.addresses);
        let introduced = self.introduced.iter().flat_map(|it| &it.addresses);
        unfinished.chain(introduced).copied().collect()
    }

    fn drop_oldest_newcomer(&mut self) -> bool {
        let ages = self.unfinished.iter().map(|it| it.since).enumerate();
        let oldest = ages.min_by_key(|(_, since)| *since);
        let oldest = oldest.and_then(|(at, _)| self.unfinished.remove(at));
        let Some(oldest) = oldest else {
            return false;
        };
        self.strangers += 1;
        self.drop_streams(&oldest.addresses);
        true
    }

    /// Closes data connections that no hello has named, the oldest first, as far as there are too many.
    fn drop_oldest_streams(&mut self) {
        let named = self.named();
        let unnamed = self
            .streams
            .iter()
            .filter(|(peer, _)| !named.contains(peer));
        let mut unnamed: Vec<_> = unnamed.map(|(peer, (_, since))| (*since, *peer)).collect();
        unnamed.sort_unstable();
        let too_many = unnamed.len().saturating_sub(MAX_STRANGERS);
        for (_, peer) in &unnamed[..too_many] {
            self.streams.remove(peer);
            self.strangers += 1;
        }
    }

    /// Closes the oldest connections of a hello whose data connections are not all there.
    fn drop_oldest_incomplete(&mut self) -> bool {
        let all = self.introduced.iter().enumerate();
        let incomplete = all.filter(|(_, it)| !it.is_complete(&self.streams));
        let oldest = incomplete.min_by_key(|(_, it)| it.since);
        let oldest = oldest.map(|(at, _)| at);
        let Some(dropped) = oldest.and_then(|at| self.introduced.remove(at)) else {
            return false;
        };
        self.strangers += 1;
        self.drop_streams(&dropped.addresses);
        true
    }

    /// Closes data connections that only a hello has named which is gone.
    fn drop_streams(&mut self, addresses: &[SocketAddr]) {
        if addresses.is_empty() {
            return;
        }
        let named = self.named();
        for peer in addresses.iter().filter(|peer| !named.contains(peer)) {
            self.streams.remove(peer);
        }
    }

    /// Returns the first connections of a listener that are all here.
    pub(crate) fn take_complete(&mut self, cookie: u64) -> Option<Complete> {
        let streams = &self.streams;
        let is_complete = |it: &Introduced| it.hello.cookie == cookie && it.is_complete(streams);
        let at = self.introduced.iter().position(is_complete)?;
        let found = self.introduced.remove(at)?;
        let taken = found
            .addresses
            .iter()
            .filter_map(|peer| self.streams.remove(peer));
        Some(Complete {
            streams: taken.map(|(stream, _)| stream).collect(),
            control: found.control,
            hello: found.hello,
        })
    }
}

/// Returns whether the peer has not closed a connection.
fn is_open(stream: &Stream) -> bool {
    let info = stream.tcp_info();
    info.is_some_and(|info| info.state == TcpState::Established)
}

fn is_out_of_descriptors(error: &devmem_tcp::Error) -> bool {
    let none_left = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    none_left.contains(&error.errno().0)
}

impl Introduced {
    fn is_complete(&self, streams: &HashMap<SocketAddr, (Stream, Instant)>) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.all(|peer| streams.contains_key(peer))
    }
}

/// What became of a newcomer.
enum Step {
    Waits,
    /// It does not speak the protocol, or names no listener.
    Stranger,
    Complete(Hello),
}

impl Unfinished {
    fn read(&mut self, cookies: &HashSet<u64>) -> Step {
        loop {
            let record = match self.control.next() {
                Ok(Some(record)) => record,
                Ok(None) if !self.control.has_ended() => return Step::Waits,
                Ok(None) | Err(_) => return Step::Stranger,
            };
            let hello = match (self.hello, record) {
                (None, Record::Hello(hello)) => hello,
                (Some(hello), Record::Address { stream, local })
                    if usize::from(stream) == self.addresses.len() && self.may_name(local) =>
                {
                    self.addresses.push(local);
                    hello
                }
                _ => return Step::Stranger,
            };
            let is_known = cookies.contains(&hello.cookie);
            let has_streams = (1..=MAX_STREAMS).contains(&hello.streams);
            let has_chunk = usize::try_from(hello.chunk).is_ok_and(is_chunk);
            if !is_known || !has_streams || !has_chunk {
                return Step::Stranger;
            }
            self.hello = Some(hello);
            if self.addresses.len() == usize::from(hello.streams) {
                return Step::Complete(hello);
            }
        }
    }

    /// Returns whether a data connection may be its own: from its own address, so that no host takes those of another one.
    fn may_name(&self, local: SocketAddr) -> bool {
        local.ip().to_canonical() == self.peer && !self.addresses.contains(&local)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use devmem_tcp::{Impairment, Netdev};

    use super::*;
    use crate::ticket::Ticket;
    use crate::{Fabric, Listener, Options};

    /// A fabric with a listener, and the NIC of its peers. In virtual time: nothing happens but by calls.
    struct World {
        fabric: Fabric,
        listener: Listener,
        peers: Netdev,
    }

    /// What one peer has connected.
    struct Peer {
        control: Stream,
        _data: Vec<Stream>,
    }

    impl World {
        fn new() -> Self {
            let (peers, nic) = Netdev::pair(Impairment::NONE).unwrap();
            let fabric = Fabric::open(nic, Options::default()).unwrap();
            let listener = fabric.listen().unwrap();
            Self {
                fabric,
                listener,
                peers,
            }
        }

        /// Says a hello that names `named` data connections, of which the first `made` ones are made.
        fn hello(&self, ticket: &Ticket, named: u16, made: u16) -> Peer {
            let mut control = self.peers.connect(ticket.control).unwrap();
            let data: Vec<_> = (0..made)
                .map(|_| self.peers.connect(ticket.data).unwrap())
                .collect();
            let ip = control.local_addr().unwrap().ip();
            let said = Hello {
                cookie: ticket.cookie,
                streams: named,
                chunk: 4096,
            };
            let mut said = Record::Hello(said).encode().to_vec();
            for stream in 0..named {
                let made = data.get(usize::from(stream));
                let local = made.map_or(SocketAddr::new(ip, 1 + stream), |data| {
                    data.local_addr().unwrap()
                });
                said.extend(Record::Address { stream, local }.encode());
            }
            control.write_all(&said).unwrap();
            Peer {
                control,
                _data: data,
            }
        }

        /// Accepts and reads until nothing changes any more. Returns the number of connections that are left.
        fn settle(&self, now: Instant) -> usize {
            let mut arrivals = self.fabric.inner.state.connections.arrivals();
            for _ in 0..10 {
                arrivals.accept(now).unwrap();
                arrivals.tidy(now);
            }
            arrivals.half_made()
        }
    }

    #[test]
    fn a_hello_without_data_connections_is_closed_in_time() {
        let world = World::new();
        let now = Instant::now();
        let _peer = world.hello(&world.listener.ticket(), 3, 1);
        assert_eq!(world.settle(now), 2);
        assert_eq!(world.settle(now + PATIENCE - Duration::from_millis(1)), 2);
        assert_eq!(world.settle(now + PATIENCE + SWEEP_INTERVAL), 0);
        assert_eq!(world.listener.strangers(), 2);
    }

    #[test]
    fn one_that_is_complete_waits_for_its_listener() {
        let world = World::new();
        let now = Instant::now();
        let _peer = world.hello(&world.listener.ticket(), 2, 2);
        assert_eq!(world.settle(now), 3);
        assert_eq!(world.settle(now + 10 * PATIENCE), 3);
        assert!(world.listener.poll().unwrap().is_some());
        assert_eq!(world.settle(now), 0);
    }

    #[test]
    fn what_a_peer_leaves_behind_is_closed_at_once() {
        let world = World::new();
        let now = Instant::now();
        let ticket = world.listener.ticket();
        let incomplete = world.hello(&ticket, 3, 1);
        let complete = world.hello(&ticket, 2, 2);
        let silent = world.peers.connect(ticket.control).unwrap();
        let data = world.peers.connect(ticket.data).unwrap();
        assert_eq!(world.settle(now), 7);
        drop((silent, incomplete.control));
        // The data connection that the hello has named goes with it, although its peer keeps it.
        assert_eq!(world.settle(now), 4);
        drop((complete, data));
        assert_eq!(world.settle(now + SWEEP_INTERVAL), 0);
    }

    #[test]
    fn a_dropped_listener_leaves_nothing_of_its_own_and_the_last_one_nothing_at_all() {
        let world = World::new();
        let now = Instant::now();
        let other = world.fabric.listen().unwrap();
        let _its = world.hello(&other.ticket(), 3, 2);
        let _ours = world.hello(&world.listener.ticket(), 3, 2);
        let _unnamed = world.peers.connect(other.ticket().data).unwrap();
        assert_eq!(world.settle(now), 7);
        drop(other);
        assert_eq!(world.settle(now), 4);
        let World {
            fabric, listener, ..
        } = world;
        drop(listener);
        assert_eq!(fabric.inner.state.connections.arrivals().half_made(), 0);
    }

    #[test]
    fn hellos_and_their_connections_are_bounded_and_the_oldest_goes_first() {
        let world = World::new();
        let now = Instant::now();
        let ticket = world.listener.ticket();
        let all = MAX_INTRODUCED / (1 + usize::from(MAX_STREAMS)) + 5;
        let mut peers = Vec::new();
        for number in 0..all {
            peers.push(world.hello(&ticket, MAX_STREAMS, 0));
            let left = world.settle(now + Duration::from_millis(number as u64));
            assert!(left * (1 + usize::from(MAX_STREAMS)) <= MAX_INTRODUCED);
        }
        assert_eq!(world.listener.strangers(), 5);
        let is_closed = |peer: &mut Peer| {
            peer.control.set_nonblocking(true);
            peer.control.tcp_info().unwrap().state != TcpState::Established
        };
        let closed: Vec<_> = peers.iter_mut().map(is_closed).collect();
        assert!(closed[..5].iter().all(|closed| *closed), "{closed:?}");
        assert!(!closed[5..].iter().any(|closed| *closed), "{closed:?}");
    }

    #[test]
    fn a_hello_takes_no_connection_of_another_address() {
        let world = World::new();
        let now = Instant::now();
        let ticket = world.listener.ticket();
        let _victim = world.peers.connect(ticket.data).unwrap();
        let mut control = world.peers.connect(ticket.control).unwrap();
        let said = Hello {
            cookie: ticket.cookie,
            streams: 1,
            chunk: 4096,
        };
        let local = "10.77.0.99:4000".parse().unwrap();
        let address = Record::Address { stream: 0, local };
        for record in [Record::Hello(said), address] {
            control.write_all(&record.encode()).unwrap();
        }
        assert_eq!(world.settle(now), 1);
        assert_eq!(world.listener.strangers(), 1);
    }
}
