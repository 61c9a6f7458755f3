//! An opened device, and its copies.

mod crc32c;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use netmem::{
    CopyEngine, CopyPiece, CopyWay, DeviceAt, DeviceError, Dmabuf, Exporter, Fence, HostWindow,
    Lane, PerProcess, PieceList, Pinned,
};

use crate::allocation::{Allocation, PAGE_BYTES};
use crate::driver::{Driver, Platform, Version};
use crate::error::GpuError;
use crate::sys::chunk_sums::ChunkSums;
use crate::sys::context::{Context, initialise};
use crate::sys::copies::{Copies, CopyKind, out_of_range};
use crate::sys::lanes::Lanes;
use crate::sys::memory::{DeviceMemory, Registration};
use crate::sys::piece_copier::PieceCopier;
use crate::sys::shared::SharedWords;

/// A GPU: cheap to clone. It is closed when the last handle, and the last memory of it, has been dropped.
#[derive(Clone)]
pub struct Device {
    pub(crate) engine: Arc<Engine>,
}

/// The copy engine of a device.
pub(crate) struct Engine {
    pub(crate) lanes: Arc<Lanes>,
    /// The code that computes checksums, once it was loaded. Lock order: before those of the lanes.
    pub(crate) chunk_sums: Mutex<Option<Arc<ChunkSums>>>,
    /// The code that copies pieces in each lane; `None`: the driver has none, or does not take it.
    copiers: Option<[PieceCopier; 3]>,
}

/// Facts about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// The vendor's library.
    pub platform: &'static Platform,
    /// Number of the device in this process (CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES change it).
    pub ordinal: u32,
    /// Name of the product.
    pub name: String,
    /// PCI address, as in /sys/bus/pci/devices.
    pub pci_address: String,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// Version of CUDA or HIP that the driver supports.
    pub version: Version,
    /// Whether the driver exports dma-bufs, by its own account.
    pub dmabuf_supported: bool,
    /// Whether many pieces are copied by one call of the driver.
    pub batched_copies: bool,
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

/// The devices that are open in this process, by library and ordinal: one engine each.
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
            return Ok(Self { engine });
        }
        let lanes = Arc::new(Lanes::new(Context::open(driver, ordinal)?)?);
        // Not when it is first needed: a driver that loads code may wait for the kernels of the program, and these for the copies. Without the code, each
        // copy is one of its own; a device that is lost says so to the next call.
        let copiers = PieceCopier::load(&lanes).ok().flatten();
        let engine = Arc::new(Engine {
            lanes,
            chunk_sums: Mutex::default(),
            copiers,
        });
        open.push((library, ordinal, Arc::downgrade(&engine)));
        Ok(Self { engine })
    }

    /// Returns the number of the device in this process.
    pub fn ordinal(&self) -> u32 {
        self.engine.lanes.context.ordinal()
    }

    /// Returns the vendor's library.
    pub fn platform(&self) -> &'static Platform {
        self.engine.lanes.context.driver.loaded().platform
    }

    /// Returns facts about the device.
    ///
    /// # Errors
    ///
    /// [`GpuError`] of the driver.
    pub fn info(&self) -> Result<DeviceInfo, GpuError> {
        let context = &self.engine.lanes.context;
        Ok(DeviceInfo {
            platform: context.driver.loaded().platform,
            ordinal: context.ordinal(),
            name: context.product()?,
            pci_address: context.pci_address()?,
            memory_bytes: context.memory_bytes()?,
            version: context.driver.loaded().version,
            dmabuf_supported: context.exports(),
            batched_copies: self.engine.copiers.is_some() || context.driver.batches_copies(),
        })
    }

    /// Allocates `size` bytes of device memory.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: `size` is not a positive multiple of 4096, or the device refuses.
    pub fn alloc(&self, size: usize) -> Result<Allocation, GpuError> {
        Allocation::new(self, size)
    }

    /// Allocates parts of these sizes whose addresses follow each other. Each is memory of its own, with a dma-buf of its own; the device
    /// frees them together.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: a size is not a positive multiple of 4096, or the device refuses.
    pub fn alloc_adjacent(&self, sizes: &[usize]) -> Result<Vec<Allocation>, GpuError> {
        Allocation::adjacent(self, sizes)
    }

    /// Allocates host memory of `words` words that the device reads where it is.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: there are no words, or the driver refuses.
    pub fn alloc_shared(&self, words: usize) -> Result<SharedWords, GpuError> {
        let size = words.checked_mul(size_of::<u64>()).filter(|size| *size > 0);
        size.ok_or(GpuError::Size { size: words })?;
        Ok(SharedWords::alloc(&self.engine.lanes, words)?)
    }

    /// Allocates `size` bytes, rounded up to whole pages, for the library, which binds, gathers and copies them.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: the device refuses.
    pub fn alloc_dmabuf(&self, size: usize) -> Result<Dmabuf, GpuError> {
        let rounded = size
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or(GpuError::Size { size })?;
        Ok(self.alloc(rounded)?.into_dmabuf())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.engine.lanes.context.name())
    }
}

impl CopyEngine for Engine {
    fn device(&self) -> String {
        self.lanes.context.name()
    }

    fn pin(&self, memory: HostWindow) -> Result<Pinned, DeviceError> {
        Ok(Box::new(Registration::new(&self.lanes, memory)?))
    }

    fn submit(
        &self,
        lane: Lane,
        way: CopyWay<'_>,
        pieces: &[CopyPiece],
    ) -> Result<Fence, DeviceError> {
        let copies = self.copies(way, pieces).ok_or_else(out_of_range)?;
        if PieceCopier::suits(&copies)
            && self.lanes.has_own_addresses()
            && let Some(copiers) = &self.copiers
        {
            return copiers[lane as usize].submit(lane, &copies);
        }
        self.lanes.submit(lane, &copies)
    }

    fn submit_list(
        &self,
        lane: Lane,
        way: CopyWay<'_>,
        list: &PieceList,
    ) -> Result<Option<Fence>, DeviceError> {
        let Some(copiers) = &self.copiers else {
            return Ok(None);
        };
        if !PieceCopier::takes(list) || !self.lanes.has_own_addresses() {
            return Ok(None);
        }
        let sides = self.copies(way, &[]).ok_or_else(out_of_range)?;
        let fence = copiers[lane as usize].submit_list(lane, &sides, list)?;
        Ok(Some(fence))
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
        let memory = self.device_side(from.memory).ok_or_else(out_of_range)?;
        memory.read(from.offset, out)
    }

    fn write(&self, to: DeviceAt<'_>, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let memory = self.device_side(to.memory).ok_or_else(out_of_range)?;
        memory.write(to.offset, bytes)
    }

    fn crc32c(&self, from: DeviceAt<'_>, len: usize) -> Result<Option<u32>, DeviceError> {
        let memory = self.device_side(from.memory).ok_or_else(out_of_range)?;
        self.crc32c_at(memory, from.offset, len)
    }
}

impl Engine {
    /// Returns whether a NIC of the kernel can access memory of the device that is exported.
    pub(crate) fn reaches_kernel_nics(&self) -> Result<(), DeviceError> {
        self.lanes.context.driver.reaches_kernel_nics()
    }

    /// Returns the copies with the addresses of their sides; `None` for memory of others.
    fn copies<'a>(&self, way: CopyWay<'a>, pieces: &'a [CopyPiece]) -> Option<Copies<'a>> {
        let (kind, from, to, revocations) = match way {
            CopyWay::In { from, to } => {
                let (host, memory) = (self.host_side(from)?, self.device_side(to)?);
                let revocations = [memory.revocation(); 2];
                (CopyKind::In, host.extent(), memory.extent(), revocations)
            }
            CopyWay::Out { from, to } => {
                let (memory, host) = (self.device_side(from)?, self.host_side(to)?);
                let revocations = [memory.revocation(); 2];
                (CopyKind::Out, memory.extent(), host.extent(), revocations)
            }
            CopyWay::Within { from, to } => {
                let (from, to) = (self.device_side(from)?, self.device_side(to)?);
                let revocations = [from.revocation(), to.revocation()];
                (CopyKind::Within, from.extent(), to.extent(), revocations)
            }
        };
        let lens = pieces.iter().map(|piece| piece.len);
        Some(Copies {
            kind,
            from,
            to,
            revocations,
            pieces,
            bytes: lens.fold(0, usize::wrapping_add),
        })
    }

    fn device_side<'a>(&self, memory: &'a dyn Exporter) -> Option<&'a DeviceMemory> {
        let any: &dyn std::any::Any = memory;
        let memory = any.downcast_ref::<Allocation>()?.memory();
        Arc::ptr_eq(&memory.lanes, &self.lanes).then_some(memory)
    }

    fn host_side<'a>(&self, pinned: &'a Pinned) -> Option<&'a Registration> {
        let registration = pinned.downcast_ref::<Registration>()?;
        Arc::ptr_eq(&registration.lanes, &self.lanes).then_some(registration)
    }
}
