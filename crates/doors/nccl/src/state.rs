//! Devices, contexts, and listeners.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use devmem_tcp::{Dmabuf, Netdev};
use transfer::exchange::{Fabric, Listener, Options, Placement, Pool, TICKET_BYTES};

use crate::comm::{self, Comm, Direction};
use crate::config::{Backend, Config, Unpack};
use crate::dials;
use crate::failure::{Code, Failure};
use crate::gpu;
use crate::numbers::Table;
use crate::unpack::{Bounce, Unpacker};
use crate::watch;

/// The settings; the same as long as the library is loaded, because the properties lead into them.
static CONFIG: OnceLock<Config> = OnceLock::new();

static STATE: Mutex<State> = Mutex::new(State {
    fabrics: Vec::new(),
    contexts: 0,
    idle_looks: 0,
    last_context: NO_CONTEXT,
});

static LISTENERS: Table<Listening> = Table::new();

/// The context of versions without contexts.
pub(crate) const NO_CONTEXT: u64 = 0;

struct State {
    /// By device; opened at the first use.
    fabrics: Vec<Option<Opened>>,
    /// Contexts that are not finalized.
    contexts: u64,
    /// Looks of the watch since a device was used.
    idle_looks: u32,
    /// Number of the context that was begun last.
    last_context: u64,
}

/// An opened device.
#[derive(Clone)]
struct Opened {
    fabric: Fabric,
    /// Whose pool it receives into, if NCCL's kernels unpack.
    bounce: Option<Arc<Bounce>>,
}

struct Listening {
    context: u64,
    listener: Listener,
    device: usize,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks of the watch without a call of NCCL after which something is abandoned.
pub(crate) fn patience() -> u32 {
    CONFIG
        .get()
        .map_or(u32::MAX, |config| config.patience.get())
}

/// Reads the settings at the first call.
pub(crate) fn init() -> Result<&'static Config, Failure> {
    if let Some(config) = CONFIG.get() {
        return Ok(config);
    }
    let config = Config::read(|name| std::env::var(name).ok())?;
    let config = CONFIG.get_or_init(|| config);
    crate::ffi::log::info(&format!("NET/Devmem: {}", config.line()));
    gpu::decide(config);
    if config.unpack == Unpack::ByKernels {
        for index in 0..config.devices.len() {
            if let Some(reason) = gpu::why_not(index) {
                let name = config.devices[index].name.to_string_lossy();
                let text = format!(
                    "NCCL_DEVMEM_UNPACK=1 needs memory of GPUs, which {name} does not take: {reason}"
                );
                return Err(Failure::new(Code::Usage, text));
            }
        }
    }
    Ok(config)
}

/// Begins a context, and opens every device, so that a wrong setting is found before anything connects. Returns its number, which no other
/// one has: ranks in one process give the same number of their communicator.
pub(crate) fn begin_context() -> Result<u64, Failure> {
    let config = init()?;
    let mut state = state();
    state.contexts += 1;
    state.last_context += 1;
    let number = state.last_context;
    drop(state);
    for device in 0..config.devices.len() {
        if let Err(failure) = opened(device) {
            end_context(number);
            return Err(failure);
        }
    }
    Ok(number)
}

/// Ends a context: drops its connections, also those in the making, and with the last context the devices, which restores their settings.
pub(crate) fn end_context(context: u64) {
    dials::end_context(context);
    comm::end_context(context);
    drop(LISTENERS.remove_if(|listening| listening.context == context));
    let mut state = state();
    state.contexts = state.contexts.saturating_sub(1);
    let last = state.contexts == 0;
    let fabrics = if last {
        std::mem::take(&mut state.fabrics)
    } else {
        Vec::new()
    };
    drop(state);
    // Waits for closed connections, outside of the lock.
    drop(fabrics);
}

/// Closes devices that nothing has used for a while, in versions that do not say when they are done; later they are opened again. Returns
/// whether this has to be looked at again.
pub(crate) fn look() -> bool {
    let mut state = state();
    if state.contexts > 0 || state.fabrics.is_empty() {
        return false;
    }
    state.idle_looks += 1;
    if !LISTENERS.is_empty() || !dials::is_empty() || !comm::is_empty() {
        state.idle_looks = 0;
    }
    if state.idle_looks <= patience() {
        return true;
    }
    let fabrics = std::mem::take(&mut state.fabrics);
    drop(state);
    drop(fabrics);
    false
}

/// Drops everything, when the library is unloaded.
pub(crate) fn unload() {
    if watch::is_forked() {
        return;
    }
    watch::stop();
    dials::unload();
    drop(LISTENERS.remove_if(|_| true));
    comm::unload();
    crate::memory::unload();
    // At the exit of the process another thread may hold the lock.
    if let Ok(mut state) = STATE.try_lock() {
        let fabrics = std::mem::take(&mut state.fabrics);
        drop(state);
        drop(fabrics);
    }
}

/// Returns the settings of an initialized plugin.
pub(crate) fn config() -> Result<&'static Config, Failure> {
    CONFIG
        .get()
        .ok_or_else(|| Failure::new(Code::Internal, "init was not called"))
}

/// Returns whether a device is an interface of the kernel.
pub(crate) fn is_kernel(device: usize) -> Result<bool, Failure> {
    let device = config()?.devices.get(device);
    Ok(device.is_some_and(|device| matches!(device.backend, Backend::Kernel(_))))
}

fn opened(device: usize) -> Result<Opened, Failure> {
    let config = config()?;
    let wanted = config.devices.get(device).ok_or_else(|| {
        let devices = config.devices.len();
        Failure::new(
            Code::Argument,
            format!("there is no device {device} of {devices}"),
        )
    })?;
    let mut state = state();
    state.idle_looks = 0;
    if state.fabrics.len() < config.devices.len() {
        state.fabrics.resize(config.devices.len(), None);
    }
    if let Some(opened) = &state.fabrics[device] {
        return Ok(opened.clone());
    }
    let opened = open(config, device, &wanted.backend)?;
    state.fabrics[device] = Some(opened.clone());
    if state.contexts == 0 {
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

/// Returns the fabric of a device.
pub(crate) fn fabric(device: usize) -> Result<Fabric, Failure> {
    Ok(opened(device)?.fabric)
}

/// A table has given all of its numbers.
pub(crate) fn full() -> Failure {
    Failure::new(
        Code::Internal,
        "the plugin has used up its numbers; restart the process",
    )
}

/// Listens on a device, and writes the handle for the other side.
pub(crate) fn listen(
    context: u64,
    device: usize,
    handle: &mut [u8; TICKET_BYTES],
) -> Result<u64, Failure> {
    let listener = opened(device)?.fabric.listen()?;
    *handle = listener.ticket().to_bytes();
    let listening = Listening {
        context,
        listener,
        device,
    };
    LISTENERS.insert(listening).ok_or_else(full)
}

/// A communicator that was accepted.
pub(crate) struct Accepted {
    pub(crate) number: u64,
    /// Address of the handle for NCCL's kernels, if they unpack.
    pub(crate) handle: Option<u64>,
}

/// Who reads what a communicator receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// NCCL's kernels, if the settings say so.
    Kernels,
    /// Not a kernel: NCCL asks for no handle.
    Other,
}

/// Accepts a communicator, if one is there.
pub(crate) fn accept(listening: u64, reader: Reader) -> Result<Option<Accepted>, Failure> {
    let listening = LISTENERS.get(listening);
    let listening: Arc<Listening> =
        listening.ok_or_else(|| Failure::no_such("listening communicator"))?;
    let Some(endpoint) = listening.listener.poll()? else {
        return Ok(None);
    };
    let device = listening.device;
    let Opened { fabric, bounce } = opened(device)?;
    let bounce = bounce.filter(|_| reader == Reader::Kernels);
    let unpacker = bounce.map(|bounce| Unpacker::new(&bounce)).transpose()?;
    let handle = unpacker.as_ref().map(Unpacker::handle);
    let context = listening.context;
    let number = Comm::add(
        context,
        device,
        Direction::Receive,
        fabric,
        endpoint,
        unpacker,
    )?;
    Ok(Some(Accepted { number, handle }))
}

/// Closes a listening communicator.
pub(crate) fn close_listen(listening: u64) -> Result<(), Failure> {
    let listening = LISTENERS.remove(listening);
    listening
        .map(drop)
        .ok_or_else(|| Failure::no_such("listening communicator"))
}
