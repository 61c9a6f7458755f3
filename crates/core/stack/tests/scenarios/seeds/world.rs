//! Sets up and runs the simulation of a scenario.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::super::{DoorSocket, Pair};
use devmem_uapi::DmabufId;
use netmem::NiovSize;
use netsim::{Door as _, Progress, Side};
use stack::{Readiness, SocketOption};

use super::flow::Flow;
use super::scenario::{Dice, Ending, Scenario};

/// The port of the first connection.
const PORT: u16 = 5201;

/// Maximum number of turns, many more than any simulation needs.
const MAX_TURNS: u64 = 300_000;

/// Turns between two pauses of the programs, on average.
const WAKE_TURNS: u64 = 60;

/// Time after which a connection to a vanished peer must have failed.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Device memory that is bound for receiving.
#[derive(Debug, Default)]
pub struct Bindings {
    a: Vec<DmabufId>,
    b: Vec<DmabufId>,
}

impl Bindings {
    pub fn of(&self, side: Side) -> &[DmabufId] {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

/// Both ends of a connection, with their sides.
type Ends = [(Side, DoorSocket); 2];

/// The simulation of a scenario.
struct World<'a> {
    scenario: &'a Scenario,
    pair: Pair,
    dice: Dice,
    connections: Vec<Ends>,
    flows: Vec<Flow>,
}

/// Runs the simulation of `scenario`.
///
/// # Panics
/// If a check fails.
pub fn run(scenario: &Scenario) {
    let world = World::new(scenario);
    match scenario.ending {
        Ending::Whole => world.end_whole(),
        Ending::Abort | Ending::Vanish => world.end_broken(),
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut pair = Pair::new(&scenario.pair);
        let bindings = bind(&mut pair, scenario);
        let mut connections: Vec<Ends> = Vec::new();
        let mut flows = Vec::new();
        let last = scenario.connections.len() - 1;
        for (number, plans) in scenario.connections.iter().enumerate() {
            let from_itself = scenario.loops && number == last;
            let to = if from_itself { Side::A } else { Side::B };
            let local = SocketAddr::new(ip(scenario, to), PORT + number as u16);
            let ends = open(&mut pair, to, local);
            connections.push(ends);
            for (direction, plan) in plans.iter().enumerate() {
                let (from, to) = (ends[direction], ends[1 - direction]);
                let seed = scenario.seed ^ ((number * 2 + direction) as u64) << 32;
                flows.push(Flow::new(&mut pair, &bindings, *plan, from, to, seed));
            }
        }
        Self {
            scenario,
            pair,
            dice: Dice::new(!scenario.seed),
            connections,
            flows,
        }
    }

    /// Runs the programs until `is_over` returns true after a turn, or all are done.
    fn run_until(&mut self, is_over: impl Fn(&[Flow]) -> bool) {
        let Self {
            scenario,
            pair,
            dice,
            flows,
            ..
        } = self;
        let mut turns = 0;
        let mut outage = scenario.outage;
        let ran = pair.run(|pair| {
            turns += 1;
            assert!(turns < MAX_TURNS, "too many turns: {}", state(pair, flows));
            if let Some(nap) = scenario.nap
                && dice.once_in(WAKE_TURNS)
            {
                pair.run_for(nap);
            }
            if turns > 40
                && let Some(outage) = outage.take()
            {
                pair.cable().pull();
                pair.run_for(outage);
                pair.cable().plug();
            }
            let mut progress = Progress::Done;
            for flow in flows.iter_mut() {
                progress = progress.and(flow.run(pair, dice));
            }
            if is_over(flows) {
                return Progress::Done;
            }
            let next = flows.iter().filter_map(Flow::acts_at).min();
            if let (Progress::Waiting, Some(next)) = (progress, next) {
                pair.run_for(next.saturating_since(pair.now()));
                return Progress::Worked;
            }
            progress
        });
        assert!(ran.is_ok(), "{ran:?}: {}", state(pair, flows));
    }

    fn end_whole(mut self) {
        self.run_until(|_| false);
        for flow in &mut self.flows {
            flow.assert_whole(&mut self.pair);
        }
        self.close();
    }

    fn end_broken(mut self) {
        let all: u64 = self
            .scenario
            .connections
            .iter()
            .flatten()
            .map(|flow| flow.total)
            .sum();
        let enough = self.dice.below(all + 1);
        self.run_until(|flows| flows.iter().map(Flow::received).sum::<u64>() >= enough);
        if self.scenario.ending == Ending::Abort {
            let breaker = self.dice.below(2) as usize;
            for ends in &self.connections {
                let (side, socket) = ends[breaker];
                self.pair.side(side).abort(socket).expect("it is open");
            }
        } else {
            for &(side, socket) in self.connections.iter().flatten() {
                let timeout = SocketOption::UserTimeout(Some(USER_TIMEOUT));
                let stack = self.pair.side(side);
                stack.set_option(socket, timeout).expect("it is open");
            }
            self.pair.cable().pull();
            self.pair.run_for(USER_TIMEOUT * 8);
        }
        // If the reset of the peer was lost, this side sends again later, and gets another reset.
        self.pair.run_for(Duration::from_secs(1000));
        for flow in &mut self.flows {
            flow.assert_all_over(&mut self.pair);
        }
        for &(side, socket) in self.connections.iter().flatten() {
            // A connection that only receives sends nothing: its program aborts it. Some are closed already.
            let _ = self.pair.side(side).abort(socket);
        }
        self.pair.cable().plug();
        self.close();
    }

    /// Closes every open socket, and checks that all memory was given back.
    fn close(self) {
        let Self {
            mut pair,
            connections,
            flows,
            ..
        } = self;
        drop(flows);
        for (side, socket) in connections.into_iter().flatten() {
            // An aborted connection is closed already.
            let _ = pair.side(side).close(socket);
        }
        pair.finish();
    }
}

/// Returns the state of a simulation that failed.
fn state(pair: &Pair, flows: &[Flow]) -> String {
    let mut text = format!("at {:?}: {flows:#?}", pair.now());
    for (side, stack) in [(Side::A, &pair.a), (Side::B, &pair.b)] {
        text += &format!("\n{side:?} dropped {:?}", stack.drops());
        for flow in flows {
            if let Some(socket) = flow.socket_at(side) {
                text += &format!("\n{side:?} {socket}: {:?}", stack.info(socket));
            }
        }
    }
    text
}

fn ip(scenario: &Scenario, side: Side) -> IpAddr {
    if scenario.ipv6 {
        side.ipv6()
    } else {
        side.ipv4()
    }
}

fn bind(pair: &mut Pair, scenario: &Scenario) -> Bindings {
    let queues: Vec<u16> = (0..scenario.pair.rx_queues).collect();
    let mut bindings = Bindings::default();
    let [a, b] = scenario.memories;
    for (side, memory) in [(Side::A, a), (Side::B, b)] {
        let Some(memory) = memory else { continue };
        let niov = NiovSize::new(memory.niov).expect("a size that can be");
        let id = pair.bind(side, memory.bytes, niov, &queues);
        match side {
            Side::A => bindings.a.push(id),
            Side::B => bindings.b.push(id),
        }
    }
    bindings
}

/// Connects A to a listener at `to`; returns (opener, accepted). With much loss an attempt may fail because the
/// neighbour could not be resolved; the program tries again.
fn open(pair: &mut Pair, to: Side, local: SocketAddr) -> Ends {
    let listener = pair.side(to).listen(local, 4).expect("the port is free");
    let mut opener = None;
    let mut accepted = None;
    pair.run(|pair| {
        let now = pair.now();
        let id = *opener.get_or_insert_with(|| pair.a.connect(local, now).expect("it has a route"));
        accepted = accepted.or_else(|| pair.side(to).accept(listener).ok());
        let ready = pair.a.readiness(id).expect("it is open");
        if ready.contains(Readiness::ERROR) {
            pair.a.close(id).expect("it is open");
            opener = None;
            return Progress::Worked;
        }
        if accepted.is_some() && ready.contains(Readiness::WRITABLE) {
            Progress::Done
        } else {
            Progress::Waiting
        }
    })
    .expect("one of many attempts gets through");
    pair.side(to).close(listener).expect("it is open");
    let (Some(opener), Some((accepted, _))) = (opener, accepted) else {
        panic!("a run that is done has both ends");
    };
    [(Side::A, opener), (to, accepted)]
}
