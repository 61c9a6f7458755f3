//! What the programs of this workspace share: errors as people see them, sizes, signals, test patterns.
//!
//! Key types: [`output::Failure`] (an error with its exit code and remedy), [`signals::StopFlag`] (a signal asked for
//! the end) and [`transmit::Transmit`] (a ring of device memory that a stream is sent from). It stands above the walks
//! of ARCHITECTURE.md: programs use the library through it. It has no commands.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod capture;
pub mod counters;
pub mod output;
pub mod parse;
pub mod pattern;
pub mod progress;
pub mod sender;
pub mod signals;
pub mod size;
pub mod source;
pub mod transmit;
