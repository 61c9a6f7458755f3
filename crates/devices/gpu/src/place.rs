//! Where memory of other libraries is, and what the devices can do: questions that open no device.

use netmem::DeviceError;

use crate::device::Device;
use crate::error::GpuError;
use crate::sys::context::initialise;
use crate::sys::driver::{Driver, Pointer, PointerKind};

/// Status of a library that needs a selected device for a question (CUDA_ERROR_INVALID_CONTEXT).
const INVALID_CONTEXT: i32 = 201;

/// Where device memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Number of the device.
    pub device: u32,
    /// Number of the allocation, which no other one of this process gets, even at the same address; 0: the library has none.
    pub allocation: u64,
}

/// Returns the device and the allocation of an address.
///
/// # Errors
///
/// [`GpuError`]: there is no driver; the address is not one of device memory.
pub fn locate(driver: &'static dyn Driver, address: u64) -> Result<Place, GpuError> {
    let count = initialise(driver)?;
    let found = match driver.pointer(address) {
        Err(error) if error.code == INVALID_CONTEXT => ask_devices(driver, count, address)?,
        found => found?,
    };
    let foreign = |reason| GpuError::Foreign {
        platform: driver.loaded().platform,
        address,
        reason,
    };
    match found {
        None => Err(foreign("the driver does not know it")),
        Some(Pointer {
            kind: PointerKind::Device,
            device,
            id,
            ..
        }) => Ok(Place {
            device,
            allocation: id,
        }),
        Some(_) => Err(foreign("it is host memory, or managed memory")),
    }
}

/// Asks while each device is selected in turn, for drivers that answer in no other way.
fn ask_devices(
    driver: &'static dyn Driver,
    count: u32,
    address: u64,
) -> Result<Option<Pointer>, GpuError> {
    for ordinal in 0..count {
        let device = Device::open(driver, ordinal)?;
        let current = device.lanes.enter()?;
        if let Some(found) = current.driver.pointer(address)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the number of the device that this thread has selected, if it has selected one, and the driver is initialised.
///
/// # Errors
///
/// [`GpuError`]: there is no driver.
pub fn selected(driver: &'static dyn Driver) -> Result<Option<u32>, GpuError> {
    initialise(driver)?;
    Ok(driver.selected())
}

/// Returns for each device whether it exports memory, by the driver's own account.
///
/// # Errors
///
/// [`GpuError`]: there is no driver, or it cannot be initialised.
pub fn exporting(driver: &'static dyn Driver) -> Result<Vec<bool>, GpuError> {
    let count = i32::try_from(initialise(driver)?).unwrap_or(0);
    let exports = (0..count).map(|ordinal| Ok(driver.exports(driver.device(ordinal)?)));
    Ok(exports.collect::<Result<_, DeviceError>>()?)
}
