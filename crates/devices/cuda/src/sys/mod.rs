//! The driver's library, and its functions.
//!
// UNSAFETY: none in this file; each of the others says why it has some.

mod batch;
mod driver;
mod functions;

pub(crate) use driver::Cuda;
