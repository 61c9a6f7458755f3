//! What NCCL begins and ends: the plugin, and the contexts of its communicators.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::{self, Config, Unpack};
use crate::failure::{Code, Failure};
use crate::raw::log;
use crate::{comm, devices, dials, gpu, listeners, memory, watch};

/// The context of versions without contexts.
pub(crate) const NO_CONTEXT: u64 = 0;

/// Number of the context that was begun last.
static LAST: AtomicU64 = AtomicU64::new(NO_CONTEXT);

/// Reads the settings at the first call.
pub(crate) fn init() -> Result<&'static Config, Failure> {
    if let Ok(config) = config::current() {
        return Ok(config);
    }
    let config = config::init()?;
    watch::init(close_abandoned);
    log::info(&format!("NET/Devmem: {}", config.line()));
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
pub(crate) fn begin() -> Result<u64, Failure> {
    let config = init()?;
    devices::hold();
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    for device in 0..config.devices.len() {
        if let Err(failure) = devices::opened(device) {
            end(number);
            return Err(failure);
        }
    }
    Ok(number)
}

/// Ends a context: drops its connections, also those in the making, and with the last context the devices, which restores their settings.
pub(crate) fn end(context: u64) {
    dials::end_context(context);
    comm::end_context(context);
    listeners::end_context(context);
    devices::release();
}

/// Closes what is abandoned, for the watch. Returns whether it has to look again.
fn close_abandoned() -> bool {
    let has_dials = dials::close_abandoned();
    let is_used = || !(listeners::is_empty() && dials::is_empty() && comm::is_empty());
    devices::close_abandoned(is_used) || has_dials
}

/// Drops everything, when the library is unloaded.
pub(crate) fn unload() {
    if watch::is_forked() {
        return;
    }
    watch::stop();
    dials::unload();
    listeners::unload();
    comm::unload();
    memory::unload();
    devices::unload();
}
