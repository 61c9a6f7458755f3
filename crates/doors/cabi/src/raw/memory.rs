// UNSAFETY: converts C's pointers to slices and values, and writes errno.

//! Memory behind pointers.

use std::ffi::{CStr, c_char, c_void};

use devmem_uapi::Errno;

/// Returns the bytes at `ptr`.
///
/// # Errors
/// EFAULT if `ptr` is null and `len` is not 0; EINVAL for a length that no object has.
///
/// # Safety
/// `ptr` is null, or `len` bytes can be read there and are not written during `'a`.
pub unsafe fn slice<'a>(ptr: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    check(ptr, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: 1. not null and no longer than an object can be, checked above; 2. bytes have no alignment; 3. readable
    // and unchanged for 'a: the contract of the caller.
    Ok(unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) })
}

/// Returns the bytes at `ptr`, to be written.
///
/// # Errors
/// As [`slice()`].
///
/// # Safety
/// `ptr` is null, or `len` bytes can be written there and are not accessed otherwise during `'a`.
pub unsafe fn slice_mut<'a>(ptr: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    check(ptr, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: 1. not null and no longer than an object can be, checked above; 2. bytes have no alignment, and any value
    // is valid; 3. writable and not shared for 'a: the contract of the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(ptr.cast::<u8>(), len) })
}

fn check(ptr: *const c_void, len: usize) -> Result<(), Errno> {
    match (ptr.is_null(), isize::try_from(len)) {
        (_, Err(_)) => Err(Errno::EINVAL),
        (true, Ok(1..)) => Err(Errno::EFAULT),
        _ => Ok(()),
    }
}

/// Reads a value.
///
/// # Errors
/// EFAULT if `ptr` is null.
///
/// # Safety
/// `ptr` is null, or a `T` can be read there, aligned or not.
pub unsafe fn read<T: Copy>(ptr: *const T) -> Result<T, Errno> {
    if ptr.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: 1. not null, checked above; 2. readable: the contract of the caller; 3. `T` is Copy, nothing is owned twice.
    Ok(unsafe { ptr.read_unaligned() })
}

/// Writes a value.
///
/// # Errors
/// EFAULT if `ptr` is null.
///
/// # Safety
/// `ptr` is null, or a `T` can be written there, aligned or not.
pub unsafe fn write<T: Copy>(ptr: *mut T, value: T) -> Result<(), Errno> {
    if ptr.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: 1. not null, checked above; 2. writable: the contract of the caller; 3. `T` is Copy, nothing needs dropping.
    unsafe { ptr.write_unaligned(value) };
    Ok(())
}

/// Returns the text at `ptr`; none if it is null.
///
/// # Errors
/// EINVAL if it is not UTF-8.
///
/// # Safety
/// `ptr` is null, or points to a string with its terminator that does not change during `'a`.
pub unsafe fn text<'a>(ptr: *const c_char) -> Result<Option<&'a str>, Errno> {
    if ptr.is_null() {
        return Ok(None);
    }
    // SAFETY: 1. not null, checked above; 2. terminated and unchanged for 'a: the contract of the caller.
    let text = unsafe { CStr::from_ptr(ptr) };
    text.to_str().map(Some).map_err(|_| Errno::EINVAL)
}

/// Sets this thread's errno.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the function has no preconditions; it returns the address of this thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: 1. the address is valid as long as the thread exists; 2. no other thread uses it.
    unsafe { *place = errno.0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_efault_unless_nothing_is_there_to_be_read() {
        let null = std::ptr::null_mut();
        // SAFETY: null is allowed everywhere.
        assert_eq!(unsafe { slice(null, 1) }, Err(Errno::EFAULT));
        // SAFETY: as above.
        assert_eq!(unsafe { slice(null, 0) }, Ok(&[][..]));
        // SAFETY: as above.
        assert_eq!(unsafe { slice_mut(null, usize::MAX) }, Err(Errno::EINVAL));
        // SAFETY: as above.
        assert_eq!(unsafe { read::<i32>(std::ptr::null()) }, Err(Errno::EFAULT));
        // SAFETY: as above.
        let written = unsafe { write(std::ptr::null_mut::<i32>(), 1) };
        assert_eq!(written, Err(Errno::EFAULT));
        // SAFETY: as above.
        assert_eq!(unsafe { text(std::ptr::null()) }, Ok(None));
    }
}
