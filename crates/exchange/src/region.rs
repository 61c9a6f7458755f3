//! Registered memory: what operations send from and receive into.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use devmem_tcp::memory::BatchGather;
use devmem_tcp::{BoundTarget, BoundTx, Dmabuf, Frag, Netdev, RxBatch};

use crate::error::{Cause, PostError, RegionInUse, RegisterError};

/// Frags of one receive. 64 bytes each, twice: they are allocated at the first use.
pub(crate) const BATCH_FRAGS: usize = 512;

/// Host memory has been taken away: it must not be accessed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGone;

/// Host memory of a program. The exchange copies between it and the NIC.
///
/// Both functions call `with` once with the bytes of `range`, which lies inside of the memory, before they return; or they
/// return [`MemoryGone`] without a call. So whoever implements it decides when nothing touches the memory any more.
pub trait HostMemory: Send + Sync {
    /// Returns the number of bytes.
    fn size(&self) -> usize;

    /// Lends bytes for reading.
    ///
    /// # Errors
    /// [`MemoryGone`].
    fn read(&self, range: Range<usize>, with: &mut dyn FnMut(&[u8])) -> Result<(), MemoryGone>;

    /// Lends bytes for writing. `with` returns how many it has written, from the first on; the others keep their values.
    ///
    /// # Errors
    /// [`MemoryGone`].
    fn write(
        &self,
        range: Range<usize>,
        with: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), MemoryGone>;
}

/// A place that takes received payload over instead of having it copied: a device will gather it, by a list that the program gives it.
///
/// Each byte comes once; pieces come in any order. What is refused breaks the endpoint. Nothing can be sent from such a place.
pub trait Landing: Send + Sync {
    /// Returns how many bytes there is room for.
    fn size(&self) -> usize;

    /// Takes frags, the first byte of which belongs to `at`. Their memory is lent until the batch is released or dropped.
    ///
    /// # Errors
    /// [`MemoryGone`]: the bytes are not wanted any more.
    fn land(&self, at: usize, batch: RxBatch) -> Result<(), MemoryGone>;

    /// Takes a copy of bytes that came in host memory, and belong to `at`.
    ///
    /// # Errors
    /// As [`land`](Self::land).
    fn land_bytes(&self, at: usize, bytes: &[u8]) -> Result<(), MemoryGone>;
}

/// Host memory behind a lock, for programs without pointers.
#[derive(Debug)]
pub struct Buffer(Mutex<Vec<u8>>);

impl Buffer {
    /// Takes bytes over.
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }

    /// Calls `with` with all bytes.
    pub fn with<T>(&self, with: impl FnOnce(&mut [u8]) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HostMemory for Buffer {
    fn size(&self) -> usize {
        self.with(|bytes| bytes.len())
    }

    fn read(&self, range: Range<usize>, with: &mut dyn FnMut(&[u8])) -> Result<(), MemoryGone> {
        self.with(|bytes| bytes.get(range).map(with))
            .ok_or(MemoryGone)
    }

    fn write(
        &self,
        range: Range<usize>,
        with: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), MemoryGone> {
        let written = self.with(|bytes| bytes.get_mut(range).map(with));
        written.map(drop).ok_or(MemoryGone)
    }
}

/// Memory to register.
#[derive(Clone)]
pub enum Memory<'a> {
    /// Device memory of this process.
    Device(&'a Dmabuf),
    /// A dma-buf of another driver or process. The descriptor is duplicated.
    Fd(BorrowedFd<'a>),
    /// Host memory.
    Host(Arc<dyn HostMemory>),
    /// A place that takes frags over; for receives.
    Landing(Arc<dyn Landing>),
}

/// What a peer may do with a region whose key it was given. Sends and receives of this side need no permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The peer may write to it.
    pub put: bool,
    /// The peer may read it.
    pub get: bool,
}

impl Access {
    /// The peer may do nothing.
    pub const PRIVATE: Self = Self {
        put: false,
        get: false,
    };
    /// The peer may read and write.
    pub const PUBLIC: Self = Self {
        put: true,
        get: true,
    };
}

/// Names a region to the peer of the endpoint that [published](crate::Endpoint::publish) it: 64 random bits, which no other endpoint
/// accepts. Plain data: send it by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u64);

/// A dma-buf, shared by all regions in it, with at most one binding for sending.
pub(crate) struct Device {
    pub(crate) memory: Dmabuf,
    sending: Mutex<Option<TxPath>>,
    /// Set at the first use; `None` in it: the NIC cannot place payload there.
    target: OnceLock<Option<Arc<BoundTarget>>>,
}

/// How a dma-buf is sent.
#[derive(Clone)]
pub(crate) enum TxPath {
    ZeroCopy(Arc<BoundTx>),
    /// The NIC cannot send from it: through host memory.
    Copied,
}

impl Device {
    pub(crate) fn new(memory: Dmabuf) -> Self {
        Self {
            memory,
            sending: Mutex::new(None),
            target: OnceLock::new(),
        }
    }

    /// Returns the memory as a target of the NIC's placement, if the NIC can write to it. Binds it at the first call.
    fn target(&self, nic: &Netdev) -> Option<&Arc<BoundTarget>> {
        let bind = || nic.bind_target(&self.memory).ok().map(Arc::new);
        self.target.get_or_init(bind).as_ref()
    }

    /// Binds the memory for sending, unless it is bound.
    fn bind_tx(&self, nic: &Netdev) -> Result<(), devmem_tcp::Error> {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*sending, Some(TxPath::ZeroCopy(_))) {
            *sending = Some(TxPath::ZeroCopy(Arc::new(nic.bind_tx(&self.memory)?)));
        }
        Ok(())
    }

    /// Returns how to send, and binds at the first call.
    fn tx_path(&self, nic: &Netdev) -> TxPath {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        sending
            .get_or_insert_with(|| match nic.bind_tx(&self.memory) {
                Ok(bound) => TxPath::ZeroCopy(Arc::new(bound)),
                Err(_unsupported) => TxPath::Copied,
            })
            .clone()
    }
}

/// The memory of a region.
pub(crate) enum Kind {
    Device(Arc<Device>),
    Host(Arc<dyn HostMemory>),
    Landing(Arc<dyn Landing>),
}

impl Kind {
    fn size(&self) -> usize {
        match self {
            Self::Device(device) => device.memory.size(),
            Self::Host(memory) => memory.size(),
            Self::Landing(place) => place.size(),
        }
    }
}

pub(crate) struct RegionInner {
    /// Its other owners are the operations that use it.
    bytes: Arc<RegionBytes>,
    pub(crate) access: Access,
    /// Identifies the fabric.
    fabric: u64,
}

/// The bytes of a region.
struct RegionBytes {
    kind: Kind,
    /// Where in the memory the region begins.
    base: usize,
    len: usize,
}

/// Registered memory. Clones are handles of the same region; with the last one the peer can no longer name it.
#[derive(Clone)]
pub struct Region {
    inner: Arc<RegionInner>,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("access", &self.inner.access)
            .field("len", &self.inner.bytes.len)
            .field("users", &self.users())
            .finish_non_exhaustive()
    }
}

/// What a new region is made of.
pub(crate) struct NewRegion {
    pub(crate) access: Access,
    pub(crate) fabric: u64,
}

impl Region {
    /// Makes a region of `range` of a memory, or of all of it.
    pub(crate) fn new(
        kind: Kind,
        range: Option<Range<usize>>,
        new: NewRegion,
    ) -> Result<Self, RegisterError> {
        let size = kind.size();
        let range = range.unwrap_or(0..size);
        if range.start > range.end || range.end > size {
            return Err(RegisterError::OutOfBounds {
                offset: range.start,
                end: range.end,
                size,
            });
        }
        Ok(Self {
            inner: Arc::new(RegionInner {
                bytes: Arc::new(RegionBytes {
                    kind,
                    base: range.start,
                    len: range.len(),
                }),
                access: new.access,
                fabric: new.fabric,
            }),
        })
    }

    pub(crate) fn inner(&self) -> &Arc<RegionInner> {
        &self.inner
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.inner.bytes.len
    }

    /// Returns the number of operations that use the region, of this side and of peers.
    pub fn users(&self) -> usize {
        let owners = Arc::strong_count(&self.inner.bytes);
        // What operations have done to the memory comes before what the caller does with it.
        fence(Ordering::Acquire);
        owners.saturating_sub(1)
    }

    /// Binds the memory for sending: see [`Fabric::bind_tx`](crate::Fabric::bind_tx).
    pub(crate) fn bind_tx(&self, nic: &Netdev) -> Result<(), devmem_tcp::Error> {
        match &self.inner.bytes.kind {
            Kind::Device(device) => device.bind_tx(nic),
            Kind::Host(_) | Kind::Landing(_) => Ok(()),
        }
    }

    /// Gives the memory back, unless an operation uses it. Dropping a region in use is legal as well: the operations
    /// go on, and the memory is kept until they end.
    ///
    /// # Errors
    /// The region, and how many operations use it.
    pub fn deregister(self) -> Result<(), (Self, RegionInUse)> {
        match self.users() {
            0 => Ok(()),
            operations => Err((self, RegionInUse { operations })),
        }
    }

    /// Returns whether the region belongs to a fabric.
    pub(crate) fn is_of(&self, fabric: u64) -> bool {
        self.inner.fabric == fabric
    }

    /// Returns the bytes of `range` for an operation of a fabric.
    pub(crate) fn span(&self, fabric: u64, range: Range<usize>) -> Result<Span, PostError> {
        if !self.is_of(fabric) {
            return Err(PostError::OtherFabric);
        }
        Span::new(&self.inner, range.clone()).ok_or(PostError::OutOfBounds {
            offset: range.start,
            end: range.end,
            size: self.inner.bytes.len,
        })
    }
}

/// A range of a region that an operation uses. The region stays in use until it is dropped.
pub(crate) struct Span {
    region: Arc<RegionBytes>,
    at: usize,
    len: usize,
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({}+{} of {})", self.at, self.len, self.region.len)
    }
}

impl Span {
    /// Returns `None` for a range outside of the region.
    pub(crate) fn new(region: &RegionInner, range: Range<usize>) -> Option<Self> {
        Self::of_bytes(&region.bytes, range)
    }

    fn of_bytes(region: &Arc<RegionBytes>, range: Range<usize>) -> Option<Self> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > region.len {
            return None;
        }
        Some(Self {
            region: Arc::clone(region),
            at: range.start,
            len,
        })
    }

    /// Returns a part of it; `None` if that is not inside.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        let start = self.at.checked_add(offset)?;
        Self::of_bytes(&self.region, start..start.checked_add(len)?)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes from `from` on as a range of the memory. Nothing overflows: the region lies inside of the memory, the
    /// span inside of the region, and `from` inside of the span.
    fn in_memory(&self, from: usize) -> Range<usize> {
        let base = self.region.base + self.at;
        base + from..base + self.len
    }

    /// Returns how the bytes from `from` on are to be sent.
    pub(crate) fn source(&self, from: usize, nic: &Netdev) -> Source<'_> {
        let range = self.in_memory(from);
        match &self.region.kind {
            Kind::Host(memory) => Source::Host(&**memory, range),
            Kind::Landing(_) => Source::None,
            Kind::Device(device) => match device.tx_path(nic) {
                TxPath::ZeroCopy(bound) => Source::Bound(bound, range),
                TxPath::Copied => Source::Device(&device.memory, range),
            },
        }
    }

    /// Returns where the NIC can place the bytes from `from` on as they arrive; `None`: nowhere.
    pub(crate) fn place(
        &self,
        from: usize,
        nic: &Netdev,
    ) -> Option<(&Arc<BoundTarget>, Range<usize>)> {
        match &self.region.kind {
            Kind::Device(device) => Some((device.target(nic)?, self.in_memory(from))),
            Kind::Host(_) | Kind::Landing(_) => None,
        }
    }

    /// Returns whether the bytes are copied before they are sent: the NIC cannot send from the memory.
    pub(crate) fn is_copied(&self, nic: &Netdev) -> bool {
        match &self.region.kind {
            Kind::Host(_) | Kind::Landing(_) => true,
            Kind::Device(device) => matches!(device.tx_path(nic), TxPath::Copied),
        }
    }

    /// Copies the first bytes to `out`, which is no longer than the span.
    pub(crate) fn copy_out(&self, out: &mut [u8]) -> Result<(), Cause> {
        let range = self.in_memory(0);
        let range = range.start..range.start + out.len();
        match &self.region.kind {
            Kind::Host(memory) => {
                let lent = memory.read(range, &mut |bytes| out.copy_from_slice(bytes));
                lent.map_err(|MemoryGone| Cause::MemoryGone)
            }
            Kind::Landing(_) => Err(Cause::MemoryGone),
            Kind::Device(device) => {
                let copied = device.memory.copy_out(range.start, out);
                copied.map_err(|error| Cause::Copy(error.into()))
            }
        }
    }

    /// Returns `len` bytes of it; `None` if they are not inside.
    pub(crate) fn place_of(&self, offset: usize, len: usize) -> Option<Place<'_>> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(Place {
            span: self,
            offset,
            len,
        })
    }

    /// Copies bytes to `at`; there is room for them. A GPU's memory is written by the GPU.
    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), Cause> {
        match self.target(at) {
            Target::Host(memory, range) => {
                let range = range.start..range.start + bytes.len();
                let lent = memory.write(range, &mut |out| {
                    out.copy_from_slice(bytes);
                    out.len()
                });
                lent.map_err(|MemoryGone| Cause::MemoryGone)
            }
            Target::Landing(place, at) => {
                let landed = place.land_bytes(at, bytes);
                landed.map_err(|MemoryGone| Cause::MemoryGone)
            }
            Target::Device(memory, at) => {
                let copied = memory.copy_in(at, bytes);
                copied.map_err(|error| Cause::Copy(error.into()))
            }
        }
    }

    /// Returns where the bytes from `from` on are to be received.
    pub(crate) fn target(&self, from: usize) -> Target<'_> {
        let range = self.in_memory(from);
        match &self.region.kind {
            Kind::Host(memory) => Target::Host(&**memory, range),
            Kind::Device(device) => Target::Device(&device.memory, range.start),
            Kind::Landing(place) => Target::Landing(&**place, range.start),
        }
    }
}

/// Bytes of a span that belongs to an operation: bytes that are there already are copied to them without another owner of the region.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    span: &'a Span,
    offset: usize,
    len: usize,
}

impl Place<'_> {
    /// Returns a span of them, for bytes that arrive later.
    pub(crate) fn to_span(&self) -> Option<Span> {
        self.span.part(self.offset, self.len)
    }

    /// Copies bytes to the place, as far as there is room.
    pub(crate) fn copy_in(&self, bytes: &[u8]) -> Result<(), Cause> {
        let bytes = &bytes[..bytes.len().min(self.len)];
        self.span.copy_in(self.offset, bytes)
    }
}

/// Bytes to send.
pub(crate) enum Source<'a> {
    /// Without a copy.
    Bound(Arc<BoundTx>, Range<usize>),
    /// Device memory that the NIC cannot send from.
    Device(&'a Dmabuf, Range<usize>),
    Host(&'a dyn HostMemory, Range<usize>),
    /// There are none.
    None,
}

/// Where to receive.
pub(crate) enum Target<'a> {
    Device(&'a Dmabuf, usize),
    Host(&'a dyn HostMemory, Range<usize>),
    Landing(&'a dyn Landing, usize),
}

/// A batch whose bytes go to their place.
pub(crate) enum Gathered {
    /// They are there.
    Done(RxBatch),
    /// A device is copying them.
    Copying(BatchGather),
}

/// Copies a batch, whose device frags are in `pool`, to the beginning of `target`, in stream order; a landing takes device frags with the
/// batch itself, and leaves an empty one.
pub(crate) fn gather(
    mut batch: RxBatch,
    bytes: usize,
    target: &Target<'_>,
    pool: Option<&Dmabuf>,
) -> Result<Gathered, Cause> {
    match target {
        Target::Device(memory, at) => {
            let mut gather = batch.into_gather(memory, *at).map_err(Cause::Copy)?;
            match gather.is_done().map_err(Cause::Copy)? {
                true => batch = gather.wait().map_err(Cause::Copy)?,
                false => return Ok(Gathered::Copying(gather)),
            }
        }
        Target::Landing(place, at) => {
            land(&mut batch, &**place, *at).map_err(|MemoryGone| Cause::MemoryGone)?;
        }
        Target::Host(memory, range) => {
            let mut copied = Ok(());
            let range = range.start..range.start + bytes;
            let lent = memory.write(range, &mut |out| {
                copied = copy_frags(&batch, out, pool);
                out.len()
            });
            lent.map_err(|MemoryGone| Cause::MemoryGone)?;
            copied?;
        }
    }
    Ok(Gathered::Done(batch))
}

/// Hands a batch to a landing, which keeps it. A peer that sends single bytes must not make each of them cost a whole batch of host memory.
fn land(batch: &mut RxBatch, place: &dyn Landing, mut at: usize) -> Result<(), MemoryGone> {
    if batch.device_bytes() == 0 {
        for frag in &*batch {
            if let Frag::Linear(bytes) = frag {
                place.land_bytes(at, bytes)?;
                at += bytes.len();
            }
        }
        return Ok(());
    }
    let mut taken = std::mem::replace(batch, RxBatch::with_capacity(BATCH_FRAGS));
    if taken.len() < BATCH_FRAGS / 4 {
        taken.shrink_to_fit();
    }
    place.land(at, taken)
}

/// Copies the frags of a batch to host memory that is as long as they are.
fn copy_frags(batch: &RxBatch, mut out: &mut [u8], pool: Option<&Dmabuf>) -> Result<(), Cause> {
    for frag in batch {
        let len = match &frag {
            Frag::Linear(bytes) => bytes.len(),
            Frag::Device { range, .. } => range.len(),
        };
        let Some((here, rest)) = out.split_at_mut_checked(len) else {
            return Err(Cause::misplaced(
                "a receive returned more bytes than its length",
            ));
        };
        match frag {
            Frag::Linear(bytes) => here.copy_from_slice(bytes),
            Frag::Device { range, .. } => {
                let pool = pool.ok_or("a frag lies in memory that this endpoint did not bind");
                let slice = pool.map_err(Cause::misplaced)?.get(range);
                let slice = slice.map_err(|error| Cause::Copy(error.into()))?;
                let copied = slice.try_copy_to(here);
                copied.map_err(|error| Cause::Copy(error.into()))?;
            }
        }
        out = rest;
    }
    Ok(())
}

/// Identity of a dma-buf: two descriptors of one dma-buf have the same.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), RegisterError> {
    let stat = rustix::fs::fstat(fd.as_fd()).map_err(|errno| RegisterError::System {
        what: "fstat of the dma-buf",
        error: errno.into(),
    })?;
    Ok((stat.st_dev, stat.st_ino))
}
