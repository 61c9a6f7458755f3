// UNSAFETY: functions that a C caller, or ctypes, calls with its pointers; and memory that it has handed over.

//! The C interface.
#![allow(unsafe_code, reason = "the island")]

mod calls;
mod calls_of_0_15;
mod target;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use target::Target;
