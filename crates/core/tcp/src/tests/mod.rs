//! Traces: one connection, the peer's segments written by the test, sequence numbers relative to the two ISNs.
//!
//! `send!` is a segment from the peer, `expect!` one of ours, and `expect_nothing!` checks that none is sent. Fields
//! that a trace does not name are those of the next ordinary ACK. In every trace the
//! harness checks with each segment that our acknowledgement number and the right edge of our window never
//! move back, and that every byte delivered or sent is the right one; at the end it checks that
//! all payload is released.

#[macro_use]
mod harness;

mod acks;
mod blind;
mod closing;
mod ecn;
mod fast_open;
mod fuzz;
mod handshake;
mod listen;
mod pair;
mod prune;
mod receive;
mod sack;
mod sending;
mod sizes;
mod timestamps;
mod timing;
mod window;
