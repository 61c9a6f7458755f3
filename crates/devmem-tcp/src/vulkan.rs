//! Memory of Vulkan devices of any vendor, with the feature `vulkan`. The Vulkan loader is loaded when it is first used.
//!
//! Memory that the CPU can map (integrated GPUs, others with a resizable BAR, Mesa's software driver) is used where it is: a
//! user-space NIC reads packets straight into it. Otherwise payload passes through host memory, and the device copies it. A NIC
//! of the kernel can be bound to the exported dma-buf, if the driver exports one.
//!
//! ```no_run
//! use devmem_tcp::{Netdev, RxBatch, vulkan};
//!
//! let memory = vulkan::alloc(0, 64 << 20)?;
//! let nic = Netdev::user("tap:devmem0", "10.77.0.2/24")?;
//! let setup = nic.plan_receive("10.77.0.2:5201".parse()?).queues(1).apply()?;
//! let rx = nic.bind_rx(&memory, setup.queues())?;
//! let (mut stream, _peer) = nic.listen("10.77.0.2:5201")?.accept()?;
//! let target = vulkan::alloc(0, 64 << 20)?;
//! let (mut batch, mut at) = (RxBatch::with_capacity(1024), 0);
//! while stream.recv(&mut batch)? > 0 {
//!     // One copy command with a region for each piece.
//!     at += batch.gather_into(&target, at)?;
//! }
//! # drop(rx);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use netmem::Dmabuf;

pub use devmem_vulkan::{Allocation, Device, DeviceInfo, VulkanError, devices};

const PAGE_BYTES: usize = 4096;

/// Allocates `size` bytes (rounded up to whole pages) of device `ordinal`.
///
/// # Errors
/// There is no loader, no driver or no such device, or the device does not have enough memory. The error says what to do.
pub fn alloc(ordinal: u32, size: usize) -> Result<Dmabuf, VulkanError> {
    let rounded = whole_pages(size)?;
    Ok(Device::open(ordinal)?.alloc(rounded)?.into_dmabuf())
}

/// As [`alloc`], of memory that the CPU does not access: the device copies payload to it and from it.
///
/// # Errors
/// As [`alloc`].
pub fn alloc_unmapped(ordinal: u32, size: usize) -> Result<Dmabuf, VulkanError> {
    let rounded = whole_pages(size)?;
    let allocated = Device::open(ordinal)?.alloc_unmapped(rounded)?;
    Ok(allocated.into_dmabuf())
}

fn whole_pages(size: usize) -> Result<usize, VulkanError> {
    let rounded = size.checked_next_multiple_of(PAGE_BYTES);
    rounded.ok_or(VulkanError::Size { size })
}
