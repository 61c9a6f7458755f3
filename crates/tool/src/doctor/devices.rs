//! GPUs: the driver, each device, whether its memory can be exported, and the NIC that is nearest to it.

#[cfg(feature = "vulkan")]
mod vulkan;
#[cfg(not(feature = "vulkan"))]
#[path = "devices/no_vulkan.rs"]
mod vulkan;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use devmem_linux::doctor::{Check, CheckState};
use devmem_tcp::cuda::{self, Device, DeviceInfo};

/// Name of the rows.
const CUDA: &str = "cuda";

/// Where the kernel lists PCI devices, and network interfaces.
const PCI: &str = "/sys/bus/pci/devices";
const INTERFACES: &str = "/sys/class/net";

/// Examines the GPUs of each library: one row for each, or one that says why there are none.
pub(super) fn examine() -> Vec<Check> {
    let mut rows = match cuda::devices() {
        Ok(devices) => devices.iter().map(device).collect(),
        Err(error) => vec![refused(CUDA, CheckState::Missing, "", &error)],
    };
    rows.extend(vulkan::examine());
    rows
}

/// Tries to export memory of a device.
fn device(info: &DeviceInfo) -> Check {
    let DeviceInfo {
        ordinal,
        name,
        pci_address,
        memory_bytes,
        driver_version: version,
        dmabuf_supported: _,
        batched_copies,
    } = info;
    let mut found = format!(
        "cuda:{ordinal} is {name} at {pci_address}, {} GiB, CUDA {}.{}",
        memory_bytes >> 30,
        version / 1000,
        version % 1000 / 10
    );
    if !batched_copies {
        found.push_str(", copies piece by piece (CUDA 12.8 batches them)");
    }
    if let Some(nic) = nearest(pci_address) {
        found.push_str(&format!(", nearest NIC {nic}"));
    }
    let exported = Device::open(*ordinal)
        .and_then(|device| device.alloc(4096))
        .and_then(|memory| memory.export().map(drop));
    match exported {
        Ok(()) => Check {
            name: CUDA,
            state: CheckState::Good,
            found: format!("{found}, exports dma-bufs"),
            remedy: None,
        },
        // The user-space backend needs no export.
        Err(error) => refused(
            CUDA,
            CheckState::Mendable,
            &format!("{found}; no dma-buf: "),
            &error,
        ),
    }
}

/// Returns the row of an error; its lines after the first one are the remedy.
fn refused(name: &'static str, state: CheckState, before: &str, error: &dyn Error) -> Check {
    let text = error.to_string();
    let (found, remedy) = text.split_once('\n').unwrap_or((&text, ""));
    Check {
        name,
        state,
        found: format!("{before}{found}"),
        remedy: (!remedy.is_empty()).then(|| remedy.trim().to_owned()),
    }
}

/// Returns the interface of a PCI device that shares the longest path of bridges with the device at `address`.
fn nearest(address: &str) -> Option<String> {
    let gpu = fs::canonicalize(Path::new(PCI).join(address)).ok()?;
    let interfaces = fs::read_dir(INTERFACES).ok()?.filter_map(Result::ok);
    let nics = interfaces.filter_map(|entry| {
        let device = fs::canonicalize(entry.path().join("device")).ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), device))
    });
    nearest_of(&gpu, nics)
}

/// Returns the name with the most parents in common with `gpu`; the first by name of several.
fn nearest_of(gpu: &Path, nics: impl Iterator<Item = (String, PathBuf)>) -> Option<String> {
    let shared = |nic: &Path| {
        let pairs = gpu.components().zip(nic.components());
        pairs.take_while(|(ours, theirs)| ours == theirs).count()
    };
    let mut nics: Vec<_> = nics.map(|(name, path)| (shared(&path), name)).collect();
    nics.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
    nics.into_iter().next().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use devmem_tcp::cuda::CudaError;

    use super::*;

    #[test]
    fn the_nearest_nic_shares_the_most_bridges() {
        let gpu = Path::new("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0");
        let nic = |name: &str, path: &str| (name.to_owned(), PathBuf::from(path));
        let all = [
            nic("eth0", "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"),
            nic(
                "eth2",
                "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:03:00.0",
            ),
            nic(
                "eth1",
                "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:03:00.1",
            ),
        ];
        assert_eq!(nearest_of(gpu, all.into_iter()), Some("eth1".to_owned()));
        assert_eq!(nearest_of(gpu, [].into_iter()), None);
    }

    #[test]
    fn an_error_becomes_a_row_with_its_remedy() {
        let error = CudaError::NoDevice {
            ordinal: 1,
            count: 0,
        };
        let row = refused(CUDA, CheckState::Missing, "", &error);
        assert_eq!(row.found, "there is no device cuda:1; this process sees 0");
        assert!(
            row.remedy
                .is_some_and(|remedy| remedy.starts_with("`nvidia-smi -L`"))
        );
    }
}
