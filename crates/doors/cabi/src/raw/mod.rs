// UNSAFETY: this folder reads and writes memory that C programs name by pointers; what they point to is the caller's
// word, as it is with libc, and every function says which word it takes.

//! The only unsafe code of this crate: memory behind C's pointers.

#![allow(unsafe_code)]

pub mod call;
mod file;
pub(crate) mod memory;
mod message;
mod option;
#[cfg(test)]
mod tests;
mod watch;
