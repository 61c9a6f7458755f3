//! The devices that are open in this process.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use netmem::PerProcess;

use crate::device::{Device, DeviceInfo};
use crate::engine::Engine;
use crate::error::GpuError;
use crate::sys::context::{Context, initialise};
use crate::sys::driver::Driver;
use crate::sys::lanes::Lanes;

/// By library and ordinal: one engine each.
static OPEN: PerProcess<OpenDevices> = PerProcess::new();

type OpenDevices = Mutex<Vec<(&'static str, u32, Weak<Engine>)>>;

impl Device {
    /// Opens a device, or returns another handle of it.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: there is no driver or no such device, or the driver refuses.
    pub fn open(driver: &'static dyn Driver, ordinal: u32) -> Result<Self, GpuError> {
        // Lock order: before those of the lanes. The driver is called while it is held, so that a device is opened once.
        let open = OPEN.get_or_init(OpenDevices::default);
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, _, engine)| engine.strong_count() > 0);
        let library = driver.loaded().platform.name;
        let found = open
            .iter()
            .find(|(name, number, _)| (*name, *number) == (library, ordinal));
        if let Some(engine) = found.and_then(|(_, _, engine)| engine.upgrade()) {
            return Ok(Self::with(engine));
        }
        let lanes = Arc::new(Lanes::new(Context::open(driver, ordinal)?)?);
        let engine = Arc::new(Engine::new(lanes));
        open.push((library, ordinal, Arc::downgrade(&engine)));
        Ok(Self::with(engine))
    }

    fn with(engine: Arc<Engine>) -> Self {
        Self {
            lanes: Arc::clone(&engine.lanes),
            batched_copies: engine.batches_copies(),
            engine,
        }
    }
}

/// Returns the devices of this process that a vendor's library has.
///
/// # Errors
///
/// [`GpuError`]: there is no driver, or it cannot be initialised.
pub fn devices(driver: &'static dyn Driver) -> Result<Vec<DeviceInfo>, GpuError> {
    (0..initialise(driver)?)
        .map(|ordinal| Device::open(driver, ordinal)?.info())
        .collect()
}
