//! ROCm's library: its functions, and what it does in another way than the libraries of other vendors.
//!
// UNSAFETY: pointers from the library become functions, which are called with pointers to local variables. The names and
// declarations here are the proof: each function has these parameters in HIP 6.0 to 7.1 (hip_runtime_api.h).
#![allow(unsafe_code)]

mod hsa;

use std::env;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

use devmem_gpu::driver::{
    DevicePtr, Driver, Export, Function, Functions, Library, Loaded, MemExport, Name, Names,
    Opened, Pointer, PointerKind, RawDevice, SUCCESS, Status, Version,
};
use devmem_gpu::{LoadError, function_table};
use netmem::{DeviceError, DeviceState};

use self::hsa::Hsa;
use crate::{PLATFORM, remedy};

/// The names of the library. The last one is a link of the development files.
const LIBRARIES: &[&str] = &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

/// The first version in which an address has the attributes of [`PointerAttributes`], and kinds of memory these numbers.
const OLDEST: Version = Version(6, 0);

/// Set to 1, permits NICs of the kernel to access exported memory.
const STATIC_ATTACH: &str = "DEVMEM_AMD_STATIC_ATTACH";

/// hipDeviceAttributeDmaBufSupported; libraries before 7.14 do not know it.
const DMA_BUF_SUPPORTED: c_int = 93;

/// hipMemoryType.
const UNREGISTERED: c_int = 0;
const DEVICE: c_int = 2;
const MANAGED: c_int = 3;

/// Status for an address that is not one of HIP.
const INVALID_VALUE: Status = 1;

/// Status of what the library cannot do.
const NOT_SUPPORTED: Status = 801;

const NAMES: Names = Names {
    init: name(c"hipInit"),
    error_name: name(c"hipDrvGetErrorName"),
    device_count: name(c"hipGetDeviceCount"),
    device_name: name(c"hipDeviceGetName"),
    device_memory: name(c"hipDeviceTotalMem"),
    device_attribute: name(c"hipDeviceGetAttribute"),
    device_pci: name(c"hipDeviceGetPCIBusId"),
    stream_priorities: name(c"hipDeviceGetStreamPriorityRange"),
    mem_alloc: name(c"hipMalloc"),
    mem_free: name(c"hipFree"),
    host_register: name(c"hipHostRegister"),
    host_unregister: name(c"hipHostUnregister"),
    host_alloc: name(c"hipHostMalloc"),
    host_free: name(c"hipHostFree"),
    host_address: name(c"hipHostGetDevicePointer"),
    stream_create: name(c"hipStreamCreateWithPriority"),
    stream_destroy: name(c"hipStreamDestroy"),
    stream_synchronize: name(c"hipStreamSynchronize"),
    stream_wait: name(c"hipStreamWaitEvent"),
    event_create: name(c"hipEventCreateWithFlags"),
    event_destroy: name(c"hipEventDestroy"),
    event_record: name(c"hipEventRecord"),
    event_query: name(c"hipEventQuery"),
    event_synchronize: name(c"hipEventSynchronize"),
    copy_in: name(c"hipMemcpyHtoDAsync"),
    copy_out: name(c"hipMemcpyDtoHAsync"),
    copy_within: name(c"hipMemcpyDtoDAsync"),
    pointer_set: name(c"hipPointerSetAttribute"),
};

function_table! {
    OwnNames, Own;
    device_get(*mut c_int);
    device_set(c_int);
    last_error();
    address_range(*mut DevicePtr, *mut usize, DevicePtr);
    pointer_get(*mut PointerAttributes, DevicePtr);
}

/// What other libraries do not have, or have with other parameters.
const OWN_NAMES: OwnNames = OwnNames {
    device_get: name(c"hipGetDevice"),
    device_set: name(c"hipSetDevice"),
    last_error: name(c"hipGetLastError"),
    address_range: name(c"hipMemGetAddressRange"),
    pointer_get: name(c"hipPointerGetAttributes"),
};

/// The function that exports memory. ROCm 6 does not have it: see [`Hsa`].
const EXPORT: Name = Name::new(c"hipMemGetHandleForAddressRange", 7, 0);

const fn name(symbol: &'static CStr) -> Name {
    Name::new(symbol, OLDEST.0, OLDEST.1)
}

/// hipPointerAttribute_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_address: DevicePtr,
    host_address: u64,
    is_managed: c_int,
    flags: c_uint,
}

const _: () = assert!(size_of::<PointerAttributes>() == 32);

/// The loaded library.
pub(crate) struct Hip {
    loaded: Loaded,
    own: Own,
    export: Option<Function<MemExport>>,
    /// In place of `export`.
    hsa: Option<Hsa>,
}

impl Hip {
    /// Returns the library of this machine; loads it at the first call.
    pub(crate) fn get() -> Result<&'static Hip, LoadError> {
        static DRIVER: OnceLock<Result<Hip, LoadError>> = OnceLock::new();
        let driver = DRIVER.get_or_init(Hip::load);
        driver.as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Hip, LoadError> {
        // SAFETY: the library of this machine.
        let library = unsafe { Library::open(&PLATFORM, LIBRARIES) }?;
        // SAFETY: the function has this parameter.
        let number = unsafe { library.number(name(c"hipRuntimeGetVersion")) }?;
        // 70051831 is 7.0. Without a device, some versions return none.
        let version = number.map_or(OLDEST, |number| {
            Version(number / 10_000_000, number / 100_000 % 100)
        });
        library.require(version, OLDEST)?;
        let find = |name| library.symbol(name);
        let export = find(EXPORT).ok().filter(|_| version >= EXPORT.since);
        let export = export.map(|found| Function {
            name: EXPORT.text(),
            // SAFETY: the function of this name has these parameters since HIP 7.0.
            call: unsafe { std::mem::transmute::<*mut c_void, MemExport>(found) },
        });
        Ok(Hip {
            loaded: Loaded {
                platform: &PLATFORM,
                // SAFETY: (1) `Library` is never unloaded; (2) hip_runtime_api.h declares the functions as the table does, but
                // for device addresses, which are pointers, and are passed alike.
                functions: unsafe { Functions::find(&NAMES, find) }?,
                version,
            },
            // SAFETY: as above.
            own: unsafe { Own::find(&OWN_NAMES, find) }?,
            hsa: match export {
                Some(_) => None,
                None => Hsa::load().ok(),
            },
            export,
        })
    }
}

// SAFETY: (1) the functions are those of the library that `load` has opened, and `Library` is never unloaded; (2) and (3) see
// the methods.
unsafe impl Driver for Hip {
    fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    fn device(&self, ordinal: c_int) -> Result<RawDevice, DeviceError> {
        Ok(ordinal)
    }

    fn selected(&self) -> Option<u32> {
        let mut device = 0;
        // SAFETY: room for a number.
        let status = unsafe { (self.own.device_get.call)(&raw mut device) };
        u32::try_from(device).ok().filter(|_| status == SUCCESS)
    }

    fn open(&self, ordinal: c_int) -> Result<Opened, DeviceError> {
        Ok(Opened {
            device: ordinal,
            context: 0,
        })
    }

    fn close(&self, _opened: Opened) {}

    fn enter(&self, opened: Opened) -> Result<c_int, DeviceError> {
        let (get, set, mut before) = (self.own.device_get, self.own.device_set, 0);
        // SAFETY: room for a number.
        let status = unsafe { (get.call)(&raw mut before) };
        self.check(get.name, status)?;
        // SAFETY: takes a number.
        let status = unsafe { (set.call)(opened.device) };
        self.check(set.name, status).map(|()| before)
    }

    fn leave(&self, before: c_int) {
        // SAFETY: takes a number.
        let _ = unsafe { (self.own.device_set.call)(before) };
    }

    fn pointer(&self, address: DevicePtr) -> Result<Option<Pointer>, DeviceError> {
        let mut found = PointerAttributes {
            kind: UNREGISTERED,
            device: 0,
            device_address: 0,
            host_address: 0,
            is_managed: 0,
            flags: 0,
        };
        let get = self.own.pointer_get;
        // SAFETY: room for the attributes; the library looks the address up and does not access it.
        match unsafe { (get.call)(&raw mut found, address) } {
            INVALID_VALUE => {
                self.forget_error();
                return Ok(None);
            }
            status => self.check(get.name, status)?,
        }
        let kind = match found.kind {
            UNREGISTERED => return Ok(None),
            MANAGED => PointerKind::Managed,
            DEVICE if found.is_managed != 0 => PointerKind::Managed,
            DEVICE => PointerKind::Device,
            _ => PointerKind::Host,
        };
        let (mut start, mut size) = (0, 0);
        let get = self.own.address_range;
        if kind == PointerKind::Device {
            // SAFETY: room for an address and a size.
            let status = unsafe { (get.call)(&raw mut start, &raw mut size, address) };
            self.check(get.name, status)?;
        }
        Ok(Some(Pointer {
            kind,
            device: u32::try_from(found.device).unwrap_or(u32::MAX),
            start,
            size: size as u64,
            id: 0,
        }))
    }

    fn mem_export(&self) -> Result<Export, DeviceError> {
        match (self.export, &self.hsa) {
            (Some(export), _) => Ok(Export::Range(export, &[0])),
            (None, Some(hsa)) => Ok(Export::Allocation(hsa.export)),
            (None, None) => Err(self.error(EXPORT.text(), NOT_SUPPORTED, "not in this library")),
        }
    }

    fn exports(&self, device: RawDevice) -> bool {
        let knows = self.loaded.version >= Version(7, 14);
        match (&self.export, &self.hsa) {
            (Some(_), _) => {
                !knows || self.loaded.functions.attribute(DMA_BUF_SUPPORTED, device) > 0
            }
            (None, Some(hsa)) => hsa.exports(),
            (None, None) => false,
        }
    }

    fn reaches_kernel_nics(&self) -> Result<(), DeviceError> {
        match env::var_os(STATIC_ATTACH).is_some_and(|value| value == "1") {
            true => Ok(()),
            false => Err(DeviceError {
                call: "attachment of AMD GPU memory",
                name: "amdgpu moves it to the host while a NIC is attached, and the GPU does not see what the NIC writes",
                code: NOT_SUPPORTED,
                state: DeviceState::Usable,
                remedy: "take the user-space stack; or, if this kernel does not move it, set DEVMEM_AMD_STATIC_ATTACH=1",
            }),
        }
    }

    fn forget_error(&self) {
        // SAFETY: no parameters. Returns the error that it clears.
        let _ = unsafe { (self.own.last_error.call)() };
    }

    fn remedy(&self, call: &str, code: i32) -> &'static str {
        remedy::remedy(call, code)
    }
}
