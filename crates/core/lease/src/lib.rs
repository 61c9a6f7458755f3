//! Addresses that a NIC gets from its network: an IPv4 address that a DHCP server lends, and an IPv6 address in a prefix that a
//! router advertises. They are acquired before the NIC is opened, renewed by a thread while it is open, and the IPv4 address is
//! returned when it is closed.
//!
//! Key types: [`LeasePort`] (the socket beside that of the link), [`Acquired`] (addresses that nothing renews yet; [`acquire()`] waits
//! for them) and [`LeaseKeeper`] (the thread that renews them, and reports each [`AddressEvent`]). Inside, `Client` (DHCP, RFC 2131) and
//! `Autoconf` (RFC 4862) decide without I/O, so all their times are tested in virtual time.
//!
//! The clients have a socket beside that of the link, and a thread; a stack only adds and removes addresses. So the addresses are
//! known before the stack begins, programs can listen on them as on any others, and the stack needs neither UDP nor router discovery.
//!
//! # What it does not do
//!
//! - DHCPv6, and temporary addresses (RFC 8981).
//! - It changes no stack: whoever opens the NIC applies the news to the stacks of its shards.

#![forbid(unsafe_code)]

mod acquire;
mod advertisement;
mod autoconf;
mod client;
mod conversation;
mod defence;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(test)]
mod fuzz_replay;
mod keeper;
mod message;
mod news;
mod offer;
mod own;
mod port;

pub use acquire::{Acquired, Families, Outcome, acquire};
pub use keeper::LeaseKeeper;
pub use news::AddressEvent;
pub use own::OwnAddresses;
pub use port::LeasePort;
