//! A NIC that was opened, and that nothing drives yet.

use std::os::fd::OwnedFd;

use lease::Acquired;
use stack::Stack;

use crate::clock::Clock;

/// The parts of a NIC. Each shard is for a [`Driver`](crate::Driver) on the same clock.
#[derive(Debug)]
pub struct Opened {
    /// The stack of each shard, and the fds on which its link signals input.
    pub shards: Vec<(Stack, Vec<OwnedFd>)>,
    /// The time of the stacks.
    pub clock: Clock,
    /// Addresses that the network has leased, for [`keep_lease`](crate::keep_lease).
    pub lease: Option<Acquired>,
}

impl Opened {
    /// Returns a NIC of one shard, with a clock that begins now.
    pub fn of_one(stack: Stack, links: Vec<OwnedFd>) -> Self {
        Self {
            shards: vec![(stack, links)],
            clock: Clock::start(),
            lease: None,
        }
    }
}
