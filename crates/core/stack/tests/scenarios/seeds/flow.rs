//! One direction of a connection: its sender and its reader.

use std::time::Duration;

use super::super::{DeviceSource, DoorSocket, Pair, Sink, Source};
use netsim::{Door as _, Keep, Pattern, Progress, Side};
use wire::Instant;

use super::scenario::{Dice, FlowPlan, Reader};
use super::world::Bindings;

/// Longest time between two turns in which a slow reader does something, in microseconds.
const SLOWNESS_US: u64 = 30_000;

#[derive(Debug)]
enum Sending {
    Device(DeviceSource),
    Host(Source),
}

/// A flow in progress.
#[derive(Debug)]
pub struct Flow {
    from: Side,
    socket: DoorSocket,
    to: Side,
    plan: FlowPlan,
    sending: Sending,
    sink: Sink,
    /// Next time at which a slow reader reads.
    acts_at: Instant,
    at_end: bool,
}

impl Flow {
    /// Returns a flow from a socket of one side to a socket of the same or the other side.
    pub fn new(
        pair: &mut Pair,
        bindings: &Bindings,
        plan: FlowPlan,
        from: (Side, DoorSocket),
        to: (Side, DoorSocket),
        seed: u64,
    ) -> Self {
        let pattern = Pattern::new(seed);
        let (side, socket) = from;
        let sending = match plan.ring {
            Some(ring) => {
                let tx = pair.bind_tx(side, ring);
                let memory = pair.dmabuf(side, tx).clone();
                let stack = pair.side(side);
                let source = DeviceSource::new(stack, socket, tx, &memory, pattern, plan.total);
                Sending::Device(source.in_chunks_of(plan.chunk))
            }
            None => Sending::Host(Source::new(socket, pattern, plan.total, plan.chunk)),
        };
        let keep = match plan.reader {
            Reader::Eager | Reader::Sleepy => Keep::Nothing,
            Reader::Keeps(frags) => Keep::Tokens(frags),
            Reader::Hoards => Keep::Everything,
        };
        let mut sink = Sink::new(to.1, pattern).keeping(keep);
        for &id in bindings.of(to.0) {
            sink = sink.with_memory(id, pair.dmabuf(to.0, id));
        }
        Self {
            from: side,
            socket,
            to: to.0,
            plan,
            sending,
            sink,
            acts_at: Instant::ZERO,
            at_end: false,
        }
    }

    /// The socket that sends, if it is at this side.
    pub fn socket_at(&self, side: Side) -> Option<DoorSocket> {
        (self.from == side).then_some(self.socket)
    }

    /// Returns the number of verified bytes.
    pub fn received(&self) -> u64 {
        self.sink.report().bytes()
    }

    /// One turn of both programs.
    pub fn run(&mut self, pair: &mut Pair, dice: &mut Dice) -> Progress {
        let sender = pair.side(self.from);
        let sent = match &mut self.sending {
            Sending::Device(source) => source.run(sender),
            Sending::Host(source) => source.run(sender),
        };
        sent.and(self.read(pair, dice))
    }

    fn read(&mut self, pair: &mut Pair, dice: &mut Dice) -> Progress {
        let now = pair.now();
        let receiver = pair.side(self.to);
        let acts = now >= self.acts_at;
        match self.plan.reader {
            Reader::Eager | Reader::Keeps(_) => return self.sink.run(receiver),
            Reader::Sleepy if !acts && !self.at_end => return Progress::Waiting,
            Reader::Hoards if acts => self.sink.release(receiver, 0),
            Reader::Sleepy | Reader::Hoards => {}
        }
        if acts {
            self.acts_at = now + Duration::from_micros(dice.below(SLOWNESS_US));
        }
        let received = self.sink.run(receiver);
        self.at_end = received == Progress::Done;
        received
    }

    /// Returns the next time at which a slow reader reads, if all programs may be waiting for it.
    pub fn acts_at(&self) -> Option<Instant> {
        let slow = matches!(self.plan.reader, Reader::Hoards | Reader::Sleepy);
        (slow && !self.at_end).then_some(self.acts_at)
    }

    /// Gives all tokens back, and checks the result of a complete flow.
    pub fn assert_whole(&mut self, pair: &mut Pair) {
        assert_eq!(self.received(), self.plan.total, "{self:?}");
        self.sink.release(pair.side(self.to), 0);
        if let Sending::Device(source) = &self.sending {
            let (entries, sends) = source.completions();
            assert_eq!(source.freed(), self.plan.total, "{source:?}");
            assert!(entries <= u64::from(sends), "{entries} for {sends} sends");
        }
    }

    /// Gives all tokens back, and checks that every send is complete although the connection has failed.
    pub fn assert_all_over(&mut self, pair: &mut Pair) {
        let Sending::Device(source) = &mut self.sending else {
            return;
        };
        let stack = pair.side(self.from);
        if stack.readiness(source.id()).is_ok() {
            source.collect(stack);
            assert_eq!(
                source.freed(),
                source.sent(),
                "a broken connection completes what it will never send: {source:?}"
            );
        }
        assert_eq!(
            stack.sends_in_flight(source.dmabuf()),
            Some(0),
            "{source:?}"
        );
    }
}
