//! Listening communicators.

use std::sync::Arc;

use exchange::{Listener, TICKET_BYTES};

use crate::comm::{Comm, Direction};
use crate::devices::{self, Opened};
use crate::failure::Failure;
use crate::numbers::Table;
use crate::unpack::Unpacker;

static LISTENERS: Table<Listening> = Table::new();

struct Listening {
    context: u64,
    listener: Listener,
    device: usize,
}

/// Listens on a device, and writes the handle for the other side.
pub(crate) fn listen(
    context: u64,
    device: usize,
    handle: &mut [u8; TICKET_BYTES],
) -> Result<u64, Failure> {
    let listener = devices::opened(device)?.fabric.listen()?;
    *handle = listener.ticket().to_bytes();
    let listening = Listening {
        context,
        listener,
        device,
    };
    LISTENERS.insert(listening)
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
    let Opened { fabric, bounce } = devices::opened(device)?;
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
pub(crate) fn close(listening: u64) -> Result<(), Failure> {
    let listening = LISTENERS.remove(listening);
    listening
        .map(drop)
        .ok_or_else(|| Failure::no_such("listening communicator"))
}

pub(crate) fn is_empty() -> bool {
    LISTENERS.is_empty()
}

/// Stops listening for a context.
pub(crate) fn end_context(context: u64) {
    drop(LISTENERS.remove_if(|listening| listening.context == context));
}

/// Stops listening, when the library is unloaded.
pub(crate) fn unload() {
    drop(LISTENERS.remove_if(|_| true));
}
