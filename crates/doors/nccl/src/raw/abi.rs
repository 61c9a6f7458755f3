// UNSAFETY: declares what NCCL and this library share; the sizes and offsets are asserted below.

//! The structures of NCCL's network interface, versions 8 to 12, as C lays them out on 64-bit machines.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::sync::atomic::AtomicPtr;

/// Writes a message of NCCL's log: level, subsystems, file, line, printf format and its arguments.
pub type LogFn = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// Devices of a virtual device, up to version 11.
pub const DEVICES_V9: usize = 4;
/// Devices of a virtual device, since version 12.
pub const DEVICES_V12: usize = 8;

/// Properties of a device, version 8.
#[repr(C)]
pub struct PropertiesV8 {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub device_type: c_int,
    pub device_version: c_int,
}

/// Fields that versions 9 to 12 begin with.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CommonProperties {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub device_type: c_int,
    pub device_version: c_int,
}

/// Properties of a device, versions 9 and 10.
#[repr(C)]
pub struct PropertiesV9 {
    pub common: CommonProperties,
    pub devices: c_int,
    pub device: [c_int; DEVICES_V9],
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
}

/// Properties of a device, version 11.
#[repr(C)]
pub struct PropertiesV11 {
    pub v9: PropertiesV9,
    pub max_multi_request: c_int,
}

/// Properties of a device, version 12.
#[repr(C)]
pub struct PropertiesV12 {
    pub common: CommonProperties,
    pub devices: c_int,
    pub device: [c_int; DEVICES_V12],
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
    pub max_multi_request: c_int,
    pub rail: i16,
    pub plane: i16,
}

type Init = unsafe extern "C" fn(Option<LogFn>) -> c_int;
type InitV10 = unsafe extern "C" fn(Option<LogFn>, *mut c_void) -> c_int;
type InitV11 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_void, Option<LogFn>, *mut c_void) -> c_int;
type Devices = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> c_int;
type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> c_int;
type ListenV11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> c_int;
type Connect =
    unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int;
type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type ConnectV11 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type Accept = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int;
type RegMr =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> c_int;
type RegMrDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    *mut *mut c_void,
) -> c_int;
type DeregMr = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Isend<S> = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    S,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
type IsendV10 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
type Irecv<S> = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type IrecvV10 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type Iflush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_int;
type Close = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The last functions of every version; those that a plugin for host memory lacks are NULL.
#[repr(C)]
pub struct Tail {
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    /// NULL, or `GetDeviceMr`: set when the library is loaded.
    pub get_device_mr: AtomicPtr<c_void>,
    /// NULL, or `IrecvConsumed`: set when the library is loaded. NCCL then expects requests to live on.
    pub irecv_consumed: AtomicPtr<c_void>,
}

/// The functions for memory, of every version.
#[repr(C)]
pub struct MemoryCalls {
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
}

/// `ncclNetPlugin_v8`.
#[repr(C)]
pub struct PluginV8 {
    pub name: *const c_char,
    pub init: Init,
    pub devices: Devices,
    pub get_properties: GetProperties<PropertiesV8>,
    pub listen: Listen,
    pub connect: Connect,
    pub accept: Accept,
    pub memory: MemoryCalls,
    pub isend: Isend<c_int>,
    pub irecv: Irecv<c_int>,
    pub tail: Tail,
}

/// `ncclNetPlugin_v9`.
#[repr(C)]
pub struct PluginV9 {
    pub name: *const c_char,
    pub init: Init,
    pub devices: Devices,
    pub get_properties: GetProperties<PropertiesV9>,
    pub listen: Listen,
    pub connect: Connect,
    pub accept: Accept,
    pub memory: MemoryCalls,
    pub isend: Isend<usize>,
    pub irecv: Irecv<usize>,
    pub tail: Tail,
    pub make_v_device: *const c_void,
}

/// `ncclNetPlugin_v10`.
#[repr(C)]
pub struct PluginV10 {
    pub name: *const c_char,
    pub init: InitV10,
    pub devices: Devices,
    pub get_properties: GetProperties<PropertiesV9>,
    pub listen: Listen,
    pub connect: ConnectV10,
    pub accept: Accept,
    pub memory: MemoryCalls,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub tail: Tail,
    pub make_v_device: *const c_void,
}

/// `ncclNetPlugin_v11` and `ncclNetPlugin_v12`, which differ in the properties.
#[repr(C)]
pub struct PluginV11<P> {
    pub name: *const c_char,
    pub init: InitV11,
    pub devices: Devices,
    pub get_properties: GetProperties<P>,
    pub listen: ListenV11,
    pub connect: ConnectV11,
    pub accept: Accept,
    pub memory: MemoryCalls,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub tail: Tail,
    pub make_v_device: *const c_void,
    pub finalize: Close,
    pub set_net_attr: *const c_void,
}

macro_rules! layout {
    ($($type:ty = $size:expr; $($field:ident at $at:expr),*;)*) => {$(
        const _: () = assert!(size_of::<$type>() == $size);
        $(const _: () = assert!(std::mem::offset_of!($type, $field) == $at);)*
    )*};
}

layout! {
    PropertiesV8 = 64; guid at 16, speed at 32, latency at 40, max_recvs at 48, device_version at 56;
    CommonProperties = 64; force_flush at 32, latency at 44, max_recvs at 52, device_version at 60;
    PropertiesV9 = 104; devices at 64, device at 68, max_p2p_bytes at 88, max_coll_bytes at 96;
    PropertiesV11 = 112; max_multi_request at 104;
    PropertiesV12 = 128; devices at 64, device at 68, max_p2p_bytes at 104, max_multi_request at 120, rail at 124, plane at 126;
    PluginV8 = 152; init at 8, accept at 48, memory at 56, isend at 80, irecv at 88, tail at 96;
    PluginV9 = 160; tail at 96, make_v_device at 152;
    PluginV10 = 160; connect at 40, tail at 96, make_v_device at 152;
    PluginV11<PropertiesV11> = 176; finalize at 160, set_net_attr at 168;
    PluginV11<PropertiesV12> = 176; finalize at 160, set_net_attr at 168;
    Tail = 56; get_device_mr at 40, test at 8, close_listen at 32, irecv_consumed at 48;
}

/// Type of `NCCL_PTR_*`.
pub type PointerType = c_int;
/// Host memory.
pub const POINTER_HOST: PointerType = 1;
/// Memory of a GPU.
pub const POINTER_CUDA: PointerType = 2;

/// Memory of a GPU that comes with a dma-buf.
pub const POINTER_DMABUF: PointerType = 4;

/// Levels of the log.
pub const LOG_WARN: c_int = 2;
/// Levels of the log.
pub const LOG_INFO: c_int = 3;
/// The subsystems init and net.
pub const LOG_FLAGS: c_ulong = 1 | 16;
