//! Host memory of the wire itself, whose file its peer gets. No other peer gets it, and it ends with the wire: the next peer of a
//! listening end has a wire of its own.

use std::io;
use std::sync::Arc;

use netmem::{
    BufSpan, DmaPort, Frag, FragList, MemoryObserver, MemoryProvider, Netmem, NiovSize, PagePool,
    Payload, ShareableMemory,
};

use super::limits::KEEP_BYTES;

/// Memory for copies: what the peer may keep until its program has read it, and a few of the longest super-packets. Pages are
/// allocated when they are first used.
const STAGE_BYTES: usize = KEEP_BYTES + (4 << 20);
const STAGE_NIOV: usize = 64 << 10;

/// Memory for copies of payload that the peer cannot or must not map. It contains only what was sent to this peer.
#[derive(Debug)]
pub(super) struct Stage {
    pool: PagePool,
    memory: MemoryObserver,
}

impl Stage {
    pub(super) fn new() -> io::Result<Self> {
        let niov_size = NiovSize::new(STAGE_NIOV).map_err(io::Error::other)?;
        let (provider, memory) = shareable(STAGE_BYTES, niov_size)?;
        Ok(Self {
            pool: PagePool::new(provider),
            memory,
        })
    }

    pub(super) fn is(&self, memory: &ShareableMemory<'_>) -> bool {
        memory.is_observed_by(&self.memory)
    }

    /// Copies a payload here; `None` if there is no room.
    pub(super) fn copy(&mut self, payload: &FragList, port: &DmaPort) -> Option<FragList> {
        let mut copy = FragList::with_capacity(payload.len().div_ceil(STAGE_NIOV));
        let mut page: Option<(Netmem, usize)> = None;
        for frag in payload {
            let mut done = 0;
            while done < frag.len() {
                let (to, at) = match page.take() {
                    Some(page) => page,
                    None => (self.pool.alloc()?, 0),
                };
                let len = (STAGE_NIOV - at).min(frag.len() - done);
                // At most a frag, whose offset and length are u32.
                let span = frag.span();
                let span = BufSpan {
                    offset: span.offset + done as u32,
                    len: len as u32,
                    ..span
                };
                port.copy(span, &to, at as u32);
                copy.push_merge(Frag::new(to.share(), at as u32, len as u32));
                done += len;
                page = (at + len < STAGE_NIOV).then_some((to, at + len));
            }
        }
        Some(copy)
    }
}

/// Memory for the send queues of the stack above, from which the peer reads without a copy in between. It also reads what the
/// stack has not sent yet.
#[derive(Debug)]
pub(super) struct SendMemory {
    pub(super) provider: Arc<MemoryProvider>,
    memory: MemoryObserver,
}

impl SendMemory {
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let (provider, memory) = shareable(bytes, NiovSize::DEFAULT)?;
        Ok(Self { provider, memory })
    }

    pub(super) fn is(&self, memory: &ShareableMemory<'_>) -> bool {
        memory.is_observed_by(&self.memory)
    }
}

fn shareable(bytes: usize, niov: NiovSize) -> io::Result<(Arc<MemoryProvider>, MemoryObserver)> {
    let provider = MemoryProvider::shareable(bytes, niov).map_err(io::Error::other)?;
    let memory = provider.observer();
    Ok((Arc::new(provider), memory))
}
