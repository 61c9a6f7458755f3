//! Converts C's pointers for the calls of [`devmem_posix::Posix`]; used by the packetdrill door and the C library.
//!
//! Every call has the arguments of the libc function of the same name and returns a [`Result`]; [`finish`] converts that to
//! -1 and errno, and stops panics. The only unsafe code is in `raw/`: pointers are read and written there,
//! null ones are EFAULT, and the caller guarantees everything else about them, as with libc.
//!
//! Its part in the walks is that of `devmem_posix`.

mod answer;
mod raw;

pub use answer::{Answer, finish};
pub use raw::call;
pub use raw::memory::{read, slice, slice_mut, text, write};
