//! Tests of this machine's kernel without a NIC that supports device memory, in one program.

mod common;

mod fuzz_replay;
mod packet;
mod refusals;
mod requests;
mod socket;
mod tap;
