//! A NIC with what all endpoints on it share: listening sockets, memory for receiving, registered regions.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use devmem_tcp::{BoundRx, Dmabuf, Netdev, Setup};

use super::accept::Listener;
use super::arrivals::Arrivals;
use super::dial::Dial;
use super::engine::{Board, Engine, ProgressThread};
use super::error::{ConnectError, FabricError, RegisterError};
use super::keys;
use super::region::{Access, Device, Kind, Memory, NewRegion, Region, identity};
use super::ticket::Ticket;

/// Most data streams of an endpoint.
pub const MAX_STREAMS: u16 = 64;

/// Smallest length of a chunk. Also a border that no chunk but the last one of a message ends on: NCCL's LL128 protocol
/// needs lines of 128 bytes to arrive whole.
pub const MIN_CHUNK: usize = 4096;

/// Largest length of a chunk.
pub const MAX_CHUNK: usize = 64 << 20;

/// Data streams of an endpoint, unless the program chooses.
pub const DEFAULT_STREAMS: u16 = 1;

/// Length of a chunk, unless the program chooses.
pub const DEFAULT_CHUNK: usize = 4 << 20;

/// Settings of a fabric.
#[derive(Clone, Debug)]
pub struct Options {
    /// Data streams of an endpoint that this side dials: 1 to [`MAX_STREAMS`]. Several where one flow does not fill the
    /// network; otherwise they only cost turns.
    pub streams: u16,
    /// Length of a chunk: a multiple of [`MIN_CHUNK`], at most [`MAX_CHUNK`]. A message is spread over the streams in chunks, and
    /// each costs a record.
    pub chunk: usize,
    /// Device memory to bind for receiving, and the queues to bind it to; `None`: payload arrives in host memory. Only
    /// connections that this side has accepted use it.
    pub pool: Option<Pool>,
    /// Address to listen on; `None`: the first one of the NIC.
    pub address: Option<IpAddr>,
    /// What makes progress.
    pub engine: Engine,
    /// When bytes may be written to a region.
    pub placement: Placement,
}

/// When the bytes of a message may be written to a region of mapped device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// As they arrive: the NIC of the user-space stack receives them at their place, without a further copy. Until the message
    /// is there, its place may have any bytes.
    #[default]
    Direct,
    /// In order, each byte once: they are received into other memory first. For programs that look at a place before the
    /// message is there.
    InOrder,
}

/// Device memory for receiving.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The memory.
    pub memory: Dmabuf,
    /// Number of queues: the last ones of the NIC.
    pub queues: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: DEFAULT_STREAMS,
            chunk: DEFAULT_CHUNK,
            pool: None,
            address: None,
            engine: Engine::Calls,
            placement: Placement::Direct,
        }
    }
}

/// Bound receive memory. The fields are dropped in order: unbind first, then restore the settings.
struct BoundPool {
    _bound: BoundRx,
    _setup: Setup,
    memory: Dmabuf,
}

/// What all handles of a fabric share.
pub(super) struct FabricInner {
    /// Identifies the fabric to its regions.
    pub(super) id: u64,
    pub(super) options: Options,
    pub(super) control_address: SocketAddr,
    pub(super) data_address: SocketAddr,
    regions: Mutex<Regions>,
    pub(super) board: Arc<Board>,
    thread: Option<ProgressThread>,
    pool: Option<BoundPool>,
    pub(super) nic: Netdev,
}

#[derive(Default)]
struct Regions {
    by_identity: HashMap<(u64, u64), Weak<Device>>,
    devices: Vec<Weak<Device>>,
}

/// A NIC for exchanging messages. Clones are handles of the same fabric.
#[derive(Clone)]
pub struct Fabric {
    pub(super) inner: Arc<FabricInner>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("control", &self.inner.control_address)
            .field("data", &self.inner.data_address)
            .finish_non_exhaustive()
    }
}

impl Fabric {
    /// Listens on `nic`, and binds the memory for receiving. The steering rule of the data port is in place before any ticket
    /// exists, so that no payload misses the memory.
    ///
    /// # Errors
    /// [`FabricError`]: an option has an impossible value, or the NIC refuses a step.
    pub fn open(nic: Netdev, options: Options) -> Result<Self, FabricError> {
        check(&options)?;
        let address = options
            .address
            .or_else(|| nic.addresses().into_iter().next());
        let any_port = SocketAddr::new(address.ok_or(FabricError::NoAddress)?, 0);
        let control = nic.listen(any_port)?;
        let data = nic.listen(any_port)?;
        let local = |listener: &devmem_tcp::Listener| {
            let local = listener.local_addr();
            local.map_err(|source| FabricError::System {
                what: "reading a local address",
                source,
            })
        };
        let (control_address, data_address) = (local(&control)?, local(&data)?);
        let pool = options.pool.as_ref();
        let pool = pool
            .map(|pool| bind(&nic, pool, data_address))
            .transpose()?;
        control.set_nonblocking(true);
        data.set_nonblocking(true);
        let started = |source| FabricError::System {
            what: "starting the progress engine",
            source,
        };
        let arrivals = Arrivals::new(control, data);
        let board = Board::new(&nic, options.engine, arrivals).map_err(started)?;
        let thread = match options.engine {
            Engine::Calls => None,
            Engine::Thread => Some(ProgressThread::start(&board).map_err(started)?),
        };
        let inner = FabricInner {
            id: random()?,
            options,
            control_address,
            data_address,
            regions: Mutex::default(),
            board,
            thread,
            pool,
            nic,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Registers all of a memory.
    ///
    /// # Errors
    /// As [`register_range`](Self::register_range).
    pub fn register(&self, memory: Memory<'_>, access: Access) -> Result<Region, RegisterError> {
        self.inner.register(memory, None, access)
    }

    /// Registers a range of a memory. The offsets of operations count from its beginning.
    ///
    /// # Errors
    /// The range is outside of the memory; the descriptor is no dma-buf that the CPU can map.
    pub fn register_range(
        &self,
        memory: Memory<'_>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, RegisterError> {
        self.inner.register(memory, Some(range), access)
    }

    /// Binds the memory of a region to the NIC for sending. Otherwise the first send does it, and copies the bytes if it cannot be
    /// done. Nothing is done for host memory.
    ///
    /// # Errors
    /// The NIC cannot send from the memory.
    pub fn bind_tx(&self, region: &Region) -> Result<(), devmem_tcp::Error> {
        region.bind_tx(&self.inner.nic)
    }

    /// Begins to accept endpoints under a new ticket.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn listen(&self) -> Result<Listener, FabricError> {
        let cookie = random()?;
        Ok(Listener::new(Arc::clone(&self.inner), cookie))
    }

    /// Begins to connect to the listener that made `ticket`. Never waits.
    ///
    /// # Errors
    /// There is no route or no port.
    pub fn dial(&self, ticket: &Ticket) -> Result<Dial, ConnectError> {
        Dial::begin(Arc::clone(&self.inner), ticket)
    }

    /// Lets the connections of closed endpoints go on. Endpoints, listeners and dials do this, too, whenever they make
    /// progress, and in real time a thread that exists as long as such connections do. Returns how many closed endpoints still have
    /// connections.
    pub fn progress(&self) -> usize {
        self.inner.board.step_lingering()
    }

    /// Returns the address at which endpoints are accepted.
    pub fn address(&self) -> SocketAddr {
        self.inner.control_address
    }

    /// Returns the NIC.
    pub fn nic(&self) -> &Netdev {
        &self.inner.nic
    }
}

fn check(options: &Options) -> Result<(), FabricError> {
    if !(1..=MAX_STREAMS).contains(&options.streams) {
        return Err(FabricError::Options("an endpoint has 1 to 64 data streams"));
    }
    if !is_chunk(options.chunk) {
        return Err(FabricError::Options(
            "the length of a chunk is a multiple of 4096 bytes, at most 64 MiB",
        ));
    }
    Ok(())
}

/// Returns whether chunks may have this length.
pub(super) fn is_chunk(len: usize) -> bool {
    (MIN_CHUNK..=MAX_CHUNK).contains(&len) && len.is_multiple_of(MIN_CHUNK)
}

fn bind(nic: &Netdev, pool: &Pool, data: SocketAddr) -> Result<BoundPool, FabricError> {
    let setup = nic.plan_receive(data).queues(pool.queues).apply()?;
    let bound = nic.bind_rx(&pool.memory, setup.queues())?;
    Ok(BoundPool {
        _bound: bound,
        _setup: setup,
        memory: pool.memory.clone(),
    })
}

fn random() -> Result<u64, FabricError> {
    keys::random().map_err(|source| FabricError::System {
        what: "getrandom",
        source,
    })
}

impl FabricInner {
    /// Returns the memory in which the payload of accepted endpoints arrives.
    pub(super) fn pool_memory(&self) -> Option<&Dmabuf> {
        self.pool.as_ref().map(|pool| &pool.memory)
    }

    fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(
        &self,
        memory: Memory<'_>,
        range: Option<Range<usize>>,
        access: Access,
    ) -> Result<Region, RegisterError> {
        let mut regions = self.regions();
        let new = NewRegion {
            access,
            fabric: self.id,
        };
        let kind = match memory {
            Memory::Host(memory) => Kind::Host(memory),
            Memory::Landing(place) => Kind::Landing(place),
            Memory::Device(memory) => Kind::Device(regions.device(memory)),
            Memory::Fd(fd) => Kind::Device(regions.import(fd)?),
        };
        Region::new(kind, range, new)
    }
}

impl Regions {
    /// Returns the shared state of a memory.
    fn device(&mut self, memory: &Dmabuf) -> Arc<Device> {
        self.devices.retain(|device| device.strong_count() > 0);
        let known = self.devices.iter().filter_map(Weak::upgrade);
        let mut known = known.filter(|device| device.memory.is_same(memory));
        if let Some(device) = known.next() {
            return device;
        }
        let device = Arc::new(Device::new(memory.clone()));
        self.devices.push(Arc::downgrade(&device));
        device
    }

    /// Returns the shared state of a dma-buf, which is mapped once however many descriptors of it are registered.
    fn import(&mut self, fd: BorrowedFd<'_>) -> Result<Arc<Device>, RegisterError> {
        let identity = identity(fd)?;
        self.by_identity
            .retain(|_, device| device.strong_count() > 0);
        if let Some(device) = self.by_identity.get(&identity).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let ours = fd.try_clone_to_owned();
        let ours = ours.map_err(|source| RegisterError::System {
            what: "dup",
            source,
        })?;
        let device = Arc::new(Device::new(devmem_tcp::memory::import(ours)?));
        self.by_identity.insert(identity, Arc::downgrade(&device));
        Ok(device)
    }
}

impl Drop for FabricInner {
    /// Waits, for at most two seconds, until the peers of closed endpoints have closed, too.
    fn drop(&mut self) {
        if self.board.is_forked() {
            // Not dropped: that would wait for the end of a thread that does not exist here.
            std::mem::forget(self.thread.take());
            return;
        }
        // The thread has no handle of the fabric: it serves no endpoint any more.
        drop(self.thread.take());
        while self.board.step_lingering() > 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.board.keeper.stop();
    }
}
