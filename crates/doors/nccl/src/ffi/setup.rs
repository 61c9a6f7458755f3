// UNSAFETY: functions that NCCL calls, with its pointers to write to.

//! init, devices, properties, finalize.

use std::ffi::{c_int, c_void};

use super::{device, number, pointer, write};
use crate::comm::MAX_RECVS;
use crate::config::{self, Unpack};
use crate::contexts;
use crate::failure::{Code, Failure, finish};
use crate::gpu;
use crate::raw::abi::{
    CommonProperties, LogFn, POINTER_DMABUF, POINTER_HOST, PropertiesV8, PropertiesV9,
    PropertiesV11, PropertiesV12,
};
use crate::raw::log;
use crate::unpack;

/// Largest message.
const MAX_BYTES: usize = 1 << 30;

/// Latency that NCCL's tuning assumes, in microseconds.
const LATENCY: f32 = 20.0;

pub(super) unsafe extern "C" fn init(log: Option<LogFn>) -> c_int {
    log::set(log);
    finish("init", || contexts::init().map(drop))
}

pub(super) unsafe extern "C" fn init_v10(log: Option<LogFn>, _profiler: *mut c_void) -> c_int {
    // SAFETY: as this function's.
    unsafe { init(log) }
}

pub(super) unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _comm_id: u64,
    _config: *mut c_void,
    log: Option<LogFn>,
    _profiler: *mut c_void,
) -> c_int {
    log::set(log);
    finish("init", || {
        let number = contexts::begin()?;
        // SAFETY: NCCL gives room for the context.
        unsafe { write(context, pointer(Some(number))) }
    })
}

pub(super) unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    finish("finalize", || {
        contexts::end(number(context));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    finish("devices", || {
        let devices = config::current()?.devices.len();
        let devices = c_int::try_from(devices);
        let devices = devices.map_err(|_| Failure::new(Code::Usage, "too many devices"))?;
        // SAFETY: NCCL gives room for the number.
        unsafe { write(count, devices) }
    })
}

fn common(index: c_int) -> Result<CommonProperties, Failure> {
    let config = config::current()?;
    let wanted = config.devices.get(device(index)?);
    let wanted = wanted.ok_or_else(|| {
        let devices = config.devices.len();
        Failure::new(
            Code::Argument,
            format!("there is no device {index} of {devices}"),
        )
    })?;
    let (max_recvs, device_type, device_version) = match config.unpack {
        // At most 8.
        Unpack::Here => (MAX_RECVS as c_int, 0, 0),
        Unpack::ByKernels => (1, unpack::TYPE, unpack::VERSION),
    };
    Ok(CommonProperties {
        name: wanted.name.as_ptr(),
        pci_path: wanted
            .pci_path
            .as_ref()
            .map_or(std::ptr::null(), |path| path.as_ptr()),
        // Two devices are never ports of one chip, for all that is known here.
        guid: u64::from(index.cast_unsigned()),
        ptr_support: match gpu::is_offered(device(index)?) {
            true => POINTER_HOST | POINTER_DMABUF,
            false => POINTER_HOST,
        },
        reg_is_global: 0,
        force_flush: 0,
        speed: wanted.speed,
        port: 1,
        latency: LATENCY,
        max_comms: 65536,
        max_recvs,
        device_type,
        device_version,
    })
}

/// Properties of a device, as a version of the interface has them.
pub(super) trait Properties: Sized {
    fn of(index: c_int) -> Result<Self, Failure>;
}

pub(super) unsafe extern "C" fn properties<P: Properties>(index: c_int, out: *mut P) -> c_int {
    // SAFETY: NCCL gives room for the properties of this version.
    finish("getProperties", || unsafe { write(out, P::of(index)?) })
}

/// Returns the devices of a virtual device that has one.
fn only<const DEVICES: usize>(index: c_int) -> [c_int; DEVICES] {
    let mut devices = [0; DEVICES];
    devices[0] = index;
    devices
}

impl Properties for PropertiesV8 {
    fn of(index: c_int) -> Result<Self, Failure> {
        let it = common(index)?;
        Ok(Self {
            name: it.name,
            pci_path: it.pci_path,
            guid: it.guid,
            ptr_support: it.ptr_support,
            reg_is_global: it.reg_is_global,
            speed: it.speed,
            port: it.port,
            latency: it.latency,
            max_comms: it.max_comms,
            max_recvs: it.max_recvs,
            device_type: it.device_type,
            device_version: it.device_version,
        })
    }
}

impl Properties for PropertiesV9 {
    fn of(index: c_int) -> Result<Self, Failure> {
        Ok(Self {
            common: common(index)?,
            devices: 1,
            device: only(index),
            max_p2p_bytes: MAX_BYTES,
            max_coll_bytes: MAX_BYTES,
        })
    }
}

impl Properties for PropertiesV11 {
    fn of(index: c_int) -> Result<Self, Failure> {
        Ok(Self {
            v9: PropertiesV9::of(index)?,
            max_multi_request: 1,
        })
    }
}

impl Properties for PropertiesV12 {
    fn of(index: c_int) -> Result<Self, Failure> {
        Ok(Self {
            common: common(index)?,
            devices: 1,
            device: only(index),
            max_p2p_bytes: MAX_BYTES,
            max_coll_bytes: MAX_BYTES,
            max_multi_request: 1,
            rail: -1,
            plane: -1,
        })
    }
}

/// Called by the loader when the library is closed, or the process ends: no thread of ours may run code that is unmapped.
extern "C" fn unload() {
    finish("unload", || {
        contexts::unload();
        Ok(())
    });
}

// SAFETY: the section holds addresses of functions without arguments, which the loader calls at the end; this is one.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
