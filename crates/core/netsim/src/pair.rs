//! Two stacks on one wire, and time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, NiovSize};
use nic::{
    Cable, Impaired, Impairment, Link, Nic, NicConfig, Rings, TcpDataSplit, WireLink, WireOptions,
};
use stack::{Secret, Stack, StackConfig};
use steer::RxQueueId;
use wire::{Instant, MacAddr};

use crate::door::Door;
use crate::inject::{Injected, Injector};
use crate::intruder::Intruder;

/// Steps after which a run is given up: many more than any test needs.
pub const MAX_STEPS: usize = 2_000_000;

/// Time that one step takes, so that round trips are not instantaneous.
pub const STEP: Duration = Duration::from_micros(5);

/// One of the two stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// 10.77.0.1, fd77::1.
    A,
    /// 10.77.0.2, fd77::2.
    B,
}

impl Side {
    /// Returns the other one.
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Returns its IPv4 address.
    pub const fn ipv4(self) -> IpAddr {
        match self {
            Self::A => IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1)),
            Self::B => IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2)),
        }
    }

    /// Returns its IPv6 address.
    pub const fn ipv6(self) -> IpAddr {
        match self {
            Self::A => IpAddr::V6(std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
            Self::B => IpAddr::V6(std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2)),
        }
    }

    /// Returns its hardware address.
    pub const fn mac(self) -> MacAddr {
        match self {
            Self::A => MacAddr([2, 0, 0, 0, 0, 0xa]),
            Self::B => MacAddr([2, 0, 0, 0, 0, 0xb]),
        }
    }
}

/// How a pair is made.
#[derive(Debug, Clone)]
pub struct PairConfig {
    /// Seed of every secret and every impairment.
    pub seed: u64,
    /// What the wire does to frames in each direction; `None` is a wire with segmentation offload.
    pub impairment: Option<Impairment>,
    /// Bytes of the largest packet.
    pub mtu: u16,
    /// Receive queues of each NIC.
    pub rx_queues: u16,
    /// First payload bytes of each packet that stay in host memory although device memory is bound.
    pub linear_bytes: usize,
    /// Host memory of each queue.
    pub host_mem_bytes: usize,
    /// How connections behave.
    pub tcp: tcp::Config,
    /// Frames under way in each direction.
    pub wire_frames: usize,
    /// Bound of connections that finish by themselves.
    pub max_orphans: usize,
    /// Bound of sockets.
    pub max_sockets: usize,
    /// Length of the on-link IPv4 prefix.
    pub prefix_len: u8,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            impairment: None,
            mtu: 1500,
            rx_queues: 1,
            linear_bytes: 0,
            host_mem_bytes: 4 << 20,
            tcp: tcp::Config::default(),
            wire_frames: 1024,
            max_orphans: stack::MAX_ORPHANS,
            max_sockets: stack::MAX_SOCKETS,
            prefix_len: 24,
        }
    }
}

/// What a program did in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something; ask again at once.
    Worked,
    /// Nothing; it waits.
    Waiting,
    /// All it had to do.
    Done,
}

impl Progress {
    /// Joins what two programs did: done when both are.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Done, Self::Done) => Self::Done,
            (Self::Worked, _) | (_, Self::Worked) => Self::Worked,
            _ => Self::Waiting,
        }
    }
}

/// Why a run ended without its programs being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimError {
    /// It took [`MAX_STEPS`].
    TooManySteps,
    /// Nobody has anything to wait for, and the programs wait.
    Stuck {
        /// When that was.
        at: Instant,
    },
}

/// Two stacks on one wire, both reached through doors of one kind.
#[derive(Debug)]
pub struct Pair<D> {
    /// One end.
    pub a: D,
    /// The other.
    pub b: D,
    cable: Cable,
    injectors: [Injector; 2],
    now: Instant,
    bound: BTreeMap<(u8, DmabufId), Dmabuf>,
}

impl<D: Door> Pair<D> {
    /// Makes two stacks and plugs them together.
    ///
    /// # Panics
    /// If the configuration cannot be; a test says what it wants.
    pub fn new(config: &PairConfig) -> Self {
        Self::build(config, |link| link)
    }

    /// As [`Pair::new`], with a third host on side B's end of the wire.
    ///
    /// # Panics
    /// If the configuration cannot be.
    pub fn with_intruder(config: &PairConfig) -> (Self, Intruder) {
        let intruder = Intruder::default();
        let pair = Self::build(config, |link| intruder.on(link));
        intruder.introduce();
        (pair, intruder)
    }

    /// Makes the pair; `at_b` may put something between side B and its end of the wire.
    fn build(config: &PairConfig, at_b: impl FnOnce(Box<dyn Link>) -> Box<dyn Link>) -> Self {
        let options = WireOptions {
            mtu: config.mtu,
            offload: config.impairment.is_none(),
            queue_frames: config.wire_frames,
            wakeup: false,
        };
        let (link_a, link_b) =
            WireLink::pair(options).expect("a wire without wakeups needs nothing of the system");
        let cable = link_a.cable();
        // One conditioner treats both directions.
        let link_a: Box<dyn Link> = match config.impairment {
            None => Box::new(link_a),
            Some(impairment) => {
                let impairment = Impairment {
                    seed: config.seed,
                    ..impairment
                };
                Box::new(Impaired::both(link_a, impairment).expect("the wire has no offloads"))
            }
        };
        let (link_a, to_a) = Injected::new(link_a);
        let (link_b, to_b) = Injected::new(link_b);
        let a = D::open(make_stack(Side::A, Box::new(link_a), config));
        let b = D::open(make_stack(Side::B, at_b(Box::new(link_b)), config));
        Self {
            a,
            b,
            cable,
            injectors: [to_a, to_b],
            now: Instant::from_millis(1),
            bound: BTreeMap::new(),
        }
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the handle that pulls the cable.
    pub fn cable(&self) -> &Cable {
        &self.cable
    }

    /// Has `side` receive a frame that the other end did not send: from a third station on the wire.
    pub fn inject(&self, side: Side, frame: Vec<u8>) {
        self.injectors[side as usize].push(frame);
    }

    /// Returns one of the ends.
    pub fn side(&mut self, side: Side) -> &mut D {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    /// Lets `duration` pass with nobody but the stacks doing anything.
    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..MAX_STEPS {
            if self.poll_both() {
                self.now = self.now + STEP;
            } else {
                let next = self.next_deadline().unwrap_or(end);
                self.now = next.max(self.now + STEP).min(end);
            }
            if self.now >= end {
                self.poll_both();
                return;
            }
        }
        panic!("{duration:?} took more than {MAX_STEPS} steps");
    }

    /// Runs until neither stack has anything to send or to wait for.
    ///
    /// # Errors
    /// [`SimError::TooManySteps`].
    pub fn run_until_idle(&mut self) -> Result<(), SimError> {
        for _ in 0..MAX_STEPS {
            if self.poll_both() {
                self.now = self.now + STEP;
            } else if let Some(next) = self.next_deadline() {
                self.now = next.max(self.now + STEP);
            } else {
                return Ok(());
            }
        }
        Err(SimError::TooManySteps)
    }

    /// Runs the stacks and a program in turn until the program is done.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn run(&mut self, mut program: impl FnMut(&mut Self) -> Progress) -> Result<(), SimError> {
        for _ in 0..MAX_STEPS {
            let polled = self.poll_both();
            let on_the_wire = self.sent();
            let progress = program(self);
            // A door may send in the call; what is on the wire must not wait for the next timer.
            let worked = polled || self.sent() > on_the_wire;
            match progress {
                Progress::Done => {
                    self.poll_both();
                    return Ok(());
                }
                Progress::Waiting if !worked => {
                    let next = self
                        .next_deadline()
                        .ok_or(SimError::Stuck { at: self.now })?;
                    self.now = next.max(self.now + STEP);
                }
                Progress::Waiting | Progress::Worked => self.now = self.now + STEP,
            }
        }
        Err(SimError::TooManySteps)
    }

    fn poll_both(&mut self) -> bool {
        let a = self.a.poll(self.now);
        let b = self.b.poll(self.now);
        a || b
    }

    /// Packets that left either end so far.
    fn sent(&self) -> u64 {
        self.a.stats().tx_packets + self.b.stats().tx_packets
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [&self.a, &self.b].map(|end| end.look(Stack::next_deadline));
        deadlines.into_iter().flatten().min()
    }

    /// Switches header split on and binds new device memory to `queues` of one side.
    ///
    /// # Panics
    /// If there is no memory, or the bind is refused.
    pub fn bind(
        &mut self,
        side: Side,
        bytes: usize,
        niov_size: NiovSize,
        queues: &[u16],
    ) -> DmabufId {
        let dmabuf = Dmabuf::anonymous(bytes).expect("a test needs little memory");
        self.bind_memory(side, dmabuf, niov_size, queues)
    }

    /// As [`Pair::bind`], with memory that is there already; whoever else holds it lets it go
    /// before [`Pair::finish`].
    ///
    /// # Panics
    /// If the bind is refused.
    pub fn bind_memory(
        &mut self,
        side: Side,
        dmabuf: Dmabuf,
        niov_size: NiovSize,
        queues: &[u16],
    ) -> DmabufId {
        self.split_on(side);
        let queues: Vec<_> = queues.iter().copied().map(RxQueueId).collect();
        let id = self
            .side(side)
            .bind_rx(&dmabuf, niov_size, &queues)
            .expect("the request is one that the test expects to pass");
        self.bound.insert((side as u8, id), dmabuf);
        id
    }

    /// Binds new device memory for sending from one side.
    ///
    /// # Panics
    /// If there is no memory, or the bind is refused.
    pub fn bind_tx(&mut self, side: Side, bytes: usize) -> DmabufId {
        let dmabuf = Dmabuf::anonymous(bytes).expect("a test needs little memory");
        self.bind_tx_memory(side, dmabuf)
    }

    /// As [`Pair::bind_tx`], with memory that is there already; whoever else holds it lets it go before
    /// [`Pair::finish`].
    ///
    /// # Panics
    /// If the bind is refused.
    pub fn bind_tx_memory(&mut self, side: Side, dmabuf: Dmabuf) -> DmabufId {
        let id = self
            .side(side)
            .bind_tx(&dmabuf)
            .expect("the request is one that the test expects to pass");
        self.bound.insert((side as u8, id), dmabuf);
        id
    }

    /// Returns device memory that was bound here.
    ///
    /// # Panics
    /// If it was not.
    pub fn dmabuf(&self, side: Side, id: DmabufId) -> &Dmabuf {
        &self.bound[&(side as u8, id)]
    }

    /// Switches header split on at one side.
    ///
    /// # Panics
    /// Never: nothing is bound that depends on it being off.
    pub fn split_on(&mut self, side: Side) {
        let nic = self.side(side).stack_mut().nic_mut();
        let rings = Rings {
            tcp_data_split: TcpDataSplit::Enabled,
            hds_thresh: 0,
            ..nic.rings()
        };
        nic.set_rings(rings)
            .expect("switching split on is never refused");
    }

    /// Opens a connection from `side.other()` to `side` and returns both ends: (listener's side,
    /// opener's side).
    ///
    /// # Panics
    /// If it does not open.
    pub fn connect(&mut self, side: Side, ip: IpAddr, port: u16) -> (D::Socket, D::Socket) {
        let local = SocketAddr::new(ip, port);
        let listener = self.side(side).listen(local, 16).expect("the port is free");
        let pair = self.connect_to(side, listener, local);
        self.side(side).close(listener).expect("it is open");
        pair
    }

    /// Opens a connection to a listener that is there already.
    ///
    /// # Panics
    /// If it does not open.
    pub fn connect_to(
        &mut self,
        side: Side,
        listener: D::Socket,
        local: SocketAddr,
    ) -> (D::Socket, D::Socket) {
        let now = self.now;
        let opener = self
            .side(side.other())
            .connect(local, now)
            .expect("the peer is on the link");
        let mut accepted = None;
        let opened = self.run(|pair| {
            accepted = accepted.or_else(|| pair.side(side).accept(listener).ok());
            let is_open = pair
                .side(side.other())
                .readiness(opener)
                .is_ok_and(|r| r.contains(stack::Readiness::WRITABLE));
            if accepted.is_some() && is_open {
                Progress::Done
            } else {
                Progress::Waiting
            }
        });
        let accepted = accepted.map(|(id, _)| id);
        (
            accepted.unwrap_or_else(|| panic!("no connection: {opened:?}")),
            opener,
        )
    }

    /// Ends a test: both stacks run dry, every binding is undone, and every piece of memory must be
    /// home.
    ///
    /// # Panics
    /// If something is still out, or the stacks do not come to rest.
    pub fn finish(mut self) {
        self.run_until_idle().expect("the stacks come to rest");
        for side in [Side::A, Side::B] {
            let end = self.side(side);
            assert_host_memory_home(side, end.stack_mut());
            let receiving = end.look(|stack| stack.bindings().map(|info| info.id).collect());
            let sending: Vec<_> = end.look(|stack| stack.tx_bindings().collect());
            for &id in &sending {
                assert_eq!(
                    end.sends_in_flight(id),
                    Some(0),
                    "{side:?}: dma-buf {id} is still sent from"
                );
            }
            for id in [receiving, sending].concat() {
                end.unbind(id).expect("it is bound");
            }
        }
        let observers: Vec<_> = self
            .bound
            .iter()
            .map(|(&key, dmabuf)| (key, dmabuf.observer()))
            .collect();
        let Self { a, b, bound, .. } = self;
        let handles: Vec<_> = bound.into_values().collect();
        drop(handles);
        for ((side, id), observer) in observers {
            assert!(
                observer.is_freed(),
                "net_iovs of dma-buf {id} of side {side} are not home, or the test holds it"
            );
        }
        drop((a, b));
    }
}

fn make_stack(side: Side, link: Box<dyn Link>, config: &PairConfig) -> Stack {
    let nic = NicConfig {
        mac: side.mac(),
        mtu: config.mtu,
        rx_queues: config.rx_queues,
        host_mem_bytes: config.host_mem_bytes,
        linear_bytes: config.linear_bytes,
        ..NicConfig::default()
    };
    let nic = Nic::new(link, nic).expect("a configuration that can be");
    let secret = Secret::from_seed(config.seed.wrapping_mul(2).wrapping_add(side as u64));
    let stack = StackConfig {
        addresses: vec![(side.ipv4(), config.prefix_len), (side.ipv6(), 64)],
        tcp: config.tcp.clone(),
        max_orphans: config.max_orphans,
        max_sockets: config.max_sockets,
        ..StackConfig::new(side.ipv4(), 24, secret)
    };
    Stack::new(nic, stack).expect("a configuration that can be")
}

/// Checks that no host memory is out but what a queue keeps posted.
fn assert_host_memory_home(side: Side, stack: &mut Stack) {
    assert_eq!(
        stack.send_pool_stats().outstanding,
        0,
        "{side:?}: payload was sent, acknowledged and kept"
    );
    for queue in (0..stack.nic().channels().rx).map(RxQueueId) {
        let info = stack.nic().queue_info(queue).expect("it exists");
        if info.dmabuf.is_some() {
            // Seen exactly when it is unbound: whether it is freed then.
            continue;
        }
        let space = stack.nic_mut().rx_space(queue);
        // The net_iov that is being filled counts as used.
        assert!(
            space.free_niovs + 1 >= info.niovs,
            "{side:?} queue {queue}: {space:?} of {info:?}"
        );
    }
}
