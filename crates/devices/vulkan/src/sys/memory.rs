//! Buffers with their memory: allocated, or imported from the host.
//!
// UNSAFETY: a buffer and its memory that are destroyed when their value is dropped, after the copies that use them; bytes that
// the driver has mapped until then.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ash::vk;
use mapped::Mapping;
use netmem::{DeviceError, HostWindow};

use super::gpu::Gpu;
use super::instance::{DMA_BUF, USAGE, check};
use crate::error::{VulkanError, device_error, no_extension, refusal};
use crate::memory_types::{Placement, candidates};

const HOST: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// A buffer and its memory. Invariant: both are of `gpu`, null or existing until `drop`, the buffer is bound to the memory and
/// has at least `len` bytes, and `len` bytes at `base` are mapped until then.
pub(crate) struct BufferMemory {
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    len: usize,
    base: Option<NonNull<u8>>,
    /// What can be exported.
    shared: vk::ExternalMemoryHandleTypeFlags,
    /// The host memory of an import.
    window: Option<HostWindow>,
    pub(crate) gpu: Arc<Gpu>,
}

// SAFETY: (1) handles and mappings belong to the process, not to a thread; (2) the fields never change after `new`.
unsafe impl Send for BufferMemory {}
// SAFETY: (1) the fields never change; (2) functions of Vulkan that change buffer or memory are called by `new` and `drop` only.
unsafe impl Sync for BufferMemory {}

impl fmt::Debug for BufferMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMemory({} bytes of {:?})", self.len, self.gpu)
    }
}

impl BufferMemory {
    /// Allocates `len` bytes, which can be exported if the device can.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        len: usize,
        placement: Placement,
    ) -> Result<Self, VulkanError> {
        gpu.check_usable()?;
        if gpu.export.is_some() && placement != Placement::Host {
            // Some drivers export only some kinds of memory.
            match Self::allocated(gpu, len, placement, DMA_BUF) {
                Err(VulkanError::Call(_)) => {}
                done => return done,
            }
        }
        Self::allocated(
            gpu,
            len,
            placement,
            vk::ExternalMemoryHandleTypeFlags::empty(),
        )
    }

    fn allocated(
        gpu: &Arc<Gpu>,
        len: usize,
        placement: Placement,
        shared: vk::ExternalMemoryHandleTypeFlags,
    ) -> Result<Self, VulkanError> {
        let mut this = Self::with_buffer(gpu, len, shared)?;
        let needed = this.requirements();
        let types = gpu.memory.memory_types_as_slice();
        let lack = "no memory of the kind that is needed";
        let ordinal = gpu.physical.ordinal;
        let mut result = Err(VulkanError::Unsuitable { ordinal, lack });
        for kind in candidates(types, needed.memory_type_bits, placement) {
            let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(shared);
            let mut info = vk::MemoryAllocateInfo::default();
            if !shared.is_empty() {
                info = info.push_next(&mut export);
            }
            let info = info.allocation_size(needed.size).memory_type_index(kind);
            result = this.allocate(info).map_err(VulkanError::Call);
            if result.is_ok() {
                break;
            }
        }
        result?;
        this.bind()?;
        if placement != Placement::Device {
            this.map()?;
        }
        Ok(this)
    }

    /// Imports host memory.
    pub(crate) fn imported(gpu: &Arc<Gpu>, window: HostWindow) -> Result<Self, DeviceError> {
        gpu.check_usable()?;
        let import = gpu.import.as_ref().ok_or_else(|| {
            let remedy = "the driver lacks VK_EXT_external_memory_host: use a newer one, or memory that the CPU can map";
            no_extension("vkGetMemoryHostPointerPropertiesEXT", remedy)
        })?;
        let mut this = Self::with_buffer(gpu, window.len(), HOST)?;
        let needed = this.requirements();
        let start = ptr::with_exposed_provenance_mut(window.address());
        let mut possible = vk::MemoryHostPointerPropertiesEXT::default();
        let ask = import.fp().get_memory_host_pointer_properties_ext;
        // SAFETY: the device exists; the pointer is that of mapped memory; the structure has the type that the function takes.
        let result = unsafe { ask(gpu.raw.handle(), HOST, start, &mut possible) };
        check("vkGetMemoryHostPointerPropertiesEXT", result.result())?;
        let allowed = needed.memory_type_bits & possible.memory_type_bits;
        // Any type will do: the memory is that of the host.
        if allowed == 0 || needed.size > window.len() as u64 {
            return Err(device_error(
                "vkGetMemoryHostPointerPropertiesEXT",
                vk::Result::ERROR_FEATURE_NOT_PRESENT,
            ));
        }
        let mut host = vk::ImportMemoryHostPointerInfoEXT::default()
            .handle_type(HOST)
            .host_pointer(start);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(window.len() as u64)
            .memory_type_index(allowed.trailing_zeros())
            .push_next(&mut host);
        this.window = Some(window);
        this.allocate(info)?;
        this.bind()?;
        Ok(this)
    }

    fn with_buffer(
        gpu: &Arc<Gpu>,
        len: usize,
        shared: vk::ExternalMemoryHandleTypeFlags,
    ) -> Result<Self, DeviceError> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(shared);
        let mut info = vk::BufferCreateInfo::default()
            .size(len as u64)
            .usage(USAGE)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        if !shared.is_empty() {
            info = info.push_next(&mut external);
        }
        // SAFETY: the device exists, and has the extension of the handle type.
        let buffer = check("vkCreateBuffer", unsafe {
            gpu.raw.create_buffer(&info, None)
        })?;
        Ok(Self {
            buffer,
            memory: vk::DeviceMemory::null(),
            len,
            base: None,
            shared,
            window: None,
            gpu: Arc::clone(gpu),
        })
    }

    fn requirements(&self) -> vk::MemoryRequirements {
        // SAFETY: the buffer exists (invariant).
        unsafe { self.gpu.raw.get_buffer_memory_requirements(self.buffer) }
    }

    /// Allocates the memory, for this buffer only unless it is imported.
    fn allocate(&mut self, info: vk::MemoryAllocateInfo<'_>) -> Result<(), DeviceError> {
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(self.buffer);
        let info = match self.window {
            None => info.push_next(&mut dedicated),
            Some(_) => info,
        };
        // SAFETY: the device exists; a chain of structures that it knows; imported memory is that of the window, which `self`
        // keeps.
        let memory = unsafe { self.gpu.raw.allocate_memory(&info, None) };
        self.memory = check("vkAllocateMemory", memory)?;
        Ok(())
    }

    /// Binds the buffer to the memory, once.
    fn bind(&mut self) -> Result<(), DeviceError> {
        let device = &self.gpu.raw;
        // SAFETY: both exist, the memory has the size and a type that the buffer needs, and the buffer is not bound.
        let bound = unsafe { device.bind_buffer_memory(self.buffer, self.memory, 0) };
        check("vkBindBufferMemory", bound)
    }

    fn map(&mut self) -> Result<(), DeviceError> {
        let (device, flags) = (&self.gpu.raw, vk::MemoryMapFlags::empty());
        // SAFETY: the memory exists, is of a type that the CPU can map, and is not mapped.
        let base = unsafe { device.map_memory(self.memory, 0, vk::WHOLE_SIZE, flags) };
        self.base = NonNull::new(check("vkMapMemory", base)?.cast());
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes, if they are mapped. The mapping keeps the memory.
    pub(crate) fn mapping(self: &Arc<Self>) -> Option<Mapping> {
        let owner = Box::new(Arc::clone(self));
        // SAFETY: by the invariant, the bytes are mapped until the owner is dropped, for reading and writing; nothing else in
        // this crate points to them.
        unsafe { Mapping::lent(self.base?, self.len, owner) }.ok()
    }

    /// Exports the memory as a dma-buf.
    pub(crate) fn export(&self) -> Result<OwnedFd, DeviceError> {
        const CALL: &str = "vkGetMemoryFdKHR";
        self.gpu.check_usable()?;
        let functions = self.gpu.export.as_ref().filter(|_| self.shared == DMA_BUF);
        let functions = functions.ok_or_else(|| {
            let remedy = "the driver exports no dma-buf of this memory (VK_EXT_external_memory_dma_buf), which a NIC of the kernel \
                          needs; the user-space stack works without";
            no_extension(CALL, remedy)
        })?;
        let info = vk::MemoryGetFdInfoKHR::default()
            .memory(self.memory)
            .handle_type(DMA_BUF);
        // SAFETY: the memory exists (invariant), and was allocated for this handle type.
        let fd = check(CALL, unsafe { functions.get_memory_fd(&info) })?;
        // SAFETY: the driver made the descriptor for this call.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: no memory is involved.
        let size = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) };
        match usize::try_from(size) {
            Ok(size) if size == self.len => Ok(fd),
            // A NIC would use the bytes after the end, too.
            _ => Err(refusal(
                CALL,
                "the dma-buf has another size than the memory",
                "allocate a multiple of 2 MiB",
            )),
        }
    }

    pub(super) fn buffer(&self) -> vk::Buffer {
        self.buffer
    }

    /// Returns whether the buffer has `len` bytes at `offset`.
    pub(super) fn has(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        if self.gpu.is_forked() {
            return;
        }
        self.gpu.wait_all();
        let device = &self.gpu.raw;
        // SAFETY: null, or created by `with_buffer`, destroyed here only; no copy is running.
        unsafe { device.destroy_buffer(self.buffer, None) };
        // SAFETY: null, or allocated by `allocate`, freed here only, which unmaps it; the buffer is destroyed.
        unsafe { device.free_memory(self.memory, None) };
    }
}
