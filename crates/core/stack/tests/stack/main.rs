//! The stack's integration tests, in one binary: what programs may expect of sockets is asked by `scenarios`, which the
//! socket table's tests ask, too.

mod door;
#[path = "../scenarios/mod.rs"]
mod scenarios;

mod bind;
mod flood;
mod frames;
mod fuzz_replay;
mod neighbors;
mod network;
mod own;
mod path_mtu;
mod pressure;
