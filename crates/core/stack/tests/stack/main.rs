//! Integration tests of the stack, in one binary. `scenarios` tests sockets; the tests of the socket table use it, too.

mod door;
#[path = "../scenarios/mod.rs"]
mod scenarios;

mod addresses;
mod bind;
mod conflicts;
mod fast_open;
mod flood;
mod frames;
mod fuzz_replay;
mod link_gone;
mod near;
mod neighbors;
mod network;
mod own;
mod path_mtu;
mod pressure;
mod shards;
mod urgent;
