//! Memory that a NIC of the kernel cannot be bound to, although it can be exported.

use std::env;
use std::ffi::OsStr;

use netmem::DeviceError;

use crate::error::refusal;

/// Set to 1, permits the binding.
const PERMIT: &str = "DEVMEM_VULKAN_STATIC_ATTACH";

/// PCI vendors of GPUs whose Linux drivers move memory to the host when a device attaches to its dma-buf statically, as the
/// kernel does for device memory TCP (linux v7.3 net/core/devmem.c; drivers/gpu/drm/amd/amdgpu/amdgpu_dma_buf.c).
const MOVED: [u32; 2] = [0x1002, 0x8086];

/// Refuses memory of a device of `vendor` that the kernel would move.
pub(crate) fn check(vendor: u32) -> Result<(), DeviceError> {
    judge(vendor, env::var_os(PERMIT).as_deref())
}

fn judge(vendor: u32, permit: Option<&OsStr>) -> Result<(), DeviceError> {
    if !MOVED.contains(&vendor) || permit.is_some_and(|value| value == "1") {
        return Ok(());
    }
    Err(refusal(
        "binding to a NIC of the kernel",
        "Linux moves memory of AMD and Intel GPUs to the host for it",
        "take the user-space stack; or, if this kernel does not move it, set DEVMEM_VULKAN_STATIC_ATTACH=1",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_amd_and_intel_is_refused_unless_it_is_permitted() {
        for vendor in MOVED {
            for permit in [None, Some("0"), Some("")] {
                let refused = judge(vendor, permit.map(OsStr::new)).unwrap_err();
                assert!(refused.remedy.contains(PERMIT), "{refused}");
            }
            assert_eq!(judge(vendor, Some(OsStr::new("1"))), Ok(()));
        }
        // NVIDIA, and Mesa's software driver.
        for vendor in [0x10de, 0x10005] {
            assert_eq!(judge(vendor, None), Ok(()));
        }
    }
}
