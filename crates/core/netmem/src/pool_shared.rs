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
    dmabuf_id: Option<DmabufId>,
    area: Arc<NetIovArea>,
    /// `None`: nothing is allocated from the area.
    provider: Option<Arc<MemoryProvider>>,
    ring: ReturnRing,
    /// Net_iovs that found the ring full and went to the provider.
    passed_ring: AtomicU64,
}

impl PoolShared {
    pub(crate) fn new(provider: Arc<MemoryProvider>, ring: u32) -> Self {
        PoolShared {
            id: PoolId::next(),
            dmabuf_id: provider.dmabuf_id(),
            area: Arc::clone(provider.area()),
            provider: Some(provider),
            ring: ReturnRing::new(ring),
            passed_ring: AtomicU64::new(0),
        }
    }

    /// Returns the shared state of the frags of one send. There is no pool; it has the id of the memory, and counts the
    /// frags by its references.
    pub(crate) fn of_use(area: &Arc<NetIovArea>, dmabuf_id: Option<DmabufId>) -> Self {
        let ring = ReturnRing::new(0);
        // A closed ring keeps nothing.
        ring.close();
        PoolShared {
            id: PoolId::NONE,
            dmabuf_id,
            area: Arc::clone(area),
            provider: None,
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
        self.dmabuf_id.is_none()
    }

    #[inline]
    pub(crate) fn dmabuf_id(&self) -> Option<DmabufId> {
        self.dmabuf_id
    }

    #[inline]
    pub(crate) fn area(&self) -> &Arc<NetIovArea> {
        &self.area
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
        if let Some(provider) = &self.provider {
            provider.chunks.release(indices);
        }
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
