//! Network memory: page pools, net_iovs, memory providers, unreadable payload.
mod checksum;
mod dma_port;
mod dmabuf;
mod frag_list;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;
mod net_iov;
mod netmem;
mod page_kind;
mod page_pool;
mod payload;
pub mod pool_bench;
mod pool_stats;
mod provider;
mod region;
mod return_ring;
mod sync;
mod tx_memory;

pub use devmem_uapi::DmabufId;
pub use dma_port::{BufSpan, DmaPort};
pub use dmabuf::{CpuAccess, DeviceSlice, Dmabuf, DmabufError, Exporter, MemoryObserver};
pub use frag_list::FragList;
pub use memory::OutOfBounds;
pub use net_iov::{GeometryError, NetIovArea, NiovSize};
pub use netmem::{Frag, Netmem, Unreadable};
pub use page_kind::PageKind;
pub use page_pool::{PagePool, PoolConfig, PoolError, PoolId};
pub use payload::Payload;
pub use pool_stats::PoolStats;
pub use tx_memory::{TxMemory, TxSend};
pub use provider::{DmabufProvider, HostProvider, MemoryProvider};
#[cfg(any(test, feature = "test-util"))]
pub use provider::{OpaqueProvider, contract};
