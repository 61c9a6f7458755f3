//! Deterministic simulation of pairs of stacks over an impaired wire. For tests only; never shipped.
//!
//! Key types: [`Pair`] (two stacks on one wire, with one virtual clock), [`Door`] (the interface between programs and a
//! stack; the same scenario runs over each implementation), [`Source`] and [`Sink`] (programs that send a pattern and
//! verify every byte in place) and [`RawPeer`] (one stack against hand-written frames). An
//! [`Intruder`] is a third station on the wire of a pair.
//!
//! Virtual time jumps to the next deadline whenever the stacks are idle, so that a simulated hour of
//! waiting takes no time. A run that does not end within a bounded number of steps is an error, and so
//! is one in which the programs wait although no deadline is left.

#![forbid(unsafe_code)]

mod device_source;
mod door;
mod flood;
mod intruder;
mod pair;
mod pattern;
mod program;
mod raw;
mod third_station;

pub use device_source::{DeviceSource, DeviceWriter};
pub use door::{Direct, Door, RecvResult, RecvRoom};
pub use flood::Flood;
pub use intruder::{Intruder, IntruderConnection};
pub use pair::{MAX_STEPS, Pair, PairConfig, Progress, STEP, Side, SimError};
pub use pattern::{Mismatch, Pattern};
pub use program::{DeviceReader, Keep, Report, Sink, Source};
pub use raw::{RawPeer, RawSegment, ip_frame, tcp_frame};
