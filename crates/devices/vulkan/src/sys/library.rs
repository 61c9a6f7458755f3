//! Loading the Vulkan loader.
//!
// UNSAFETY: dlopen and dlsym; the function that is found has the signature that Vulkan gives it.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, CString, OsString, c_void};
use std::os::unix::ffi::OsStrExt;

use ash::{Entry, StaticFn, vk};

use crate::error::VulkanError;

/// Where the loader is looked for first: a file name, for one that is in no usual place.
const OVERRIDE: &str = "DEVMEM_LIBVULKAN";

/// The loader. `libvulkan.so` is a link for linking.
const LIBRARY: &str = "libvulkan.so.1";

/// Loads the loader of this machine. It is never unloaded: drivers have threads.
pub(crate) fn load() -> Result<Entry, VulkanError> {
    load_from(env::var_os(OVERRIDE).unwrap_or_else(|| LIBRARY.into()))
}

fn load_from(name: OsString) -> Result<Entry, VulkanError> {
    let shown = name.to_string_lossy().into_owned();
    let missing = |reason: String| VulkanError::NoLibrary {
        name: shown.clone(),
        reason,
    };
    let path = CString::new(name.as_bytes()).map_err(|_nul| missing("a NUL byte".to_owned()))?;
    // SAFETY: a terminated string. The library's constructors run: it is the loader of this machine.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(missing(last_error()));
    }
    // SAFETY: a handle of dlopen that is never closed, and a terminated string.
    let found = unsafe { libc::dlsym(handle, c"vkGetInstanceProcAddr".as_ptr()) };
    if found.is_null() {
        return Err(missing("it lacks vkGetInstanceProcAddr".to_owned()));
    }
    // SAFETY: the function of this name has these parameters since Vulkan 1.0.
    let get_instance_proc_addr =
        unsafe { std::mem::transmute::<*mut c_void, vk::PFN_vkGetInstanceProcAddr>(found) };
    let functions = StaticFn {
        get_instance_proc_addr,
    };
    // SAFETY: the function is that of the loader, which is never unloaded.
    Ok(unsafe { Entry::from_static_fn(functions) })
}

/// Returns the reason why dlopen failed.
fn last_error() -> String {
    // SAFETY: returns null, or a terminated string that is valid until the next call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: not null, so a terminated string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_loader_and_a_library_that_is_none_are_named_with_the_remedy() {
        let missing = load_from("libvulkan-missing.so.1".into()).err();
        let text = missing.expect("there is none").to_string();
        assert!(
            text.starts_with("libvulkan-missing.so.1 cannot be loaded: "),
            "{text}"
        );
        assert!(text.contains("\n  install the Vulkan loader"), "{text}");
        let other = load_from("libc.so.6".into()).err();
        let text = other.expect("it is another library").to_string();
        assert!(text.contains("lacks vkGetInstanceProcAddr"), "{text}");
    }
}
