//! All connections of an agent: those that others make, and those that it makes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;

use crate::arrivals::{Arrival, Gathering, Hello};
use crate::broken::Broken;
use crate::dial::{Dial, Dialing};
use crate::info::random;
use crate::initiator::{Connected, Initiator, Job};
use crate::log::{info, warn};
use crate::record::{Caller, Record};
use crate::settings::Settings;
use crate::status::{Failure, Status};
use crate::target::Target;
use crate::transfer::Transfer;
use crate::wire::{LISTENERS, Network, Ready, Wire};
use crate::wires::Context;

/// Connections that have not said what they are, or whose peer is not complete.
const MAX_ARRIVALS: usize = 1024;

/// Connections that are accepted in one turn.
const TURN_ACCEPTS: usize = 16;

/// Bits of the index of a connection among those of its slot.
const STREAM_BITS: u32 = 16;

/// Returns the number of the first connection of a slot. It is not [`LISTENERS`].
fn number(slot: usize) -> u64 {
    (slot as u64 + 1) << STREAM_BITS
}

/// Connections with one peer, in one direction of calling.
#[derive(Debug)]
enum Slot {
    Arrival(Arrival),
    Gathering(Gathering),
    Target(Target),
    Dial(Dial),
    Initiator(Initiator),
    /// While one of the others becomes the next one.
    Changing,
}

/// What a turn of a slot has come to.
enum Turned {
    Moved(bool),
    Hello(Hello),
    Gathered,
    Connected(Connected),
}

/// Who this agent is to others.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: Arc<str>,
    pub(crate) cookie: u64,
    pub(crate) caller: Caller,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Connections {
    identity: Identity,
    settings: Settings,
    network: Arc<dyn Network>,
    slots: Slab<Slot>,
    /// Where the peers are that this agent calls.
    called: HashMap<Arc<str>, usize>,
    ready: Vec<Ready>,
}

impl Connections {
    pub(crate) fn new(identity: Identity, settings: Settings, network: Arc<dyn Network>) -> Self {
        Self {
            identity,
            settings,
            network,
            slots: Slab::new(),
            called: HashMap::new(),
            ready: Vec::new(),
        }
    }

    /// Returns whether a peer is connected, or is being connected.
    pub(crate) fn calls(&self, peer: &str) -> bool {
        self.called.contains_key(peer)
    }

    /// Begins to connect a peer, in the next turn.
    pub(crate) fn call(&mut self, dial: Dial) {
        let peer = Arc::clone(&dial.peer);
        let slot = self.slots.insert(Slot::Dial(dial));
        self.called.insert(peer, slot);
    }

    /// Gives a peer that is called a job, and begins with it.
    pub(crate) fn give(
        &mut self,
        peer: &str,
        job: Job,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let gone = || {
            Failure::new(
                Status::NotFound,
                format!("the agent {} is not called", peer.escape_debug()),
            )
        };
        let slot = *self.called.get(peer).ok_or_else(gone)?;
        match self.slots.get_mut(slot) {
            Some(Slot::Dial(dial)) => dial.take(job),
            Some(Slot::Initiator(initiator)) => {
                initiator.take(job)?;
                if let Err(broken) = initiator.advance(context) {
                    self.on_broken(slot, broken);
                }
                Ok(())
            }
            _ => Err(gone()),
        }
    }

    /// Ends a transfer that is going on.
    pub(crate) fn cancel(&mut self, transfer: &Arc<Transfer>) {
        let slot = self.called.get(&transfer.peer).copied();
        match slot.and_then(|slot| self.slots.get_mut(slot)) {
            Some(Slot::Initiator(initiator)) => initiator.cancel(transfer.posting()),
            Some(Slot::Dial(dial)) => dial.cancel(transfer),
            _ => transfer.set_status(Status::Cancelled),
        }
    }

    /// Ends the connections to a peer. Transfers that are going on fail.
    pub(crate) fn hang_up(&mut self, peer: &str) {
        let slot = self.called.remove(peer);
        match slot.and_then(|slot| self.slots.try_remove(slot)) {
            Some(Slot::Initiator(mut initiator)) => {
                initiator.wires.end();
                fail(initiator.into_transfers(), Status::RemoteDisconnect);
            }
            Some(Slot::Dial(dial)) => fail(dial.into_transfers(), Status::RemoteDisconnect),
            _ => {}
        }
    }

    /// Returns whether a turn would move something, without a socket becoming ready.
    pub(crate) fn can_go_on(&self) -> bool {
        self.slots.iter().any(|(_, slot)| match slot {
            Slot::Initiator(initiator) => initiator.can_go_on(),
            // It has no socket before its first turn.
            Slot::Dial(dial) => !dial.has_begun(),
            Slot::Arrival(_) | Slot::Gathering(_) | Slot::Target(_) | Slot::Changing => false,
        })
    }

    /// Returns whether records for a peer wait: transfers that are not announced, or notifications.
    pub(crate) fn has_unsent(&self) -> bool {
        self.slots.iter().any(|(_, slot)| match slot {
            Slot::Initiator(initiator) => initiator.wires.control.queued() > 0,
            Slot::Dial(dial) => !dial.jobs.is_empty(),
            Slot::Arrival(_) | Slot::Gathering(_) | Slot::Target(_) | Slot::Changing => false,
        })
    }

    /// Moves what can be moved. Returns whether that was something: then there may be more.
    pub(crate) fn turn(&mut self, context: &mut Context<'_>) -> bool {
        let now = Instant::now();
        self.collect(now);
        let mut worked = false;
        for slot in 0..self.slots.capacity() {
            worked |= self.turn_slot(slot, context, now);
        }
        worked
    }

    /// Notes which sockets are ready, and accepts connections.
    fn collect(&mut self, now: Instant) {
        let mut all = std::mem::take(&mut self.ready);
        if let Err(error) = self.network.collect(&mut all) {
            warn(&format!(
                "cannot find out which connections are ready: {error}"
            ));
        }
        for ready in all.drain(..) {
            let stream = (ready.number & ((1 << STREAM_BITS) - 1)) as usize;
            let slot = (ready.number >> STREAM_BITS).checked_sub(1);
            let slot = slot.and_then(|slot| self.slots.get_mut(usize::try_from(slot).ok()?));
            match slot {
                None if ready.number == LISTENERS => self.accept(now),
                None | Some(Slot::Changing) => {}
                Some(Slot::Arrival(arrival)) => arrival.control.wire.on_ready(ready),
                Some(Slot::Gathering(gathering)) => gathering.on_ready(stream, ready),
                Some(Slot::Target(target)) => target.wires.on_ready(stream, ready),
                Some(Slot::Dial(dial)) => dial.on_ready(stream, ready),
                Some(Slot::Initiator(initiator)) => initiator.wires.on_ready(stream, ready),
            }
        }
        self.ready = all;
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..TURN_ACCEPTS {
            let entry = self.slots.vacant_entry();
            let Some(wire) = self.network.accept(number(entry.key())) else {
                return;
            };
            let key = entry.key();
            entry.insert(Slot::Arrival(Arrival::new(wire, now)));
            let is_incomplete = |slot: &Slot| matches!(slot, Slot::Arrival(_) | Slot::Gathering(_));
            let slots = self.slots.iter();
            if slots.filter(|(_, slot)| is_incomplete(slot)).count() > MAX_ARRIVALS {
                // Strangers hold all places. They go after their time.
                self.slots.remove(key);
            }
        }
    }

    fn turn_slot(&mut self, index: usize, context: &mut Context<'_>, now: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(index) else {
            return false;
        };
        let turned = match slot {
            Slot::Changing => Ok(Turned::Moved(false)),
            Slot::Initiator(initiator) => initiator.turn(context).map(Turned::Moved),
            Slot::Target(target) => target.turn(context).map(Turned::Moved),
            Slot::Arrival(arrival) => {
                let hello = arrival.turn(self.identity.cookie, now);
                hello.map(|hello| hello.map_or(Turned::Moved(false), Turned::Hello))
            }
            Slot::Gathering(gathering) => gathering.turn(now).map(|is_whole| match is_whole {
                true => Turned::Gathered,
                false => Turned::Moved(false),
            }),
            Slot::Dial(dial) => {
                let with = Dialing {
                    network: &*self.network,
                    number: number(index),
                    settings: &self.settings,
                    agent: &self.identity.name,
                    caller: self.identity.caller,
                    now,
                };
                dial.turn(&with)
                    .map(|it| it.map_or(Turned::Moved(false), Turned::Connected))
            }
        };
        match turned {
            Ok(Turned::Moved(worked)) => return worked,
            Ok(Turned::Hello(hello)) => self.on_hello(index, hello, now),
            Ok(Turned::Gathered) => self.on_gathered(index),
            Ok(Turned::Connected(connected)) => self.on_connected(index, connected),
            Err(broken) => self.on_broken(index, broken),
        }
        true
    }

    /// Takes what is in a slot, which stays in use.
    fn change(&mut self, index: usize) -> Slot {
        let slot = self.slots.get_mut(index);
        slot.map_or(Slot::Changing, |slot| {
            std::mem::replace(slot, Slot::Changing)
        })
    }

    fn on_hello(&mut self, index: usize, hello: Hello, now: Instant) {
        let Slot::Arrival(arrival) = self.change(index) else {
            return;
        };
        match (hello, random()) {
            (
                Hello::Peer {
                    name,
                    streams,
                    near,
                },
                Ok(session),
            ) => {
                let control = arrival.control;
                let gathering = Gathering::new(name, session, streams, control, near, now);
                self.slots[index] = Slot::Gathering(gathering);
            }
            (Hello::Peer { .. }, Err(_)) => drop(self.slots.remove(index)),
            (Hello::Data { session, stream }, _) => {
                self.slots.remove(index);
                self.add_data(session, stream, arrival.control.into_wire());
            }
        }
    }

    /// Gives a connection for payload to the peer that has announced it. One that nobody has announced is closed.
    fn add_data(&mut self, session: u64, stream: u16, mut wire: Box<dyn Wire>) {
        let found = self.slots.iter_mut().find_map(|(index, slot)| match slot {
            Slot::Gathering(it) if it.session == session && it.lacks(stream) => Some((index, it)),
            _ => None,
        });
        if let Some((index, gathering)) = found
            && wire.renumber(number(index) + u64::from(stream)).is_ok()
        {
            gathering.add(stream, wire);
        }
    }

    fn on_gathered(&mut self, index: usize) {
        if let Slot::Gathering(gathering) = self.change(index) {
            let (peer, wires) = gathering.into_wires();
            self.slots[index] = Slot::Target(Target::new(peer, wires));
        }
    }

    fn on_connected(&mut self, index: usize, connected: Connected) {
        let Slot::Dial(dial) = self.change(index) else {
            return;
        };
        let carriers = &connected.wires.carriers;
        let way = match (&carriers.near, connected.is_near) {
            (Some(_), true) => {
                "unix: each byte is copied once, by the process that needs it".to_owned()
            }
            (None, false) => self.network.describe(),
            (Some(_), false) => {
                "unix for reads and sockets for writes: it cannot read the memory of this process"
                    .to_owned()
            }
            (None, true) => {
                "unix for writes and sockets for reads: the memory of its process cannot be read"
                    .to_owned()
            }
        };
        let name = dial.peer.escape_debug();
        info(&format!("connected to the agent {name} by the way {way}"));
        let mut initiator = Initiator::new(dial.peer, connected);
        for job in dial.jobs {
            if let Err(failure) = initiator.take(job) {
                warn(&failure.to_string());
            }
        }
        self.slots[index] = Slot::Initiator(initiator);
    }

    fn on_broken(&mut self, index: usize, broken: Broken) {
        match self.slots.try_remove(index) {
            None | Some(Slot::Changing | Slot::Gathering(_)) => {}
            Some(Slot::Arrival(arrival)) => arrival.refuse(&broken),
            Some(Slot::Target(mut target)) => {
                if let Some(fault) = broken.fault() {
                    warn(&format!(
                        "the agent {} is disconnected: {broken}",
                        target.peer().escape_debug()
                    ));
                    target.wires.control.queue(Record::Failed(fault));
                }
                target.wires.end();
            }
            Some(Slot::Dial(dial)) => {
                self.called.remove(&dial.peer);
                warn(&format!(
                    "cannot connect to the agent {}: {broken}",
                    dial.peer.escape_debug()
                ));
                fail(dial.into_transfers(), broken.status());
            }
            Some(Slot::Initiator(mut initiator)) => {
                self.called.remove(&initiator.peer);
                let name = initiator.peer.escape_debug();
                let text = format!("lost the agent {name}: {broken}");
                match (initiator.is_idle(), broken.status()) {
                    // Nothing is lost: it may have done its work.
                    (true, Status::RemoteDisconnect) => info(&text),
                    _ => warn(&text),
                }
                if let Some(fault) = broken.fault() {
                    initiator.wires.control.queue(Record::Failed(fault));
                    initiator.wires.end();
                }
                fail(initiator.into_transfers(), broken.status());
            }
        }
    }
}

fn fail(transfers: impl Iterator<Item = Arc<Transfer>>, status: Status) {
    transfers.for_each(|transfer| transfer.set_status(status));
}
