// UNSAFETY: C functions that write to addresses of their caller, with the contracts of NVIDIA's functions of these names.

//! What NCCL calls of the CUDA runtime, the driver and NVML, for one device.
#![allow(unsafe_code, non_snake_case)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::with_exposed_provenance_mut as at_mut;

use super::address::{Address, copy, fill};
use super::kernel;
use super::memory::{self, allocate_device, allocate_host, is_allocated};
use super::streams::{EVENTS, Event, STREAMS, Work};

const INVALID_VALUE: c_int = 1;
const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;
/// Of NVML.
const NOT_SUPPORTED: c_int = 3;

/// CUDA 12.2: what was added later is not needed.
const CUDA: c_int = 12020;
/// A GPU that NCCL knows, without multicast and without clusters of blocks.
const CAPABILITY: (c_int, c_int) = (8, 0);
/// Bytes of cudaDeviceProp of CUDA 12, and where the compute capability is.
const PROPERTIES_BYTES: usize = 1032;
const PROPERTIES_MAJOR: usize = 360;
/// Where no real device is.
const BUS_ID: &[u8; 13] = b"0000:7f:1f.0\0";
const ERROR: *const c_char = c"an error of the stand-in".as_ptr();

/// CUlaunchConfig, as far as it is used: grid, block, shared memory, stream.
#[repr(C)]
struct Launch {
    _sizes: [c_uint; 7],
    stream: usize,
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

fn properties() -> [u8; PROPERTIES_BYTES] {
    let mut properties = [0; PROPERTIES_BYTES];
    properties[PROPERTIES_MAJOR] = CAPABILITY.0 as u8;
    properties
}

fn free(address: usize) -> c_int {
    found(address == 0 || memory::free(address), INVALID_VALUE)
}

fn found(is_found: bool, otherwise: c_int) -> c_int {
    if is_found { 0 } else { otherwise }
}

fn submit(stream: usize, work: Work) -> c_int {
    let submitted = STREAMS.get(stream).map(|stream| stream.submit(work));
    found(submitted.is_some(), INVALID_HANDLE)
}

fn copy_in_turn(to: usize, from: usize, len: usize, stream: usize) -> c_int {
    if is_allocated(from) {
        return submit(stream, Box::new(move || copy(from, to, len)));
    }
    // Other memory of the host is read before this returns.
    let mut bytes = vec![0_u8; len];
    copy(from, bytes.as_mut_ptr().expose_provenance(), len);
    let copy = move || copy(bytes.as_ptr().expose_provenance(), to, len);
    submit(stream, Box::new(copy))
}

/// Returns the point that an event was recorded at.
fn recorded(event: usize) -> Event {
    EVENTS.get(event).flatten()
}

fn record(event: usize, stream: usize) -> c_int {
    let end = STREAMS.get(stream).map(|stream| stream.end());
    let is_recorded = end.is_some() && EVENTS.set(event, end);
    found(is_recorded, INVALID_HANDLE)
}

/// Writes a result to where the caller wants it: success.
macro_rules! put {
    ($to:expr, $value:expr) => {{
        let (to, value) = ($to, $value);
        if !to.is_null() {
            // SAFETY: the caller gives room for the result, as the contract of the function of this name says.
            unsafe { to.write(value) };
        }
        0
    }};
}

/// Defines functions, and a table of their names and addresses.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? $body:block)*) => {
        /// Returns all functions by name.
        pub fn functions() -> BTreeMap<&'static str, *const c_void> {
            $(unsafe extern "C" fn $name($($argument: $kind),*) -> functions!(@ $($result)?) $body)*
            BTreeMap::from([$((stringify!($name), $name as *const c_void)),*])
        }
    };
    (@) => { c_int };
    (@ $result:ty) => { $result };
}

functions! {
    cudaGetDevice(out: *mut c_int) { put!(out, 0) }
    cudaSetDevice() { 0 }
    cudaGetDeviceCount(out: *mut c_int) { put!(out, 1) }
    cudaDriverGetVersion(out: *mut c_int) { put!(out, CUDA) }
    cudaDeviceGetAttribute(out: *mut c_int, number: c_int) { put!(out, attribute(number)) }
    cuDeviceGetAttribute(out: *mut c_int, number: c_int) { put!(out, attribute(number)) }
    cudaDeviceGetPCIBusId(out: *mut [u8; BUS_ID.len()]) { put!(out, *BUS_ID) }
    cudaGetDeviceProperties_v2(out: *mut [u8; PROPERTIES_BYTES]) { put!(out, properties()) }
    cuDeviceGet(out: *mut c_int, ordinal: c_int) { put!(out, ordinal) }
    // Each rank has a GPU of its own.
    cuDeviceGetUuid(out: *mut [u8; 16]) { put!(out, u128::from(std::process::id()).to_ne_bytes()) }
    cuCtxGetCurrent(out: *mut usize) { put!(out, 1) }

    cudaMalloc(out: *mut usize, len: usize) { put!(out, allocate_device(len)) }
    cudaHostAlloc(out: *mut usize, len: usize) { put!(out, allocate_host(len)) }
    cudaHostGetDevicePointer(out: *mut usize, address: usize) { put!(out, address) }
    cudaFree(address: usize) { free(address) }
    cudaFreeHost(address: usize) { free(address) }
    cudaMemPoolCreate(out: *mut usize) { put!(out, 1) }
    cudaMemPoolSetAttribute() { 0 }
    cudaMemPoolDestroy() { 0 }
    cuMemGetHandleForAddressRange(out: *mut c_int, address: usize, len: usize) {
        memory::export(address, len).map_or(INVALID_VALUE, |descriptor| put!(out, descriptor))
    }
    cudaMemcpy(to: usize, from: usize, len: usize) { copy(from, to, len); 0 }
    cudaMemcpyAsync(to: usize, from: usize, len: usize, _kind: c_int, stream: usize) { copy_in_turn(to, from, len, stream) }
    cudaMemset(to: usize, byte: u8, len: usize) { fill(to, byte, len); 0 }
    cudaMemsetAsync(to: usize, byte: u8, len: usize, stream: usize) { submit(stream, Box::new(move || fill(to, byte, len))) }

    cudaStreamCreateWithFlags(out: *mut usize) { put!(out, STREAMS.create()) }
    cudaStreamDestroy(stream: usize) { found(STREAMS.remove(stream), INVALID_HANDLE) }
    cudaStreamSynchronize(stream: usize) {
        let end = STREAMS.get(stream).map(|stream| stream.end());
        end.map_or(INVALID_HANDLE, |point| { point.wait(); 0 })
    }
    // Nothing captures a graph.
    cudaStreamGetCaptureInfo_v2(_stream: usize, out: *mut c_int) { put!(out, 0) }
    cudaThreadExchangeStreamCaptureMode() { 0 }
    cudaStreamWaitEvent(stream: usize, event: usize) {
        let point = recorded(event);
        submit(stream, Box::new(move || point.iter().for_each(|point| { point.wait(); })))
    }
    cudaEventCreateWithFlags(out: *mut usize) { put!(out, EVENTS.create()) }
    cudaEventDestroy(event: usize) { found(EVENTS.remove(event), INVALID_HANDLE) }
    cudaEventRecord(event: usize, stream: usize) { record(event, stream) }
    cudaEventQuery(event: usize) { found(recorded(event).is_none_or(|point| point.get().is_some()), NOT_READY) }

    // Bytes of shared, constant and local memory.
    cudaFuncGetAttributes(out: *mut [usize; 3]) { put!(out, [0; 3]) }
    cudaFuncSetAttribute() { 0 }
    cudaGetFuncBySymbol(out: *mut usize, symbol: usize) { put!(out, symbol) }
    cuLaunchKernelEx(launch: *const Launch, _function: usize, _none: usize, parameters: usize) {
        // SAFETY: by the contract of the driver's function.
        let stream = unsafe { (*launch).stream };
        // SAFETY: NCCL gives its kernels such parameters, and keeps what they name until it is done.
        submit(stream, Box::new(kernel::launch(unsafe { Address::new(parameters) })))
    }
    cudaLaunchHostFunc(stream: usize, function: extern "C" fn(*mut c_void), argument: usize) {
        submit(stream, Box::new(move || function(at_mut(argument))))
    }

    cudaGetLastError() { 0 }
    cudaGetErrorString() -> *const c_char { ERROR }
    cudaGetErrorName() -> *const c_char { ERROR }
    cuGetErrorString(_code: c_int, out: *mut *const c_char) { put!(out, ERROR) }
    cuGetErrorName(_code: c_int, out: *mut *const c_char) { put!(out, ERROR) }
    nvmlErrorString() -> *const c_char { ERROR }

    // NCCL looks for NVML if this is missing.
    nvmlInit() { 0 }
    nvmlInit_v2() { 0 }
    nvmlDeviceGetCount_v2(out: *mut c_uint) { put!(out, 1) }
    nvmlDeviceGetHandleByIndex(_index: c_uint, out: *mut usize) { put!(out, 1) }
    nvmlDeviceGetHandleByPciBusId(_id: usize, out: *mut usize) { put!(out, 1) }
    nvmlDeviceGetIndex(_device: usize, out: *mut c_uint) { put!(out, 0) }
    nvmlDeviceGetCurrPcieLinkGeneration(_device: usize, out: *mut c_uint) { put!(out, 4) }
    nvmlDeviceGetCurrPcieLinkWidth(_device: usize, out: *mut c_uint) { put!(out, 16) }
    nvmlDeviceGetCudaComputeCapability(_device: usize, major: *mut c_int, minor: *mut c_int) {
        put!(minor, CAPABILITY.1) + put!(major, CAPABILITY.0)
    }
    // The only pair: the device and itself.
    nvmlDeviceGetP2PStatus(_one: usize, _other: usize, _index: c_int, out: *mut c_int) { put!(out, 0) }
    // NCCL can do without these, and calls them without a look.
    nvmlDeviceGetPcieLinkMaxSpeed() { NOT_SUPPORTED }
    nvmlDeviceGetPciInfo_v3() { NOT_SUPPORTED }
    nvmlDeviceGetPciInfoExt() { NOT_SUPPORTED }
}
