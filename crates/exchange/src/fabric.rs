//! A NIC with what all endpoints on it share: listening sockets, memory for receiving, registered regions.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use devmem_tcp::Netdev;

use crate::accept::Listener;
use crate::arrivals::Arrivals;
use crate::dial::Dial;
use crate::engine::ProgressThread;
use crate::error::{ConnectError, FabricError, RegisterError};
use crate::fabric_connections::FabricConnections;
use crate::fabric_state::{BoundPool, FabricState};
use crate::inner::FabricInner;
use crate::options::{Engine, Options};
use crate::published_regions;
use crate::region::{Access, Memory, Region};
use crate::ticket::Ticket;

/// A NIC for exchanging messages. Clones are handles of the same fabric.
#[derive(Clone)]
pub struct Fabric {
    pub(crate) inner: Arc<FabricInner>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("control", &self.inner.state.control_address)
            .field("data", &self.inner.state.data_address)
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
        options.check()?;
        let address = options
            .address
            .or_else(|| nic.addresses().into_iter().next());
        let any_port = SocketAddr::new(address.ok_or(FabricError::NoAddress)?, 0);
        let control = nic.listen(any_port)?;
        let data = nic.listen(any_port)?;
        let local = |listener: &devmem_tcp::Listener| {
            let local = listener.local_addr();
            local.map_err(|error| FabricError::System {
                what: "reading a local address",
                error,
            })
        };
        let (control_address, data_address) = (local(&control)?, local(&data)?);
        let pool = options.pool.as_ref();
        let pool = pool
            .map(|pool| BoundPool::bind(&nic, pool, data_address))
            .transpose()?;
        control.set_nonblocking(true);
        data.set_nonblocking(true);
        let started = |error| FabricError::System {
            what: "starting the progress engine",
            error,
        };
        let arrivals = Arrivals::new(control, data);
        let connections =
            FabricConnections::new(&nic, options.engine, arrivals).map_err(started)?;
        let thread = match options.engine {
            Engine::Calls => None,
            Engine::Thread => Some(ProgressThread::start(&connections).map_err(started)?),
        };
        let state = FabricState {
            id: random()?,
            options,
            control_address,
            data_address,
            regions: Mutex::default(),
            connections,
            pool,
            nic,
        };
        let state = Arc::new(state);
        Ok(Self {
            inner: Arc::new(FabricInner { state, thread }),
        })
    }

    /// Registers all of a memory.
    ///
    /// # Errors
    /// As [`register_range`](Self::register_range).
    pub fn register(&self, memory: Memory<'_>, access: Access) -> Result<Region, RegisterError> {
        self.inner.state.register(memory, None, access)
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
        self.inner.state.register(memory, Some(range), access)
    }

    /// Binds the memory of a region to the NIC for sending. Otherwise the first send does it, and copies the bytes if it cannot be
    /// done. Nothing is done for host memory.
    ///
    /// # Errors
    /// The NIC cannot send from the memory.
    pub fn bind_tx(&self, region: &Region) -> Result<(), devmem_tcp::Error> {
        region.bind_tx(&self.inner.state.nic)
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
        self.inner.state.connections.step_lingering()
    }

    /// Returns the address at which endpoints are accepted.
    pub fn address(&self) -> SocketAddr {
        self.inner.state.control_address
    }

    /// Returns the NIC.
    pub fn nic(&self) -> &Netdev {
        &self.inner.state.nic
    }
}

fn random() -> Result<u64, FabricError> {
    published_regions::random().map_err(|error| FabricError::System {
        what: "getrandom",
        error,
    })
}
