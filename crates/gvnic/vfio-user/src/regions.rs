//! Regions of a device, which a client reads and writes.

/// Number of regions of a PCI device: six BARs, the ROM, configuration space and VGA (linux
/// include/uapi/linux/vfio.h `VFIO_PCI_NUM_REGIONS`).
pub const REGION_COUNT: usize = 9;

/// Number of the region that is the configuration space (`VFIO_PCI_CONFIG_REGION_INDEX`).
pub const CONFIG_REGION: u32 = 7;

/// Kinds of interrupts of a PCI device (`VFIO_PCI_NUM_IRQS`): INTx, MSI, MSI-X, error, request.
pub(crate) const IRQ_KINDS: u32 = 5;

/// The kind that is MSI-X (`VFIO_PCI_MSIX_IRQ_INDEX`).
pub(crate) const IRQ_MSIX: u32 = 2;

/// One region; a region that the device lacks has size 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Bytes.
    pub size: u64,
}

impl Region {
    /// A region that does not exist.
    pub const NONE: Self = Self { size: 0 };

    /// Returns true if `count` bytes from `offset` are inside.
    pub(crate) fn contains(self, offset: u64, count: u64) -> bool {
        offset
            .checked_add(count)
            .is_some_and(|end| end <= self.size)
    }
}
