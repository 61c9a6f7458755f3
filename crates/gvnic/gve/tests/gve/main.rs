//! Tests of the device with the small driver, in one program.

mod common;
#[path = "../../../../../fuzz/bodies/gve_input.rs"]
mod input;

mod adminq;
mod fuzz_replay;
mod probe;
mod properties;
mod rx;
mod steering;
mod tx;
