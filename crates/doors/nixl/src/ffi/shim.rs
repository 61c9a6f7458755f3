// UNSAFETY: exports the functions that NIXL looks up, which are those of the C++ part.

//! The symbols of a NIXL plugin. They are exported here because a library made by cargo exports no symbol of C++.

use std::ffi::c_void;

unsafe extern "C" {
    fn devmem_nixl_plugin_record() -> *mut c_void;
}

/// Returns the plugin's record (`nixlBackendPlugin`), which lives as long as the process.
#[unsafe(no_mangle)]
extern "C" fn nixl_plugin_init() -> *mut c_void {
    // SAFETY: a function without conditions, of `shim/plugin.cc`.
    unsafe { devmem_nixl_plugin_record() }
}

/// Called before the library would be unloaded. NIXL has destroyed its engines by then.
#[unsafe(no_mangle)]
extern "C" fn nixl_plugin_fini() {}
