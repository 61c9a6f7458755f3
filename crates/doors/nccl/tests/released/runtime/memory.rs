// UNSAFETY: maps memory at addresses that are reserved for it, and exports memory that NCCL frees.

//! Device memory, and host memory for devices. Kernels and the CPU reach each at the same address.
//!
//! Where the test names a stand-in for NVIDIA's driver, device memory is memory of its GPU: the plugin finds it by the driver, and has dma-bufs
//! of it. The stand-in reserves the addresses; a dma-buf is mapped there.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::with_exposed_provenance_mut as at_mut;
use std::sync::{LazyLock, Mutex};

use devmem_tcp::cuda::{self, Allocation, Device, PLATFORM};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use super::streams::lock;

const PAGE_BYTES: usize = 4096;

/// The length of memory, and its owner.
type Memory = (usize, Box<dyn Send>);

/// All memory by its address.
static ALL: Mutex<BTreeMap<usize, Memory>> = Mutex::new(BTreeMap::new());

/// The stand-in's GPU.
static GPU: LazyLock<Option<Device>> = LazyLock::new(|| {
    std::env::var_os(PLATFORM.variable)?;
    Some(cuda::open(0).expect("a stand-in for the driver"))
});

/// Memory of the stand-in's GPU, mapped at its address.
struct Mapped {
    allocation: Allocation,
    len: usize,
}

impl Mapped {
    fn new(gpu: &Device, len: usize) -> Self {
        let allocation = gpu.alloc(len).expect("memory of the stand-in");
        let dmabuf = allocation.export().expect("a dma-buf");
        let start = at_mut::<c_void>(allocation.device_ptr() as usize);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let how = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the stand-in has reserved these addresses for this allocation, and nothing is mapped there.
        unsafe { mmap(start, len, access, how, dmabuf, 0) }.expect("a dma-buf is mapped");
        Self { allocation, len }
    }
}

impl Drop for Mapped {
    /// Leaves the addresses to the stand-in.
    fn drop(&mut self) {
        let start = at_mut::<c_void>(self.allocation.device_ptr() as usize);
        let how = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: mapped by `new`, and NCCL has freed it.
        unsafe { mmap_anonymous(start, self.len, ProtFlags::empty(), how) }.expect("addresses");
    }
}

fn insert(address: usize, len: usize, owner: impl Send + 'static) -> usize {
    lock(&ALL).insert(address, (len, Box::new(owner)));
    address
}

pub fn allocate_host(len: usize) -> usize {
    // Aligned as NCCL's structures are.
    let words = vec![0_u128; len.div_ceil(size_of::<u128>()).max(1)];
    insert(words.as_ptr().expose_provenance(), len.max(1), words)
}

pub fn allocate_device(len: usize) -> usize {
    let Some(gpu) = &*GPU else {
        return allocate_host(len);
    };
    let len = len.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
    let mapped = Mapped::new(gpu, len);
    insert(mapped.allocation.device_ptr() as usize, len, mapped)
}

/// Returns whether there was such memory.
pub fn free(address: usize) -> bool {
    let freed = lock(&ALL).remove(&address);
    freed.is_some()
}

/// Returns how many allocations are left.
pub fn allocations() -> usize {
    lock(&ALL).len()
}

pub fn is_allocated(address: usize) -> bool {
    let all = lock(&ALL);
    let before = all.range(..=address).next_back();
    before.is_some_and(|(start, (len, _))| address < start + len)
}

/// Whether device memory can be exported.
pub fn is_on_gpu() -> bool {
    GPU.is_some()
}

/// Returns a descriptor of a dma-buf of device memory.
pub fn export(address: usize, len: usize) -> Option<c_int> {
    // SAFETY: NCCL frees memory when nothing uses it any more, and what is adopted here ends with this call.
    let range = unsafe { Allocation::adopt(GPU.as_ref()?, address as u64, len) }.ok()?;
    let descriptor = range.export().ok()?.try_clone_to_owned().ok()?;
    Some(descriptor.into_raw_fd())
}
