//! Loading the Vulkan loader.
//!
// UNSAFETY: runs the code of a library.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::mem;

use ash::{Entry, LoadingError};

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
    // SAFETY: 1. the library's constructors run: it is the loader of this machine; 2. its functions stay valid, because it is never
    // unloaded, see below; 3. a library that is no loader is unloaded at once, before it was used.
    let loaded = unsafe { Entry::load_from(&name) };
    let entry = loaded.map_err(|error| VulkanError::NoLibrary {
        name: name.to_string_lossy().into_owned(),
        reason: match error {
            LoadingError::LibraryLoadFailure(error) => error.to_string(),
            LoadingError::MissingEntryPoint(_) => "it lacks vkGetInstanceProcAddr".to_owned(),
        },
    })?;
    // The last clone to be dropped would unload the library.
    mem::forget(entry.clone());
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_loader_and_a_library_that_is_none_are_named_with_the_remedy() {
        let missing = load_from("libvulkan-missing.so.1".into()).err();
        let missing = missing.expect("there is none");
        let text = missing.to_string();
        assert!(
            text.starts_with("libvulkan-missing.so.1 cannot be loaded: "),
            "{text}"
        );
        assert!(missing.remedy().starts_with("install the Vulkan loader"));
        let other = load_from("libc.so.6".into()).err();
        let text = other.expect("it is another library").to_string();
        assert!(text.contains("lacks vkGetInstanceProcAddr"), "{text}");
    }
}
