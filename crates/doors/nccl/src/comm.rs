//! Communicators: one endpoint each, and the requests on it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exchange::{
    Access, Buffer, Cause, Endpoint, Event, Fabric, MAX_PARTS, Memory, Part, PostError, Region,
    Sizes,
};

use crate::failure::{Code, Failure, code_of, text_of};
use crate::numbers::Table;
use crate::raw::log;
use crate::unpack::{Arrival, Unpacker};

static COMMS: Table<Comm> = Table::new();

/// Number of the communicator that made progress last on behalf of another one.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Most requests of a communicator: 32 receives, or 32 sends for each part of a receive, and as many again.
const MAX_REQUESTS: usize = 2 * 32 * MAX_PARTS;

/// Most parts of a receive, as the properties say.
pub(crate) const MAX_RECVS: usize = MAX_PARTS;

/// A connection to another rank, in one direction.
pub(crate) struct Comm {
    context: u64,
    /// Index of the NIC.
    device: usize,
    direction: Direction,
    /// For NCCL's kernels, if they unpack what is received.
    unpacker: Option<Unpacker>,
    fabric: Fabric,
    endpoint: Endpoint,
    /// Why memory was refused as a dma-buf, for the refusal that follows.
    refusal: Mutex<Option<String>>,
    /// What an empty message is sent from and received into: it may have no registered memory.
    empty: Region,
    /// Locked before the endpoint.
    requests: Mutex<Requests>,
}

/// What a communicator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Receive,
}

struct Requests {
    slots: Vec<Slot>,
    /// The cause is in the log.
    is_told: bool,
}

#[derive(Clone, Copy)]
struct Slot {
    /// Counts the uses of the slot, so that an old request is not taken for a new one.
    generation: u16,
    state: Progress,
}

#[derive(Clone, Copy)]
enum Progress {
    Free,
    Pending,
    Sent {
        len: u64,
    },
    Received(Sizes),
    /// A kernel may be reading what was received.
    Unpacked,
    Failed,
}

/// Name of a request: the communicator, the generation and the slot. Never 0 or 1, which mean something else to NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestName(pub(crate) u64);

impl RequestName {
    fn new(comm: u64, generation: u16, slot: usize) -> Self {
        // A slot is below MAX_REQUESTS.
        Self(comm << 32 | u64::from(generation) << 16 | slot as u64)
    }

    fn comm(self) -> u64 {
        self.0 >> 32
    }

    fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn slot(self) -> usize {
        usize::from(self.0 as u16)
    }
}

/// The outcome of a test.
pub(crate) enum Outcome {
    Pending,
    Done(Vec<u64>),
}

/// A part of a receive.
pub(crate) struct Wanted {
    pub(crate) region: Option<(Region, Range<usize>)>,
    pub(crate) tag: i32,
}

impl Comm {
    /// Adds a communicator and returns its number.
    pub(crate) fn add(
        context: u64,
        device: usize,
        direction: Direction,
        fabric: Fabric,
        endpoint: Endpoint,
        unpacker: Option<Unpacker>,
    ) -> Result<u64, Failure> {
        let empty = fabric.register(Memory::Host(Buffer::new(Vec::new())), Access::PRIVATE)?;
        let comm = Self {
            context,
            device,
            direction,
            unpacker,
            fabric,
            endpoint,
            refusal: Mutex::default(),
            empty,
            requests: Mutex::new(Requests {
                slots: Vec::new(),
                is_told: false,
            }),
        };
        COMMS.insert(comm)
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Remembers why memory was refused as a dma-buf.
    pub(crate) fn note_refusal(&self, text: &str) {
        *self.refusals() = Some(text.to_owned());
    }

    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusals().clone()
    }

    fn refusals(&self) -> MutexGuard<'_, Option<String>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a send. `None`: not now.
    pub(crate) fn send(
        &self,
        number: u64,
        memory: Option<(Region, Range<usize>)>,
        tag: i32,
    ) -> Result<Option<RequestName>, Failure> {
        let (region, range) = memory.unwrap_or_else(|| (self.empty.clone(), 0..0));
        let len = range.len() as u64;
        self.post(number, |user| {
            self.endpoint
                .send(&region, range, tag.cast_unsigned(), user | len_bits(len))
        })
    }

    /// Posts a receive. `None`: not now.
    pub(crate) fn receive(
        &self,
        number: u64,
        wanted: Vec<Wanted>,
    ) -> Result<Option<RequestName>, Failure> {
        if let Some(unpacker) = &self.unpacker {
            return self.receive_frags(number, unpacker, wanted);
        }
        let whole: Vec<_> = wanted
            .into_iter()
            .map(|part| {
                let memory = part.region.unwrap_or_else(|| (self.empty.clone(), 0..0));
                (memory, part.tag.cast_unsigned())
            })
            .collect();
        let parts: Vec<_> = whole
            .iter()
            .map(|((region, range), tag)| Part {
                region,
                range: range.clone(),
                tag: *tag,
            })
            .collect();
        self.post(number, |user| self.endpoint.receive(&parts, user))
    }

    /// Posts a receive that a kernel will unpack.
    fn receive_frags(
        &self,
        number: u64,
        unpacker: &Unpacker,
        wanted: Vec<Wanted>,
    ) -> Result<Option<RequestName>, Failure> {
        let [Wanted { region, tag }] = &wanted[..] else {
            let text = "a receive that kernels unpack has one part, as the properties say";
            return Err(Failure::new(Code::Internal, text));
        };
        let room = region.as_ref().map_or(0, |(_, range)| range.len());
        let tag = tag.cast_unsigned();
        let arrival = Arrival::new(room);
        let landing = Memory::Landing(Arc::clone(&arrival) as _);
        let region = self.fabric.register(landing, Access::PRIVATE)?;
        self.post(number, |user| {
            if !unpacker.has_room() {
                return Err(PostError::Full);
            }
            let range = 0..room;
            let part = Part {
                region: &region,
                range,
                tag,
            };
            self.endpoint.receive(&[part], user)?;
            unpacker.begin(RequestName(user).slot(), arrival);
            Ok(())
        })
    }

    /// A kernel has unpacked what a request received: the request, and the memory, are free.
    pub(crate) fn consumed(&self, number: u64, name: RequestName) -> Result<(), Failure> {
        let Some(unpacker) = &self.unpacker else {
            // It was free when it was done.
            return Ok(());
        };
        let mut requests = self.requests();
        let slot = requests.slots.get_mut(name.slot());
        let slot = slot.filter(|slot| {
            let is_it = name.comm() == number && slot.generation == name.generation();
            is_it && matches!(slot.state, Progress::Unpacked)
        });
        slot.ok_or_else(|| Failure::no_such("request"))?.free();
        unpacker.end(name.slot());
        Ok(())
    }

    fn post(
        &self,
        number: u64,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<Option<RequestName>, Failure> {
        let mut requests = self.requests();
        let Some(slot) = requests.free_slot() else {
            return Ok(None);
        };
        let generation = requests.slots[slot].generation;
        let name = RequestName::new(number, generation, slot);
        match post(name.0 & u64::from(u32::MAX)) {
            Ok(()) => {
                requests.slots[slot].state = Progress::Pending;
                Ok(Some(name))
            }
            Err(PostError::Full) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes progress, and returns what became of a request. A request that is done or has failed is free afterwards.
    ///
    /// While the request is not done, one other communicator makes progress, too, in turn: a receive must not starve
    /// because the caller tests nothing else, and the send that it waits for belongs to a communicator of the same process.
    pub(crate) fn test(&self, name: RequestName) -> Result<Outcome, Failure> {
        let outcome = self.outcome(&mut self.requests(), name);
        if matches!(outcome, Ok(Outcome::Pending)) {
            let next = COMMS.after(TURN.load(Ordering::Relaxed));
            if let Some((number, other)) = next {
                TURN.store(number, Ordering::Relaxed);
                // One that another thread uses makes progress there.
                if let Ok(mut requests) = other.requests.try_lock() {
                    other.progress(&mut requests);
                }
            }
        }
        outcome
    }

    fn progress(&self, requests: &mut Requests) {
        self.endpoint.progress();
        while let Some(event) = self.endpoint.next_event() {
            requests.on_event(&event);
        }
    }

    fn outcome(&self, requests: &mut Requests, name: RequestName) -> Result<Outcome, Failure> {
        self.progress(requests);
        let slot = requests.slots.get_mut(name.slot());
        let slot = slot.filter(|slot| slot.generation == name.generation());
        let slot = slot.ok_or_else(|| Failure::no_such("request"))?;
        let outcome = match slot.state {
            Progress::Pending => return Ok(Outcome::Pending),
            Progress::Free | Progress::Unpacked => return Err(Failure::no_such("request")),
            Progress::Sent { len } => Ok(Outcome::Done(vec![len])),
            Progress::Received(sizes) => match &self.unpacker {
                None => Ok(Outcome::Done(sizes.to_vec())),
                Some(unpacker) => return slot.publish(unpacker, name.slot(), sizes),
            },
            Progress::Failed => Err(()),
        };
        slot.free();
        if let Some(unpacker) = &self.unpacker {
            unpacker.end(name.slot());
        }
        outcome.map_err(|()| requests.failure(self.endpoint.cause().as_deref()))
    }
}

/// A send reports its length when it is done: the upper half of the number that its event brings back. Longer messages than
/// 4 GiB do not exist: the properties limit them.
fn len_bits(len: u64) -> u64 {
    len.min(u64::from(u32::MAX)) << 32
}

impl Slot {
    fn free(&mut self) {
        self.state = Progress::Free;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Makes the list of a receive whose message is there. The request stays until a kernel has unpacked it.
    fn publish(
        &mut self,
        unpacker: &Unpacker,
        request: usize,
        sizes: Sizes,
    ) -> Result<Outcome, Failure> {
        let len = sizes.first().copied().unwrap_or(0);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        match unpacker.publish(request, len) {
            Ok(false) => Ok(Outcome::Pending),
            Ok(true) => {
                self.state = Progress::Unpacked;
                Ok(Outcome::Done(sizes.to_vec()))
            }
            Err(failure) => {
                self.free();
                unpacker.end(request);
                Err(failure)
            }
        }
    }
}

impl Requests {
    fn free_slot(&mut self) -> Option<usize> {
        let free = |slot: &Slot| matches!(slot.state, Progress::Free);
        let found = self.slots.iter().position(free);
        if found.is_some() || self.slots.len() == MAX_REQUESTS {
            return found;
        }
        self.slots.push(Slot {
            generation: 0,
            state: Progress::Free,
        });
        Some(self.slots.len() - 1)
    }

    fn on_event(&mut self, event: &Event) {
        let (user, state) = match event {
            Event::Sent { user } => (*user, Progress::Sent { len: *user >> 32 }),
            Event::Received { user, sizes } => (*user, Progress::Received(*sizes)),
            Event::Failed { user } => (*user, Progress::Failed),
            // The others belong to operations that this plugin does not post; `Broken` precedes the failures.
            _ => return,
        };
        let name = RequestName(user);
        if let Some(slot) = self.slots.get_mut(name.slot())
            && matches!(slot.state, Progress::Pending)
        {
            slot.state = state;
        }
    }

    /// Returns the failure of a request, with a text for the first one.
    fn failure(&mut self, cause: Option<&Cause>) -> Failure {
        let code = cause.map_or(Code::Internal, code_of);
        let text = match (self.is_told, cause) {
            (false, Some(cause)) => Some(text_of(cause)),
            _ => None,
        };
        self.is_told = true;
        Failure { code, text }
    }
}

/// Returns a communicator.
pub(crate) fn comm(number: u64) -> Result<Arc<Comm>, Failure> {
    COMMS
        .get(number)
        .ok_or_else(|| Failure::no_such("communicator"))
}

/// Returns the communicator of a request.
pub(crate) fn comm_of(name: RequestName) -> Result<Arc<Comm>, Failure> {
    COMMS
        .get(name.comm())
        .ok_or_else(|| Failure::no_such("request"))
}

/// Closes a communicator, and logs what it has moved. Requests in flight are dropped; what is sent still arrives.
pub(crate) fn close(number: u64) -> Result<(), Failure> {
    let comm = COMMS.remove(number);
    let comm = comm.ok_or_else(|| Failure::no_such("communicator"))?;
    let moved = comm.endpoint.stats();
    log::info(&format!(
        "NET/Devmem: a communicator is closed: {} bytes sent, {} received, {} of them by way of device memory",
        moved.sent_bytes, moved.received_bytes, moved.received_by_device
    ));
    Ok(())
}

pub(crate) fn is_empty() -> bool {
    COMMS.is_empty()
}

/// Closes the communicators of a context: NCCL, which ends it, names them no more.
pub(crate) fn end_context(context: u64) {
    drop(COMMS.remove_if(|comm| comm.context == context));
}

/// Closes everything, when the library is unloaded.
pub(crate) fn unload() {
    drop(COMMS.remove_if(|_| true));
}
