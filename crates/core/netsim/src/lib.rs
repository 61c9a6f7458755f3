//! Deterministic simulation of pairs of stacks over an imperfect wire. For tests only; never
//! shipped.
//!
//! Key types: [`Pair`] (two stacks on one wire, and the only clock there is), [`Door`] (how programs reach a stack, so
//! that one scenario is run over each way there is), [`Source`] and [`Sink`] (programs that send a pattern and verify
//! every byte of it where it lies) and [`RawPeer`] (one stack against frames written by hand). An
//! [`Intruder`] is a third host on the wire of a pair.
//!
//! Time stands still while anything happens and jumps to the next deadline when nothing does, so
//! that a simulated hour of waiting takes no time. A run that does not end within a bounded number
//! of steps is an error, and so is one in which nobody has anything left to wait for.

#![forbid(unsafe_code)]

mod device_source;
mod door;
mod inject;
mod intruder;
mod pair;
mod pattern;
mod program;
mod raw;

pub use device_source::{DeviceSource, DeviceWriter};
pub use door::{Direct, Door, RecvResult, RecvRoom};
pub use intruder::{Intruder, IntruderConnection};
pub use pair::{MAX_STEPS, Pair, PairConfig, Progress, STEP, Side, SimError};
pub use pattern::{Mismatch, Pattern};
pub use program::{DeviceReader, Keep, Report, Sink, Source};
pub use raw::{RawPeer, RawSegment, ip_frame, tcp_frame};
