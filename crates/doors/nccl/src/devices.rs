//! The NICs that NCCL uses: opened at their first use, closed when nothing uses them any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_tcp::{Dmabuf, Netdev};
use exchange::{Fabric, Options, Placement, Pool};

use crate::config::{self, Backend, Config, Unpack};
use crate::failure::{Code, Failure};
use crate::gpu;
use crate::unpack::Bounce;
use crate::watch;

static DEVICES: Mutex<Devices> = Mutex::new(Devices {
    opened: Vec::new(),
    contexts: 0,
    idle_looks: 0,
});

struct Devices {
    /// By the device's index in the settings.
    opened: Vec<Option<Opened>>,
    /// Contexts that are not finalized. Devices stay open while there is one.
    contexts: u64,
    /// Looks of the watch since a device was used.
    idle_looks: u32,
}

/// An opened device.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) fabric: Fabric,
    /// Whose pool it receives into, if NCCL's kernels unpack.
    pub(crate) bounce: Option<Arc<Bounce>>,
}

fn devices() -> MutexGuard<'static, Devices> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps devices open for a context.
pub(crate) fn hold() {
    devices().contexts += 1;
}

/// Ends a [`hold`]. The last one closes the devices, and waits for closed connections.
pub(crate) fn release() {
    let mut devices = devices();
    devices.contexts = devices.contexts.saturating_sub(1);
    if devices.contexts == 0 {
        close(devices);
    }
}

/// Closes all devices, outside of the lock.
fn close(mut devices: MutexGuard<'_, Devices>) {
    let opened = std::mem::take(&mut devices.opened);
    drop(devices);
    drop(opened);
}

/// Closes devices that nothing has used for a while, in versions that do not say when they are done; later they are opened again. Returns
/// whether this has to be looked at again.
pub(crate) fn close_abandoned(is_used: impl FnOnce() -> bool) -> bool {
    let mut devices = devices();
    if devices.contexts > 0 || devices.opened.is_empty() {
        return false;
    }
    devices.idle_looks += 1;
    if is_used() {
        devices.idle_looks = 0;
    }
    if devices.idle_looks <= config::patience() {
        return true;
    }
    close(devices);
    false
}

/// Closes all devices, when the library is unloaded.
pub(crate) fn unload() {
    // At the exit of the process another thread may hold the lock.
    if let Ok(devices) = DEVICES.try_lock() {
        close(devices);
    }
}

/// Returns the fabric of a device.
pub(crate) fn fabric(device: usize) -> Result<Fabric, Failure> {
    Ok(opened(device)?.fabric)
}

/// Returns a device, which is opened if it is not.
pub(crate) fn opened(device: usize) -> Result<Opened, Failure> {
    let config = config::current()?;
    let wanted = config.devices.get(device).ok_or_else(|| {
        let count = config.devices.len();
        Failure::new(
            Code::Argument,
            format!("there is no device {device} of {count}"),
        )
    })?;
    let mut devices = devices();
    devices.idle_looks = 0;
    if devices.opened.len() < config.devices.len() {
        devices.opened.resize(config.devices.len(), None);
    }
    if let Some(opened) = &devices.opened[device] {
        return Ok(opened.clone());
    }
    let opened = open(config, device, &wanted.backend)?;
    devices.opened[device] = Some(opened.clone());
    if devices.contexts == 0 {
        watch::start();
    }
    Ok(opened)
}

fn open(config: &Config, device: usize, backend: &Backend) -> Result<Opened, Failure> {
    let nic = match backend {
        Backend::Kernel(interface) => Netdev::kernel(interface)?,
        Backend::User { link, address } => {
            let nic = Netdev::builder(link)?.address(address)?;
            let is_unix = link.starts_with("unix:") || link.starts_with("unix-listen:");
            match config.shares_send_memory && is_unix {
                true => nic.share_send_memory().open()?,
                false => nic.open()?,
            }
        }
    };
    let bounce = match config.unpack {
        Unpack::ByKernels => Some(Bounce::new(gpu::ordinal(config)?, config.pool)?),
        Unpack::Here => None,
    };
    let pool = match (config.pool, backend) {
        _ if bounce.is_some() => bounce.as_ref().map(|bounce| bounce.pool()),
        (0, _) => None,
        (bytes, _) if gpu::is_offered(device) => Some(gpu::pool(config, bytes)?),
        (bytes, Backend::Kernel(_)) => Some(devmem_tcp::memory::udmabuf(bytes)?),
        (bytes, Backend::User { .. }) => Some(Dmabuf::anonymous(bytes)?),
    };
    let queues = config.queues;
    let options = Options {
        streams: config.streams,
        chunk: config.chunk,
        pool: pool.map(|memory| Pool { memory, queues }),
        // Kernels of NCCL's LL protocols look at their buffers while messages arrive.
        placement: Placement::InOrder,
        ..Options::default()
    };
    let fabric = Fabric::open(nic, options)?;
    Ok(Opened { fabric, bounce })
}
