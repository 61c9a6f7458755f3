//! An opened device, and its copies.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use mapped::Mapping;
use netmem::{
    CopyEngine, CopyPiece, CopyWay, DeviceAt, DeviceError, Exporter, Fence, HostWindow, Lane,
    PerProcess, Pinned,
};

use crate::allocation::Allocation;
use crate::error::{VulkanError, refusal};
use crate::memory_types::Placement;
use crate::sys::copies::RawCopies;
use crate::sys::gpu::Gpu;
use crate::sys::instance::Physical;
use crate::sys::memory::BufferMemory;

/// Bytes that are copied at a time between the device and memory of the caller.
const SCRATCH_BYTES: usize = 256 << 10;

/// A device: cheap to clone. It is closed when the last handle, and the last memory of it, has been dropped.
#[derive(Clone)]
pub struct Device {
    pub(crate) engine: Arc<Engine>,
}

/// The copy engine of a device.
pub(crate) struct Engine {
    pub(crate) gpu: Arc<Gpu>,
    /// Made at the first use.
    // Lock order: before the queue's. Held during one copy, so that two do not use the same bytes.
    scratch: Mutex<Option<Scratch>>,
}

/// Host memory of the device, to pass bytes to it.
struct Scratch {
    memory: Arc<BufferMemory>,
    mapping: Mapping,
}

/// Facts about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Number of the device in this process, in the order of the Vulkan loader.
    pub ordinal: u32,
    /// Name of the product.
    pub name: String,
    /// Name of the driver; empty if the driver does not tell it.
    pub driver: String,
    /// PCI address, as in /sys/bus/pci/devices, if the driver tells it.
    pub pci_address: Option<String>,
    /// Whether the device is the CPU.
    pub is_software: bool,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Bytes of device memory that the CPU can map: all with a resizable BAR, 256 MiB or less without.
    pub mapped_bytes: u64,
    /// Whether the driver exports dma-bufs, by its own account.
    pub dmabuf_supported: bool,
}

/// Returns the devices of this process.
///
/// # Errors
///
/// [`VulkanError`]: there is no loader or no driver.
pub fn devices() -> Result<Vec<DeviceInfo>, VulkanError> {
    Ok(Physical::all()?.iter().map(Physical::info).collect())
}

/// The devices that are open in this process, by ordinal: one engine each.
static OPEN: PerProcess<OpenDevices> = PerProcess::new();

type OpenDevices = Mutex<Vec<(u32, Weak<Engine>)>>;

impl Device {
    /// Opens a device, or returns another handle of it.
    ///
    /// # Errors
    ///
    /// [`VulkanError`]: there is no loader, no driver or no such device, or the driver refuses.
    pub fn open(ordinal: u32) -> Result<Self, VulkanError> {
        // Lock order: before those of the engines. Vulkan is called while it is held, so that a device is opened once.
        let open = OPEN.get_or_init(OpenDevices::default);
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, engine)| engine.strong_count() > 0);
        let found = open.iter().find(|(number, _)| *number == ordinal);
        if let Some(engine) = found.and_then(|(_, engine)| engine.upgrade()) {
            return Ok(Self { engine });
        }
        let engine = Arc::new(Engine {
            gpu: Arc::new(Gpu::open(Physical::find(ordinal)?)?),
            scratch: Mutex::new(None),
        });
        open.push((ordinal, Arc::downgrade(&engine)));
        Ok(Self { engine })
    }

    /// Returns the number of the device in this process.
    pub fn ordinal(&self) -> u32 {
        self.engine.gpu.physical.ordinal
    }

    /// Returns facts about the device.
    pub fn info(&self) -> DeviceInfo {
        self.engine.gpu.physical.info()
    }

    /// Allocates `size` bytes of device memory: mapped for the CPU where the device has room for it, otherwise as
    /// [`alloc_unmapped`](Self::alloc_unmapped). The bytes are undefined.
    ///
    /// # Errors
    ///
    /// [`VulkanError`]: `size` is not a positive multiple of 4096, or the device refuses.
    pub fn alloc(&self, size: usize) -> Result<Allocation, VulkanError> {
        match Allocation::new(self, size, Placement::Mapped) {
            Err(VulkanError::Call(_) | VulkanError::Unsuitable { .. }) => self.alloc_unmapped(size),
            done => done,
        }
    }

    /// Allocates `size` bytes of device memory that the CPU does not access: the device copies payload from host memory and
    /// back. The bytes are undefined.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_unmapped(&self, size: usize) -> Result<Allocation, VulkanError> {
        Allocation::new(self, size, Placement::Device)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device(vulkan:{})", self.ordinal())
    }
}

impl CopyEngine for Engine {
    fn device(&self) -> String {
        format!("vulkan:{}", self.gpu.physical.ordinal)
    }

    fn pin(&self, memory: HostWindow) -> Result<Pinned, DeviceError> {
        Ok(Box::new(BufferMemory::imported(&self.gpu, memory)?))
    }

    fn submit(
        &self,
        lane: Lane,
        way: CopyWay<'_>,
        pieces: &[CopyPiece],
    ) -> Result<Fence, DeviceError> {
        let copies = self.copies(way, pieces).ok_or_else(out_of_range)?;
        self.gpu.submit(lane, &copies)
    }

    fn is_done(&self, fence: Fence) -> Result<bool, DeviceError> {
        self.gpu.is_done(fence.number)
    }

    fn wait(&self, fence: Fence) -> Result<(), DeviceError> {
        self.gpu.wait(fence.number)
    }

    fn read(&self, from: DeviceAt<'_>, out: &mut [u8]) -> Result<(), DeviceError> {
        let memory = self.device_side(from.memory).ok_or_else(out_of_range)?;
        self.with_scratch(|scratch| {
            for (nth, piece) in out.chunks_mut(SCRATCH_BYTES).enumerate() {
                let at = from.offset + nth * SCRATCH_BYTES;
                self.copy_and_wait((memory, at), (&scratch.memory, 0), piece.len())?;
                scratch
                    .mapping
                    .copy_out(0, piece)
                    .map_err(|_| out_of_range())?;
            }
            Ok(())
        })
    }

    fn write(&self, to: DeviceAt<'_>, bytes: &[u8]) -> Result<(), DeviceError> {
        let memory = self.device_side(to.memory).ok_or_else(out_of_range)?;
        self.with_scratch(|scratch| {
            for (nth, piece) in bytes.chunks(SCRATCH_BYTES).enumerate() {
                let at = to.offset + nth * SCRATCH_BYTES;
                scratch
                    .mapping
                    .copy_in(0, piece)
                    .map_err(|_| out_of_range())?;
                self.copy_and_wait((&scratch.memory, 0), (memory, at), piece.len())?;
            }
            Ok(())
        })
    }
}

impl Engine {
    /// Calls `copy` with host memory of the device that nothing else uses meanwhile.
    fn with_scratch(
        &self,
        copy: impl FnOnce(&Scratch) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.is_none() {
            *scratch = Some(Scratch::new(&self.gpu)?);
        }
        scratch.as_ref().map_or(Ok(()), copy)
    }

    fn copy_and_wait(
        &self,
        (from, from_at): (&BufferMemory, usize),
        (to, to_at): (&BufferMemory, usize),
        len: usize,
    ) -> Result<(), DeviceError> {
        let piece = CopyPiece {
            from: from_at,
            to: to_at,
            len,
        };
        let copies = RawCopies::new(from, to, &[piece]).ok_or_else(out_of_range)?;
        let fence = self.gpu.submit(Lane::Gather, &copies)?;
        self.gpu.wait(fence.number)
    }

    /// Returns the copies between buffers; `None` for memory of others, and ranges outside of it.
    fn copies<'a>(&self, way: CopyWay<'a>, pieces: &[CopyPiece]) -> Option<RawCopies<'a>> {
        let (from, to) = match way {
            CopyWay::In { from, to } => (self.host_side(from)?, self.device_side(to)?),
            CopyWay::Out { from, to } => (self.device_side(from)?, self.host_side(to)?),
            CopyWay::Within { from, to } => (self.device_side(from)?, self.device_side(to)?),
        };
        RawCopies::new(from, to, pieces)
    }

    fn device_side<'a>(&self, memory: &'a dyn Exporter) -> Option<&'a BufferMemory> {
        let any: &dyn Any = memory;
        let memory = any.downcast_ref::<Allocation>()?.memory();
        Arc::ptr_eq(&memory.gpu, &self.gpu).then_some(memory)
    }

    fn host_side<'a>(&self, pinned: &'a Pinned) -> Option<&'a BufferMemory> {
        let memory = pinned.downcast_ref::<BufferMemory>()?;
        Arc::ptr_eq(&memory.gpu, &self.gpu).then_some(memory)
    }
}

impl Scratch {
    fn new(gpu: &Arc<Gpu>) -> Result<Self, DeviceError> {
        let memory = BufferMemory::new(gpu, SCRATCH_BYTES, Placement::Host);
        let memory = memory.map_err(|error| match error {
            VulkanError::Call(error) => error,
            _ => no_host_memory(),
        })?;
        let memory = Arc::new(memory);
        let mapping = memory.mapping().ok_or_else(no_host_memory)?;
        Ok(Self { memory, mapping })
    }
}

fn no_host_memory() -> DeviceError {
    let remedy = "use another device: `vulkaninfo --summary` lists them";
    refusal(
        "allocation of host memory",
        "the device has no type of it",
        remedy,
    )
}

/// Returns the error of a copy whose range is not inside its memory.
fn out_of_range() -> DeviceError {
    let name = "a range is not inside memory of this device";
    refusal("copy", name, "a program error: check offset and length")
}
