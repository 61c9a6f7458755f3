//! An opened device.

use std::fmt;
use std::sync::Arc;

use netmem::CopyEngine;

use crate::error::GpuError;
use crate::platform::{Platform, Version};
use crate::sys::lanes::Lanes;
use crate::sys::shared::SharedWords;

/// A GPU: cheap to clone. It is closed when the last handle, and the last memory of it, has been dropped.
#[derive(Clone)]
pub struct Device {
    pub(crate) lanes: Arc<Lanes>,
    /// A trait object: the engine has to know [`Allocation`](crate::Allocation), which has a device.
    pub(crate) engine: Arc<dyn CopyEngine>,
    /// See [`DeviceInfo::batched_copies`].
    pub(crate) batched_copies: bool,
}

/// Facts about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// The vendor's library.
    pub platform: &'static Platform,
    /// Number of the device in this process (CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES change it).
    pub ordinal: u32,
    /// Name of the product.
    pub name: String,
    /// PCI address, as in /sys/bus/pci/devices.
    pub pci_address: String,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// Version of CUDA or HIP that the driver supports.
    pub version: Version,
    /// Whether the driver exports dma-bufs, by its own account.
    pub dmabuf_supported: bool,
    /// Whether many pieces are copied by one call of the driver.
    pub batched_copies: bool,
}

impl Device {
    /// Returns the number of the device in this process.
    pub fn ordinal(&self) -> u32 {
        self.lanes.context.ordinal()
    }

    /// Returns the vendor's library.
    pub fn platform(&self) -> &'static Platform {
        self.lanes.context.driver.loaded().platform
    }

    /// Returns facts about the device.
    ///
    /// # Errors
    ///
    /// [`GpuError`] of the driver.
    pub fn info(&self) -> Result<DeviceInfo, GpuError> {
        let context = &self.lanes.context;
        Ok(DeviceInfo {
            platform: context.driver.loaded().platform,
            ordinal: context.ordinal(),
            name: context.product()?,
            pci_address: context.pci_address()?,
            memory_bytes: context.memory_bytes()?,
            version: context.driver.loaded().version,
            dmabuf_supported: context.exports(),
            batched_copies: self.batched_copies,
        })
    }

    /// Allocates host memory of `words` words that the device reads where it is.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: there are no words, or the driver refuses.
    pub fn alloc_shared(&self, words: usize) -> Result<SharedWords, GpuError> {
        let size = words.checked_mul(size_of::<u64>()).filter(|size| *size > 0);
        size.ok_or(GpuError::Size { size: words })?;
        Ok(SharedWords::alloc(&self.lanes, words)?)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.lanes.context.name())
    }
}
