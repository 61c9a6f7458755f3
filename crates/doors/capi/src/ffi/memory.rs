// UNSAFETY: C functions on stacks, memories, bindings and counters.

//! Stacks, memories, bindings, counters.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use devmem_uapi::{DmabufId, Errno};
use netmem::NiovSize;

use super::opaque::{DmtMemory, DmtStack};
use crate::failure::{self, Failure, finish};
use crate::stacks;

/// Counters of a stack, as `struct dmt_stats` has them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct DmtStats {
    /// Packets taken from the NIC.
    pub rx_packets: u64,
    /// Packets passed to the NIC.
    pub tx_packets: u64,
    /// Connections opened by this stack.
    pub connects: u64,
    /// Connections established through a listener.
    pub accepts: u64,
    /// Current number of sockets.
    pub sockets: u64,
    /// Connections without a socket that are still closing.
    pub orphans: u64,
    /// Four-tuples in use, TIME-WAIT included.
    pub connections: u64,
    /// Packets dropped for any reason.
    pub drops: u64,
}

/// Returns the version of the library as the header's `DMT_VERSION` has it.
#[unsafe(no_mangle)]
pub extern "C" fn dmt_version() -> c_int {
    VERSION
}

const VERSION: c_int = number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(text: &str) -> c_int {
    match c_int::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("the version in Cargo.toml is three numbers"),
    }
}

/// Opens a stack. Returns null and sets errno and the text of `dmt_error` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_open(link: *const c_char, settings: *const c_char) -> *mut DmtStack {
    let mut number = 0;
    finish("dmt_open", || -> Result<_, Failure> {
        // SAFETY: null or a string, as the header requires.
        let link = unsafe { cabi::text(link) }?.ok_or(Errno::EFAULT)?;
        // SAFETY: as above.
        let settings = unsafe { cabi::text(settings) }?.unwrap_or_default();
        number = stacks::open(link, settings)?;
        Ok(())
    });
    ptr::without_provenance_mut(number)
}

/// Closes a stack and everything in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_stack_close(stack: *mut DmtStack) -> c_int {
    finish("dmt_stack_close", || stacks::close(stack.addr()))
}

/// Copies the call and the reason of this thread's last failure to `buf`; returns the length of the text. A failure of this
/// call itself does not change the text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_error(buf: *mut c_char, len: usize) -> isize {
    cabi::finish(|| {
        isize::try_from(len).map_err(|_| Errno::EINVAL)?;
        let text = failure::last_text();
        // SAFETY: `len` bytes can be written, as the header requires.
        let out = unsafe { cabi::slice_mut(buf.cast::<c_void>(), len.min(text.len() + 1)) }?;
        if let Some((last, rest)) = out.split_last_mut() {
            rest.copy_from_slice(text.as_bytes().get(..rest.len()).unwrap_or_default());
            *last = 0;
        }
        Ok(text.len())
    })
}

/// Allocates a memory of whole pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_new(bytes: usize) -> *mut DmtMemory {
    let mut number = 0;
    finish("dmt_memory_new", || -> Result<_, Failure> {
        number = stacks::new_memory(bytes)?;
        Ok(())
    });
    ptr::without_provenance_mut(number)
}

/// Allocates a dma-buf of ordinary memory through /dev/udmabuf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_udmabuf(bytes: usize) -> *mut DmtMemory {
    let mut number = 0;
    finish("dmt_memory_udmabuf", || -> Result<_, Failure> {
        number = stacks::add_memory(devmem_tcp::memory::udmabuf(bytes))?;
        Ok(())
    });
    ptr::without_provenance_mut(number)
}

/// Allocates a dma-buf from a dma-heap of the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_heap(heap: *const c_char, bytes: usize) -> *mut DmtMemory {
    let mut number = 0;
    finish("dmt_memory_heap", || -> Result<_, Failure> {
        // SAFETY: null or a string, as the header requires.
        let heap = unsafe { cabi::text(heap) }?.ok_or(Errno::EFAULT)?;
        number = stacks::add_memory(devmem_tcp::memory::dma_heap(heap, bytes))?;
        Ok(())
    });
    ptr::without_provenance_mut(number)
}

/// Makes a memory of a dma-buf that another driver exported. The caller keeps `fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_import(fd: c_int) -> *mut DmtMemory {
    let mut number = 0;
    finish("dmt_memory_import", || -> Result<_, Failure> {
        number = stacks::add_memory(devmem_tcp::memory::import(duplicate(fd)?))?;
        Ok(())
    });
    ptr::without_provenance_mut(number)
}

/// Duplicates a descriptor of this process; the copy is close-on-exec.
fn duplicate(fd: c_int) -> Result<OwnedFd, Failure> {
    // SAFETY: fcntl with F_DUPFD_CLOEXEC accesses no memory, and refuses a number that is no descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        let error = std::io::Error::last_os_error();
        let errno = Errno(error.raw_os_error().unwrap_or(Errno::EBADF.0));
        return Err(Failure::new(
            errno,
            format!("the file descriptor {fd} cannot be duplicated: {error}"),
        ));
    }
    // SAFETY: fcntl has just returned it, so it is open and nothing else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Returns the size of a memory in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_size(memory: *mut DmtMemory) -> isize {
    finish("dmt_memory_size", || -> Result<_, Failure> {
        Ok(stacks::memory(memory.addr())?.size())
    })
}

/// Frees the handle of a memory; bindings keep the memory itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_free(memory: *mut DmtMemory) -> c_int {
    finish("dmt_memory_free", || stacks::free_memory(memory.addr()))
}

/// Copies bytes of a memory to `buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_read(
    memory: *mut DmtMemory,
    offset: usize,
    buf: *mut c_void,
    len: usize,
) -> c_int {
    finish("dmt_memory_read", || -> Result<_, Failure> {
        // SAFETY: `len` bytes can be written, as the header requires.
        let out = unsafe { cabi::slice_mut(buf, len) }?;
        Ok(stacks::memory(memory.addr())?.copy_out(offset, out)?)
    })
}

/// Copies bytes of `buf` to a memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_write(
    memory: *mut DmtMemory,
    offset: usize,
    buf: *const c_void,
    len: usize,
) -> c_int {
    finish("dmt_memory_write", || -> Result<_, Failure> {
        // SAFETY: `len` bytes can be read, as the header requires.
        let bytes = unsafe { cabi::slice(buf, len) }?;
        Ok(stacks::memory(memory.addr())?.copy_in(offset, bytes)?)
    })
}

/// Refuses a null `id` before anything is bound: without the id, the caller could not end the binding.
pub(super) fn check_not_null(id: *mut u32) -> Result<(), Errno> {
    match id.is_null() {
        true => Err(Errno::EFAULT),
        false => Ok(()),
    }
}

/// Binds a memory for receiving, on every queue; writes the binding's id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_bind_rx(
    stack: *mut DmtStack,
    memory: *mut DmtMemory,
    id: *mut u32,
) -> c_int {
    finish("dmt_bind_rx", || -> Result<_, Failure> {
        let (stack, memory) = (stacks::stack(stack.addr())?, stacks::memory(memory.addr())?);
        check_not_null(id)?;
        let bound = stack
            .posix()
            .call(|table| table.bind_rx(&memory, NiovSize::DEFAULT))?;
        // SAFETY: a number can be written, as the header requires.
        Ok(unsafe { cabi::write(id, bound.0) }?)
    })
}

/// Binds a memory for sending; writes the binding's id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_bind_tx(
    stack: *mut DmtStack,
    memory: *mut DmtMemory,
    id: *mut u32,
) -> c_int {
    finish("dmt_bind_tx", || -> Result<_, Failure> {
        let (stack, memory) = (stacks::stack(stack.addr())?, stacks::memory(memory.addr())?);
        check_not_null(id)?;
        let bound = stack.posix().call(|table| table.bind_tx(&memory))?;
        // SAFETY: a number can be written, as the header requires.
        Ok(unsafe { cabi::write(id, bound.0) }?)
    })
}

/// Ends a binding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_unbind(stack: *mut DmtStack, id: u32) -> c_int {
    finish("dmt_unbind", || -> Result<_, Failure> {
        let stack = stacks::stack(stack.addr())?;
        let unbound = stack.posix().call(|table| table.unbind(DmabufId(id)));
        unbound.map_err(|errno| match errno {
            Errno::EINVAL => Failure::no_binding(id),
            errno => errno.into(),
        })
    })
}

/// Writes the counters, at most as many bytes as the caller's structure has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_get_stats(
    stack: *mut DmtStack,
    stats: *mut DmtStats,
    size: usize,
) -> c_int {
    finish("dmt_get_stats", || -> Result<_, Failure> {
        let stack = stacks::stack(stack.addr())?;
        let (counted, dropped) = stack.posix().call(|table| {
            let dropped = table.drops().iter().map(|(_, count)| count).sum::<u64>();
            (table.stats(), dropped)
        });
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let fields = [
            counted.rx_packets,
            counted.tx_packets,
            counted.connects,
            counted.accepts,
            count(counted.sockets),
            count(counted.orphans),
            count(counted.connections),
            dropped,
        ];
        let bytes: Vec<u8> = fields
            .iter()
            .flat_map(|field| field.to_ne_bytes())
            .collect();
        let n = bytes.len().min(size);
        // SAFETY: `size` bytes can be written, as the header requires.
        let out = unsafe { cabi::slice_mut(stats.cast::<c_void>(), n) }?;
        out.copy_from_slice(bytes.get(..n).unwrap_or_default());
        Ok(())
    })
}
