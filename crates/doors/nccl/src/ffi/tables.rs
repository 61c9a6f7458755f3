// UNSAFETY: exports the structures that NCCL looks up by their names.

//! The structures `ncclNetPlugin_v8` to `ncclNetPlugin_v12`.

use std::ptr::null;

use super::abi::{
    MemoryCalls, PluginV8, PluginV9, PluginV10, PluginV11, PropertiesV11, PropertiesV12, Tail,
};
use super::{connections, memory, setup, transfers};

/// Plugins contain pointers to functions and to a constant string, and nothing changes them.
#[repr(transparent)]
pub struct Exported<T>(T);

// SAFETY: immutable, and all pointers lead to constants.
unsafe impl<T> Sync for Exported<T> {}

const NAME: &std::ffi::CStr = c"Devmem";

const MEMORY: MemoryCalls = MemoryCalls {
    reg_mr: memory::reg_mr,
    reg_mr_dma_buf: memory::reg_mr_dma_buf,
    dereg_mr: memory::dereg_mr,
};

const TAIL: Tail = Tail {
    iflush: transfers::iflush,
    test: transfers::test,
    close_send: connections::close,
    close_recv: connections::close,
    close_listen: connections::close_listen,
    get_device_mr: null(),
    irecv_consumed: null(),
};

#[allow(non_upper_case_globals, reason = "the name that NCCL looks up")]
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v8: Exported<PluginV8> = Exported(PluginV8 {
    name: NAME.as_ptr(),
    init: setup::init,
    devices: setup::devices,
    get_properties: setup::properties_v8,
    listen: connections::listen,
    connect: connections::connect,
    accept: connections::accept,
    memory: MEMORY,
    isend: transfers::isend_v8,
    irecv: transfers::irecv_v8,
    tail: TAIL,
});

#[allow(non_upper_case_globals, reason = "the name that NCCL looks up")]
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v9: Exported<PluginV9> = Exported(PluginV9 {
    name: NAME.as_ptr(),
    init: setup::init,
    devices: setup::devices,
    get_properties: setup::properties_v9,
    listen: connections::listen,
    connect: connections::connect,
    accept: connections::accept,
    memory: MEMORY,
    isend: transfers::isend_v9,
    irecv: transfers::irecv_v9,
    tail: TAIL,
    make_v_device: null(),
});

#[allow(non_upper_case_globals, reason = "the name that NCCL looks up")]
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v10: Exported<PluginV10> = Exported(PluginV10 {
    name: NAME.as_ptr(),
    init: setup::init_v10,
    devices: setup::devices,
    get_properties: setup::properties_v9,
    listen: connections::listen,
    connect: connections::connect_v10,
    accept: connections::accept,
    memory: MEMORY,
    isend: transfers::isend_v10,
    irecv: transfers::irecv_v10,
    tail: TAIL,
    make_v_device: null(),
});

#[allow(non_upper_case_globals, reason = "the name that NCCL looks up")]
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v11: Exported<PluginV11<PropertiesV11>> = Exported(PluginV11 {
    name: NAME.as_ptr(),
    init: setup::init_v11,
    devices: setup::devices,
    get_properties: setup::properties_v11,
    listen: connections::listen_v11,
    connect: connections::connect_v11,
    accept: connections::accept,
    memory: MEMORY,
    isend: transfers::isend_v10,
    irecv: transfers::irecv_v10,
    tail: TAIL,
    make_v_device: null(),
    finalize: setup::finalize,
    set_net_attr: null(),
});

#[allow(non_upper_case_globals, reason = "the name that NCCL looks up")]
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v12: Exported<PluginV11<PropertiesV12>> = Exported(PluginV11 {
    name: NAME.as_ptr(),
    init: setup::init_v11,
    devices: setup::devices,
    get_properties: setup::properties_v12,
    listen: connections::listen_v11,
    connect: connections::connect_v11,
    accept: connections::accept,
    memory: MEMORY,
    isend: transfers::isend_v10,
    irecv: transfers::irecv_v10,
    tail: TAIL,
    make_v_device: null(),
    finalize: setup::finalize,
    set_net_attr: null(),
});
