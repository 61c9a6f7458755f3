//! The driver of an interface.

use serde::Serialize;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::requests::{Ethtool, EthtoolError};
use crate::sys::ethtool::{DRVINFO_LEN, command};

/// `struct ethtool_drvinfo`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawInfo {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    expansion_rom: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}
const _: () = assert!(size_of::<RawInfo>() == DRVINFO_LEN);

/// A driver, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriverInfo {
    /// Its name: `mlx5_core`.
    pub driver: String,
    /// Its version; for most drivers the kernel's version.
    pub version: String,
    /// Version of the NIC's firmware; empty if the driver reports none.
    pub firmware: String,
    /// Bus address of the NIC, such as a PCI address.
    pub bus: String,
}

impl Ethtool {
    /// Reads the driver's name and versions.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for interfaces that have no driver (the loopback).
    pub fn driver(&mut self) -> Result<DriverInfo, EthtoolError> {
        let mut raw = RawInfo::new_zeroed();
        raw.command = command::GET_DRIVER_INFO;
        self.ioctl("read the driver of", raw.as_mut_bytes())?;
        Ok(DriverInfo {
            driver: text(&raw.driver),
            version: text(&raw.version),
            firmware: text(&raw.firmware),
            bus: text(&raw.bus),
        })
    }
}

/// Returns the text before the first NUL; invalid UTF-8 is replaced.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
