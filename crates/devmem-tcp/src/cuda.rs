//! Memory of NVIDIA GPUs, with the feature `cuda`. The driver's library is loaded when it is first used.
//!
//! A NIC of the kernel receives into the exported memory, and sends from it. With a user-space NIC, payload passes through
//! pinned host memory, and the GPU copies it: a frag is received when its bytes are in the GPU's memory.
//!
//! ```no_run
//! use devmem_tcp::{Netdev, RxBatch, cuda};
//!
//! let memory = cuda::alloc(0, 256 << 20)?;
//! let nic = Netdev::user("tap:devmem0", "10.77.0.2/24")?;
//! let setup = nic.plan_receive("10.77.0.2:5201".parse()?).queues(1).apply()?;
//! let rx = nic.bind_rx(&memory, setup.queues())?;
//! let (mut stream, _peer) = nic.listen("10.77.0.2:5201")?.accept()?;
//! let tensor = cuda::alloc(0, 64 << 20)?;
//! let (mut batch, mut at) = (RxBatch::with_capacity(1024), 0);
//! while stream.recv(&mut batch)? > 0 {
//!     at += batch.gather_into(&tensor, at)?;
//! }
//! # drop(rx);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The program completes its writes to GPU memory before it sends them (`cuStreamSynchronize`, or an event).
//!
//! [`Device::adder`] loads a small kernel that adds vectors of floats on the GPU, as the steps of an all-reduce do.
//!
//! [`Dmabuf::crc32c`](crate::Dmabuf::crc32c) has the GPU compute the checksum of its memory.
//!
//! [`Allocation::adopt`] takes memory that another library has allocated, such as a tensor of PyTorch,
//! [`Allocation::adopt_from_owner`] also keeps the tensor, and [`Allocation::into_dmabuf`] makes a [`Dmabuf`](crate::Dmabuf) of it.
//! [`Allocation::adopt_exported`] takes it with the dma-buf that the other library has made; [`locate`] tells which device it is on;
//! [`Allocation::revoke`] ends all copies of it, so that it may be freed.

pub use devmem_cuda::{
    Adder, Allocation, Device, DeviceInfo, Floats, GpuError, LoadError, PLATFORM, Place, Platform,
    SharedWords, Version, alloc, devices, exporting, locate, open, selected,
};
