// UNSAFETY: maps memory at addresses that this process has reserved, and copies between addresses of its callers.

//! Device memory, and host memory for devices: known by addresses, and read and written by kernels and the CPU at the same ones.
//!
//! Where the test names a stand-in for NVIDIA's driver, device memory is memory of its GPU: the plugin finds it by the driver, and has a dma-buf of it. The
//! stand-in reserves the addresses; the dma-buf is mapped there.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};
use std::sync::{LazyLock, Mutex};

use devmem_tcp::cuda::{self, Allocation, Device, PLATFORM};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use super::streams::lock;

const PAGE_BYTES: usize = 4096;

static ALL: Mutex<BTreeMap<usize, Memory>> = Mutex::new(BTreeMap::new());

/// The stand-in's GPU.
static GPU: LazyLock<Option<Device>> = LazyLock::new(|| {
    std::env::var_os(PLATFORM.variable)?;
    Some(cuda::open(0).expect("a stand-in for the driver"))
});

enum Memory {
    /// Aligned as NCCL's structures are.
    Host(Vec<u128>),
    Gpu(Mapped),
}

/// Memory of the stand-in's GPU, mapped at its address.
struct Mapped {
    allocation: Allocation,
    len: usize,
}

impl Memory {
    fn address(&self) -> usize {
        match self {
            Self::Host(words) => words.as_ptr().expose_provenance(),
            Self::Gpu(mapped) => mapped.allocation.device_ptr() as usize,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Host(words) => words.len() * size_of::<u128>(),
            Self::Gpu(mapped) => mapped.len,
        }
    }

    fn host(len: usize) -> Self {
        Self::Host(vec![0; len.div_ceil(size_of::<u128>()).max(1)])
    }
}

impl Mapped {
    fn new(gpu: &Device, len: usize) -> Self {
        let len = len.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let allocation = gpu.alloc(len).expect("memory of the stand-in");
        let dmabuf = allocation.export().expect("a dma-buf");
        let start = at_mut::<c_void>(allocation.device_ptr() as usize);
        let (access, how) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
        );
        // SAFETY: the stand-in has reserved these addresses for this allocation, and nothing is mapped there.
        unsafe { mmap(start, len, access, how, dmabuf, 0) }.expect("a dma-buf of memory is mapped");
        Self { allocation, len }
    }
}

impl Drop for Mapped {
    /// Leaves the addresses to the stand-in.
    fn drop(&mut self) {
        let start = at_mut::<c_void>(self.allocation.device_ptr() as usize);
        let how = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: mapped by `new`, and its owner has freed it.
        unsafe { mmap_anonymous(start, self.len, ProtFlags::empty(), how) }.expect("addresses");
    }
}

fn insert(memory: Memory) -> usize {
    let address = memory.address();
    lock(&ALL).insert(address, memory);
    address
}

pub fn allocate_host(len: usize) -> usize {
    insert(Memory::host(len))
}

pub fn allocate_device(len: usize) -> usize {
    insert(match &*GPU {
        Some(gpu) => Memory::Gpu(Mapped::new(gpu, len)),
        None => Memory::host(len),
    })
}

/// Returns whether there was such memory.
pub fn free(address: usize) -> bool {
    lock(&ALL).remove(&address).is_some()
}

/// Returns how many allocations are left.
pub fn allocations() -> usize {
    lock(&ALL).len()
}

pub fn is_allocated(address: usize) -> bool {
    let all = lock(&ALL);
    let before = all.range(..=address).next_back();
    before.is_some_and(|(start, memory)| address < start + memory.len())
}

/// Whether device memory can be exported.
pub fn is_on_gpu() -> bool {
    GPU.is_some()
}

/// Returns a descriptor of a dma-buf of device memory.
pub fn export(address: usize, len: usize) -> Option<c_int> {
    // SAFETY: NCCL frees memory of its own when nothing uses it any more, and the allocation ends here.
    let range = unsafe { Allocation::adopt(GPU.as_ref()?, address as u64, len) }.ok()?;
    let descriptor = range.export().ok()?.try_clone_to_owned().ok()?;
    Some(descriptor.into_raw_fd())
}

/// Copies bytes between buffers of NCCL or its application, or within one.
pub fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: NCCL names ranges that live until its stream has come here.
    unsafe { at::<u8>(from).copy_to(at_mut(to), len) };
}

pub fn fill(to: usize, value: c_int, len: usize) {
    // SAFETY: as above.
    unsafe { at_mut::<u8>(to).write_bytes(value as u8, len) };
}
