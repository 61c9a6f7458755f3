//! What an IOMMU does to the addresses of a PCI device.

use std::fs;
use std::path::{Path, PathBuf};

/// What happens to the addresses that a device uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// No IOMMU is in front of the device.
    None,
    /// An IOMMU passes them unchanged.
    Identity,
    /// An IOMMU translates them; the kind of translation in the words of the kernel, such as `DMA-FQ`.
    Translated(String),
    /// The file that says so cannot be read.
    Unreadable(PathBuf),
}

impl Translation {
    /// Reads that of the device with a PCI address; `None` if there is no such device. `sysfs` is /sys.
    pub fn of_pci(sysfs: &Path, address: &str) -> Option<Self> {
        let is_name = !address.is_empty() && !address.starts_with('.') && !address.contains('/');
        let device = sysfs.join("bus/pci/devices").join(address);
        if !is_name || !device.exists() {
            return None;
        }
        let Ok(group) = fs::canonicalize(device.join("iommu_group")) else {
            return Some(Self::None);
        };
        let file = group.join("type");
        let kind = fs::read_to_string(&file).unwrap_or_default();
        Some(match kind.trim() {
            "identity" => Self::Identity,
            "" => Self::Unreadable(file),
            kind => Self::Translated(kind.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_group_of_a_device_says_what_its_iommu_does() {
        let scratch = tempfile::tempdir().unwrap();
        let sysfs = scratch.path();
        let address = "0000:03:00.1";
        assert_eq!(Translation::of_pci(sysfs, address), None);
        let device = sysfs.join("bus/pci/devices").join(address);
        fs::create_dir_all(&device).unwrap();
        assert_eq!(Translation::of_pci(sysfs, address), Some(Translation::None));
        let group = sysfs.join("kernel/iommu_groups/7");
        fs::create_dir_all(&group).unwrap();
        symlink(&group, device.join("iommu_group")).unwrap();
        assert!(matches!(
            Translation::of_pci(sysfs, address),
            Some(Translation::Unreadable(_))
        ));
        for (kind, expected) in [
            ("identity\n", Translation::Identity),
            ("DMA-FQ\n", Translation::Translated("DMA-FQ".to_owned())),
        ] {
            fs::write(group.join("type"), kind).unwrap();
            assert_eq!(Translation::of_pci(sysfs, address), Some(expected));
        }
    }

    #[test]
    fn what_is_no_pci_address_leads_nowhere() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join("bus/pci/devices")).unwrap();
        for address in ["", ".", "..", "../../pci", "virtio0"] {
            assert_eq!(
                Translation::of_pci(scratch.path(), address),
                None,
                "{address}"
            );
        }
    }
}
