// UNSAFETY: reads lists that a plugin has written to host memory, and memory of a GPU at the addresses that it gave, as a kernel of NCCL
// does.

//! What a kernel of NCCL needs to unpack received messages: device handles, lists, memory of the GPU.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use devmem_tcp::Dmabuf;
use devmem_tcp::cuda::{self, Allocation};

use super::{Code, Plugin, Pointer, at, call, judged};

const PAGE_BYTES: u64 = 4096;

/// What a plugin gives to kernels: type, version, address, size, progress. NCCL's garbage, to find fields that are not written.
#[derive(Debug)]
#[repr(C)]
pub struct NetHandle {
    pub device_type: c_int,
    pub device_version: c_int,
    pub handle: u64,
    pub size: usize,
    pub needs_progress: c_int,
}

impl Plugin {
    /// Accepts a communicator for kernels.
    pub fn accept_for_kernels(
        &self,
        listening: Pointer,
    ) -> Result<Option<(Pointer, NetHandle)>, Code> {
        let mut receiving = std::ptr::dangling_mut::<c_void>();
        let mut handle = NetHandle {
            device_type: -1,
            device_version: -1,
            handle: u64::MAX,
            size: usize::MAX,
            needs_progress: -1,
        };
        let mut room = (&raw mut handle).cast::<c_void>();
        call!(
            self,
            ACCEPT,
            (*mut c_void, *mut *mut c_void, *mut *mut c_void),
            (listening.0, &raw mut receiving, &raw mut room)
        )?;
        Ok(Pointer(receiving).some().map(|comm| (comm, handle)))
    }

    pub fn consumed(&self, comm: Pointer, request: Pointer) -> Result<(), Code> {
        call!(
            self,
            CONSUMED,
            (*mut c_void, c_int, *mut c_void),
            (comm.0, 1, request.0)
        )
    }

    /// Returns whether registered memory has a handle for kernels.
    pub fn has_device_mr(&self, comm: Pointer, memory: Pointer) -> Result<bool, Code> {
        let mut out = std::ptr::dangling_mut::<c_void>();
        call!(
            self,
            DEVICE_MR,
            (*mut c_void, *mut c_void, *mut *mut c_void),
            (comm.0, memory.0, &raw mut out)
        )?;
        Ok(!out.is_null())
    }
}

/// Reads a word of a list.
pub fn word(address: u64) -> u64 {
    assert!(address != 0 && address.is_multiple_of(8));
    let word = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
    // SAFETY: the stub's GPU reads host memory of the plugin at the host's address; it is aligned, and written by atomic operations.
    unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire)
}

/// Returns the pages around a range of the GPU's memory, and where it begins in them.
fn pages(address: u64, len: usize) -> (Dmabuf, usize) {
    let inside = address % PAGE_BYTES;
    let pages = (inside as usize + len).next_multiple_of(PAGE_BYTES as usize);
    let gpu = cuda::open(0).expect("a GPU");
    // SAFETY: memory of the plugin that stays while its communicator is open; the driver is asked whether it is some.
    let adopted = unsafe { Allocation::adopt(&gpu, address - inside, pages) };
    (
        adopted.expect("memory of the GPU").into_dmabuf(),
        inside as usize,
    )
}

/// Reads memory of the GPU, by a copy of the GPU.
pub fn read(address: u64, len: usize) -> Vec<u8> {
    let (pages, start) = pages(address, len);
    pages.slice(start..start + len).to_vec()
}

/// Writes memory of the GPU, by a copy of the GPU.
pub fn write(address: u64, bytes: &[u8]) {
    let (pages, start) = pages(address, bytes.len());
    pages.copy_in(start, bytes).expect("a copy");
}
