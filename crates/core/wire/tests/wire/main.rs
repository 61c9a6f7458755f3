//! Integration tests of this crate, in one program.

mod fuzz_replay;
mod smoltcp;
