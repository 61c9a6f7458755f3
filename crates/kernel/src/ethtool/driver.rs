//! Which driver an interface has.

use serde::Serialize;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{Ethtool, EthtoolError};
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

/// A driver, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriverInfo {
    /// Its name: `mlx5_core`.
    pub driver: String,
    /// Its version; mostly the kernel's.
    pub version: String,
    /// The NIC's firmware, where it has some to tell of.
    pub firmware: String,
    /// Where the NIC is: a PCI address.
    pub bus: String,
}

impl Ethtool {
    /// Asks the driver for its name.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for interfaces that have no driver (the loopback).
    pub fn driver(&mut self) -> Result<DriverInfo, EthtoolError> {
        let mut raw = RawInfo::new_zeroed();
        raw.command = command::GET_DRIVER_INFO;
        self.ioctl("ask the driver of", raw.as_mut_bytes())?;
        Ok(DriverInfo {
            driver: text(&raw.driver),
            version: text(&raw.version),
            firmware: text(&raw.firmware),
            bus: text(&raw.bus),
        })
    }
}

/// Reads text up to the first NUL, whatever it is.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
