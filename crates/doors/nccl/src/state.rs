//! Devices, contexts, and the connections in the making.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use devmem_tcp::{Dmabuf, Netdev};
use transfer::exchange::{Dial, Fabric, Listener, Options, Pool, TICKET_BYTES, Ticket};

use crate::comm::{Comm, Direction};
use crate::config::{Backend, Config};
use crate::failure::{Code, Failure};
use crate::gpu;
use crate::numbers::Table;

/// The settings; the same as long as the library is loaded, because the properties lead into them.
static CONFIG: OnceLock<Config> = OnceLock::new();

static STATE: Mutex<State> = Mutex::new(State {
    fabrics: Vec::new(),
    contexts: 0,
});

static LISTENERS: Table<Listening> = Table::new();
static DIALS: Table<Dialling> = Table::new();

/// The context of versions without contexts.
pub(crate) const NO_CONTEXT: u64 = 0;

struct State {
    /// By device; opened at the first use.
    fabrics: Vec<Option<Fabric>>,
    /// Contexts that are not finalized.
    contexts: u64,
}

struct Listening {
    context: u64,
    listener: Listener,
    device: usize,
}

struct Dialling {
    context: u64,
    device: usize,
    dial: Mutex<Dial>,
}

/// Where a handle keeps the number of the attempt that it began: behind the ticket. NCCL keeps the bytes of the handle between
/// two calls of `connect`.
const DIAL_AT: usize = TICKET_BYTES - size_of::<u64>();

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
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
    Ok(config)
}

/// Begins a context, and opens every device, so that a wrong setting is found before anything connects.
pub(crate) fn begin_context(number: u64) -> Result<(), Failure> {
    let config = init()?;
    state().contexts += 1;
    for device in 0..config.devices.len() {
        if let Err(failure) = fabric(device) {
            end_context(number);
            return Err(failure);
        }
    }
    Ok(())
}

/// Ends a context: drops connections in the making, and with the last context the devices, which restores their settings.
pub(crate) fn end_context(context: u64) {
    drop(DIALS.remove_if(|dial| dial.context == context));
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

/// Drops everything, when the library is unloaded.
pub(crate) fn unload() {
    drop(DIALS.remove_if(|_| true));
    drop(LISTENERS.remove_if(|_| true));
    crate::comm::unload();
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

fn fabric(device: usize) -> Result<Fabric, Failure> {
    let config = config()?;
    let wanted = config.devices.get(device).ok_or_else(|| {
        let devices = config.devices.len();
        Failure::new(
            Code::Argument,
            format!("there is no device {device} of {devices}"),
        )
    })?;
    let mut state = state();
    if state.fabrics.len() < config.devices.len() {
        state.fabrics.resize(config.devices.len(), None);
    }
    if let Some(fabric) = &state.fabrics[device] {
        return Ok(fabric.clone());
    }
    let fabric = open(config, device, &wanted.backend)?;
    state.fabrics[device] = Some(fabric.clone());
    Ok(fabric)
}

fn open(config: &Config, device: usize, backend: &Backend) -> Result<Fabric, Failure> {
    let nic = match backend {
        Backend::Kernel(interface) => Netdev::kernel(interface)?,
        Backend::User { link, address } => Netdev::user(link, address)?,
    };
    let pool = match (config.pool, backend) {
        (0, _) => None,
        (bytes, _) if gpu::is_offered(device) => Some(gpu::pool(config, bytes)?),
        (bytes, Backend::Kernel(_)) => Some(devmem_tcp::udmabuf(bytes)?),
        (bytes, Backend::User { .. }) => Some(Dmabuf::anonymous(bytes)?),
    };
    let queues = config.queues;
    let options = Options {
        streams: config.streams,
        chunk: config.chunk,
        pool: pool.map(|memory| Pool { memory, queues }),
        ..Options::default()
    };
    Ok(Fabric::open(nic, options)?)
}

fn full() -> Failure {
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
    let listener = fabric(device)?.listen()?;
    *handle = listener.ticket().to_bytes();
    let listening = Listening {
        context,
        listener,
        device,
    };
    LISTENERS.insert(listening).ok_or_else(full)
}

/// Connects a little further. Returns the communicator when it is there.
pub(crate) fn connect(
    context: u64,
    device: usize,
    handle: &mut [u8; TICKET_BYTES],
) -> Result<Option<u64>, Failure> {
    let mut number = [0; size_of::<u64>()];
    number.copy_from_slice(&handle[DIAL_AT..]);
    let mut number = u64::from_le_bytes(number);
    if number == 0 {
        let ticket = Ticket::from_bytes(handle);
        let ticket = ticket.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        let dial = Mutex::new(fabric(device)?.dial(&ticket)?);
        let dialling = Dialling {
            context,
            device,
            dial,
        };
        number = DIALS.insert(dialling).ok_or_else(full)?;
        handle[DIAL_AT..].copy_from_slice(&number.to_le_bytes());
    }
    let dialling = DIALS
        .get(number)
        .ok_or_else(|| Failure::no_such("handle"))?;
    let mut dial = dialling.dial.lock().unwrap_or_else(PoisonError::into_inner);
    let polled = dial.poll();
    if matches!(polled, Ok(None)) {
        return Ok(None);
    }
    // The attempt is over: the same handle may begin another one.
    drop(DIALS.remove(number));
    handle[DIAL_AT..].fill(0);
    let Some(endpoint) = polled? else {
        return Ok(None);
    };
    let fabric = fabric(dialling.device)?;
    let device = dialling.device;
    Comm::add(device, Direction::Send, fabric, endpoint).map(Some)
}

/// Accepts a communicator, if one is there.
pub(crate) fn accept(listening: u64) -> Result<Option<u64>, Failure> {
    let listening = LISTENERS.get(listening);
    let listening: Arc<Listening> =
        listening.ok_or_else(|| Failure::no_such("listening communicator"))?;
    let Some(endpoint) = listening.listener.poll()? else {
        return Ok(None);
    };
    let fabric = fabric(listening.device)?;
    let device = listening.device;
    Comm::add(device, Direction::Receive, fabric, endpoint).map(Some)
}

/// Closes a listening communicator.
pub(crate) fn close_listen(listening: u64) -> Result<(), Failure> {
    let listening = LISTENERS.remove(listening);
    listening
        .map(drop)
        .ok_or_else(|| Failure::no_such("listening communicator"))
}
