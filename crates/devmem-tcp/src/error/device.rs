//! Kinds of the errors of GPUs' libraries.
#![cfg(any(feature = "cuda", feature = "hip", feature = "vulkan"))]

use devmem_uapi::Errno;
use netmem::DeviceState;

use super::ErrorKind;
use super::verdict::{FORKED, INVALID, Verdict};

// Both export the error of the crate `devmem-gpu`.
#[cfg(feature = "cuda")]
pub(super) use devmem_cuda::GpuError;
#[cfg(all(feature = "hip", not(feature = "cuda")))]
pub(super) use devmem_hip::GpuError;

const NO_DRIVER: Verdict = (ErrorKind::Unsupported, Errno::ENODEV);
const NO_DEVICE: Verdict = (ErrorKind::NotFound, Errno::ENODEV);
const NO_MEMORY: Verdict = (ErrorKind::OutOfResources, Errno::ENOMEM);
const CANNOT: Verdict = (ErrorKind::Unsupported, Errno::EOPNOTSUPP);
const FAILED: Verdict = (ErrorKind::Other, Errno::EIO);

#[cfg(any(feature = "cuda", feature = "hip"))]
pub(super) fn of_gpu(error: &GpuError) -> Verdict {
    match error {
        GpuError::Load(_) => NO_DRIVER,
        GpuError::NoDevice { .. } => NO_DEVICE,
        GpuError::NoAddition { .. } => CANNOT,
        GpuError::Call(error) if error.state == DeviceState::Forked => FORKED,
        // cuda.h CUresult and hip_runtime_api.h hipError_t have the same numbers: out of memory, no device at all, not supported.
        GpuError::Call(error) => match error.code {
            2 => NO_MEMORY,
            100 => NO_DRIVER,
            801 => CANNOT,
            _ => FAILED,
        },
        GpuError::Size { .. }
        | GpuError::Misaligned { .. }
        | GpuError::Foreign { .. }
        | GpuError::OtherDevice { .. }
        | GpuError::NotExported { .. }
        | GpuError::TooLong { .. } => INVALID,
    }
}

#[cfg(feature = "vulkan")]
pub(super) fn of_vulkan(error: &devmem_vulkan::VulkanError) -> Verdict {
    use devmem_vulkan::VulkanError;
    match error {
        VulkanError::NoLibrary { .. } | VulkanError::Old { .. } => NO_DRIVER,
        VulkanError::NoDevice { .. } => NO_DEVICE,
        VulkanError::Unsuitable { .. } => CANNOT,
        VulkanError::Size { .. } => INVALID,
        VulkanError::Forked => FORKED,
        VulkanError::Call(error) if error.state == DeviceState::Forked => FORKED,
        // vulkan_core.h VkResult: out of memory of the host or the device, no extension, incompatible driver (there is none).
        VulkanError::Call(error) => match error.code {
            -1 | -2 => NO_MEMORY,
            -7 => CANNOT,
            -9 => NO_DRIVER,
            _ => FAILED,
        },
    }
}

#[cfg(all(test, feature = "cuda", feature = "vulkan"))]
mod tests {
    use devmem_vulkan::VulkanError;
    use netmem::{CopyError, DeviceError};

    use super::*;
    use crate::{DeviceMemoryError, GatherError};

    fn failed(code: i32) -> DeviceError {
        DeviceError {
            call: "call",
            name: "NAME",
            code,
            state: DeviceState::Usable,
            remedy: "remedy",
        }
    }

    #[test]
    fn errors_of_devices_have_the_errnos_of_their_causes() {
        let platform = &devmem_cuda::PLATFORM;
        let [ordinal, count] = [3, 1];
        let forked = DeviceError {
            state: DeviceState::Forked,
            ..failed(3)
        };
        let gpu = |error: GpuError| DeviceMemoryError::from(error);
        let vulkan = |error: VulkanError| DeviceMemoryError::from(error);
        let no_device = GpuError::NoDevice {
            platform,
            ordinal,
            count,
        };
        for (error, expected) in [
            (gpu(no_device), NO_DEVICE),
            (gpu(failed(2).into()), NO_MEMORY),
            (gpu(forked.into()), FORKED),
            (gpu(failed(801).into()), CANNOT),
            (gpu(failed(700).into()), FAILED),
            (gpu(GpuError::Size { size: 1 }), INVALID),
            (vulkan(VulkanError::NoDevice { ordinal, count }), NO_DEVICE),
            (vulkan(failed(-2).into()), NO_MEMORY),
            (vulkan(failed(-7).into()), CANNOT),
            (vulkan(failed(-9).into()), NO_DRIVER),
            (vulkan(VulkanError::Forked), FORKED),
            (vulkan(forked.into()), FORKED),
        ] {
            assert_eq!((error.kind(), error.errno()), expected, "{error}");
        }
        for (error, expected) in [(forked, FORKED), (failed(700), FAILED)] {
            let error = GatherError::from(CopyError::Device(error));
            assert_eq!((error.kind(), error.errno()), expected, "{error}");
        }
        let refused = gpu(failed(2).into());
        assert_eq!(refused.remedy().as_deref(), Some("remedy"));
    }
}
