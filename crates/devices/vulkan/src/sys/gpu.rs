//! An opened device: the logical device with its functions, and its queue.
//!
// UNSAFETY: calls of Vulkan with structures that are local variables, and with a device that is destroyed when its value is
// dropped, after everything that was made from it.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ash::vk;
use netmem::{DeviceError, DeviceState, Fence, Lane, Process};

use super::copies::RawCopies;
use super::instance::{Physical, check};
use super::queue::Queue;
use crate::error::{VulkanError, refusal};

/// A logical device. Invariant: `raw` exists until `drop`, in the process `process`; buffers and memory of it are destroyed
/// before, because each has an `Arc` of this.
pub(crate) struct Gpu {
    pub(crate) raw: ash::Device,
    pub(crate) physical: Physical,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    /// How dma-bufs are exported.
    pub(crate) export: Option<ash::khr::external_memory_fd::Device>,
    /// How host memory is imported.
    pub(crate) import: Option<ash::ext::external_memory_host::Device>,
    process: Process,
    // Lock order: a leaf. Only Vulkan is called while it is held; that keeps the order of copies and fences.
    queue: Mutex<Queue>,
    /// The first error after which the device cannot be used.
    lost: OnceLock<DeviceError>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu(vulkan:{})", self.physical.ordinal)
    }
}

impl Gpu {
    /// Opens a device.
    pub(crate) fn open(physical: Physical) -> Result<Self, VulkanError> {
        let (ordinal, version) = (physical.ordinal, physical.version());
        if version < vk::API_VERSION_1_1 {
            let what = format!("vulkan:{ordinal}");
            return Err(VulkanError::Old { what, version });
        }
        let lack = "no queue that copies";
        let family = physical.copy_family();
        let family = family.ok_or(VulkanError::Unsuitable { ordinal, lack })?;
        let can_export = physical.exports();
        let can_import = physical.has(ash::ext::external_memory_host::NAME);
        let mut extensions = Vec::new();
        if can_export {
            extensions.push(ash::khr::external_memory_fd::NAME.as_ptr());
            extensions.push(ash::ext::external_memory_dma_buf::NAME.as_ptr());
        }
        if can_import {
            extensions.push(ash::ext::external_memory_host::NAME.as_ptr());
        }
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family)
            .queue_priorities(&[1.0])];
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions);
        let (instance, process) = (physical.instance, Process::current());
        // SAFETY: a device of the instance, a family of it that has a queue, and extensions that it has.
        let raw = unsafe { instance.create_device(physical.raw, &info, None) };
        let raw = check("vkCreateDevice", raw)?;
        let queue = Queue::create(&raw, family).inspect_err(|_| {
            // SAFETY: nothing else was made from the device.
            unsafe { raw.destroy_device(None) };
        })?;
        let export = can_export.then(|| ash::khr::external_memory_fd::Device::new(instance, &raw));
        let import =
            can_import.then(|| ash::ext::external_memory_host::Device::new(instance, &raw));
        Ok(Self {
            memory: physical.memory(),
            raw,
            physical,
            export,
            import,
            process,
            queue: Mutex::new(queue),
            lost: OnceLock::new(),
        })
    }

    /// Returns whether this is not the process that opened the device: nothing of Vulkan may be called.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Checks that the device can be used.
    pub(crate) fn check_usable(&self) -> Result<(), DeviceError> {
        if self.is_forked() {
            let refused = refusal(
                "use of the device",
                "it was opened by the parent process",
                "Vulkan does not work in a child by fork(2): start the process in another way (spawn)",
            );
            return Err(DeviceError {
                state: DeviceState::Forked,
                ..refused
            });
        }
        self.lost.get().map_or(Ok(()), |lost| Err(*lost))
    }

    /// Remembers an error after which the device cannot be used.
    fn note<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        result.inspect_err(|error| {
            if error.state == DeviceState::Lost {
                let _ = self.lost.set(*error);
            }
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts copies. All lanes are one queue.
    pub(crate) fn submit(&self, lane: Lane, copies: &RawCopies<'_>) -> Result<Fence, DeviceError> {
        self.check_usable()?;
        let number = self.note(self.queue().submit(&self.raw, copies))?;
        Ok(Fence { lane, number })
    }

    /// Returns whether a submission is done.
    pub(crate) fn is_done(&self, number: u64) -> Result<bool, DeviceError> {
        self.check_usable()?;
        self.note(self.queue().is_done(&self.raw, number))
    }

    /// Waits until a submission is done. Other submissions wait meanwhile.
    pub(crate) fn wait(&self, number: u64) -> Result<(), DeviceError> {
        self.check_usable()?;
        self.note(self.queue().wait(&self.raw, number))
    }

    /// Waits until all copies are done, or will never be.
    pub(crate) fn wait_all(&self) {
        let mut queue = self.queue();
        let last = queue.submitted;
        // An error means that nothing is running any more.
        let _ = self.note(queue.wait(&self.raw, last));
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.wait_all();
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        queue.destroy(&self.raw);
        // SAFETY: everything that was made from the device is destroyed (invariant; the queue's things just now).
        unsafe { self.raw.destroy_device(None) };
    }
}
