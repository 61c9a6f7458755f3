//! Vulkan devices: how the CPU accesses their memory, and whether it can be exported.

use devmem_linux::doctor::{Check, CheckState};
use devmem_tcp::vulkan::{Device, DeviceInfo, devices};

use super::refused;
use crate::doctor::pcie::Sysfs;

/// Name of the rows.
const VULKAN: &str = "vulkan";

/// Examines the devices: rows for each of them, or one that says why there are none.
pub(super) fn examine(sysfs: &Sysfs) -> Vec<Check> {
    match devices() {
        Ok(devices) if devices.is_empty() => vec![Check {
            name: VULKAN,
            state: CheckState::Missing,
            found: "the loader knows no device".to_owned(),
            remedy: Some("install a Vulkan driver (Debian: mesa-vulkan-drivers)".to_owned()),
        }],
        Ok(devices) => {
            let checks = devices.iter().flat_map(|info| {
                let address = info.pci_address.as_deref();
                let way = address.map_or_else(Vec::new, |address| sysfs.examine(address));
                std::iter::once(device(info)).chain(way)
            });
            checks.collect()
        }
        Err(error) => vec![refused(VULKAN, CheckState::Missing, "", error.into())],
    }
}

/// Tries to export memory of a device.
fn device(info: &DeviceInfo) -> Check {
    let found = describe(info);
    let exported = Device::open(info.ordinal)
        .and_then(|device| device.alloc(2 << 20))
        .and_then(|memory| memory.export().map(drop));
    match exported {
        Ok(()) => Check {
            name: VULKAN,
            state: CheckState::Good,
            found: format!("{found}, exports dma-bufs"),
            remedy: None,
        },
        // The user-space backend needs no export.
        Err(error) => {
            let before = format!("{found}; no dma-buf: ");
            refused(VULKAN, CheckState::Mendable, &before, error.into())
        }
    }
}

fn describe(info: &DeviceInfo) -> String {
    let DeviceInfo {
        ordinal,
        name,
        driver,
        pci_address,
        is_software,
        memory_bytes,
        mapped_bytes,
        dmabuf_supported: _,
    } = info;
    let mut found = format!("vulkan:{ordinal} is {name}");
    if let Some(address) = pci_address {
        found.push_str(&format!(" at {address}"));
    }
    if *is_software {
        found.push_str(", this CPU");
    }
    found.push_str(&format!(", driver {driver}, {} MiB", memory_bytes >> 20));
    match mapped_bytes {
        0 => found.push_str(", not mapped: payload is copied by the device"),
        mapped if mapped < memory_bytes => {
            found.push_str(&format!(", {} MiB of it mapped", mapped >> 20));
        }
        _ => found.push_str(", mapped"),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_described_with_the_access_of_the_cpu() {
        let mut info = DeviceInfo {
            ordinal: 1,
            name: "a GPU".to_owned(),
            driver: "radv".to_owned(),
            pci_address: None,
            is_software: false,
            memory_bytes: 16 << 30,
            mapped_bytes: 256 << 20,
            dmabuf_supported: true,
        };
        let text = "vulkan:1 is a GPU, driver radv, 16384 MiB, 256 MiB of it mapped";
        assert_eq!(describe(&info), text);
        info.mapped_bytes = 0;
        assert!(describe(&info).ends_with("not mapped: payload is copied by the device"));
        (info.mapped_bytes, info.is_software) = (info.memory_bytes, true);
        let text = "vulkan:1 is a GPU, this CPU, driver radv, 16384 MiB, mapped";
        assert_eq!(describe(&info), text);
    }

    #[test]
    fn this_machine_has_a_row_for_each_device_or_one_with_the_reason() {
        let rows = examine(&Sysfs::at("/nothing"));
        let devices = devices().map_or(1, |devices| devices.len().max(1));
        assert_eq!(rows.len(), devices);
        for row in rows {
            assert_eq!(
                row.remedy.is_none(),
                row.state == CheckState::Good,
                "{row:?}"
            );
        }
    }
}
