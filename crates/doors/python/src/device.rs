//! Devices: where memory is allocated, and how other libraries name and reach it.

use std::any::Any;

use devmem_tcp::{Dmabuf, cuda, hip, vulkan};

use crate::error::Error;

/// A device with memory, by its number in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Cpu,
    /// An NVIDIA GPU.
    Cuda(u32),
    /// An AMD GPU.
    Hip(u32),
    /// A Vulkan device of any vendor.
    Vulkan(u32),
}

/// Where a memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) device: Device,
    pub(crate) access: Access,
}

/// What takes addresses of a memory, with that of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The CPU.
    Cpu(usize),
    /// The libraries of the device.
    Device(usize),
    /// Nothing: the memory is reached by copies of the device only.
    Copies,
}

impl Device {
    /// Returns the device with this name: "cpu", "cuda:0"; without a number the first one.
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        let (kind, ordinal) = name.split_once(':').unwrap_or((name, "0"));
        match (kind, ordinal.parse()) {
            _ if name == "cpu" => Ok(Self::Cpu),
            ("cuda", Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
            ("hip", Ok(ordinal)) => Ok(Self::Hip(ordinal)),
            ("vulkan", Ok(ordinal)) => Ok(Self::Vulkan(ordinal)),
            _ => Err(Error::value(format!(
                "'{name}' is not a device\n  write cpu, cuda:0, hip:0 or vulkan:0"
            ))),
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Cpu => "cpu".to_owned(),
            Self::Cuda(ordinal) => format!("cuda:{ordinal}"),
            Self::Hip(ordinal) => format!("hip:{ordinal}"),
            Self::Vulkan(ordinal) => format!("vulkan:{ordinal}"),
        }
    }

    /// Allocates memory, of a GPU in whole pages.
    pub(crate) fn alloc(self, bytes: usize) -> Result<Dmabuf, Error> {
        match self {
            Self::Cpu => Ok(Dmabuf::written_once(bytes)?),
            Self::Cuda(ordinal) => Ok(cuda::alloc(ordinal, bytes)?),
            Self::Hip(ordinal) => Ok(hip::alloc(ordinal, bytes)?),
            Self::Vulkan(ordinal) => Ok(vulkan::alloc(ordinal, bytes)?),
        }
    }
}

impl Place {
    pub(crate) fn of(memory: &Dmabuf) -> Result<Self, Error> {
        let exporter = memory.exporter();
        let exporter = exporter.map(|exporter| exporter.as_ref() as &dyn Any);
        let gpu = exporter.and_then(|exporter| exporter.downcast_ref::<cuda::Allocation>());
        if let Some(place) = gpu.and_then(Self::of_gpu) {
            return Ok(place);
        }
        let vulkan = exporter.and_then(|exporter| exporter.downcast_ref::<vulkan::Allocation>());
        let device = match vulkan {
            Some(allocation) => Device::Vulkan(allocation.device().ordinal()),
            None => Device::Cpu,
        };
        let access = match (memory.cpu_address(), device) {
            (Some(address), _) => Access::Cpu(address),
            (None, Device::Vulkan(_)) => Access::Copies,
            (None, _) => return Err(Error::buffer("the device of this memory is unknown")),
        };
        Ok(Self { device, access })
    }

    /// Memory of CUDA and of HIP is of one type.
    fn of_gpu(allocation: &cuda::Allocation) -> Option<Self> {
        let device = allocation.device();
        let platform = device.platform();
        let device = match device.ordinal() {
            ordinal if platform == &cuda::PLATFORM => Device::Cuda(ordinal),
            ordinal if platform == &hip::PLATFORM => Device::Hip(ordinal),
            _ => return None,
        };
        let address = usize::try_from(allocation.device_ptr()).ok()?;
        let access = Access::Device(address);
        Some(Self { device, access })
    }

    /// Returns the address of the first byte, if the memory has addresses.
    pub(crate) fn address(self) -> Option<usize> {
        match self.access {
            Access::Cpu(address) | Access::Device(address) => Some(address),
            Access::Copies => None,
        }
    }

    /// Returns whether the CPU accesses the memory.
    pub(crate) fn is_host(self) -> bool {
        matches!(self.access, Access::Cpu(_))
    }

    /// dlpack.h DLDeviceType, and the number of the device. Memory that the CPU accesses is kDLCPU, of whichever device it is.
    pub(crate) fn dlpack(self) -> (i32, i32) {
        let (kind, ordinal) = match self.device {
            _ if self.is_host() => (1, 0),
            Device::Cpu => (1, 0),
            Device::Cuda(ordinal) => (2, ordinal),
            Device::Vulkan(ordinal) => (7, ordinal),
            Device::Hip(ordinal) => (10, ordinal),
        };
        (kind, i32::try_from(ordinal).unwrap_or(i32::MAX))
    }

    /// Why there is no address, and what to do without one.
    pub(crate) fn no_address(self) -> String {
        format!(
            "memory of {} that the CPU does not access has no address\n  copy it with tobytes() and copy_from()",
            self.device.name()
        )
    }
}
