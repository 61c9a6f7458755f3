//! What a program may expect of its sockets, whatever way it calls: each scenario is written once, and run wherever a
//! `crate::door::Door` is.
//!
//! | Door | Where | How |
//! |---|---|---|
//! | the stack's own interface | `crates/core/stack/tests/stack` | `cargo test -p devmem-stack --test stack scenarios` |
//! | files, as C programs have them | `crates/doors/posix/tests/posix` | `cargo test -p devmem-posix --test posix scenarios` |
//!
//! | Asked of both | Tests |
//! |---|---|
//! | receiving, rule by rule: LINEAR bytes, borders, tokens of parts, peeking, discarding, short buffers | `abi_recv` 22 |
//! | giving back: counts, limits, unknown tokens, what outlives what | `abi_tokens` 8 |
//! | sending, rule by rule: refusals, completions, both kinds of memory on one socket | `abi_send` 17 |
//! | bindings and queues under live connections: unbinding, binding again, steering, RSS | `queues` 7 |
//! | opening and closing in every order, resets, half-closes, timeouts, orphans, TIME-WAIT | `lifecycle` 20 |
//! | windows, starvation, promises | `window` 7 |
//! | whole transfers, each byte checked where it lies; 64 connections at once | `transfer` 12, `tx_transfer` 12 |
//! | a stack with itself, narrow paths, bad wires | `loopback` 9, `path_mtu` 4, `loss` 12 |
//! | worlds made from seeds: 2,000 through Rust, 300 through files | `seeds` 5 |
//!
//! # What is not asked through both doors, and why
//!
//! | Tests | Number | Where | Why |
//! |---|---|---|---|
//! | refusals of a bind | 13 | `stack/bind.rs` | interface, queues and rings are the machine's owner's to name; a program's files name none of them |
//! | frames written by hand | 32 | `stack/{network,frames,path_mtu}.rs` | below sockets: ARP, ICMP, forged segments; what files make of such frames is asked by packetdrill's scripts |
//! | memory under pressure | 17 | `stack/pressure` | a third host on the wire, frames written by hand, rates in virtual time |
//! | readiness events | 2 | `stack/own.rs` | a program with files polls; its bits and edges are asked in `posix/table.rs` |
//! | merged frags, a typed sink of messages | 3 | `stack/own.rs` | Linux has no such option, and C's control buffer has bytes |
//! | stale ids, offsets without a name, a bind-tx of another interface | 3 | `stack/own.rs` | what C cannot say: what both can is asked here |
//! | memory of connections | 1 | `memory.rs` | looks at the whole process, alone in its binary |
//! | the library's suites | | `crates/devmem-tcp/tests` | placement, batches, owned frags, tasks, plans and TAPs are the library's; they are compared with the kernel's backend instead |
//!
//! The other way round, what only files have (waiting, epoll, pipes, names, options as bytes, threads) is asked in
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
/// What the door names a socket by.
pub type DoorSocket = <crate::door::Door as netsim::Door>::Socket;
