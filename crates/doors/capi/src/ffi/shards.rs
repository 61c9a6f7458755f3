// UNSAFETY: a C function that fills an array of handles.

//! NICs with several shards.

use std::ffi::{c_char, c_int};
use std::ptr;

use devmem_uapi::Errno;

use super::opaque::DmtStack;
use crate::failure::{Failure, finish};
use crate::stacks;

/// Opens a NIC with `count` shards; `opened` gets the stack of each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_open_shards(
    link: *const c_char,
    settings: *const c_char,
    opened: *mut *mut DmtStack,
    count: usize,
) -> c_int {
    finish("dmt_open_shards", || -> Result<_, Failure> {
        // SAFETY: null or a string, as the header requires.
        let link = unsafe { cabi::text(link) }?.ok_or(Errno::EFAULT)?;
        // SAFETY: as above.
        let settings = unsafe { cabi::text(settings) }?.unwrap_or_default();
        if opened.is_null() {
            return Err(Errno::EFAULT.into());
        }
        let numbers = stacks::open_shards(link, settings, count)?;
        for (at, number) in numbers.into_iter().enumerate() {
            let handle = ptr::without_provenance_mut(number);
            // SAFETY: `opened` has room for `count` handles, as the header requires, and there are as many numbers.
            unsafe { cabi::write(opened.wrapping_add(at), handle) }?;
        }
        Ok(())
    })
}
