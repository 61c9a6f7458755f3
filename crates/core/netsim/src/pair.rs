//! Two stacks on one wire in virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, NiovSize};
use nic::{
    CablePlug, Impaired, Impairment, Link, Nic, NicConfig, Rings, TcpDataSplit, WireLink,
    WireOptions,
};
use stack::{Secret, Stack, StackConfig};
use steer::RxQueueId;
use wire::{Instant, MacAddr};

use crate::door::Door;
use crate::intruder::Intruder;
use crate::third_station::{FrameOrder, ThirdStation};

/// Maximum number of steps of a run: many more than any test needs.
pub const MAX_STEPS: usize = 2_000_000;

/// Virtual time of one step, so that round trips are not instantaneous.
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

/// Configuration of a pair.
#[derive(Debug, Clone)]
pub struct PairConfig {
    /// Seed of every secret and every impairment.
    pub seed: u64,
    /// Impairment of each direction of the wire; `None` is a perfect wire with segmentation offload.
    pub impairment: Option<Impairment>,
    /// Bytes of the largest packet.
    pub mtu: u16,
    /// Receive queues of each NIC.
    pub rx_queues: u16,
    /// Number of payload bytes at the start of each packet that stay in host memory although device memory is bound.
    pub linear_bytes: usize,
    /// Host memory of each queue.
    pub host_mem_bytes: usize,
    /// Configuration of connections.
    pub tcp: tcp::Config,
    /// Maximum number of frames in flight in each direction.
    pub wire_frames: usize,
    /// Maximum number of orphaned connections (closed by the program, but not finished).
    pub max_orphans: usize,
    /// Maximum number of sockets.
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

/// Result of one turn of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It made progress; call it again at once.
    Worked,
    /// It made no progress and waits.
    Waiting,
    /// It is done.
    Done,
}

impl Progress {
    /// Combines the results of two programs: done when both are.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Done, Self::Done) => Self::Done,
            (Self::Worked, _) | (_, Self::Worked) => Self::Worked,
            _ => Self::Waiting,
        }
    }
}

/// Reason why a run ended before its programs were done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimError {
    /// The run took [`MAX_STEPS`].
    TooManySteps,
    /// The programs wait, but the stacks have no deadline left.
    Stuck {
        /// Virtual time of the standstill.
        at: Instant,
    },
}

/// Two stacks on one wire, both behind doors of one kind.
#[derive(Debug)]
pub struct Pair<D> {
    /// One end.
    pub a: D,
    /// The other.
    pub b: D,
    cable: CablePlug,
    /// The third station, as side A and side B see it.
    third: [ThirdStation; 2],
    now: Instant,
    bound: BTreeMap<(u8, DmabufId), Dmabuf>,
}

impl<D: Door> Pair<D> {
    /// Returns two connected stacks.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(config: &PairConfig) -> Self {
        Self::with_order_at_b(config, FrameOrder::ThirdStationFirst)
    }

    /// As [`Pair::new`], with an intruder that shares side B's end of the wire with side A.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn with_intruder(config: &PairConfig) -> (Self, Intruder) {
        let pair = Self::with_order_at_b(config, FrameOrder::Alternating);
        let intruder = Intruder::new(pair.third[Side::B as usize].clone());
        intruder.introduce();
        (pair, intruder)
    }

    fn with_order_at_b(config: &PairConfig, order: FrameOrder) -> Self {
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
                Box::new(Impaired::both(Box::new(link_a), impairment))
            }
        };
        let third: [ThirdStation; 2] = Default::default();
        let link_a = third[0].on(link_a, FrameOrder::ThirdStationFirst);
        let link_b = third[1].on(Box::new(link_b), order);
        let a = D::open(make_stack(Side::A, Box::new(link_a), config));
        let b = D::open(make_stack(Side::B, Box::new(link_b), config));
        Self {
            a,
            b,
            cable,
            third,
            now: Instant::from_millis(1),
            bound: BTreeMap::new(),
        }
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the handle that disconnects the wire.
    pub fn cable(&self) -> &CablePlug {
        &self.cable
    }

    /// Delivers a frame of the third station to `side`.
    pub fn inject(&self, side: Side, frame: Vec<u8>) {
        self.third[side as usize].send(frame);
    }

    /// Returns one of the ends.
    pub fn side(&mut self, side: Side) -> &mut D {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    /// Lets `duration` pass in which nothing runs, as for a thread that is descheduled.
    pub fn pause(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    /// Runs only the stacks for `duration`.
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

    /// Runs until neither stack has anything to send and no deadline is left.
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
            // A door may send during the call; the other end must receive that before time jumps ahead.
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

    /// Returns the packets that both ends have sent.
    fn sent(&self) -> u64 {
        self.a.stats().tx_packets + self.b.stats().tx_packets
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [&self.a, &self.b].map(|end| end.look(Stack::next_deadline));
        deadlines.into_iter().flatten().min()
    }

    /// Turns header split on and binds new device memory to `queues` of one side.
    ///
    /// # Panics
    /// If the memory cannot be allocated, or the bind is refused.
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

    /// Binds existing memory as [`Pair::bind`] does; all other handles must be dropped before
    /// [`Pair::finish`].
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
    /// If the memory cannot be allocated, or the bind is refused.
    pub fn bind_tx(&mut self, side: Side, bytes: usize) -> DmabufId {
        let dmabuf = Dmabuf::anonymous(bytes).expect("a test needs little memory");
        self.bind_tx_memory(side, dmabuf)
    }

    /// Binds existing memory as [`Pair::bind_tx`] does; all other handles must be dropped before [`Pair::finish`].
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

    /// Returns the device memory of a binding made by this pair.
    ///
    /// # Panics
    /// If there is no such binding.
    pub fn dmabuf(&self, side: Side, id: DmabufId) -> &Dmabuf {
        &self.bound[&(side as u8, id)]
    }

    /// Turns header split on at one side.
    ///
    /// # Panics
    /// Never: no binding depends on header split being off.
    pub fn split_on(&mut self, side: Side) {
        let nic = self.side(side).stack_mut().nic_mut();
        let rings = Rings {
            tcp_data_split: TcpDataSplit::Enabled,
            ..nic.rings()
        };
        nic.set_rings(rings)
            .expect("switching split on is never refused");
    }

    /// Opens a connection from `side.other()` to `side` and returns both sockets: (that of `side`, that of
    /// `side.other()`).
    ///
    /// # Panics
    /// If the connection is not established.
    pub fn connect(&mut self, side: Side, ip: IpAddr, port: u16) -> (D::Socket, D::Socket) {
        let local = SocketAddr::new(ip, port);
        let listener = self.side(side).listen(local, 16).expect("the port is free");
        let pair = self.connect_to(side, listener, local);
        self.side(side).close(listener).expect("it is open");
        pair
    }

    /// Opens a connection to an existing listener.
    ///
    /// # Panics
    /// If the connection is not established.
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

    /// Ends a test: runs both stacks until they are idle, ends every binding, and checks that all memory
    /// is home.
    ///
    /// # Panics
    /// If memory is not home, or the stacks do not become idle.
    pub fn finish(mut self) {
        self.run_until_idle().expect("the stacks come to rest");
        for side in [Side::A, Side::B] {
            let end = self.side(side);
            assert_host_memory_home(side, end.stack_mut());
            let next = end.look(Stack::next_dmabuf_id).expect("ids are left");
            for id in (1..next.0).map(DmabufId) {
                let in_flight = end.sends_in_flight(id);
                assert!(
                    in_flight.is_none_or(|count| count == 0),
                    "{side:?}: dma-buf {id} is still sent from"
                );
                let receives = end.look(|stack| stack.provider(id).is_some());
                if receives || in_flight.is_some() {
                    end.unbind(id).expect("it is bound");
                }
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
                // A bind in another thread counts the net_iovs of all bindings, and keeps the memory of each mapped
                // for that moment.
                (0..10_000).any(|_| {
                    std::thread::yield_now();
                    observer.is_freed()
                }),
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

/// Checks that all host memory is home except for the posted buffers of the queues.
fn assert_host_memory_home(side: Side, stack: &mut Stack) {
    assert_eq!(
        stack.send_pool_stats().outstanding,
        0,
        "{side:?}: payload was sent, acknowledged and kept"
    );
    for queue in (0..stack.nic().rx_queue_count()).map(RxQueueId) {
        let info = stack.nic().queue_info(queue).expect("it exists");
        if info.dmabuf.is_some() {
            // Checked exactly when it is unbound, by whether it is freed then.
            continue;
        }
        let space = stack.nic_mut().rx_space(queue);
        // The partly filled net_iov counts as used.
        assert!(
            space.free_niovs + 1 >= info.niovs,
            "{side:?} queue {queue}: {space:?} of {info:?}"
        );
    }
}
