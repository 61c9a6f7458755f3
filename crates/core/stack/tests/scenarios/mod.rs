//! Tests of sockets that do not depend on the interface: each scenario is written once, over a [`netsim::Door`], and runs
//! with every implementation.
//!
//! | Door | Where | How |
//! |---|---|---|
//! | the stack's own interface | `crates/core/stack/tests/stack` | `cargo test -p devmem-stack --test stack scenarios` |
//! | file descriptors, as in C programs | `crates/doors/posix/tests/posix` | `cargo test -p devmem-posix --test posix scenarios` |
//!
//! | Tested with both | Tests |
//! |---|---|
//! | receiving, rule by rule: LINEAR bytes, borders, tokens of parts, peeking, discarding, short buffers | `abi_recv` 22 |
//! | giving tokens back: counts, limits, unknown tokens, order of closing and unbinding | `abi_tokens` 8 |
//! | sending, rule by rule: refusals, completions, both kinds of memory on one socket | `abi_send` 17 |
//! | bindings and queues with open connections: unbinding, binding again, steering, RSS | `queues` 7 |
//! | opening and closing in every order, resets, half-closes, timeouts, orphans, TIME-WAIT | `lifecycle` 20 |
//! | windows, starvation, promises | `window` 7 |
//! | whole transfers, each byte checked in place; 64 connections at once | `transfer` 12, `tx_transfer` 12 |
//! | connections of a stack to itself, small path MTUs, impaired wires | `loopback` 9, `path_mtu` 4, `loss` 12 |
//! | simulations made from seeds: 2,000 through Rust, 300 through files | `seeds` 5 |
//!
//! # What is not tested through both doors, and why
//!
//! | Tests | Number | Where | Why |
//! |---|---|---|---|
//! | refusals of a bind | 13 | `stack/bind.rs` | file descriptors do not name interfaces, queues and rings |
//! | hand-written frames | 32 | `stack/{network,frames,path_mtu}.rs` | below sockets: ARP, ICMP, forged segments; packetdrill scripts test such frames through files |
//! | memory under pressure | 19 | `stack/pressure` | a third station on the wire, hand-written frames, rates in virtual time |
//! | readiness events | 2 | `stack/own.rs` | programs with files use poll; `posix/table.rs` tests its flags and edges |
//! | merged frags, a typed sink of messages | 3 | `stack/own.rs` | Linux has no such option, and the control buffer of C is bytes |
//! | stale ids, offsets without a dma-buf id, a bind-tx of another interface | 3 | `stack/own.rs` | cannot be expressed in C |
//! | memory of connections | 1 | `memory.rs` | measures the whole process, in a separate binary |
//! | the library's tests | | `crates/devmem-tcp/tests` | placement, batches, owned frags, tasks, plans and TAPs belong to the library, and are compared with the kernel's backend |
//!
//! Features of files only (waiting, epoll, pipes, names, options as bytes, threads) are tested in
//! `crates/doors/posix/tests/posix`, and pointers in `crates/doors/capi/tests/misuse.c`.

pub mod common;

mod abi_recv;
mod abi_send;
mod abi_tokens;
mod lifecycle;
mod loopback;
mod loss;
mod path_mtu;
mod queues;
mod seeds;
mod transfer;
mod tx_transfer;
mod window;

/// Two stacks, both reached through the door.
pub type Pair = netsim::Pair<crate::door::Door>;
/// A program that sends host memory.
pub type Source = netsim::Source<crate::door::Door>;
/// A program that sends device memory.
pub type DeviceSource = netsim::DeviceSource<crate::door::Door>;
/// A program that receives.
pub type Sink = netsim::Sink<crate::door::Door>;
/// The handle of a socket.
pub type DoorSocket = <crate::door::Door as netsim::Door>::Socket;
