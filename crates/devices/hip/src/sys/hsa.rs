//! The library below HIP, which exports memory where HIP does not (ROCm 6).
//!
// UNSAFETY: pointers from the library become functions. The declarations here are the proof: each function has these parameters
// in ROCm 5.3 and later (hsa.h, hsa_ext_amd.h).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use devmem_gpu::LoadError;
use devmem_gpu::driver::{AllocationExport, Function, Library, Name, Platform, SUCCESS, Status};

use crate::PLATFORM;

/// The library. HIP has loaded it, so that the name finds the one that it uses.
const LIBRARY: &str = "libhsa-runtime64.so.1";

/// The names that messages have. The devices are those of HIP.
static HSA: Platform = Platform {
    title: "ROCm",
    library: "libhsa-runtime64",
    variable: "DEVMEM_LIBHSA",
    ..PLATFORM
};

/// Exports the allocation that a range is in, and returns the offset of the range in it.
const EXPORT: Name = Name::new(c"hsa_amd_portable_export_dmabuf", 5, 3);

/// Returns a fact about the system: its number, room for it.
const SYSTEM_INFO: Name = Name::new(c"hsa_system_get_info", 5, 3);
type SystemInfo = unsafe extern "C" fn(c_int, *mut c_void) -> Status;

/// HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED, a `bool`.
const DMA_BUF_SUPPORTED: c_int = 0x204;

/// The loaded library.
pub(super) struct Hsa {
    pub(super) export: Function<AllocationExport>,
    system_info: SystemInfo,
}

impl Hsa {
    pub(super) fn load() -> Result<Self, LoadError> {
        // SAFETY: the library of this machine.
        let library = unsafe { Library::open(&HSA, &[LIBRARY]) }?;
        let (export, info) = (library.symbol(EXPORT)?, library.symbol(SYSTEM_INFO)?);
        Ok(Self {
            export: Function {
                name: EXPORT.text(),
                // SAFETY: the function of this name has these parameters; the address, a pointer there, is passed alike.
                call: unsafe { std::mem::transmute::<*mut c_void, AllocationExport>(export) },
            },
            // SAFETY: the function of this name has these parameters.
            system_info: unsafe { std::mem::transmute::<*mut c_void, SystemInfo>(info) },
        })
    }

    /// Returns whether the kernel exports memory of the devices, by the library's own account.
    pub(super) fn exports(&self) -> bool {
        // Room for a `bool`, and for more.
        let mut value = 0_u64;
        // SAFETY: room for the value.
        let status = unsafe { (self.system_info)(DMA_BUF_SUPPORTED, (&raw mut value).cast()) };
        status == SUCCESS && value != 0
    }
}
