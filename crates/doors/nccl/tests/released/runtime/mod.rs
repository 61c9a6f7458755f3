//! A GPU for the released NCCL: its memory is memory that this process can access, its streams are threads, and its kernels are played by threads.

mod address;
mod calls;
mod kernel;
mod layout;
mod memory;
mod pipe;
mod redirect;
mod rings;
mod streams;

use std::path::Path;

use libloading::os::unix::Library;

pub use layout::FLOAT;
pub use memory::allocations;
pub use pipe::SLICES_LEFT;
pub use streams::STREAMS;

/// Loads a library, which stays loaded, and uses this GPU; or says why it is not one that can run here.
pub fn load(path: &Path) -> Result<Library, String> {
    let loaded = redirect::load(path, &calls::functions())?;
    kernel::play(loaded.version, &loaded.table);
    Ok(loaded.library)
}
