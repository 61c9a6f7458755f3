//! Errors: no loader or driver, and calls that fail. `Display` prints the reason.

use ash::vk;
use netmem::{DeviceError, DeviceState};

/// Why a device, or memory of one, cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VulkanError {
    /// The Vulkan loader cannot be loaded.
    #[error("{name} cannot be loaded: {reason}")]
    NoLibrary {
        /// File name.
        name: String,
        /// Reason.
        reason: String,
    },
    /// The loader or the driver is older than Vulkan 1.1.
    #[error(
        "{what} supports Vulkan {}.{}; 1.1 is needed",
        vk::api_version_major(*.version),
        vk::api_version_minor(*.version)
    )]
    Old {
        /// The loader or the device.
        what: String,
        /// As vkEnumerateInstanceVersion returns it.
        version: u32,
    },
    /// A call of Vulkan failed.
    #[error(transparent)]
    Call(#[from] DeviceError),
    /// There is no such device.
    #[error("there is no device vulkan:{ordinal}; this process sees {count}")]
    NoDevice {
        /// The requested device.
        ordinal: u32,
        /// Number of devices.
        count: u32,
    },
    /// The device has no queue that copies, or no memory for buffers.
    #[error("vulkan:{ordinal} has {lack}")]
    Unsuitable {
        /// The device.
        ordinal: u32,
        /// What it lacks.
        lack: &'static str,
    },
    /// The size is 0 or not a multiple of the page.
    #[error("{size} bytes of device memory are not whole pages of 4096 bytes")]
    Size {
        /// The requested size.
        size: usize,
    },
    /// The process is a child by fork(2) of the one that has loaded Vulkan.
    #[error("Vulkan does not work in a child by fork(2) of a process that has used it")]
    Forked,
}

impl VulkanError {
    /// Returns what to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoLibrary { .. } => {
                "install the Vulkan loader (Debian: libvulkan1), or name its file in DEVMEM_LIBVULKAN"
            }
            Self::Old { .. } => "install a newer one",
            Self::Call(error) => error.remedy,
            Self::NoDevice { .. } => {
                "`vulkaninfo --summary` lists them; VK_DRIVER_FILES hides some, and a container may lack /dev/dri"
            }
            Self::Unsuitable { .. } => "use another device: `vulkaninfo --summary` lists them",
            Self::Size { .. } => "take a positive multiple of 4096",
            Self::Forked => {
                "start the process in another way (spawn), or use Vulkan only after the fork"
            }
        }
    }
}

/// Returns the error of a call, with what to do about it.
pub(crate) fn device_error(call: &'static str, result: vk::Result) -> DeviceError {
    DeviceError {
        call,
        name: name(result),
        code: result.as_raw(),
        state: match result {
            vk::Result::ERROR_DEVICE_LOST => DeviceState::Lost,
            _ => DeviceState::Usable,
        },
        remedy: remedy(call, result),
    }
}

/// Returns the error of a call that the driver does not have.
pub(crate) fn no_extension(call: &'static str, remedy: &'static str) -> DeviceError {
    DeviceError {
        remedy,
        ..device_error(call, vk::Result::ERROR_EXTENSION_NOT_PRESENT)
    }
}

/// Returns the error of a request that this crate refuses before Vulkan is called.
pub(crate) fn refusal(call: &'static str, name: &'static str, remedy: &'static str) -> DeviceError {
    DeviceError {
        call,
        name,
        code: 0,
        state: DeviceState::Usable,
        remedy,
    }
}

fn name(result: vk::Result) -> &'static str {
    match result {
        vk::Result::TIMEOUT => "VK_TIMEOUT",
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => "VK_ERROR_OUT_OF_HOST_MEMORY",
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => "VK_ERROR_OUT_OF_DEVICE_MEMORY",
        vk::Result::ERROR_INITIALIZATION_FAILED => "VK_ERROR_INITIALIZATION_FAILED",
        vk::Result::ERROR_DEVICE_LOST => "VK_ERROR_DEVICE_LOST",
        vk::Result::ERROR_MEMORY_MAP_FAILED => "VK_ERROR_MEMORY_MAP_FAILED",
        vk::Result::ERROR_LAYER_NOT_PRESENT => "VK_ERROR_LAYER_NOT_PRESENT",
        vk::Result::ERROR_EXTENSION_NOT_PRESENT => "VK_ERROR_EXTENSION_NOT_PRESENT",
        vk::Result::ERROR_FEATURE_NOT_PRESENT => "VK_ERROR_FEATURE_NOT_PRESENT",
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => "VK_ERROR_INCOMPATIBLE_DRIVER",
        vk::Result::ERROR_TOO_MANY_OBJECTS => "VK_ERROR_TOO_MANY_OBJECTS",
        vk::Result::ERROR_UNKNOWN => "VK_ERROR_UNKNOWN",
        vk::Result::ERROR_INVALID_EXTERNAL_HANDLE => "VK_ERROR_INVALID_EXTERNAL_HANDLE",
        _ => "an unknown result",
    }
}

fn remedy(call: &str, result: vk::Result) -> &'static str {
    match (call, result) {
        ("vkGetMemoryFdKHR", vk::Result::ERROR_TOO_MANY_OBJECTS) => {
            "raise the limit of open files (`ulimit -n`)"
        }
        ("vkGetMemoryFdKHR", _) => {
            "the driver does not export this memory; the user-space stack works without a dma-buf"
        }
        ("vkMapMemory", _) => {
            "the process has no addresses for it: raise `ulimit -v`, or allocate less"
        }
        (_, vk::Result::ERROR_OUT_OF_HOST_MEMORY) => "the machine has less free memory than that",
        (_, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY) => {
            "the device has less free memory than that: allocate less, or end other programs that use it"
        }
        (_, vk::Result::ERROR_INCOMPATIBLE_DRIVER) => {
            "install a Vulkan driver (Debian: mesa-vulkan-drivers), or name its JSON file in VK_DRIVER_FILES"
        }
        (_, vk::Result::ERROR_INITIALIZATION_FAILED) => {
            "the driver does not work here: may this user open /dev/dri/renderD128? (groups render and video)"
        }
        (_, vk::Result::ERROR_DEVICE_LOST) => {
            "the device is lost for this process: read `dmesg`, and restart the program"
        }
        (_, vk::Result::ERROR_EXTENSION_NOT_PRESENT | vk::Result::ERROR_FEATURE_NOT_PRESENT) => {
            "the driver lacks what is needed: install a newer one"
        }
        _ => "see `devmem-tcp doctor` and `vulkaninfo --summary`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_call_the_result_and_the_remedy() {
        let full = device_error("vkAllocateMemory", vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
        assert_eq!(
            full.to_string(),
            "vkAllocateMemory failed: VK_ERROR_OUT_OF_DEVICE_MEMORY (-2)"
        );
        assert!(
            full.remedy
                .starts_with("the device has less free memory than that: allocate less")
        );
        assert_eq!(full.state, DeviceState::Usable);
        let export = device_error("vkGetMemoryFdKHR", vk::Result::ERROR_OUT_OF_HOST_MEMORY);
        assert!(export.remedy.contains("does not export this memory"));
        let lost = device_error("vkQueueSubmit", vk::Result::ERROR_DEVICE_LOST);
        assert_eq!(lost.state, DeviceState::Lost);
        let unknown = device_error("vkQueueSubmit", vk::Result::from_raw(-77));
        assert!(unknown.to_string().contains("an unknown result (-77)"));
    }
}
