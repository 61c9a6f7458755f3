//! Whole transfers on top of the `devmem-tcp` library: large data goes from a stock server straight into
//! device memory or back to it.

#![forbid(unsafe_code)]

mod checksum;
mod explain;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod fuzz;
pub mod load;
mod parallel;
pub mod store;

pub use explain::explain;
