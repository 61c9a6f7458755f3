//! C's pointers to the calls of [`devmem_posix::Posix`]: what the packetdrill door and the C library share.
//!
//! Every call takes what its namesake of libc takes and returns a [`Result`]; [`finish`] makes that what C expects
//! (-1 and errno) and lets no panic through. The only unsafe code is in `raw/`: pointers are read and written there,
//! null ones are EFAULT, and everything else about them is the caller's word, as it is with libc.
//!
//! No walk leads through here that does not lead through `devmem_posix`.

mod answer;
mod raw;

pub use answer::{Answer, finish};
pub use raw::call;
pub use raw::memory::{read, slice, slice_mut, text, write};
