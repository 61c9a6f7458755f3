//! The instance of this process, and its physical devices.
//!
// UNSAFETY: calls of Vulkan with structures that are local variables, and with handles of the one instance, which is never
// destroyed.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::OnceLock;

use ash::vk;
use netmem::{DeviceError, Process};

use super::library;
use crate::device::DeviceInfo;
use crate::error::{VulkanError, device_error};

/// The handle types of what is exported: dma-bufs.
pub(crate) const DMA_BUF: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;

/// What all buffers are used for.
pub(crate) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// The instance. It lives until the process ends: drivers have threads.
struct Instance {
    raw: ash::Instance,
    process: Process,
}

/// Returns the error of a call, if it failed.
pub(crate) fn check<T>(
    call: &'static str,
    result: ash::prelude::VkResult<T>,
) -> Result<T, DeviceError> {
    result.map_err(|result| device_error(call, result))
}

fn instance() -> Result<&'static Instance, VulkanError> {
    static INSTANCE: OnceLock<Result<Instance, VulkanError>> = OnceLock::new();
    let instance = INSTANCE.get_or_init(create);
    let instance = instance.as_ref().map_err(Clone::clone)?;
    match instance.process.is_current() {
        true => Ok(instance),
        false => Err(VulkanError::Forked),
    }
}

fn create() -> Result<Instance, VulkanError> {
    let process = Process::current();
    let entry = library::load()?;
    // SAFETY: the loader is loaded.
    let version = unsafe { entry.try_enumerate_instance_version() };
    let version = check("vkEnumerateInstanceVersion", version)?.unwrap_or(vk::API_VERSION_1_0);
    if version < vk::API_VERSION_1_1 {
        let what = "the Vulkan loader".to_owned();
        return Err(VulkanError::Old { what, version });
    }
    let application = vk::ApplicationInfo::default()
        .application_name(c"devmem-tcp")
        .api_version(vk::API_VERSION_1_1);
    let info = vk::InstanceCreateInfo::default().application_info(&application);
    // SAFETY: no layers, no extensions, and the structure is valid during the call.
    let raw = unsafe { entry.create_instance(&info, None) };
    let raw = check("vkCreateInstance", raw)?;
    Ok(Instance { raw, process })
}

/// A device as the instance lists it.
#[derive(Clone)]
pub(crate) struct Physical {
    pub(crate) instance: &'static ash::Instance,
    pub(crate) raw: vk::PhysicalDevice,
    pub(crate) ordinal: u32,
    extensions: Vec<vk::ExtensionProperties>,
}

impl Physical {
    /// Returns the devices of this process, in the order of the loader.
    pub(crate) fn all() -> Result<Vec<Self>, VulkanError> {
        let instance = &instance()?.raw;
        // SAFETY: the instance exists.
        let found = unsafe { instance.enumerate_physical_devices() };
        let found = check("vkEnumeratePhysicalDevices", found)?;
        (0..)
            .zip(found)
            .map(|(ordinal, raw)| {
                // SAFETY: a device of the instance.
                let extensions = unsafe { instance.enumerate_device_extension_properties(raw) };
                let extensions = check("vkEnumerateDeviceExtensionProperties", extensions)?;
                Ok(Self {
                    instance,
                    raw,
                    ordinal,
                    extensions,
                })
            })
            .collect()
    }

    /// Returns one device.
    pub(crate) fn find(ordinal: u32) -> Result<Self, VulkanError> {
        let mut all = Self::all()?;
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        match ordinal < count {
            true => Ok(all.swap_remove(ordinal as usize)),
            false => Err(VulkanError::NoDevice { ordinal, count }),
        }
    }

    pub(crate) fn has(&self, extension: &CStr) -> bool {
        let names = self
            .extensions
            .iter()
            .map(|it| it.extension_name_as_c_str());
        names.into_iter().any(|name| name == Ok(extension))
    }

    /// Returns whether buffers of the device can be exported as dma-bufs, by the driver's account.
    pub(crate) fn exports(&self) -> bool {
        if self.version() < vk::API_VERSION_1_1
            || !self.has(ash::khr::external_memory_fd::NAME)
            || !self.has(ash::ext::external_memory_dma_buf::NAME)
        {
            return false;
        }
        let asked = vk::PhysicalDeviceExternalBufferInfo::default()
            .usage(USAGE)
            .handle_type(DMA_BUF);
        let mut answer = vk::ExternalBufferProperties::default();
        // SAFETY: a device of the instance, and two structures of the types that the function takes.
        unsafe {
            self.instance
                .get_physical_device_external_buffer_properties(self.raw, &asked, &mut answer);
        };
        let features = answer.external_memory_properties.external_memory_features;
        features.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE)
    }

    pub(crate) fn memory(&self) -> vk::PhysicalDeviceMemoryProperties {
        // SAFETY: a device of the instance.
        unsafe {
            self.instance
                .get_physical_device_memory_properties(self.raw)
        }
    }

    /// Returns the family of queues to copy with: one for copies only, if there is one, as it runs beside other work.
    pub(crate) fn copy_family(&self) -> Option<u32> {
        // SAFETY: a device of the instance.
        let families = unsafe {
            self.instance
                .get_physical_device_queue_family_properties(self.raw)
        };
        let others = vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE;
        // Queues for graphics and computing can copy, too, whether or not they say it.
        let copies = others | vk::QueueFlags::TRANSFER;
        let usable = (0..)
            .zip(&families)
            .filter(|(_, family)| family.queue_flags.intersects(copies) && family.queue_count > 0);
        let best = usable.min_by_key(|(_, family)| {
            let video = vk::QueueFlags::VIDEO_DECODE_KHR | vk::QueueFlags::VIDEO_ENCODE_KHR;
            family.queue_flags.intersects(others | video)
        });
        best.map(|(index, _)| index)
    }

    fn properties(&self) -> vk::PhysicalDeviceProperties {
        // SAFETY: a device of the instance.
        unsafe { self.instance.get_physical_device_properties(self.raw) }
    }

    /// Returns the version of Vulkan that the device supports.
    pub(crate) fn version(&self) -> u32 {
        self.properties().api_version
    }

    /// Returns the PCI number of the vendor, or a larger one of the Khronos group.
    pub(crate) fn vendor(&self) -> u32 {
        self.properties().vendor_id
    }

    /// Fills in the structures of the extensions that the device has, and returns whether it has each.
    fn extended<'a>(
        &self,
        driver: &'a mut vk::PhysicalDeviceDriverProperties<'_>,
        pci: &'a mut vk::PhysicalDevicePCIBusInfoPropertiesEXT<'_>,
    ) -> [bool; 2] {
        let has = |extension| self.version() >= vk::API_VERSION_1_1 && self.has(extension);
        let known = [
            has(ash::khr::driver_properties::NAME),
            has(ash::ext::pci_bus_info::NAME),
        ];
        let mut asked = vk::PhysicalDeviceProperties2::default();
        if known[0] {
            asked = asked.push_next(driver);
        }
        if known[1] {
            asked = asked.push_next(pci);
        }
        if known != [false; 2] {
            // SAFETY: a device of the instance with Vulkan 1.1, and a chain of structures that it knows.
            unsafe {
                self.instance
                    .get_physical_device_properties2(self.raw, &mut asked)
            };
        }
        known
    }

    /// Returns the bytes of the largest heap with memory of a kind.
    fn heap_bytes(&self, flags: vk::MemoryPropertyFlags) -> u64 {
        let memory = self.memory();
        let heaps = memory.memory_heaps_as_slice();
        let types = memory.memory_types_as_slice().iter();
        let fitting = types.filter(|kind| kind.property_flags.contains(flags));
        let sizes = fitting.filter_map(|kind| heaps.get(kind.heap_index as usize));
        sizes.map(|heap| heap.size).max().unwrap_or(0)
    }

    /// Returns facts about the device.
    pub(crate) fn info(&self) -> DeviceInfo {
        let properties = self.properties();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        let [_, has_pci] = self.extended(&mut driver, &mut pci);
        let text = |text: Result<&CStr, _>| match text {
            Ok(text) => text.to_string_lossy().into_owned(),
            Err(_unterminated) => String::new(),
        };
        let local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
        let visible =
            vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        DeviceInfo {
            ordinal: self.ordinal,
            name: text(properties.device_name_as_c_str()),
            driver: text(driver.driver_name_as_c_str()),
            pci_address: has_pci.then(|| {
                format!(
                    "{:04x}:{:02x}:{:02x}.{:x}",
                    pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function
                )
            }),
            is_software: properties.device_type == vk::PhysicalDeviceType::CPU,
            memory_bytes: self.heap_bytes(local),
            mapped_bytes: self.heap_bytes(local | visible),
            dmabuf_supported: self.exports(),
        }
    }
}
