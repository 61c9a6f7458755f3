//! Connections in the making on the side that connects. NCCL has no call that gives one up: it only stops asking. So an attempt that NCCL
//! has not asked about for a while is closed; if it does ask again, the handle begins another one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use exchange::{BadTicket, Dial, TICKET_BYTES, Ticket};

use crate::comm::{Comm, Direction};
use crate::config;
use crate::devices;
use crate::failure::{Code, Failure};
use crate::numbers::Table;
use crate::watch;

/// Where a handle keeps the number of the attempt that it began: behind the ticket. NCCL keeps the bytes of the handle between
/// two calls of `connect`.
const DIAL_AT: usize = TICKET_BYTES - size_of::<u64>();

static DIALS: Table<Dialling> = Table::new();

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
    let fabric = devices::fabric(device)?;
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
        dial: Mutex::new(devices::fabric(device)?.dial(&ticket)?),
        looks: AtomicU32::new(0),
    };
    let number = DIALS.insert(dialling)?;
    handle[DIAL_AT..].copy_from_slice(&number.to_le_bytes());
    watch::start();
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

pub(crate) fn is_empty() -> bool {
    DIALS.is_empty()
}

/// Gives up the attempts of a context.
pub(crate) fn end_context(context: u64) {
    drop(DIALS.remove_if(|dial| dial.context == context));
}

/// Gives up everything, when the library is unloaded.
pub(crate) fn unload() {
    drop(DIALS.remove_if(|_| true));
}

/// Counts a look of the watch, and gives up what is abandoned. Returns whether attempts are left.
pub(crate) fn close_abandoned() -> bool {
    let patience = config::patience();
    let is_abandoned = |dial: &Dialling| dial.looks.fetch_add(1, Ordering::Relaxed) >= patience;
    drop(DIALS.remove_if(is_abandoned));
    !DIALS.is_empty()
}
