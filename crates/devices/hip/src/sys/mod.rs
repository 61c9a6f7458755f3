//! The libraries' functions.
//!
// UNSAFETY: none in this file; each of the others says why it has some.

mod driver;
mod hsa;

pub(crate) use driver::Hip;
