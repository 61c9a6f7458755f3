// UNSAFETY: stacks, memories, bindings and counters as C sees them.

//! Stacks, memories, bindings, counters.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use devmem_uapi::{DmabufId, Errno};
use netmem::NiovSize;

use super::{DmtMemory, DmtStack};
use crate::stacks;

/// Counters of a stack, as `struct dmt_stats` has them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct DmtStats {
    /// Packets taken from the NIC.
    pub rx_packets: u64,
    /// Packets passed to the NIC.
    pub tx_packets: u64,
    /// Connections opened by us.
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

/// Opens a stack. Returns null and sets errno and the text of `dmt_error` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_open(link: *const c_char, settings: *const c_char) -> *mut DmtStack {
    let mut number = 0;
    cabi::finish(|| {
        // SAFETY: null or a string, as the header wants.
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
    cabi::finish(|| stacks::close(stack.addr()))
}

/// Copies the reason of this thread's last failed open, bind or memory call to `buf`; returns its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_error(buf: *mut c_char, len: usize) -> isize {
    cabi::finish(|| {
        stacks::with_last_error(|text| {
            let bytes = text.as_bytes_with_nul();
            let n = bytes.len().min(len);
            // SAFETY: `len` bytes can be written, as the header wants.
            let out = unsafe { cabi::slice_mut(buf.cast::<c_void>(), n) }?;
            out.copy_from_slice(bytes.get(..n).unwrap_or_default());
            if let Some(last) = out.last_mut() {
                *last = 0;
            }
            Ok(bytes.len().saturating_sub(1))
        })
    })
}

/// Allocates a memory of whole pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_new(bytes: usize) -> *mut DmtMemory {
    let mut number = 0;
    cabi::finish(|| {
        number = stacks::new_memory(bytes)?;
        Ok(())
    });
    ptr::without_provenance_mut(number)
}

/// Frees the handle of a memory; bindings keep the memory itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_free(memory: *mut DmtMemory) -> c_int {
    cabi::finish(|| stacks::free_memory(memory.addr()))
}

/// Copies bytes of a memory to `buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_read(
    memory: *mut DmtMemory,
    offset: usize,
    buf: *mut c_void,
    len: usize,
) -> c_int {
    cabi::finish(|| {
        // SAFETY: `len` bytes can be written, as the header wants.
        let out = unsafe { cabi::slice_mut(buf, len) }?;
        let copied = stacks::memory(memory.addr())?.copy_out(offset, out);
        copied.map_err(|error| stacks::explain(Errno::EFAULT, &error))
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
    cabi::finish(|| {
        // SAFETY: `len` bytes can be read, as the header wants.
        let bytes = unsafe { cabi::slice(buf, len) }?;
        let copied = stacks::memory(memory.addr())?.copy_in(offset, bytes);
        copied.map_err(|error| stacks::explain(Errno::EFAULT, &error))
    })
}

/// Refuses a null `id` before anything is bound: without the id, the caller could not end the binding.
fn there_is_room(id: *mut u32) -> Result<(), Errno> {
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
    cabi::finish(|| {
        let (stack, memory) = (stacks::stack(stack.addr())?, stacks::memory(memory.addr())?);
        there_is_room(id)?;
        let bound = stack
            .posix()
            .call(|table| table.bind_rx(&memory, NiovSize::DEFAULT))?;
        // SAFETY: a number can be written, as the header wants.
        unsafe { cabi::write(id, bound.0) }
    })
}

/// Binds a memory for sending; writes the binding's id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_bind_tx(
    stack: *mut DmtStack,
    memory: *mut DmtMemory,
    id: *mut u32,
) -> c_int {
    cabi::finish(|| {
        let (stack, memory) = (stacks::stack(stack.addr())?, stacks::memory(memory.addr())?);
        there_is_room(id)?;
        let bound = stack.posix().call(|table| table.bind_tx(&memory))?;
        // SAFETY: a number can be written, as the header wants.
        unsafe { cabi::write(id, bound.0) }
    })
}

/// Ends a binding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_unbind(stack: *mut DmtStack, id: u32) -> c_int {
    cabi::finish(|| {
        let stack = stacks::stack(stack.addr())?;
        stack.posix().call(|table| table.unbind(DmabufId(id)))
    })
}

/// Writes the counters, at most as many bytes as the caller's structure has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_get_stats(
    stack: *mut DmtStack,
    stats: *mut DmtStats,
    size: usize,
) -> c_int {
    cabi::finish(|| {
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
        // SAFETY: `size` bytes can be written, as the header wants.
        let out = unsafe { cabi::slice_mut(stats.cast::<c_void>(), n) }?;
        out.copy_from_slice(bytes.get(..n).unwrap_or_default());
        Ok(())
    })
}
