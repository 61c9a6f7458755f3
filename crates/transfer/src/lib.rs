//! Whole transfers on top of the `devmem-tcp` library: large data goes from a stock server, or between processes of
//! one program, straight into device memory.

#![forbid(unsafe_code)]

pub mod exchange;
pub mod load;
