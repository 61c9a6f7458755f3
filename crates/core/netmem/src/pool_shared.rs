//! The state that a page pool shares with the handles of its net_iovs.

use std::fmt;
use std::sync::Arc;

use devmem_uapi::DmabufId;

use crate::net_iov::NetIovArea;
use crate::pool_types::PoolId;
use crate::provider::MemoryProvider;
use crate::return_ring::{PushError, ReturnRing};
use crate::sync::{AtomicU64, Ordering};

/// The part of a pool that its handles keep alive.
pub(crate) struct PoolShared {
    id: PoolId,
    readable: bool,
    dmabuf_id: Option<DmabufId>,
    area: Arc<NetIovArea>,
    provider: Arc<dyn MemoryProvider>,
    ring: ReturnRing,
    /// Net_iovs that found the ring full and went to the provider.
    passed_ring: AtomicU64,
}

impl PoolShared {
    pub(crate) fn new(provider: Arc<dyn MemoryProvider>, ring: u32) -> Self {
        Self::named(PoolId::next(), provider, ReturnRing::new(ring))
    }

    /// Returns the shared state of the frags of one send. There is no pool; it has the id of the memory, and counts the
    /// frags by its references.
    pub(crate) fn of_use(provider: Arc<dyn MemoryProvider>) -> Arc<Self> {
        let ring = ReturnRing::new(0);
        // A closed ring: net_iovs go to the provider, which ignores them, because nothing was allocated.
        ring.close();
        Arc::new(Self::named(PoolId::NONE, provider, ring))
    }

    fn named(id: PoolId, provider: Arc<dyn MemoryProvider>, ring: ReturnRing) -> Self {
        PoolShared {
            id,
            readable: provider.is_readable(),
            dmabuf_id: provider.dmabuf_id(),
            area: Arc::clone(provider.area()),
            provider,
            ring,
            passed_ring: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> PoolId {
        self.id
    }

    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.readable
    }

    #[inline]
    pub(crate) fn dmabuf_id(&self) -> Option<DmabufId> {
        self.dmabuf_id
    }

    #[inline]
    pub(crate) fn area(&self) -> &Arc<NetIovArea> {
        &self.area
    }

    pub(crate) fn provider(&self) -> &dyn MemoryProvider {
        self.provider.as_ref()
    }

    #[inline]
    pub(crate) fn ring(&self) -> &ReturnRing {
        &self.ring
    }

    /// Takes net_iovs without owners home.
    pub(crate) fn come_home(&self, indices: &[u32]) {
        let Err(refused) = self.ring.push(self.area.slots(), indices) else {
            return;
        };
        if refused == PushError::Full {
            // Counted before they are released: the next thread that allocates them sees the count.
            self.passed_ring
                .fetch_add(indices.len() as u64, Ordering::Relaxed);
        }
        self.provider.release_bulk(indices);
    }

    /// Returns how many net_iovs found the ring full and went to the provider.
    pub(crate) fn passed_ring(&self) -> u64 {
        self.passed_ring.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolShared")
            .field("id", &self.id)
            .field("dmabuf_id", &self.dmabuf_id)
            .finish_non_exhaustive()
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        self.provider.destroy();
    }
}
