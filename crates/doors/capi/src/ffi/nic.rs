// UNSAFETY: C functions on interfaces of the kernel.

//! Interfaces of the kernel.

use std::ffi::{c_char, c_int};
use std::ptr;

use devmem_uapi::Errno;

use super::memory::check_not_null;
use super::opaque::{DmtMemory, DmtNic};
use crate::failure::{Failure, finish};
use crate::{nics, stacks};

/// Opens an interface of the kernel and makes the settings for receiving.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_nic_open(
    interface: *const c_char,
    settings: *const c_char,
) -> *mut DmtNic {
    let mut number = 0;
    finish("dmt_nic_open", || -> Result<_, Failure> {
        // SAFETY: null or a string, as the header requires.
        let interface = unsafe { cabi::text(interface) }?.ok_or(Errno::EFAULT)?;
        // SAFETY: as above.
        let settings = unsafe { cabi::text(settings) }?.unwrap_or_default();
        number = nics::open(interface, settings)?;
        Ok(())
    });
    ptr::without_provenance_mut(number)
}

/// Ends the bindings and restores the settings of the interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_nic_close(nic: *mut DmtNic) -> c_int {
    finish("dmt_nic_close", || nics::close(nic.addr()))
}

/// Binds a memory for receiving; writes the binding's id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_nic_bind_rx(
    nic: *mut DmtNic,
    memory: *mut DmtMemory,
    id: *mut u32,
) -> c_int {
    finish("dmt_nic_bind_rx", || -> Result<_, Failure> {
        let (nic, memory) = (nics::nic(nic.addr())?, stacks::memory(memory.addr())?);
        check_not_null(id)?;
        let bound = nic.bind_rx(&memory)?;
        // SAFETY: a number can be written, as the header requires.
        Ok(unsafe { cabi::write(id, bound) }?)
    })
}

/// Binds a memory for sending; writes the binding's id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_nic_bind_tx(
    nic: *mut DmtNic,
    memory: *mut DmtMemory,
    id: *mut u32,
) -> c_int {
    finish("dmt_nic_bind_tx", || -> Result<_, Failure> {
        let (nic, memory) = (nics::nic(nic.addr())?, stacks::memory(memory.addr())?);
        check_not_null(id)?;
        let bound = nic.bind_tx(&memory)?;
        // SAFETY: a number can be written, as the header requires.
        Ok(unsafe { cabi::write(id, bound) }?)
    })
}

/// Ends a binding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_nic_unbind(nic: *mut DmtNic, id: u32) -> c_int {
    finish("dmt_nic_unbind", || nics::nic(nic.addr())?.unbind(id))
}
