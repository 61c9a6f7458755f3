//! BAR 0: the registers (gve_register.h), 32 bits big-endian unless said otherwise.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The register file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_registers")]
pub struct Bar0 {
    /// [`DEVICE_STATUS`], written by the device.
    pub device_status: U32,
    /// [`DRIVER_STATUS`], written by the driver.
    pub driver_status: U32,
    /// Maximum number of TX queues, written by the device.
    pub max_tx_queues: U32,
    /// Maximum number of RX queues, written by the device.
    pub max_rx_queues: U32,
    /// Page number of the admin queue in PCI revision 0; not used.
    pub adminq_pfn: U32,
    /// [`ADMINQ_DOORBELL`]: number of commands that the driver has written since the queue was set up, modulo 2^32.
    pub adminq_doorbell: U32,
    /// Number of commands that the device has executed since the queue was set up, modulo 2^32.
    pub adminq_event_counter: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// [`DRIVER_VERSION`]: the driver writes its version as a line of text, byte by byte.
    pub driver_version: u8,
    /// Upper half of the admin queue's guest address.
    pub adminq_base_address_hi: U32,
    /// Lower half of the admin queue's guest address.
    pub adminq_base_address_lo: U32,
    /// Bytes of the admin queue, 16 bits.
    pub adminq_length: U16,
}
const _: () = assert!(size_of::<Bar0>() == 0x2a);

/// Offset of the device status.
pub const DEVICE_STATUS: u64 = 0x00;
/// Offset of the driver status.
pub const DRIVER_STATUS: u64 = 0x04;
/// Offset of the number of TX queues.
pub const MAX_TX_QUEUES: u64 = 0x08;
/// Offset of the number of RX queues.
pub const MAX_RX_QUEUES: u64 = 0x0c;
/// Offset of the admin queue's doorbell.
pub const ADMINQ_DOORBELL: u64 = 0x14;
/// Offset of the admin queue's event counter.
pub const ADMINQ_EVENT_COUNTER: u64 = 0x18;
/// Offset of the byte to which the driver writes its version, one character per write.
pub const DRIVER_VERSION: u64 = 0x1f;
/// Offset of the upper half of the admin queue's address.
pub const ADMINQ_BASE_ADDRESS_HI: u64 = 0x20;
/// Offset of the lower half of the admin queue's address.
pub const ADMINQ_BASE_ADDRESS_LO: u64 = 0x24;
/// Offset of the admin queue's length.
pub const ADMINQ_LENGTH: u64 = 0x28;

/// Device status: request to the driver to reset the device.
#[doc(alias = "GVE_DEVICE_STATUS_RESET_MASK")]
pub const STATUS_RESET_REQUESTED: u32 = 1 << 1;
/// Device status: the link is up.
#[doc(alias = "GVE_DEVICE_STATUS_LINK_STATUS_MASK")]
pub const STATUS_LINK_UP: u32 = 1 << 2;
/// Device status: request to the driver to write its statistics.
#[doc(alias = "GVE_DEVICE_STATUS_REPORT_STATS_MASK")]
pub const STATUS_REPORT_STATS: u32 = 1 << 3;
/// Device status: the reset requested by the driver is done.
#[doc(alias = "GVE_DEVICE_STATUS_DEVICE_IS_RESET")]
pub const STATUS_DEVICE_IS_RESET: u32 = 1 << 4;

/// Driver status: the registers of the admin queue are set; start.
#[doc(alias = "GVE_DRIVER_STATUS_RUN_MASK")]
pub const DRIVER_RUN: u32 = 1 << 0;
/// Driver status: reset the device.
#[doc(alias = "GVE_DRIVER_STATUS_RESET_MASK")]
pub const DRIVER_RESET: u32 = 1 << 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_lie_where_their_offsets_say() {
        let mut bytes = [0; size_of::<Bar0>()];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let registers = Bar0::read_from_bytes(&bytes).unwrap();
        let first_byte = |register: U32| u64::from(register.to_bytes()[0]);
        assert_eq!(first_byte(registers.device_status), DEVICE_STATUS);
        assert_eq!(first_byte(registers.driver_status), DRIVER_STATUS);
        assert_eq!(first_byte(registers.max_tx_queues), MAX_TX_QUEUES);
        assert_eq!(first_byte(registers.max_rx_queues), MAX_RX_QUEUES);
        assert_eq!(first_byte(registers.adminq_doorbell), ADMINQ_DOORBELL);
        assert_eq!(
            first_byte(registers.adminq_event_counter),
            ADMINQ_EVENT_COUNTER
        );
        assert_eq!(u64::from(registers.driver_version), DRIVER_VERSION);
        let hi = registers.adminq_base_address_hi;
        assert_eq!(first_byte(hi), ADMINQ_BASE_ADDRESS_HI);
        let lo = registers.adminq_base_address_lo;
        assert_eq!(first_byte(lo), ADMINQ_BASE_ADDRESS_LO);
        let length = u64::from(registers.adminq_length.to_bytes()[0]);
        assert_eq!(length, ADMINQ_LENGTH);
    }
}
