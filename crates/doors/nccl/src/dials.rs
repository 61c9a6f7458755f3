//! Connections in the making on the side that connects. NCCL has no call that gives one up: it only stops asking. So an attempt that NCCL
//! has not asked about for a while is closed; if it does ask again, the handle begins another one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use transfer::exchange::{BadTicket, Dial, TICKET_BYTES, Ticket};

use crate::comm::{Comm, Direction};
use crate::failure::{Code, Failure};
use crate::numbers::Table;
use crate::state;

/// Time between two looks for attempts that are abandoned, and looks without a call after which one is. Counted, not measured: a process
/// that was stopped for a while has abandoned nothing.
const TICK: Duration = Duration::from_secs(1);
const ABANDONED_AFTER: u32 = 30;

/// Where a handle keeps the number of the attempt that it began: behind the ticket. NCCL keeps the bytes of the handle between
/// two calls of `connect`.
const DIAL_AT: usize = TICKET_BYTES - size_of::<u64>();

static DIALS: Table<Dialling> = Table::new();
static WATCH: Watch = Watch::new();

struct Dialling {
    context: u64,
    device: usize,
    ticket: Ticket,
    dial: Mutex<Dial>,
    /// Looks of the watch since NCCL has asked last.
    looks: AtomicU32,
}

/// Connects a little further. Returns the communicator when it is there.
pub(crate) fn connect(
    context: u64,
    device: usize,
    handle: &mut [u8; TICKET_BYTES],
) -> Result<Option<u64>, Failure> {
    let ticket = Ticket::from_bytes(handle).map_err(not_of_this_plugin)?;
    let (number, dialling) = match known(context, ticket, handle) {
        Some(known) => known,
        None => begin(context, device, ticket, handle)?,
    };
    dialling.looks.store(0, Ordering::Relaxed);
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
    let device = dialling.device;
    let fabric = state::fabric(device)?;
    Comm::add(context, device, Direction::Send, fabric, endpoint, None).map(Some)
}

/// Returns the attempt that a handle has begun. The handle comes from the other rank, so a number in it that this side has not written
/// counts for nothing.
fn known(
    context: u64,
    ticket: Ticket,
    handle: &[u8; TICKET_BYTES],
) -> Option<(u64, Arc<Dialling>)> {
    let number = u64::from_le_bytes(*handle[DIAL_AT..].first_chunk()?);
    let dialling = DIALS.get(number)?;
    let is_its = dialling.context == context && dialling.ticket == ticket;
    is_its.then_some((number, dialling))
}

fn begin(
    context: u64,
    device: usize,
    ticket: Ticket,
    handle: &mut [u8; TICKET_BYTES],
) -> Result<(u64, Arc<Dialling>), Failure> {
    let dialling = Dialling {
        context,
        device,
        ticket,
        dial: Mutex::new(state::fabric(device)?.dial(&ticket)?),
        looks: AtomicU32::new(0),
    };
    let number = DIALS.insert(dialling).ok_or_else(state::full)?;
    handle[DIAL_AT..].copy_from_slice(&number.to_le_bytes());
    WATCH.start();
    let dialling = DIALS.get(number);
    Ok((number, dialling.ok_or_else(|| Failure::no_such("handle"))?))
}

/// Returns what it means that a handle has no ticket: NCCL gives those of another network to this plugin if the other rank uses one.
fn not_of_this_plugin(bad: BadTicket) -> Failure {
    let text = match bad {
        BadTicket::Magic => {
            "the other rank's handle is not one of this plugin: that rank has not loaded the plugin, or could not start it, and uses another \
             network; look for NET/Plugin and NET/Devmem in its log, with NCCL_DEBUG=INFO, set NCCL_NET_PLUGIN and DEVMEM_TCP_DEVICES on \
             all ranks, and NCCL_NET=Devmem, with which a rank without the plugin ends with an error of its own"
                .to_owned()
        }
        BadTicket::Version(theirs) => format!(
            "the other rank has another release of this plugin, whose handles have version {theirs}; install the same one on all ranks"
        ),
    };
    Failure::new(Code::Usage, text)
}

/// Gives up the attempts of a context.
pub(crate) fn end_context(context: u64) {
    drop(DIALS.remove_if(|dial| dial.context == context));
}

/// Gives up everything, when the library is unloaded.
pub(crate) fn unload() {
    if WATCH.is_forked() {
        // The thread does not exist in a child of fork(2), but may have held a lock; and the connections belong to the parent.
        return;
    }
    WATCH.stop();
    drop(DIALS.remove_if(|_| true));
}

/// The thread that closes abandoned attempts. It exists while there are attempts.
struct Watch {
    state: Mutex<Watching>,
    /// Notified when the library is unloaded.
    stopped: Condvar,
    /// The process that has started the thread; 0: none.
    process: AtomicU32,
}

struct Watching {
    /// Of a thread that runs, or has ended. It is joined before the library is unmapped.
    thread: Option<JoinHandle<()>>,
    is_running: bool,
    is_stopped: bool,
}

impl Watch {
    const fn new() -> Self {
        let state = Watching {
            thread: None,
            is_running: false,
            is_stopped: false,
        };
        Self {
            state: Mutex::new(state),
            stopped: Condvar::new(),
            process: AtomicU32::new(0),
        }
    }

    fn is_forked(&self) -> bool {
        ![0, std::process::id()].contains(&self.process.load(Ordering::Relaxed))
    }

    fn state(&self) -> MutexGuard<'_, Watching> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless it runs.
    fn start(&'static self) {
        let mut state = self.state();
        if state.is_running || state.is_stopped {
            return;
        }
        self.process.store(std::process::id(), Ordering::Relaxed);
        if let Some(ended) = state.thread.take() {
            // An error is a panic of the thread, which has been printed already.
            let _ = ended.join();
        }
        let started = std::thread::Builder::new()
            .name("devmem-dials".to_owned())
            .spawn(move || self.run());
        // Without a thread, abandoned attempts stay until the next one starts it.
        state.thread = started.ok();
        state.is_running = state.thread.is_some();
    }

    fn run(&self) {
        loop {
            let is_abandoned =
                |dial: &Dialling| dial.looks.fetch_add(1, Ordering::Relaxed) >= ABANDONED_AFTER;
            drop(DIALS.remove_if(is_abandoned));
            let mut state = self.state();
            // Asked under the lock: `start` comes after the attempt that it is for.
            if state.is_stopped || DIALS.is_empty() {
                state.is_running = false;
                return;
            }
            let goes_on = |state: &mut Watching| !state.is_stopped;
            let waited = self.stopped.wait_timeout_while(state, TICK, goes_on);
            drop(waited);
        }
    }

    fn stop(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        let thread = state.thread.take();
        drop(state);
        self.stopped.notify_all();
        if let Some(thread) = thread {
            // As in `start`.
            let _ = thread.join();
        }
    }
}
