//! The pieces in which a NIC gets the pages of a dma-buf.

use std::path::Path;

use super::Netdev;
use crate::ethtool::Ethtool;
use crate::iommu::Translation;

impl Netdev {
    /// Returns whether pages of a dma-buf that are apart in memory may reach the NIC as one piece: because an IOMMU translates its
    /// addresses (linux drivers/iommu/dma-iommu.c `__finalise_sg`), or for all that can be told, as with a netkit, which is no PCI device.
    /// Otherwise only pages that are adjacent in memory do.
    pub fn may_join_pages(&self) -> bool {
        let driver = Ethtool::with_index(&self.name, self.index).and_then(|mut nic| nic.driver());
        driver.map_or(true, |driver| may_join(Path::new("/sys"), &driver.bus))
    }
}

/// Returns so of the device at an address of its bus.
fn may_join(sysfs: &Path, bus: &str) -> bool {
    match Translation::of_pci(sysfs, bus) {
        Some(Translation::None | Translation::Identity) => false,
        Some(Translation::Translated(_) | Translation::Unreadable(_)) | None => true,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pages_are_joined_unless_it_is_known_that_no_iommu_does() {
        let scratch = tempfile::tempdir().unwrap();
        let devices = scratch.path().join("bus/pci/devices");
        for (address, kind, expected) in [
            ("0000:00:01.0", None, false),
            ("0000:00:02.0", Some("identity"), false),
            ("0000:00:03.0", Some("DMA"), true),
            ("0000:00:04.0", Some(""), true),
        ] {
            fs::create_dir_all(devices.join(address)).unwrap();
            if let Some(kind) = kind {
                let group = devices.join(address).join("iommu_group");
                fs::create_dir(&group).unwrap();
                fs::write(group.join("type"), kind).unwrap();
            }
            assert_eq!(may_join(scratch.path(), address), expected, "{address}");
        }
        for elsewhere in ["", "virtio0", "0000:00:09.0"] {
            assert!(may_join(scratch.path(), elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn the_loopback_has_no_device_to_ask() {
        assert!(Netdev::by_name("lo").unwrap().may_join_pages());
    }
}
