//! Host memory through which payload passes on its way to or from a device whose memory the CPU cannot access.

use std::sync::Arc;

use netmem::{CopyEngine, FragList, MemoryProvider, NiovSize};

use crate::fill::{Fill, MAX_PAYLOAD};
use crate::restart_error::RestartError;

/// Bytes of pinned host memory for each queue, and for sending. A device needs some tens of microseconds for a batch; more
/// than a link delivers in that time is not needed, and little memory stays in the processor's cache.
const RING_BYTES: usize = 8 << 20;

/// Minimum number of payloads of maximum length for which the memory has room: one that is copied, and one that arrives.
const MIN_PAYLOADS: usize = 2;

/// Pinned host memory, filled like that of a queue.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) engine: Arc<dyn CopyEngine>,
    pub(crate) fill: Fill,
}

impl Ring {
    /// Pins memory for the device of `engine`, in net_iovs of the size that the device's memory is cut into: a net_iov of
    /// one side is then copied to one of the other by one copy.
    pub(crate) fn new(
        engine: &Arc<dyn CopyEngine>,
        niov_size: NiovSize,
    ) -> Result<Self, RestartError> {
        let niov = niov_size.bytes();
        let least = MIN_PAYLOADS * (MAX_PAYLOAD.div_ceil(niov) + 1) * niov;
        let bytes = RING_BYTES.max(least).next_multiple_of(niov);
        let provider = MemoryProvider::pinned(bytes, niov_size, engine)?;
        Ok(Self {
            engine: Arc::clone(engine),
            fill: Fill::new(Arc::new(provider)),
        })
    }

    /// Returns whether there is room for `payload` bytes.
    pub(crate) fn has_room(&mut self, payload: usize, headroom: usize) -> bool {
        self.fill.post(payload, headroom) >= payload
    }
}

/// Returns the offset of the first byte in its net_iov.
pub(crate) fn start_of(payload: &FragList) -> usize {
    payload.first().map_or(0, |frag| frag.offset() as usize)
}
