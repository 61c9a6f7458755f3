// UNSAFETY: bytes of the library, copied during the call that gives them.

//! Texts of the C interface.

use std::ffi::c_void;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Text {
    bytes: *const u8,
    len: usize,
}

impl Text {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    /// # Safety
    /// A text of the library, during the call that gives it.
    unsafe fn copy(self) -> Vec<u8> {
        // SAFETY: as this function's.
        unsafe { std::slice::from_raw_parts(self.bytes, self.len) }.to_vec()
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Pair {
    pub(super) key: Text,
    pub(super) value: Text,
}

pub(super) unsafe extern "C" fn put(to: *mut c_void, text: Text) {
    // SAFETY: a text of the library.
    let bytes = unsafe { text.copy() };
    // SAFETY: `to` is the vector of the call below.
    unsafe { *to.cast::<Vec<u8>>() = bytes };
}

pub(super) unsafe extern "C" fn notice(to: *mut c_void, from: Text, message: Text) {
    // SAFETY: a text of the library.
    let from = String::from_utf8(unsafe { from.copy() }).expect("names are UTF-8");
    // SAFETY: as above.
    let message = unsafe { message.copy() };
    // SAFETY: `to` is the vector of the call below.
    unsafe { (*to.cast::<Vec<(String, Vec<u8>)>>()).push((from, message)) };
}

pub(super) type Put = unsafe extern "C" fn(*mut c_void, Text);
pub(super) type Notice = unsafe extern "C" fn(*mut c_void, Text, Text);
