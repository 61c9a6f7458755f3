// UNSAFETY: declares functions of C, whose types the symbol's name vouches for.

//! `ncclNet_v12_t` (nccl src/include/plugin/net/net_v12.h), as C lays it out.

use std::ffi::{c_char, c_int, c_ulong, c_void};

pub type Out = *mut *mut c_void;
pub type Log = extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
pub type Unary = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `ncclNet_v12_t`. A function that a plugin lacks is NULL.
#[repr(C)]
pub struct Table {
    pub name: *const c_char,
    pub init: Option<unsafe extern "C" fn(Out, u64, *mut c_void, Log, *mut c_void) -> c_int>,
    pub devices: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
    pub get_properties: *const c_void,
    pub listen: Option<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, Out) -> c_int>,
    pub connect: Option<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, Out, Out) -> c_int>,
    pub accept: Option<unsafe extern "C" fn(*mut c_void, Out, Out) -> c_int>,
    pub reg_mr: *const c_void,
    pub reg_mr_dma_buf: Option<
        unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, Out) -> c_int,
    >,
    pub dereg_mr: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int>,
    pub isend: Option<
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            usize,
            c_int,
            *mut c_void,
            *mut c_void,
            Out,
        ) -> c_int,
    >,
    pub irecv: Option<
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            Out,
            *mut usize,
            *mut c_int,
            Out,
            Out,
            Out,
        ) -> c_int,
    >,
    pub iflush: *const c_void,
    pub test: Option<unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_int>,
    pub close_send: Option<Unary>,
    pub close_recv: Option<Unary>,
    pub close_listen: Option<Unary>,
    pub get_device_mr: *const c_void,
    pub irecv_consumed: *const c_void,
    pub make_v_device: *const c_void,
    pub finalize: Option<Unary>,
    pub set_net_attr: *const c_void,
}

const _: () = assert!(size_of::<Table>() == 22 * size_of::<usize>());
