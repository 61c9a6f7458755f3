//! PCI identity and BARs (linux drivers/net/ethernet/google/gve/gve.h and gve_main.c `gve_id_table`).

/// PCI vendor: Google.
#[doc(alias = "PCI_VENDOR_ID_GOOGLE")]
pub const VENDOR_ID: u16 = 0x1ae0;
/// PCI device: gVNIC.
#[doc(alias = "PCI_DEV_ID_GVNIC")]
pub const DEVICE_ID: u16 = 0x0042;
/// PCI revision. From revision 1 on, [`Bar0`](crate::registers::Bar0) has the 64-bit address of the admin queue; in
/// revision 0 it has a page number.
pub const REVISION: u8 = 1;
/// PCI class: Ethernet controller (base class 2, sub-class 0, interface 0).
pub const CLASS_CODE: u32 = 0x02_0000;

/// BAR of the registers.
#[doc(alias = "GVE_REGISTER_BAR")]
pub const REGISTER_BAR: u8 = 0;
/// BAR of the MSI-X table and pending bits.
pub const MSIX_BAR: u8 = 1;
/// BAR of the doorbells: little-endian words of 32 bits.
#[doc(alias = "GVE_DOORBELL_BAR")]
pub const DOORBELL_BAR: u8 = 2;
/// Bytes of each of the three BARs.
pub const BAR_BYTES: u64 = 4096;

/// Offset of the MSI-X table in its BAR.
pub const MSIX_TABLE_OFFSET: u32 = 0;
/// Offset of the pending bits in the MSI-X BAR.
pub const MSIX_PBA_OFFSET: u32 = 0x800;
