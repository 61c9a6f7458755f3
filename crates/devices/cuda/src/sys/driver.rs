//! The driver, loaded, and what it does in another way than the libraries of other vendors.
//!
// UNSAFETY: pointers from the library become functions; calls with pointers to local variables, and with a context that is
// retained.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use devmem_gpu::LoadError;
use devmem_gpu::driver::{
    CopyBatch, DevicePtr, Driver, Export, Functions, Kernel, KernelFunctions, Library, Loaded,
    Name, Opened, Pointer, PointerKind, RawDevice, SUCCESS, Status, Version,
};
use netmem::DeviceError;

use super::batch::BatchCopy;
use super::functions::{Find, KERNEL_NAMES, NAMES, OWN_NAMES, Own, find_versioned};
use crate::{PLATFORM, remedy};

/// The library of the driver. `libcuda.so` is a link of the development kit, perhaps to a library that does nothing.
const LIBRARY: &str = "libcuda.so.1";

/// The version whose functions are found by name and version (cuGetProcAddress_v2); dma-buf export is older.
const OLDEST: Version = Version(12, 0);

/// CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.
const DMA_BUF_SUPPORTED: c_int = 124;

/// CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, for GPUs whose memory the CPU reaches by another way than PCIe; then none,
/// for older drivers.
const EXPORT_FLAGS: &[u64] = &[1, 0];

/// CU_POINTER_ATTRIBUTE_...
const MEMORY_TYPE: c_int = 2;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const BUFFER_ID: c_int = 7;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;

/// CU_STREAM_CAPTURE_MODE_RELAXED.
const RELAXED: c_int = 2;

/// CU_MEMORYTYPE_DEVICE.
const DEVICE: u64 = 2;

/// Status for an address that is not one of CUDA.
const INVALID_VALUE: Status = 1;

/// Status of a driver that has the batched copy and does not support it for this memory.
const NOT_SUPPORTED: Status = 801;

/// The kernels in PTX, which the driver compiles for the GPU: version 6.0 of the language is that of CUDA 9.0, and sm_50 are the oldest GPUs that
/// CUDA 12 knows.
const ADD: &CStr = terminated(concat!(include_str!("../add.ptx"), "\0"));
const COPY: &CStr = terminated(concat!(include_str!("../copy.ptx"), "\0"));
const CRC32C: &CStr = terminated(concat!(include_str!("../crc32c.ptx"), "\0"));

/// The loaded driver.
pub(crate) struct Cuda {
    loaded: Loaded,
    own: Own,
    batch: Option<BatchCopy>,
    add: Kernel,
    copy: Kernel,
    crc32c: Kernel,
}

impl Cuda {
    /// Returns the driver of this machine; loads it at the first call.
    pub(crate) fn get() -> Result<&'static Cuda, LoadError> {
        static DRIVER: OnceLock<Result<Cuda, LoadError>> = OnceLock::new();
        let driver = DRIVER.get_or_init(Cuda::load);
        driver.as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Cuda, LoadError> {
        // SAFETY: the driver of this machine.
        let library = unsafe { Library::open(&PLATFORM, &[LIBRARY]) }?;
        // SAFETY: the function has this parameter since CUDA 2.2, and needs no initialisation.
        let number = unsafe { library.number(Name::new(c"cuDriverGetVersion", 2, 2)) }?;
        // 13000 is 13.0.
        let number = number.unwrap_or(0);
        let version = Version(number / 1000, number % 1000 / 10);
        library.require(version, OLDEST)?;
        let found = library.symbol(Name::new(c"cuGetProcAddress_v2", 12, 0))?;
        // SAFETY: the function of this name has these parameters since CUDA 12.0.
        let find = unsafe { std::mem::transmute::<*mut c_void, Find>(found) };
        let versioned = |name| find_versioned(find, name).ok_or_else(|| library.lacks(name));
        // SAFETY: (1) `Library` is never unloaded; (2) cuda.h declares the functions as the table does.
        let functions = unsafe { KernelFunctions::find(&KERNEL_NAMES, versioned) }?;
        Ok(Cuda {
            loaded: Loaded {
                platform: &PLATFORM,
                // SAFETY: as above.
                functions: unsafe { Functions::find(&NAMES, versioned) }?,
                version,
            },
            // SAFETY: as above.
            own: unsafe { Own::find(&OWN_NAMES, versioned) }?,
            batch: BatchCopy::find(find),
            add: Kernel {
                functions,
                image: ADD,
                entry: c"devmem_add_f32",
            },
            copy: Kernel {
                functions,
                image: COPY,
                entry: c"devmem_copy",
            },
            crc32c: Kernel {
                functions,
                image: CRC32C,
                entry: c"devmem_crc32c",
            },
        })
    }

    /// Returns an attribute of an address. The driver writes 4 or 8 bytes.
    fn pointer_attribute(&self, number: c_int, address: u64) -> Result<u64, DeviceError> {
        let mut value = 0_u64.to_le();
        let get = self.own.pointer_get;
        // SAFETY: room for 8 bytes; the driver looks the address up and does not access it.
        let status = unsafe { (get.call)((&raw mut value).cast(), number, address) };
        self.check(get.name, status)?;
        Ok(u64::from_le(value))
    }
}

// SAFETY: (1) the functions are those of the library that `load` has opened, and `Library` is never unloaded; (2) and (3) see
// the methods; (4) `load` has found the functions, cuModuleLoadData takes PTX that ends with a NUL, and the texts of `ADD`,
// `COPY` and `CRC32C` show what they do.
unsafe impl Driver for Cuda {
    fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    fn device(&self, ordinal: c_int) -> Result<RawDevice, DeviceError> {
        let mut device = 0;
        let get = self.own.device_get;
        // SAFETY: room for a number.
        let status = unsafe { (get.call)(&raw mut device, ordinal) };
        self.check(get.name, status).map(|()| device)
    }

    fn selected(&self) -> Option<u32> {
        let mut device = 0;
        // SAFETY: room for a number.
        let status = unsafe { (self.own.context_device.call)(&raw mut device) };
        // CUDA numbers the devices of a process from 0, as cuDeviceGet counts them.
        u32::try_from(device).ok().filter(|_| status == SUCCESS)
    }

    fn open(&self, ordinal: c_int) -> Result<Opened, DeviceError> {
        let device = self.device(ordinal)?;
        let mut context = ptr::null_mut();
        let retain = self.own.context_retain;
        // SAFETY: room for a pointer.
        let status = unsafe { (retain.call)(&raw mut context, device) };
        self.check(retain.name, status)?;
        let context = context.expose_provenance();
        Ok(Opened { device, context })
    }

    fn close(&self, opened: Opened) {
        // SAFETY: ends what `open` began. An error means that the driver has freed it (process exit).
        let _ = unsafe { (self.own.context_release.call)(opened.device) };
    }

    fn enter(&self, opened: Opened) -> Result<c_int, DeviceError> {
        let push = self.own.context_push;
        // SAFETY: the context is retained until `close`; the driver refuses others.
        let status = unsafe { (push.call)(ptr::with_exposed_provenance_mut(opened.context)) };
        self.check(push.name, status)?;
        // Another thread may be capturing a graph, which forbids some calls in all threads that are not relaxed.
        let mut mode = RELAXED;
        // SAFETY: room for a number, which becomes the previous mode of this thread.
        let _ = unsafe { (self.own.capture_mode.call)(&raw mut mode) };
        Ok(mode)
    }

    fn leave(&self, before: c_int) {
        let mut mode = before;
        // SAFETY: as in `enter`.
        let _ = unsafe { (self.own.capture_mode.call)(&raw mut mode) };
        let mut popped = ptr::null_mut();
        // SAFETY: room for a pointer; `enter` pushed.
        let _ = unsafe { (self.own.context_pop.call)(&raw mut popped) };
    }

    fn pointer(&self, address: DevicePtr) -> Result<Option<Pointer>, DeviceError> {
        let place = match self.pointer_attribute(MEMORY_TYPE, address) {
            Err(error) if error.code == INVALID_VALUE => return Ok(None),
            place => place?,
        };
        let is_managed = self.pointer_attribute(IS_MANAGED, address)? != 0;
        let device = self.pointer_attribute(DEVICE_ORDINAL, address)?;
        Ok(Some(Pointer {
            kind: match place {
                DEVICE if is_managed => PointerKind::Managed,
                DEVICE => PointerKind::Device,
                _ => PointerKind::Host,
            },
            device: u32::try_from(device).unwrap_or(u32::MAX),
            start: self.pointer_attribute(RANGE_START, address)?,
            size: self.pointer_attribute(RANGE_SIZE, address)?,
            id: self.pointer_attribute(BUFFER_ID, address).unwrap_or(0),
        }))
    }

    fn mem_export(&self) -> Result<Export, DeviceError> {
        Ok(Export::Range(self.own.mem_export, EXPORT_FLAGS))
    }

    fn exports(&self, device: RawDevice) -> bool {
        self.loaded.functions.attribute(DMA_BUF_SUPPORTED, device) > 0
    }

    fn batches_copies(&self) -> bool {
        self.batch.is_some()
    }

    fn copy_batch(&self, copies: &CopyBatch<'_>) -> Result<bool, DeviceError> {
        let Some(function) = self.batch else {
            return Ok(false);
        };
        match function.call(copies) {
            NOT_SUPPORTED => Ok(false),
            status => self.check("cuMemcpyBatchAsync", status).map(|()| true),
        }
    }

    fn add_kernel(&self) -> Option<&Kernel> {
        Some(&self.add)
    }

    fn copy_kernel(&self) -> Option<&Kernel> {
        Some(&self.copy)
    }

    fn crc32c_kernel(&self) -> Option<&Kernel> {
        Some(&self.crc32c)
    }

    fn remedy(&self, call: &str, code: i32) -> &'static str {
        remedy::remedy(call, code)
    }
}

/// Returns a text that ends with a NUL, for the driver.
const fn terminated(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text has no NUL but the last byte"),
    }
}
