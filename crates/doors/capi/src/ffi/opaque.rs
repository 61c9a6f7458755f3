// UNSAFETY: the pointer types of the functions that C calls.

//! The pointer types of handles.

/// Handle of a stack: its number, in a pointer type of C.
#[derive(Debug)]
#[repr(C)]
pub struct DmtStack {
    _opaque: [u8; 0],
}

/// Handle of a memory: its number, in a pointer type of C.
#[derive(Debug)]
#[repr(C)]
pub struct DmtMemory {
    _opaque: [u8; 0],
}

/// Handle of an interface of the kernel: its number, in a pointer type of C.
#[derive(Debug)]
#[repr(C)]
pub struct DmtNic {
    _opaque: [u8; 0],
}
