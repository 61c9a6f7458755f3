//! Sources of memory for page pools.

mod chunks;
mod dmabuf;
mod host;
#[cfg(any(test, feature = "test-util"))]
mod opaque;

use std::sync::Arc;

use devmem_uapi::DmabufId;

pub use dmabuf::DmabufProvider;
pub use host::HostProvider;
#[cfg(any(test, feature = "test-util"))]
pub use opaque::OpaqueProvider;

use crate::memory::MemoryAccess;
use crate::net_iov::NetIovArea;
use crate::pool_types::PoolError;
use chunks::Chunks;

/// A source of net_iovs for one or more page pools (linux
/// include/net/page_pool/memory_provider.h, struct memory_provider_ops). No call is on the fast
/// path; a net_iov is identified by its index in [`MemoryProvider::area`].
///
/// Contract: an allocated index is below the area's count and is not allocated again before it is
/// released. An index is released once per allocation.
#[doc(alias = "memory_provider_ops")]
pub trait MemoryProvider: Send + Sync {
    /// Adds a pool.
    ///
    /// # Errors
    ///
    /// [`PoolError::Refused`] when the provider serves no further pool.
    fn init(&self) -> Result<(), PoolError>;

    /// Allocates up to `out.len()` net_iovs, ascending, and adjacent as far as possible. Returns the number.
    fn alloc_bulk(&self, out: &mut [u32]) -> usize;

    /// Allocates `out.len()` adjacent net_iovs, ascending, or none. Returns whether it has allocated them.
    fn alloc_run(&self, out: &mut [u32]) -> bool;

    /// Releases net_iovs.
    fn release_bulk(&self, indices: &[u32]);

    /// Removes a pool, after its last net_iov was released.
    fn destroy(&self);

    /// Returns the number of free net_iovs; other pools may allocate them first.
    fn free_niovs(&self) -> u32;

    /// Returns the net_iovs.
    fn area(&self) -> &Arc<NetIovArea>;

    /// Returns the id of the dma-buf that the memory belongs to; `None` for host memory.
    fn dmabuf_id(&self) -> Option<DmabufId>;

    /// Returns whether the stack may read the bytes.
    fn is_readable(&self) -> bool;
}

impl std::fmt::Debug for dyn MemoryProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryProvider")
            .field("dmabuf_id", &self.dmabuf_id())
            .field("free_niovs", &self.free_niovs())
            .finish_non_exhaustive()
    }
}

/// A provider with a chunk allocator: every provider of this crate.
trait Chunked: Send + Sync {
    fn stock(&self) -> &Stock;
    fn dmabuf_id(&self) -> Option<DmabufId>;
}

/// The net_iovs of a provider, and the free ones among them.
struct Stock {
    area: Arc<NetIovArea>,
    chunks: Chunks,
}

impl Stock {
    fn new(area: Arc<NetIovArea>) -> Self {
        let chunks = Chunks::new(area.count());
        Stock { area, chunks }
    }
}

impl<P: Chunked> MemoryProvider for P {
    fn init(&self) -> Result<(), PoolError> {
        Ok(())
    }

    fn alloc_bulk(&self, out: &mut [u32]) -> usize {
        self.stock().chunks.alloc_bulk(out)
    }

    fn alloc_run(&self, out: &mut [u32]) -> bool {
        self.stock().chunks.alloc_run(out)
    }

    fn release_bulk(&self, indices: &[u32]) {
        self.stock().chunks.release(indices);
    }

    fn destroy(&self) {}

    fn free_niovs(&self) -> u32 {
        self.stock().chunks.free()
    }

    fn area(&self) -> &Arc<NetIovArea> {
        &self.stock().area
    }

    fn dmabuf_id(&self) -> Option<DmabufId> {
        Chunked::dmabuf_id(self)
    }

    fn is_readable(&self) -> bool {
        self.stock().area.memory().access() == MemoryAccess::Host
    }
}

#[cfg(test)]
mod tests;
