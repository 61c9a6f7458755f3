// UNSAFETY: C functions that read and write addresses of their caller, with the contracts of NVIDIA's functions of these names.

//! What NCCL calls of the CUDA runtime, the driver and NVML, for one device whose memory is memory of this process.
#![allow(unsafe_code, non_snake_case)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::with_exposed_provenance_mut as at_mut;
use std::sync::OnceLock;

use super::kernel::{Kernel, Version};
use super::memory::{self, copy, fill, free, is_allocated};
use super::streams::{Event, Handles, Stream, Work, is_done, lock, wait};

pub static STREAMS: Handles<Stream> = Handles::new();
static EVENTS: Handles<Event> = Handles::new();
/// The loaded NCCL, if its kernels are played.
pub static VERSION: OnceLock<Version> = OnceLock::new();

const INVALID_VALUE: c_int = 1;
const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;

/// CUDA 12.2: what was added later is not needed.
const CUDA: c_int = 12020;
/// A GPU that NCCL knows, without multicast and without clusters of blocks.
const CAPABILITY: (c_int, c_int) = (8, 0);
/// Bytes of cudaDeviceProp of CUDA 12, and where the compute capability is.
const PROPERTIES_BYTES: usize = 1032;
const PROPERTIES_MAJOR: usize = 360;
/// Where no real device is.
const BUS_ID: &[u8; 13] = b"0000:7f:1f.0\0";

/// Writes a result to where the caller wants it.
macro_rules! put {
    ($to:expr, $value:expr) => {{
        let (to, value) = ($to, $value);
        if !to.is_null() {
            // SAFETY: the caller gives room for the result, as the contract of CUDA's function of this name says.
            unsafe { to.write(value) };
        }
    }};
}

/// Defines functions, and a list of their names and addresses.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(unsafe extern "C" fn $name($($argument: $kind),*) -> c_int $body)*

        /// Returns all functions by name.
        pub fn functions() -> BTreeMap<&'static str, *const c_void> {
            let mut all = BTreeMap::from([$((stringify!($name), $name as *const c_void)),*]);
            all.extend(WITHOUT_EFFECT.map(|name| (name, succeed as *const c_void)));
            all.extend(NOT_SUPPORTED.map(|name| (name, refuse as *const c_void)));
            let texts = ["cudaGetErrorString", "cudaGetErrorName", "nvmlErrorString"];
            all.extend(texts.map(|name| (name, error_text as *const c_void)));
            all
        }
    };
}

/// Functions without an effect here.
const WITHOUT_EFFECT: [&str; 8] = [
    "cudaFuncSetAttribute",
    "cudaGetLastError",
    "cudaMemPoolDestroy",
    "cudaMemPoolSetAttribute",
    "cudaSetDevice",
    "cudaThreadExchangeStreamCaptureMode",
    // NCCL looks for NVML if this is missing.
    "nvmlInit",
    "nvmlInit_v2",
];

extern "C" fn succeed() -> c_int {
    0
}

/// Functions that NCCL can do without, and calls without a look.
const NOT_SUPPORTED: [&str; 3] = [
    "nvmlDeviceGetPcieLinkMaxSpeed",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetPciInfoExt",
];

/// NVML_ERROR_NOT_SUPPORTED.
extern "C" fn refuse() -> c_int {
    3
}

/// An error of CUDA or NVML, as text.
extern "C" fn error_text(_code: c_int) -> *const c_char {
    c"an error of the stand-in".as_ptr()
}

fn submit(stream: usize, work: Work) -> c_int {
    let submitted = STREAMS.get(stream).map(|stream| stream.submit(work));
    submitted.map_or(INVALID_HANDLE, |()| 0)
}

fn attribute(number: c_int) -> c_int {
    match number {
        // Compute capability, and bytes of shared memory that a block may have.
        75 => CAPABILITY.0,
        76 => CAPABILITY.1,
        97 => 163 << 10,
        // NICs may access device memory, and it is exported as a dma-buf.
        116 | 124 => c_int::from(memory::is_on_gpu()),
        _ => 0,
    }
}

/// CUlaunchConfig, as far as it is used: grid, block, shared memory, stream.
#[repr(C)]
struct Launch {
    _sizes: [c_uint; 7],
    stream: usize,
}

functions! {
    cudaGetDevice(out: *mut c_int) { put!(out, 0); 0 }
    cudaGetDeviceCount(out: *mut c_int) { put!(out, 1); 0 }
    cudaDriverGetVersion(out: *mut c_int) { put!(out, CUDA); 0 }
    cudaDeviceGetAttribute(out: *mut c_int, number: c_int) { put!(out, attribute(number)); 0 }
    cuDeviceGetAttribute(out: *mut c_int, number: c_int) { put!(out, attribute(number)); 0 }
    cudaDeviceGetPCIBusId(out: *mut [u8; BUS_ID.len()], len: c_int) {
        if len < BUS_ID.len() as c_int {
            return INVALID_VALUE;
        }
        put!(out, *BUS_ID);
        0
    }
    cudaGetDeviceProperties_v2(out: *mut [u8; PROPERTIES_BYTES]) {
        let mut properties = [0; PROPERTIES_BYTES];
        properties[PROPERTIES_MAJOR] = CAPABILITY.0 as u8;
        put!(out, properties);
        0
    }
    // Bytes of shared, constant and local memory.
    cudaFuncGetAttributes(out: *mut [usize; 3]) { put!(out, [0; 3]); 0 }

    cudaMalloc(out: *mut usize, len: usize) { put!(out, memory::allocate_device(len)); 0 }
    cudaHostAlloc(out: *mut usize, len: usize) { put!(out, memory::allocate_host(len)); 0 }
    cudaMemPoolCreate(out: *mut usize) { put!(out, 1); 0 }
    cudaHostGetDevicePointer(out: *mut usize, address: usize) { put!(out, address); 0 }
    cudaFree(address: usize) { if address == 0 || free(address) { 0 } else { INVALID_VALUE } }
    cudaFreeHost(address: usize) { if address == 0 || free(address) { 0 } else { INVALID_VALUE } }
    cuMemGetHandleForAddressRange(out: *mut c_int, address: usize, len: usize, _kind: c_int, _flags: u64) {
        let Some(descriptor) = memory::export(address, len) else { return INVALID_VALUE };
        put!(out, descriptor);
        0
    }
    cudaMemcpy(to: usize, from: usize, len: usize) { copy(from, to, len); 0 }
    cudaMemcpyAsync(to: usize, from: usize, len: usize, _kind: c_int, stream: usize) {
        if is_allocated(from) {
            return submit(stream, Box::new(move || copy(from, to, len)));
        }
        // Other memory of the host is read before this returns.
        let mut bytes = vec![0_u8; len];
        copy(from, bytes.as_mut_ptr().expose_provenance(), len);
        submit(stream, Box::new(move || copy(bytes.as_ptr().expose_provenance(), to, len)))
    }
    cudaMemset(to: usize, value: c_int, len: usize) { fill(to, value, len); 0 }
    cudaMemsetAsync(to: usize, value: c_int, len: usize, stream: usize) {
        submit(stream, Box::new(move || fill(to, value, len)))
    }

    cudaStreamCreateWithFlags(out: *mut usize) { put!(out, STREAMS.create()); 0 }
    cudaStreamDestroy(stream: usize) {
        if STREAMS.remove(stream).is_some() { 0 } else { INVALID_HANDLE }
    }
    cudaStreamSynchronize(stream: usize) {
        wait(STREAMS.get(stream).map(|stream| stream.end()));
        0
    }
    // Nothing captures a graph.
    cudaStreamGetCaptureInfo_v2(_stream: usize, out: *mut c_int) { put!(out, 0); 0 }
    cudaStreamWaitEvent(stream: usize, event: usize) {
        let point = EVENTS.get(event).and_then(|event| lock(&event).clone());
        submit(stream, Box::new(move || wait(point)))
    }

    cudaEventCreateWithFlags(out: *mut usize) { put!(out, EVENTS.create()); 0 }
    cudaEventDestroy(event: usize) {
        if EVENTS.remove(event).is_some() { 0 } else { INVALID_HANDLE }
    }
    cudaEventRecord(event: usize, stream: usize) {
        let (Some(event), Some(stream)) = (EVENTS.get(event), STREAMS.get(stream)) else {
            return INVALID_HANDLE;
        };
        *lock(&event) = Some(stream.end());
        0
    }
    cudaEventQuery(event: usize) {
        let point = EVENTS.get(event).and_then(|event| lock(&event).clone());
        if is_done(point) { 0 } else { NOT_READY }
    }

    cudaGetFuncBySymbol(out: *mut usize, symbol: usize) { put!(out, symbol); 0 }
    cuLaunchKernelEx(launch: *const Launch, _function: usize, _none: usize, parameters: *const [usize; 4]) {
        // SAFETY: by the contract of the driver's function.
        let stream = unsafe { (*launch).stream };
        let version = VERSION.get().expect("kernels of this version of NCCL are played");
        // SAFETY: NCCL launches its kernels.
        let kernel = unsafe { Kernel::new(parameters, version) };
        submit(stream, Box::new(|| kernel.run()))
    }
    cudaLaunchHostFunc(stream: usize, function: extern "C" fn(*mut c_void), argument: usize) {
        submit(stream, Box::new(move || function(at_mut(argument))))
    }

    cuDeviceGet(out: *mut c_int, ordinal: c_int) { put!(out, ordinal); 0 }
    // Each rank has a GPU of its own.
    cuDeviceGetUuid(out: *mut [u8; 16]) {
        put!(out, u128::from(std::process::id()).to_ne_bytes());
        0
    }
    cuCtxGetCurrent(out: *mut usize) { put!(out, 1); 0 }
    cuGetErrorString(code: c_int, out: *mut *const c_char) { put!(out, error_text(code)); 0 }
    cuGetErrorName(code: c_int, out: *mut *const c_char) { put!(out, error_text(code)); 0 }

    nvmlDeviceGetCount_v2(out: *mut c_uint) { put!(out, 1); 0 }
    nvmlDeviceGetHandleByIndex(_index: c_uint, out: *mut usize) { put!(out, 1); 0 }
    nvmlDeviceGetHandleByPciBusId(_id: usize, out: *mut usize) { put!(out, 1); 0 }
    nvmlDeviceGetIndex(_device: usize, out: *mut c_uint) { put!(out, 0); 0 }
    nvmlDeviceGetCurrPcieLinkGeneration(_device: usize, out: *mut c_uint) { put!(out, 4); 0 }
    nvmlDeviceGetCurrPcieLinkWidth(_device: usize, out: *mut c_uint) { put!(out, 16); 0 }
    nvmlDeviceGetCudaComputeCapability(_device: usize, major: *mut c_int, minor: *mut c_int) {
        put!(major, CAPABILITY.0);
        put!(minor, CAPABILITY.1);
        0
    }
    // The only pair: the device and itself.
    nvmlDeviceGetP2PStatus(_one: usize, _other: usize, _index: c_int, out: *mut c_int) { put!(out, 0); 0 }
}
