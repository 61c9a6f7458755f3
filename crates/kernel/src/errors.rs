//! Causes and remedies of the kernel's refusals.
//!
//! [`cause()`] is the only table. Each operation has its own error type; all of them take their messages from here.

mod cause;
mod table;
#[cfg(test)]
mod tests;

pub use cause::{Cause, CauseKind, Facts, Operation};
pub use table::cause;
