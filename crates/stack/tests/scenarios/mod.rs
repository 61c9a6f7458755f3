//! What a program may expect of its sockets, whatever way it calls: each scenario is written once, and run wherever a
//! `crate::door::Door` is.
//!
//! | Door | Where | How |
//! |---|---|---|
//! | the stack's own interface | `crates/stack/tests/stack` | `cargo test -p devmem-stack --test stack scenarios` |
//! | files, as C programs have them | `crates/posix/tests/posix` | `cargo test -p devmem-posix --test posix scenarios` |
//!
//! # What is not asked through both doors, and why
//!
//! | Tests | Number | Where | Why |
//! |---|---|---|---|
//! | refusals of a bind | 19 | `stack/bind.rs` | interface, queues and rings are named by the machine's owner, and a file's program names none of them |
//! | frames written by hand | 27 | `stack/network.rs`, `stack/frames.rs` | below sockets: ARP, ICMP, forged segments; packetdrill's scripts are the files' equal |
//! | readiness events | 2 | `stack/own.rs` | a file's program polls; that its bits follow is asked in `posix/table.rs` |
//! | frags that touch, merged | 2 | `stack/own.rs` | an option that Linux has not, and so no number |
//! | a typed sink of messages | 1 | `stack/own.rs` | C's control buffer has bytes |
//! | every call on a stale id | 1 | `stack/own.rs` | the calls that only Rust has; those that both have are asked here |
//! | memory of connections | 1 | `memory.rs` | looks at the whole process, alone in its binary |
//!
//! The other way round, what only files have (blocking, epoll, pipes, names, socket options as bytes, threads) is in
//! `crates/posix/tests/posix`, and what the library adds (placement, batches, tasks) in `crates/devmem-tcp/tests`.

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
pub type Socket = <crate::door::Door as netsim::Door>::Socket;
