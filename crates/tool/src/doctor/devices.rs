//! GPUs: the driver, each device, whether its memory can be exported, and the way to the NIC that is nearest to it.

#[cfg(feature = "vulkan")]
mod vulkan;
#[cfg(not(feature = "vulkan"))]
#[path = "devices/no_vulkan.rs"]
mod vulkan;

use devmem_linux::doctor::{Check, CheckState};
use devmem_tcp::Error;
use devmem_tcp::cuda::{self, Device, DeviceInfo, GpuError, Platform};
use devmem_tcp::hip;

use super::pcie::Sysfs;

/// Bytes whose export is tried: a whole allocation of each driver, as ROCm 6 exports no parts.
const TRIED_BYTES: usize = 2 << 20;

/// Examines the GPUs of each vendor: rows for each of them, or one that says why there are none.
pub(super) fn examine() -> Vec<Check> {
    let sysfs = Sysfs::of_this_machine();
    let mut checks = devices(&cuda::PLATFORM, cuda::devices(), cuda::open, &sysfs);
    checks.extend(devices(&hip::PLATFORM, hip::devices(), hip::open, &sysfs));
    for check in vulkan::examine(&sysfs) {
        // A device of CUDA or HIP is one of Vulkan, too: its way to the NIC is examined once.
        let is_new = checks
            .iter()
            .all(|known| (known.name, &known.found) != (check.name, &check.found));
        if is_new {
            checks.push(check);
        }
    }
    checks
}

fn devices(
    platform: &'static Platform,
    found: Result<Vec<DeviceInfo>, GpuError>,
    open: fn(u32) -> Result<Device, GpuError>,
    sysfs: &Sysfs,
) -> Vec<Check> {
    match found {
        Ok(found) => {
            let checks = found.iter().flat_map(|info| {
                let mut checks = vec![device(info, open(info.ordinal))];
                checks.extend(sysfs.examine(&info.pci_address));
                checks
            });
            checks.collect()
        }
        Err(error) => vec![refused(
            platform.name,
            CheckState::Missing,
            "",
            error.into(),
        )],
    }
}

/// Tries to export memory of a device.
fn device(info: &DeviceInfo, opened: Result<Device, GpuError>) -> Check {
    let DeviceInfo {
        platform,
        ordinal,
        name,
        pci_address,
        memory_bytes,
        version,
        dmabuf_supported: _,
        batched_copies,
    } = info;
    let mut found = format!(
        "{}:{ordinal} is {name} at {pci_address}, {} GiB, {} {version}",
        platform.name,
        memory_bytes >> 30,
        platform.title
    );
    if !batched_copies && platform.name == cuda::PLATFORM.name {
        found.push_str(", copies piece by piece (the driver compiles no kernels, and CUDA 12.8 would batch the copies)");
    }
    let exported = opened
        .and_then(|device| device.alloc(TRIED_BYTES))
        .and_then(|memory| memory.export().map(drop));
    match exported {
        Ok(()) => Check {
            name: platform.name,
            state: CheckState::Good,
            found: format!("{found}, exports dma-bufs"),
            remedy: None,
        },
        // The user-space backend needs no export.
        Err(error) => {
            let before = format!("{found}; no dma-buf: ");
            refused(platform.name, CheckState::Mendable, &before, error.into())
        }
    }
}

/// Returns the row of an error, after what was found `before`.
fn refused(name: &'static str, state: CheckState, before: &str, error: Error) -> Check {
    Check {
        name,
        state,
        found: format!("{before}{}", error.reason()),
        remedy: error.remedy().map(|remedy| remedy.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_a_row_with_its_remedy() {
        let error = GpuError::NoDevice {
            platform: &cuda::PLATFORM,
            ordinal: 1,
            count: 0,
        };
        let row = refused("cuda", CheckState::Missing, "", error.into());
        assert_eq!(row.found, "there is no device cuda:1; this process sees 0");
        assert!(
            row.remedy
                .is_some_and(|remedy| remedy.starts_with("`nvidia-smi -L`"))
        );
    }
}
