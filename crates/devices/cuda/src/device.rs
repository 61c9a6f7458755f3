//! An opened device, and its copies.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use netmem::{
    CopyEngine, DeviceAt, DeviceCopy, DeviceError, Fence, HostAt, HostWindow, Lane, PerProcess,
    Pinned,
};

use crate::allocation::Allocation;
use crate::error::CudaError;
use crate::sys::context::{Context, initialise};
use crate::sys::lanes::Lanes;
use crate::sys::memory::{CopyKind, DeviceMemory, RawCopy, Registration, out_of_range};

/// CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.
const DMA_BUF_SUPPORTED: i32 = 124;

/// A GPU: cheap to clone. It is closed when the last handle, and the last memory of it, has been dropped.
#[derive(Clone)]
pub struct Device {
    pub(crate) engine: Arc<Engine>,
}

/// The copy engine of a device.
pub(crate) struct Engine {
    pub(crate) lanes: Arc<Lanes>,
}

/// Facts about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Number of the device in this process (CUDA_VISIBLE_DEVICES changes it).
    pub ordinal: u32,
    /// Name of the product.
    pub name: String,
    /// PCI address, as in /sys/bus/pci/devices.
    pub pci_address: String,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// Version of CUDA that the driver supports: 13000 is 13.0.
    pub driver_version: i32,
    /// Whether the driver exports dma-bufs, by its own account.
    pub dmabuf_supported: bool,
    /// Whether the driver copies many pieces by one call (CUDA 12.8).
    pub batched_copies: bool,
}

/// Returns the devices of this process.
///
/// # Errors
///
/// [`CudaError`]: there is no driver, or it cannot be initialised.
pub fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    let (_, count) = initialise()?;
    (0..count)
        .map(|ordinal| Device::open(ordinal)?.info())
        .collect()
}

/// The devices that are open in this process, by ordinal: one engine each.
static OPEN: PerProcess<OpenDevices> = PerProcess::new();

type OpenDevices = Mutex<Vec<(u32, Weak<Engine>)>>;

impl Device {
    /// Opens a device, or returns another handle of it.
    ///
    /// # Errors
    ///
    /// [`CudaError`]: there is no driver or no such device, or the driver refuses.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        // Lock order: before those of the lanes. The driver is called while it is held, so that a device is opened once.
        let open = OPEN.get_or_init(OpenDevices::default);
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, engine)| engine.strong_count() > 0);
        let found = open.iter().find(|(number, _)| *number == ordinal);
        if let Some(engine) = found.and_then(|(_, engine)| engine.upgrade()) {
            return Ok(Self { engine });
        }
        let lanes = Arc::new(Lanes::new(Context::retain(ordinal)?)?);
        let engine = Arc::new(Engine { lanes });
        open.push((ordinal, Arc::downgrade(&engine)));
        Ok(Self { engine })
    }

    /// Returns the number of the device in this process.
    pub fn ordinal(&self) -> u32 {
        self.engine.lanes.context.ordinal()
    }

    /// Returns facts about the device.
    ///
    /// # Errors
    ///
    /// [`CudaError`] of the driver.
    pub fn info(&self) -> Result<DeviceInfo, CudaError> {
        let context = &self.engine.lanes.context;
        Ok(DeviceInfo {
            ordinal: context.ordinal(),
            name: context.name()?,
            pci_address: context.pci_address()?,
            memory_bytes: context.memory_bytes()?,
            driver_version: context.driver.version,
            dmabuf_supported: context.attribute(DMA_BUF_SUPPORTED) > 0,
            batched_copies: context.driver.batch.is_some(),
        })
    }

    /// Allocates `size` bytes of device memory.
    ///
    /// # Errors
    ///
    /// [`CudaError`]: `size` is not a positive multiple of 4096, or the device refuses.
    pub fn alloc(&self, size: usize) -> Result<Allocation, CudaError> {
        Allocation::new(self, size)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device(cuda:{})", self.ordinal())
    }
}

impl CopyEngine for Engine {
    fn device(&self) -> String {
        format!("cuda:{}", self.lanes.context.ordinal())
    }

    fn pin(&self, memory: HostWindow) -> Result<Pinned, DeviceError> {
        Ok(Box::new(Registration::new(&self.lanes, memory)?))
    }

    fn submit(&self, lane: Lane, copies: &[DeviceCopy<'_>]) -> Result<Fence, DeviceError> {
        let copies = copies
            .iter()
            .map(|copy| self.raw(copy).ok_or_else(out_of_range))
            .collect::<Result<Vec<_>, _>>()?;
        self.lanes.submit(lane, &copies)
    }

    fn is_done(&self, fence: Fence) -> Result<bool, DeviceError> {
        self.lanes.is_done(fence)
    }

    fn wait(&self, fence: Fence) -> Result<(), DeviceError> {
        self.lanes.wait(fence)
    }

    fn read(&self, from: DeviceAt<'_>, out: &mut [u8]) -> Result<(), DeviceError> {
        if out.is_empty() {
            return Ok(());
        }
        let (memory, offset) = self.device_side(from).ok_or_else(out_of_range)?;
        memory.read(offset, out)
    }

    fn write(&self, to: DeviceAt<'_>, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (memory, offset) = self.device_side(to).ok_or_else(out_of_range)?;
        memory.write(offset, bytes)
    }
}

impl Engine {
    /// Returns the copy with addresses; `None` for memory of others, and ranges outside of it.
    fn raw<'a>(&self, copy: &DeviceCopy<'a>) -> Option<RawCopy<'a>> {
        match *copy {
            DeviceCopy::In { from, to, len } => RawCopy::staged(
                CopyKind::In,
                self.host_side(from)?,
                self.device_side(to)?,
                len,
            ),
            DeviceCopy::Out { from, to, len } => RawCopy::staged(
                CopyKind::Out,
                self.host_side(to)?,
                self.device_side(from)?,
                len,
            ),
            DeviceCopy::Within { from, to, len } => {
                RawCopy::within(self.device_side(from)?, self.device_side(to)?, len)
            }
        }
    }

    fn device_side<'a>(&self, at: DeviceAt<'a>) -> Option<(&'a DeviceMemory, usize)> {
        let any: &dyn std::any::Any = at.memory;
        let memory = any.downcast_ref::<Allocation>()?.memory();
        Arc::ptr_eq(&memory.lanes, &self.lanes).then_some((memory, at.offset))
    }

    fn host_side<'a>(&self, at: HostAt<'a>) -> Option<(&'a Registration, usize)> {
        let registration = at.pinned.downcast_ref::<Registration>()?;
        Arc::ptr_eq(&registration.lanes, &self.lanes).then_some((registration, at.offset))
    }
}
