//! PCI configuration space of a device with memory BARs and MSI-X (PCI Local Bus Specification 3.0, chapter 6).

use crate::device::DeviceError;

/// Bytes of a configuration space without PCI Express.
const CONFIG_BYTES: usize = 256;

const VENDOR: usize = 0x00;
const DEVICE: usize = 0x02;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION: usize = 0x08;
const CLASS: usize = 0x09;
const CACHE_LINE: usize = 0x0c;
const LATENCY: usize = 0x0d;
const BARS: usize = 0x10;
const SUBSYSTEM_VENDOR: usize = 0x2c;
const SUBSYSTEM: usize = 0x2e;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const MSIX_CAPABILITY: usize = 0x40;

/// Memory space, bus master, parity, SERR#, interrupt disable.
const COMMAND_WRITABLE: u16 = 0x0546;
/// The device has a capability list.
const STATUS_CAPABILITIES: u16 = 0x0010;
const CAPABILITY_MSIX: u8 = 0x11;
/// Function mask and enable, in the message control of MSI-X (6.8.2.3).
const MSIX_CONTROL_WRITABLE: u16 = 0xc000;
const MSIX_ENABLE: u16 = 0x8000;
/// Smallest memory BAR, one page, so that each BAR can be mapped separately.
const MIN_BAR_BYTES: u32 = 4096;

/// Identity of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciIdentity {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// Class, subclass and programming interface, the class in the highest of 24 bits.
    pub class: u32,
    /// Vendor and number of the subsystem.
    pub subsystem: (u16, u16),
}

/// Location of the MSI-X table and pending bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Number of vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR of both.
    pub bar: u8,
    /// Offset of the table, a multiple of 8.
    pub table: u32,
    /// Offset of the pending bits, a multiple of 8.
    pub pending: u32,
}

/// A configuration space: its bytes, and a mask of writable bits.
#[derive(Clone, Debug)]
pub struct PciConfig {
    bytes: [u8; CONFIG_BYTES],
    /// Bits that are set can be written.
    writable: [u8; CONFIG_BYTES],
    at_reset: [u8; CONFIG_BYTES],
}

impl PciConfig {
    /// Bytes of the configuration space.
    pub const BYTES: u64 = CONFIG_BYTES as u64;

    /// Returns the configuration space of a device with 32-bit memory BARs of these sizes (powers of two of at least a
    /// page, or 0 for none).
    ///
    /// # Panics
    /// If a size, the number of vectors or an offset is invalid; callers pass constants.
    pub fn new(identity: PciIdentity, bars: [u32; 6], msix: Msix) -> Self {
        let mut config = Self {
            bytes: [0; CONFIG_BYTES],
            writable: [0; CONFIG_BYTES],
            at_reset: [0; CONFIG_BYTES],
        };
        config.set_identity(identity);
        for (number, size) in bars.into_iter().enumerate() {
            config.set_bar(number, size);
        }
        config.set_msix(msix);
        config.at_reset = config.bytes;
        config
    }

    fn set_identity(&mut self, identity: PciIdentity) {
        let PciIdentity {
            vendor,
            device,
            revision,
            class,
            subsystem,
        } = identity;
        self.put(VENDOR, &vendor.to_le_bytes());
        self.put(DEVICE, &device.to_le_bytes());
        self.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        self.put(REVISION, &[revision]);
        let [interface, subclass, class, _] = class.to_le_bytes();
        self.put(CLASS, &[interface, subclass, class]);
        self.put(SUBSYSTEM_VENDOR, &subsystem.0.to_le_bytes());
        self.put(SUBSYSTEM, &subsystem.1.to_le_bytes());
        self.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        self.allow(CACHE_LINE, &[0xff]);
        self.allow(LATENCY, &[0xff]);
        self.allow(INTERRUPT_LINE, &[0xff]);
    }

    fn set_bar(&mut self, number: usize, size: u32) {
        if size == 0 {
            return;
        }
        assert!(
            size.is_power_of_two() && size >= MIN_BAR_BYTES,
            "BAR {number} of {size} bytes"
        );
        // Type bits 0: memory, 32 bits, not prefetchable. The low address bits are wired to 0, from which software
        // determines the size (6.2.5.1).
        self.allow(BARS + 4 * number, &(!(size - 1)).to_le_bytes());
    }

    fn set_msix(&mut self, msix: Msix) {
        let Msix {
            vectors,
            bar,
            table,
            pending,
        } = msix;
        assert!((1..=2048).contains(&vectors), "{vectors} vectors");
        assert!(bar < 6 && table % 8 == 0 && pending % 8 == 0, "{msix:?}");
        let at = MSIX_CAPABILITY;
        self.put(CAPABILITIES, &[0x40]);
        self.put(at, &[CAPABILITY_MSIX, 0]);
        self.put(at + 2, &(vectors - 1).to_le_bytes());
        self.put(at + 4, &(table | u32::from(bar)).to_le_bytes());
        self.put(at + 8, &(pending | u32::from(bar)).to_le_bytes());
        self.allow(at + 2, &MSIX_CONTROL_WRITABLE.to_le_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }

    /// Reads `out.len()` bytes at `offset`.
    ///
    /// # Errors
    /// The range is not inside the configuration space.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let at = usize::try_from(offset).map_err(|_| DeviceError)?;
        let from = self.bytes.get(at..).ok_or(DeviceError)?;
        out.copy_from_slice(from.get(..out.len()).ok_or(DeviceError)?);
        Ok(())
    }

    /// Writes the writable bits of the bytes at `offset`; the others keep their value.
    ///
    /// # Errors
    /// The range is not inside the configuration space; nothing was written.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let at = usize::try_from(offset).map_err(|_| DeviceError)?;
        let end = at.checked_add(bytes.len()).ok_or(DeviceError)?;
        let writable = self.writable.get(at..end).ok_or(DeviceError)?;
        let there = self.bytes.get_mut(at..end).ok_or(DeviceError)?;
        for ((there, writable), byte) in there.iter_mut().zip(writable).zip(bytes) {
            *there = (*there & !writable) | (byte & writable);
        }
        Ok(())
    }

    /// Restores the initial values.
    pub fn reset(&mut self) {
        self.bytes = self.at_reset;
    }

    /// True if the driver has enabled MSI-X.
    pub fn msix_enabled(&self) -> bool {
        let at = MSIX_CAPABILITY + 2;
        let control = u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]);
        control & MSIX_ENABLE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> PciConfig {
        let identity = PciIdentity {
            vendor: 0x1ae0,
            device: 0x0042,
            revision: 1,
            class: 0x02_0000,
            subsystem: (0x1ae0, 0x0058),
        };
        let msix = Msix {
            vectors: 9,
            bar: 1,
            table: 0,
            pending: 0x800,
        };
        PciConfig::new(identity, [4096, 4096, 4096, 0, 0, 0], msix)
    }

    fn read<const N: usize>(config: &PciConfig, at: u64) -> [u8; N] {
        let mut out = [0; N];
        config.read(at, &mut out).unwrap();
        out
    }

    #[test]
    fn the_header_identifies_the_device() {
        let config = config();
        assert_eq!(read(&config, 0), [0xe0, 0x1a, 0x42, 0x00]);
        assert_eq!(read(&config, 8), [1, 0, 0, 2]);
        assert_eq!(read(&config, 0x0e), [0], "header type 0, one function");
        assert_eq!(u16::from_le_bytes(read(&config, 6)) & 0x10, 0x10);
        assert_eq!(read(&config, 0x34), [0x40]);
        assert_eq!(read(&config, 0x40), [0x11, 0, 8, 0, 1, 0, 0, 0, 1, 8, 0, 0]);
    }

    #[test]
    fn a_bar_tells_its_size_by_the_bits_that_stay_zero() {
        let mut config = config();
        for at in [0x10, 0x14, 0x18] {
            config.write(at, &[0xff; 4]).unwrap();
            assert_eq!(u32::from_le_bytes(read(&config, at)), !4095);
        }
        config.write(0x1c, &[0xff; 4]).unwrap();
        assert_eq!(read(&config, 0x1c), [0; 4], "there is no BAR 3");
    }

    #[test]
    fn writes_change_only_writable_fields_and_a_reset_restores_them() {
        let mut config = config();
        config.write(0, &[0; 64]).unwrap();
        assert_eq!(read(&config, 0), [0xe0, 0x1a, 0x42, 0x00]);
        config.write(4, &[0xff; 2]).unwrap();
        assert_eq!(u16::from_le_bytes(read(&config, 4)), COMMAND_WRITABLE);
        assert!(!config.msix_enabled());
        config.write(0x42, &[0xff; 2]).unwrap();
        assert_eq!(u16::from_le_bytes(read(&config, 0x42)), 0xc008);
        assert!(config.msix_enabled());
        config.reset();
        assert_eq!(read(&config, 4), [0, 0]);
        assert!(!config.msix_enabled());
    }

    #[test]
    fn an_access_across_the_end_is_refused_whole() {
        let mut config = config();
        assert!(config.read(254, &mut [0; 4]).is_err());
        assert!(config.read(u64::MAX, &mut [0; 4]).is_err());
        assert!(config.write(255, &[0; 2]).is_err());
        assert!(config.read(252, &mut [0; 4]).is_ok());
    }
}
