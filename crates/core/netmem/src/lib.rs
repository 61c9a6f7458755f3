//! Network memory: ownership of the bytes of a packet, and access to them.
//!
//! Payload is in *net_iovs*, equal chunks of device memory (or in host pages, which are handled the
//! same way). Three types hold it:
//!
//! - [`PagePool`] allocates and recycles the memory of one receive queue. The fast path of its owner is a
//!   pop and a push; other threads return memory through a lock-free ring.
//! - [`Netmem`] owns one net_iov, and [`Frag`] a range of one. They are moved; a second owner is an explicit,
//!   counted `share`. When the last one is dropped, on any thread, the net_iov goes *home*: back to its pool, or to the
//!   pool's provider if the pool has been dropped.
//! - [`FragList`] is the [`Payload`] of a segment: it can be measured, cut and joined, and has no method to
//!   read a byte of device memory. Moving such bytes takes a [`DmaPort`], the equivalent of a NIC's DMA engine; getting one
//!   takes a right that only the NIC has.
//!
//! Nothing is allocated from memory whose ranges a program names, to send them or to receive there: a [`FragSource`] makes frags of
//! any of its bytes, and a [`FragUse`] tells when the last frag of one use has been dropped.
//!
//! A pool gets its memory from a [`MemoryProvider`] of host pages, or of a [`Dmabuf`] that is bound to queues. The memory is
//! unmapped when its user, its provider and its last net_iov are all dropped.
//!
//! Two bindings of the same memory would lend the same net_iov twice. An [`RxClaim`] is the right of one binding to
//! allocate it; the next one can be taken when the first is dropped and all its net_iovs are home. [`Process`] and
//! [`PerProcess`] distinguish a child by fork(2) from its parent.
//!
//! In the walk of a received segment (ARCHITECTURE.md): the NIC queue posts memory from [`PagePool::alloc`] (step 1),
//! reads a packet into it with [`DmaPort::readv`], and wraps it in frags; TCP
//! orders them as `Payload` (step 6); the socket lends them under tokens (step 8); and
//! [`PagePool::recycle`] takes them back (step 9).
//!
//! The crate knows no packets, connections or tokens and starts no threads. It never blocks, except for the
//! short lock of a provider's chunk allocator, outside the fast path.
//!
//! ```
//! use std::sync::Arc;
//! use devmem_uapi::DmabufId;
//! use netmem::{Dmabuf, Frag, MemoryProvider, NiovSize, PagePool};
//!
//! let memory = Dmabuf::anonymous(1 << 20)?;
//! let provider = MemoryProvider::of_dmabuf(&memory, DmabufId(1), NiovSize::DEFAULT)?;
//! let mut pool = PagePool::new(Arc::new(provider));
//! let port = pool.dma_port(mapped::DmaRight::of_a_nic());
//!
//! // The NIC's side: bytes arrive in device memory.
//! let netmem = pool.alloc().ok_or("no memory")?;
//! port.copy_in(&netmem, 0, b"payload");
//! let frag = Frag::new(netmem, 0, 7);
//!
//! // The stack cannot read them; the owner of the memory can.
//! assert!(frag.copy_to(0, &mut [0; 7]).is_err());
//! let at = frag.dmabuf_offset() as usize;
//! assert_eq!(memory.slice(at..at + 7).to_vec(), b"payload");
//!
//! pool.recycle(frag.into_netmem());
//! pool.assert_all_home();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod buf_span;
mod checksum;
#[cfg(any(test, feature = "test-util"))]
pub mod contract;
mod cpu_view;
mod crc32c;
mod device;
mod dma_port;
mod dmabuf;
mod errors;
#[cfg(any(test, feature = "test-util"))]
mod fake_device;
mod frag;
mod frag_list;
mod frag_source;
mod gather;
mod lent;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;
mod net_iov;
mod netmem;
mod page_kind;
mod page_pool;
mod payload;
mod piece_list;
mod pool_shared;
mod pool_types;
mod populate;
mod provider;
mod region;
mod return_ring;
mod rx_claim;
mod sharing;
mod staging;
mod submitted;
mod sync;

pub use buf_span::BufSpan;
pub use cpu_view::{CopyError, CpuView};
pub use crc32c::RangeCrc32c;
pub use device::{
    CopyEngine, CopyPiece, CopyWay, CpuAccess, DeviceAt, DeviceError, DeviceState, Exporter, Fence,
    HostWindow, Lane, Pinned,
};
pub use devmem_uapi::DmabufId;
pub use dma_port::DmaPort;
pub use dmabuf::{Chunks, DeviceSlice, Dmabuf, MemoryObserver};
pub use errors::{DmabufError, GeometryError};
#[cfg(any(test, feature = "test-util"))]
pub use fake_device::{FAKE_LOST, FakeDevice, FakePace};
pub use frag::{Frag, Unreadable};
pub use frag_list::FragList;
pub use frag_source::{FragSource, FragUse, UseObserver};
pub use gather::DeviceGather;
pub use lent::LentMemory;
#[cfg(any(test, feature = "test-util"))]
pub use mapped::in_child;
pub use mapped::{NoRoom, PerProcess, Process, RoomHolder, check_room};
pub use memory::OutOfBounds;
pub use net_iov::{NetIovArea, NiovSize};
pub use netmem::Netmem;
pub use page_kind::PageKind;
pub use page_pool::PagePool;
pub use payload::Payload;
pub use piece_list::PieceList;
pub use pool_types::{PoolId, PoolStats};
pub use provider::MemoryProvider;
pub use rx_claim::{InUse, InUseReason, RxClaim};
pub use sharing::{MAX_PEER_BYTES, PeerMemory, PeerMemoryError, ShareableMemory};
pub use staging::{CopiesInFlight, StagedCopies};
