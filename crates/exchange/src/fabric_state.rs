//! What the endpoints of a NIC share: addresses, memory for receiving, registered regions.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use devmem_tcp::{BoundRx, Dmabuf, Netdev, Setup};

use crate::error::{FabricError, RegisterError};
use crate::fabric_connections::FabricConnections;
use crate::options::{Options, Pool};
use crate::region::{Access, Device, Kind, Memory, NewRegion, Region, identity};

/// A NIC with what endpoints on it share. They keep it until their connections are closed.
pub(crate) struct FabricState {
    /// Identifies the fabric to its regions.
    pub(crate) id: u64,
    pub(crate) options: Options,
    pub(crate) control_address: SocketAddr,
    pub(crate) data_address: SocketAddr,
    pub(crate) regions: Mutex<Regions>,
    pub(crate) connections: Arc<FabricConnections>,
    pub(crate) pool: Option<BoundPool>,
    pub(crate) nic: Netdev,
}

/// Bound receive memory. The fields are dropped in order: unbind first, then restore the settings.
pub(crate) struct BoundPool {
    _bound: BoundRx,
    _setup: Setup,
    memory: Dmabuf,
}

impl BoundPool {
    /// Steers what arrives at `data` to queues with the memory.
    pub(crate) fn bind(nic: &Netdev, pool: &Pool, data: SocketAddr) -> Result<Self, FabricError> {
        let setup = nic.plan_receive(data).queues(pool.queues).apply()?;
        let bound = nic.bind_rx(&pool.memory, setup.queues())?;
        Ok(Self {
            _bound: bound,
            _setup: setup,
            memory: pool.memory.clone(),
        })
    }
}

#[derive(Default)]
pub(crate) struct Regions {
    by_identity: HashMap<(u64, u64), Weak<Device>>,
    devices: Vec<Weak<Device>>,
}

impl FabricState {
    /// Returns the memory in which the payload of accepted endpoints arrives.
    pub(crate) fn pool_memory(&self) -> Option<&Dmabuf> {
        self.pool.as_ref().map(|pool| &pool.memory)
    }

    fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(
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
        let ours = ours.map_err(|error| RegisterError::System { what: "dup", error })?;
        let device = Arc::new(Device::new(devmem_tcp::memory::import(ours)?));
        self.by_identity.insert(identity, Arc::downgrade(&device));
        Ok(device)
    }
}
