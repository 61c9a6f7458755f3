//! Runs user-space TCP stacks: which thread polls, when it spins, naps or sleeps, who wakes it, and how time passes. The Rust library
//! and the sockets for C programs are both built over it.
//!
//! Key types: [`Driven`] (what the lock of a driver protects: stacks, and whoever is told of their events), [`Driver`] (drives it in
//! real time), [`VirtualDriver`] (drives it in virtual time) and [`Background`] (the thread that polls while no thread of the program
//! does).
//!
//! # What crosses the boundary
//!
//! The user of this crate plugs in a [`Driven`]. It owns the stacks and all that is kept with them under the same lock: the files of a
//! socket table, the memories of bindings, the eventfds of sockets. After each call and each poll the driver asks it once to take the
//! events of its stacks ([`Driven::tell_events`]); it wakes, through [`Calls`], the threads that wait for what has changed, and says
//! whether the program may be waiting for a file descriptor that only a poll in the background can make ready.
//!
//! The driver owns the lock, the clock, the descriptors of the links, the deadlines, and the waits of callers:
//!
//! | The user calls | for |
//! |---|---|
//! | [`Driver::call`] | a call that does not wait |
//! | [`Driver::wait_for`] | a call that repeats an attempt until it succeeds, within a [`WaitLimit`]; the thread polls meanwhile |
//! | [`Driver::lock`] | a look at the state, or a change that no stack notices |
//! | [`Driver::expect_fd_waits`] | a descriptor was given to the program, which may sleep on it from now on |
//! | [`Driver::wake_any`] | a thread that waits for several sockets is to look again |
//! | [`Driver::linger`] | the end: connections of closed sockets deliver what they have |
//! | [`keep_lease`] | addresses that were leased to the NIC |
//!
//! A driver does not know fork(2). In a child of the process that made it, no thread polls, and its lock may be held by a thread that
//! does not exist: no method may be called there, and [`Background`] is forgotten instead of dropped. Its user checks that, at the one
//! place through which all calls go.
//!
//! [`VirtualDriver`] has the same calls, a clock that stands still while there is work, and no threads of its own; nothing of it is in
//! [`Driver`], and the other way round. What ends a linger is one part (`linger.rs`) of both.
//!
//! In the walk of a received segment, this crate calls step 1, and wakes the thread of step 8.
//!
//! # What it does not do
//!
//! - Open links or make stacks: it is given both.
//! - Offer sockets: an attempt calls the stack.

#![forbid(unsafe_code)]

mod background;
mod background_rest;
mod calls;
mod clock;
mod driven;
mod driver;
pub mod fds;
mod handover;
mod lease;
mod limit;
mod linger;
#[cfg(all(test, devmem_loom))]
mod loom_tests;
mod opened;
mod spin;
mod sync;
mod virtual_time;

pub use crate::lease::keep_lease;
pub use background::Background;
pub use calls::{Awaited, Calls, StackIndex};
pub use clock::Clock;
pub use driven::Driven;
pub use driver::{Driver, Guard};
pub use limit::{Idling, NotReady, Wait, WaitLimit};
pub use opened::Opened;
pub use spin::Pauses;
pub use virtual_time::{VirtualDriver, VirtualGuard};
