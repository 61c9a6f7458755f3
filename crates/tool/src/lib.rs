//! Code shared by the programs of this workspace: error messages, sizes, signals.
//!
//! Key types: [`output::Failure`] (an error with its exit code and remedy), [`signals::StopFlag`] (set by a signal that
//! ends the run), [`receive::Transfer`] (receives connections into device memory) and [`transmit::Transmit`] (sends a stream
//! from a ring of device memory). It defines one command, [`doctor`].

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod active_time;
pub mod beside;
pub mod capture;
pub mod connect;
pub mod counters;
pub mod display;
pub mod doctor;
pub mod explain;
pub mod intervals;
pub mod memory;
pub mod output;
pub mod parse;
mod pcapng;
pub mod peer;
pub mod progress;
#[cfg(any(test, feature = "test-util"))]
pub mod pty;
pub mod rate;
mod read_back;
pub mod receive;
pub mod remedy;
pub mod sender;
pub mod signals;
pub mod size;
pub mod source;
pub mod spread;
pub mod stock;
pub mod terminal;
pub mod transmit;
pub mod undelivered;
#[cfg(feature = "watch")]
pub mod watch;
#[cfg(not(feature = "watch"))]
#[path = "watch/missing.rs"]
pub mod watch;
