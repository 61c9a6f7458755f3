//! Errors of memory: of its creation, of copies, and of the libraries of devices.

use std::error::Error as StdError;

use devmem_uapi::Errno;
use netmem::{
    CopyError, DeviceError, DeviceState, DmabufError, GeometryError, NoRoom, OutOfBounds,
};

use super::{Error, ErrorKind, Remedy};

// Both export the error of the crate `devmem-gpu`.
#[cfg(feature = "cuda")]
use devmem_cuda::GpuError;
#[cfg(all(feature = "hip", not(feature = "cuda")))]
use devmem_hip::GpuError;
#[cfg(feature = "vulkan")]
use devmem_vulkan::VulkanError;

/// Kind and errno of an error.
type Verdict = (ErrorKind, Errno);

const INVALID: Verdict = (ErrorKind::InvalidInput, Errno::EINVAL);
const FORKED: Verdict = (ErrorKind::Forked, Errno::EOWNERDEAD);
const FAILED: Verdict = (ErrorKind::Other, Errno::EIO);
#[cfg(any(feature = "cuda", feature = "hip", feature = "vulkan"))]
mod of_devices {
    use super::{Errno, ErrorKind, Verdict};

    pub(super) const NO_DRIVER: Verdict = (ErrorKind::Unsupported, Errno::ENODEV);
    pub(super) const NO_DEVICE: Verdict = (ErrorKind::NotFound, Errno::ENODEV);
    pub(super) const NO_MEMORY: Verdict = (ErrorKind::OutOfResources, Errno::ENOMEM);
    pub(super) const CANNOT: Verdict = (ErrorKind::Unsupported, Errno::EOPNOTSUPP);
}
#[cfg(any(feature = "cuda", feature = "hip", feature = "vulkan"))]
use of_devices::{CANNOT, NO_DEVICE, NO_DRIVER, NO_MEMORY};

impl Error {
    /// The error of a call of a device's library, which has a remedy.
    fn of_device((kind, errno): Verdict, error: &DeviceError) -> Self {
        Self::new(kind, errno, error.to_string()).with_remedy(error.remedy)
    }

    /// A device did not export its memory as a dma-buf, which a NIC of the kernel needs, or would not see what the NIC writes.
    pub(crate) fn not_exported(error: DeviceError) -> Self {
        let verdict = match error.state {
            DeviceState::Forked => FORKED,
            DeviceState::Usable | DeviceState::Lost => (ErrorKind::Unsupported, Errno::EOPNOTSUPP),
        };
        let mut told = Self::of_device(verdict, &error);
        let reason = &mut told.facts_mut().reason;
        reason.insert_str(0, "the memory cannot be given to a NIC of the kernel: ");
        told
    }
}

impl From<DmabufError> for Error {
    fn from(error: DmabufError) -> Self {
        let (kind, errno) = match &error {
            DmabufError::NoRoom(_)
            | DmabufError::Map { .. }
            | DmabufError::Populate { .. }
            | DmabufError::Memfd { .. } => (ErrorKind::OutOfResources, Errno::ENOMEM),
            _ => INVALID,
        };
        Self::new(kind, errno, error.to_string()).with_remedy_if(error.remedy())
    }
}

impl From<OutOfBounds> for Error {
    fn from(error: OutOfBounds) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<CopyError> for Error {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::OutOfBounds(error) => error.into(),
            CopyError::Sync { errno } => Self::of_errno(errno, error.to_string()),
            CopyError::Device(device) if device.state == DeviceState::Forked => {
                Self::of_device(FORKED, &device)
            }
            CopyError::Device(device) => Self::of_device(FAILED, &device),
        }
    }
}

/// Returns the kind of an error of a device's library.
pub(super) fn kind_of(error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
    #[cfg(any(feature = "cuda", feature = "hip"))]
    if let Some(error) = error.downcast_ref::<GpuError>() {
        return Some(of_gpu(error).0);
    }
    #[cfg(feature = "vulkan")]
    if let Some(error) = error.downcast_ref::<VulkanError>() {
        return Some(of_vulkan(error).0);
    }
    let _ = error;
    None
}

/// Returns what to do about an error of memory or of a device's library.
pub(super) fn remedy_of(error: &(dyn StdError + 'static)) -> Option<Remedy> {
    if let Some(error) = error.downcast_ref::<DmabufError>() {
        return error.remedy().map(Remedy::from);
    }
    if let Some(error) = error.downcast_ref::<GeometryError>() {
        return Some(error.remedy().into());
    }
    if let Some(error) = error.downcast_ref::<NoRoom>() {
        return Some(error.remedy().into());
    }
    if let Some(CopyError::Device(error)) = error.downcast_ref() {
        return Some(error.remedy.into());
    }
    if let Some(error) = error.downcast_ref::<DeviceError>() {
        return Some(error.remedy.into());
    }
    #[cfg(any(feature = "cuda", feature = "hip"))]
    if let Some(error) = error.downcast_ref::<GpuError>() {
        return error.remedy().map(Remedy::from);
    }
    #[cfg(feature = "vulkan")]
    if let Some(error) = error.downcast_ref::<VulkanError>() {
        return Some(error.remedy().into());
    }
    None
}

#[cfg(any(feature = "cuda", feature = "hip"))]
fn of_gpu(error: &GpuError) -> Verdict {
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
fn of_vulkan(error: &devmem_vulkan::VulkanError) -> Verdict {
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

#[cfg(any(feature = "cuda", feature = "hip"))]
impl From<GpuError> for Error {
    fn from(error: GpuError) -> Self {
        let (kind, errno) = of_gpu(&error);
        Self::new(kind, errno, error.to_string()).with_remedy_if(error.remedy())
    }
}

#[cfg(feature = "vulkan")]
impl From<VulkanError> for Error {
    fn from(error: VulkanError) -> Self {
        let (kind, errno) = of_vulkan(&error);
        Self::new(kind, errno, error.to_string()).with_remedy(error.remedy())
    }
}

#[cfg(all(test, feature = "cuda", feature = "vulkan"))]
mod tests {
    use super::*;
    use devmem_vulkan::VulkanError;

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
        let gpu = |error: GpuError| Error::from(error);
        let vulkan = |error: VulkanError| Error::from(error);
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
            let error = Error::from(CopyError::Device(error));
            assert_eq!((error.kind(), error.errno()), expected, "{error}");
        }
        let refused = gpu(failed(2).into());
        assert_eq!(refused.reason(), "call failed: NAME (2)");
        assert_eq!(refused.remedy(), Some("remedy".into()));
        let odd = gpu(GpuError::Size { size: 1 });
        assert_eq!(
            odd.remedy(),
            Some("take a positive multiple of 4096".into())
        );
    }
}
