// UNSAFETY: the ioctls of dma-buf exporters have no safe wrapper; each is declared once here, with the
// type that the kernel reads or writes.

//! The ioctls of udmabuf, dma-heaps and dma-bufs.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use devmem_uapi::udmabuf::{UDMABUF_CREATE, UdmabufCreate};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

/// `DMA_HEAP_IOCTL_ALLOC` (linux include/uapi/linux/dma-heap.h).
const DMA_HEAP_IOCTL_ALLOC: Opcode = opcode::read_write::<HeapAllocation>(b'H', 0);
/// `DMA_BUF_IOCTL_SYNC` (linux include/uapi/linux/dma-buf.h).
const DMA_BUF_IOCTL_SYNC: Opcode = opcode::write::<u64>(b'b', 0);

/// `struct dma_heap_allocation_data`.
#[repr(C)]
struct HeapAllocation {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}
const _: () = assert!(size_of::<HeapAllocation>() == 24);
const _: () = assert!(DMA_HEAP_IOCTL_ALLOC == 0xc018_4800);
const _: () = assert!(DMA_BUF_IOCTL_SYNC == 0x4008_6200);

/// Creates a dma-buf from a memfd; `device` is /dev/udmabuf.
pub(crate) fn udmabuf_create(
    device: BorrowedFd<'_>,
    create: &UdmabufCreate,
) -> Result<OwnedFd, Errno> {
    // SAFETY: 1. `device` is open for the call; 2. UDMABUF_CREATE reads one UdmabufCreate at the
    // pointer (its number carries that size, asserted in devmem-uapi).
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE as _, &raw const *create) };
    // SAFETY: UDMABUF_CREATE returns a new descriptor, or a negative number.
    unsafe { new_fd(rc) }
}

/// Allocates `len` bytes from `heap`, a file of /dev/dma_heap.
pub(crate) fn heap_alloc(heap: BorrowedFd<'_>, len: u64) -> Result<OwnedFd, Errno> {
    let mut allocation = HeapAllocation {
        len,
        fd: 0,
        fd_flags: (libc::O_RDWR | libc::O_CLOEXEC) as u32,
        heap_flags: 0,
    };
    // SAFETY: the opcode carries the size of HeapAllocation, and any bytes are a valid value of it.
    let call = unsafe { Updater::<{ DMA_HEAP_IOCTL_ALLOC }, HeapAllocation>::new(&mut allocation) };
    // SAFETY: `call` points to a live, exclusively borrowed structure of the size the kernel uses.
    unsafe { ioctl(heap, call) }?;
    let fd = c_int::try_from(allocation.fd).map_err(|_no_fd| Errno::BADMSG)?;
    // SAFETY: the ioctl has succeeded, and `fd` is the descriptor that it created.
    unsafe { new_fd(fd) }
}

/// Begins or ends an access of the CPU to a dma-buf (`DMA_BUF_SYNC_*` flags).
pub(crate) fn sync(dmabuf: BorrowedFd<'_>, flags: u64) -> Result<(), Errno> {
    // SAFETY: DMA_BUF_IOCTL_SYNC reads one struct dma_buf_sync, which is one u64.
    let call = unsafe { Setter::<{ DMA_BUF_IOCTL_SYNC }, u64>::new(flags) };
    // SAFETY: the setter owns the u64 that the pointer refers to.
    unsafe { ioctl(dmabuf, call) }
}

/// Takes ownership of a descriptor that the kernel has just created.
///
/// # Safety
/// `fd` is negative, or such a descriptor without another owner.
unsafe fn new_fd(fd: c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(super::last_errno());
    }
    // SAFETY: the caller guarantees that this is a new descriptor of this process without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
