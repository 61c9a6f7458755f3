// UNSAFETY: functions that NCCL calls, with its pointers to write to.

//! init, devices, properties, finalize.

use std::ffi::{c_int, c_void};

use super::abi::{
    CommonProperties, DEVICES_V9, DEVICES_V12, LogFn, POINTER_DMABUF, POINTER_HOST, PropertiesV8,
    PropertiesV9, PropertiesV11, PropertiesV12,
};
use super::{device, log, number, pointer, write};
use crate::comm::MAX_RECVS;
use crate::config::Unpack;
use crate::failure::{Code, Failure, finish};
use crate::gpu;
use crate::state::{self, begin_context, end_context};
use crate::unpack;

/// Largest message.
const MAX_BYTES: usize = 1 << 30;

/// Latency that NCCL's tuning assumes, in microseconds.
const LATENCY: f32 = 20.0;

pub(super) unsafe extern "C" fn init(log: Option<LogFn>) -> c_int {
    log::set(log);
    finish("init", || state::init().map(drop))
}

pub(super) unsafe extern "C" fn init_v10(log: Option<LogFn>, _profiler: *mut c_void) -> c_int {
    log::set(log);
    finish("init", || state::init().map(drop))
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
        let number = begin_context()?;
        // SAFETY: NCCL gives room for the context.
        unsafe { write(context, pointer(Some(number))) }
    })
}

pub(super) unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    finish("finalize", || {
        end_context(number(context));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    finish("devices", || {
        let devices = state::config()?.devices.len();
        let devices = c_int::try_from(devices);
        let devices = devices.map_err(|_| Failure::new(Code::Usage, "too many devices"))?;
        // SAFETY: NCCL gives room for the number.
        unsafe { write(count, devices) }
    })
}

fn common(index: c_int) -> Result<CommonProperties, Failure> {
    let config = state::config()?;
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

fn v9(index: c_int) -> Result<PropertiesV9, Failure> {
    let mut device = [0; DEVICES_V9];
    device[0] = index;
    Ok(PropertiesV9 {
        common: common(index)?,
        devices: 1,
        device,
        max_p2p_bytes: MAX_BYTES,
        max_coll_bytes: MAX_BYTES,
    })
}

pub(super) unsafe extern "C" fn properties_v8(index: c_int, out: *mut PropertiesV8) -> c_int {
    finish("getProperties", || {
        let it = common(index)?;
        let properties = PropertiesV8 {
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
        };
        // SAFETY: NCCL gives room for the properties of this version.
        unsafe { write(out, properties) }
    })
}

pub(super) unsafe extern "C" fn properties_v9(index: c_int, out: *mut PropertiesV9) -> c_int {
    // SAFETY: NCCL gives room for the properties of this version.
    finish("getProperties", || unsafe { write(out, v9(index)?) })
}

pub(super) unsafe extern "C" fn properties_v11(index: c_int, out: *mut PropertiesV11) -> c_int {
    finish("getProperties", || {
        let properties = PropertiesV11 {
            v9: v9(index)?,
            max_multi_request: 1,
        };
        // SAFETY: NCCL gives room for the properties of this version.
        unsafe { write(out, properties) }
    })
}

pub(super) unsafe extern "C" fn properties_v12(index: c_int, out: *mut PropertiesV12) -> c_int {
    finish("getProperties", || {
        let mut device = [0; DEVICES_V12];
        device[0] = index;
        let properties = PropertiesV12 {
            common: common(index)?,
            devices: 1,
            device,
            max_p2p_bytes: MAX_BYTES,
            max_coll_bytes: MAX_BYTES,
            max_multi_request: 1,
            rail: -1,
            plane: -1,
        };
        // SAFETY: NCCL gives room for the properties of this version.
        unsafe { write(out, properties) }
    })
}

/// Called by the loader when the library is closed, or the process ends: no thread of ours may run code that is unmapped.
extern "C" fn unload() {
    finish("unload", || {
        state::unload();
        Ok(())
    });
}

// SAFETY: the section holds addresses of functions without arguments, which the loader calls at the end; this is one.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
