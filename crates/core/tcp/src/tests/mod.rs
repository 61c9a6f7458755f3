//! Traces: one connection, a peer played by the test, sequence numbers relative to the two ISNs.
//!
//! `send!` is a segment from the peer, `expect!` one of ours, `expect_nothing!` our silence. Fields
//! that a trace does not name are those of the next ordinary ACK. Whatever a trace is about, the
//! harness checks with every segment that our ACK number and the right edge of our window never
//! move back, that every byte we deliver or send is the one that belongs there, and at the end that
//! no payload is left behind.

#[macro_use]
mod harness;

mod acks;
mod blind;
mod closing;
mod ecn;
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
