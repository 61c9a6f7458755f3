//! The device type UNPACK: NCCL's kernels gather received frags themselves, by lists that are made here.
//!
//! The pool of a NIC is the beginning of the bounce buffer, one allocation of the GPU; the rest of it is reserved for what
//! the NIC did not write to the pool, and for the handles of connections. A receive takes frags over ([`Arrival`]) and keeps them
//! until NCCL says that the kernel has consumed them; then their tokens go home.
//!
//! The k-th receive of a connection uses list k mod 16. Whose list is in use is not taken yet.

mod layout;
mod list;
mod reserve;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_tcp::cuda::{self, Device, SharedWords};
use devmem_tcp::{Dmabuf, Frag, RxBatch};
use exchange::{Landing, MemoryGone};

use self::layout::{DeviceHandle, SLOT_ENTRIES, SLOTS, WORDS, count_at, list_at};
use self::list::{BadPieces, List, Move, Piece, Source};
use self::reserve::Reserve;
use crate::failure::{Code, Failure};

pub(crate) use self::layout::{TYPE, VERSION};

/// Bytes of a device handle.
pub(crate) const HANDLE_BYTES: usize = size_of::<DeviceHandle>();

/// Bytes of the bounce buffer behind the pool.
const RESERVE_BYTES: usize = 32 << 20;

/// Offsets in the bounce buffer have 32 bits.
const MAX_BOUNCE_BYTES: usize = 1 << 32;

/// The bounce buffer of a NIC.
#[derive(Debug)]
pub(crate) struct Bounce {
    gpu: Device,
    /// Address of its first byte.
    address: u64,
    /// Its beginning, which is bound to the NIC.
    pool: Dmabuf,
    /// What follows the pool.
    rest: Dmabuf,
    reserve: Reserve,
}

impl Bounce {
    /// Allocates a bounce buffer whose pool has `pool` bytes, rounded up to whole pages, on GPU `ordinal`.
    pub(crate) fn new(ordinal: u32, pool: usize) -> Result<Arc<Self>, Failure> {
        let pool = pool.checked_next_multiple_of(4096).unwrap_or(usize::MAX);
        if pool > MAX_BOUNCE_BYTES - RESERVE_BYTES {
            let most = MAX_BOUNCE_BYTES - RESERVE_BYTES;
            return Err(Failure::new(
                Code::Usage,
                format!(
                    "with NCCL_DEVMEM_UNPACK=1, NCCL_DEVMEM_POOL is at most {most}, because NCCL counts with 32 bits there"
                ),
            ));
        }
        let gpu = cuda::open(ordinal)?;
        let mut parts = gpu.alloc_adjacent(&[pool, RESERVE_BYTES])?.into_iter();
        let (Some(pool), Some(rest)) = (parts.next(), parts.next()) else {
            return Err(Failure::new(Code::Internal, "memory was not allocated"));
        };
        Ok(Arc::new(Self {
            gpu,
            address: pool.device_ptr(),
            pool: pool.into_dmabuf(),
            rest: rest.into_dmabuf(),
            reserve: Reserve::new(RESERVE_BYTES),
        }))
    }

    /// Returns the memory to bind for receiving.
    pub(crate) fn pool(&self) -> Dmabuf {
        self.pool.clone()
    }

    /// Takes a span of the reserved part; `None`: not now.
    fn span(self: &Arc<Self>, len: usize) -> Option<Span> {
        let at = self.reserve.take(len)?;
        let bounce = Arc::clone(self);
        Some(Span { bounce, at })
    }
}

/// A span of the reserved part, which is free again when it is dropped.
#[derive(Debug)]
struct Span {
    bounce: Arc<Bounce>,
    /// Where it begins in the reserved part.
    at: usize,
}

impl Drop for Span {
    fn drop(&mut self) {
        self.bounce.reserve.give_back(self.at);
    }
}

impl Span {
    /// Returns where it begins in the bounce buffer.
    fn offset(&self) -> usize {
        self.bounce.pool.size() + self.at
    }

    /// Makes a copy that a list needs.
    fn copy(&self, step: Move<'_>) -> Result<(), devmem_tcp::memory::CopyError> {
        let Bounce { pool, rest, .. } = &*self.bounce;
        match step {
            Move::Host { to, bytes } => rest.copy_in(self.at + to, bytes),
            Move::Gather { to, ranges } => {
                // Both are memory of one GPU.
                match rest.gather_from(pool, ranges, self.at + to)? {
                    Some(copies) => Ok(copies.wait()?),
                    None => Ok(()),
                }
            }
        }
    }
}

/// What has arrived of a message.
pub(crate) struct Arrival {
    /// Bytes of room.
    room: usize,
    arrived: Mutex<Arrived>,
}

#[derive(Default)]
struct Arrived {
    batches: Vec<(usize, RxBatch)>,
    bytes: Vec<(usize, Vec<u8>)>,
}

impl Arrival {
    pub(crate) fn new(room: usize) -> Arc<Self> {
        let arrived = Mutex::default();
        Arc::new(Self { room, arrived })
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Landing for Arrival {
    fn size(&self) -> usize {
        self.room
    }

    fn land(&self, at: usize, batch: RxBatch) -> Result<(), MemoryGone> {
        self.arrived().batches.push((at, batch));
        Ok(())
    }

    fn land_bytes(&self, at: usize, bytes: &[u8]) -> Result<(), MemoryGone> {
        self.arrived().bytes.push((at, bytes.to_vec()));
        Ok(())
    }
}

impl Arrived {
    fn list(&self, len: usize) -> Result<List<'_>, BadPieces> {
        let mut pieces = Vec::new();
        for (at, batch) in &self.batches {
            let mut at = *at;
            for frag in batch {
                let (len, source) = match frag {
                    Frag::Device { range, .. } => (range.len(), Source::Bounce(range)),
                    Frag::Linear(bytes) => (bytes.len(), Source::Host(bytes)),
                };
                pieces.push(Piece { at, source });
                at = at.checked_add(len).ok_or(BadPieces)?;
            }
        }
        let host = self.bytes.iter().map(|(at, bytes)| Piece {
            at: *at,
            source: Source::Host(bytes),
        });
        pieces.extend(host);
        List::of(pieces, len, SLOT_ENTRIES)
    }
}

/// The lists of a connection that receives.
#[derive(Debug)]
pub(crate) struct Unpacker {
    lists: SharedWords,
    handle: Span,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// Number of receives that were posted.
    posted: u64,
    /// What each list is used for.
    used: [Option<Used>; SLOTS],
}

/// A receive whose list is in use.
struct Used {
    /// Its name among the requests.
    request: usize,
    arrival: Arc<Arrival>,
    /// Where copied bytes are, as long as kernels may read them.
    span: Option<Span>,
}

impl std::fmt::Debug for Used {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Used({}, {:?})", self.request, self.span)
    }
}

impl From<BadPieces> for Failure {
    fn from(_: BadPieces) -> Self {
        Self::new(
            Code::Internal,
            "the frags of a message are not the message; please report it",
        )
    }
}

impl Unpacker {
    /// Makes the lists and the handle of a connection.
    pub(crate) fn new(bounce: &Arc<Bounce>) -> Result<Self, Failure> {
        let lists = bounce.gpu.alloc_shared(WORDS)?;
        let full = || {
            let text = "the reserved memory of the GPU is used up by communicators";
            Failure::new(Code::Usage, text)
        };
        let handle = bounce.span(HANDLE_BYTES).ok_or_else(full)?;
        let bytes = DeviceHandle::new(lists.device_ptr(), bounce.address).to_bytes();
        let copied = bounce.rest.copy_in(handle.at, &bytes);
        copied.map_err(|error| Failure::new(Code::Cuda, error.to_string()))?;
        Ok(Self {
            lists,
            handle,
            slots: Mutex::default(),
        })
    }

    /// Returns the address of the device handle.
    pub(crate) fn handle(&self) -> u64 {
        self.handle.bounce.address + self.handle.offset() as u64
    }

    /// Locked after the requests of the communicator.
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the next receive has a list.
    pub(crate) fn has_room(&self) -> bool {
        let slots = self.slots();
        slots.used[slots.next()].is_none()
    }

    /// Uses the next list for a receive that was posted.
    pub(crate) fn begin(&self, request: usize, arrival: Arc<Arrival>) {
        let mut slots = self.slots();
        let slot = slots.next();
        slots.posted += 1;
        slots.used[slot] = Some(Used {
            request,
            arrival,
            span: None,
        });
    }

    /// Writes the list of a message of `len` bytes that has arrived. `false`: the reserved memory is short, try again.
    pub(crate) fn publish(&self, request: usize, len: usize) -> Result<bool, Failure> {
        let mut slots = self.slots();
        let slot = slots.of(request)?;
        let Some(used) = &mut slots.used[slot] else {
            return Ok(false);
        };
        let arrived = used.arrival.arrived();
        let mut list = arrived.list(len)?;
        let bounce = &self.handle.bounce;
        let mut offset = 0;
        if list.reserved > 0 {
            if list.reserved > bounce.reserve.size() / 2 {
                let text = format!(
                    "{} bytes of a message of {len} bytes came in host memory or in too many frags; use an MTU of 4200 bytes or \
                     more, and see `devmem-tcp doctor` about header split",
                    list.reserved
                );
                return Err(Failure::new(Code::System, text));
            }
            let Some(span) = bounce.span(list.reserved) else {
                return Ok(false);
            };
            for step in std::mem::take(&mut list.moves) {
                let copied = span.copy(step);
                copied.map_err(|error| Failure::new(Code::Cuda, error.to_string()))?;
            }
            offset = span.offset();
            used.span = Some(span);
        }
        let entries = list.entries(offset)?;
        for (index, entry) in entries.iter().enumerate() {
            let words = entry.words();
            self.lists
                .write(list_at(slot) + index * words.len(), &words);
        }
        self.lists.publish(count_at(slot), entries.len() as u64);
        Ok(true)
    }

    /// Ends the use of a list: its frags go home.
    pub(crate) fn end(&self, request: usize) {
        let mut slots = self.slots();
        let used = slots
            .of(request)
            .ok()
            .and_then(|slot| slots.used[slot].take());
        drop(slots);
        drop(used);
    }
}

impl Slots {
    fn next(&self) -> usize {
        (self.posted % SLOTS as u64) as usize
    }

    fn of(&self, request: usize) -> Result<usize, Failure> {
        let is_it = |used: &Option<Used>| used.as_ref().is_some_and(|it| it.request == request);
        let found = self.used.iter().position(is_it);
        found.ok_or_else(|| Failure::no_such("request"))
    }
}
