// UNSAFETY: exports the structures that NCCL looks up by their names.

//! The structures `ncclNetPlugin_v8` to `ncclNetPlugin_v12`.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{connections, memory, setup, transfers};
use crate::config::Unpack;
use crate::raw::abi::{
    MemoryCalls, PluginV8, PluginV9, PluginV10, PluginV11, PropertiesV11, PropertiesV12, Tail,
};
use crate::raw::kernels::{GetDeviceMr, IrecvConsumed};

/// Plugins contain pointers to functions and to a constant string; what is changed is atomic.
#[repr(transparent)]
pub struct Exported<T>(T);

// SAFETY: immutable apart from atomic pointers, and all pointers lead to constants.
unsafe impl<T> Sync for Exported<T> {}

const NAME: &std::ffi::CStr = c"Devmem";

const MEMORY: MemoryCalls = MemoryCalls {
    reg_mr: memory::reg_mr,
    reg_mr_dma_buf: memory::reg_mr_dma_buf,
    dereg_mr: memory::dereg_mr,
};

const fn tail() -> Tail {
    Tail {
        iflush: transfers::iflush,
        test: transfers::test,
        close_send: connections::close,
        close_recv: connections::close,
        close_listen: connections::close_listen,
        get_device_mr: AtomicPtr::new(null_mut()),
        irecv_consumed: AtomicPtr::new(null_mut()),
    }
}

/// Called by the loader before NCCL looks a structure up. NCCL takes a function that is not NULL for a sign that kernels unpack, so these
/// two are there only if the settings say so.
extern "C" fn load() {
    if std::env::var(Unpack::VARIABLE).is_ok_and(|value| value.trim() == "1") {
        let tails = [
            &ncclNetPlugin_v8.0.tail,
            &ncclNetPlugin_v9.0.tail,
            &ncclNetPlugin_v10.0.tail,
            &ncclNetPlugin_v11.0.tail,
            &ncclNetPlugin_v12.0.tail,
        ];
        let get_device_mr: GetDeviceMr = memory::get_device_mr;
        let irecv_consumed: IrecvConsumed = transfers::irecv_consumed;
        for tail in tails {
            let (mr, consumed) = (&tail.get_device_mr, &tail.irecv_consumed);
            mr.store(get_device_mr as *mut c_void, Ordering::Relaxed);
            consumed.store(irecv_consumed as *mut c_void, Ordering::Relaxed);
        }
    }
}

// SAFETY: the section holds addresses of functions that the loader calls with arguments which this one leaves alone.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Exports the structure of each version: the fields that all have in common, and those that are given.
macro_rules! plugins {
    ($($name:ident: $plugin:ty { $($field:ident: $value:expr,)* })*) => {$(
        #[allow(non_upper_case_globals, reason = "the name that NCCL looks up")]
        #[unsafe(no_mangle)]
        pub static $name: Exported<$plugin> = {
            type Plugin = $plugin;
            Exported(Plugin {
                name: NAME.as_ptr(),
                devices: setup::devices,
                get_properties: setup::properties,
                accept: connections::accept,
                memory: MEMORY,
                tail: tail(),
                $($field: $value,)*
            })
        };
    )*};
}

plugins! {
    ncclNetPlugin_v8: PluginV8 {
        init: setup::init,
        listen: connections::listen,
        connect: connections::connect,
        isend: transfers::isend,
        irecv: transfers::irecv,
    }
    ncclNetPlugin_v9: PluginV9 {
        init: setup::init,
        listen: connections::listen,
        connect: connections::connect,
        isend: transfers::isend,
        irecv: transfers::irecv,
        make_v_device: null(),
    }
    ncclNetPlugin_v10: PluginV10 {
        init: setup::init_v10,
        listen: connections::listen,
        connect: connections::connect_v10,
        isend: transfers::isend_v10,
        irecv: transfers::irecv_v10,
        make_v_device: null(),
    }
    ncclNetPlugin_v11: PluginV11<PropertiesV11> {
        init: setup::init_v11,
        listen: connections::listen_v11,
        connect: connections::connect_v11,
        isend: transfers::isend_v10,
        irecv: transfers::irecv_v10,
        make_v_device: null(),
        finalize: setup::finalize,
        set_net_attr: null(),
    }
    ncclNetPlugin_v12: PluginV11<PropertiesV12> {
        init: setup::init_v11,
        listen: connections::listen_v11,
        connect: connections::connect_v11,
        isend: transfers::isend_v10,
        irecv: transfers::irecv_v10,
        make_v_device: null(),
        finalize: setup::finalize,
        set_net_attr: null(),
    }
}
