//! A listener: half-open connections in TCP's backlog, open ones in the accept queue, both bounded.

use std::collections::VecDeque;
use std::net::SocketAddr;

use netmem::FragList;
use tcp::{AcceptQueue, LinkLimits, SynBacklog};

use super::SocketId;
use super::readiness::Readiness;
use super::sockopt::SocketSettings;

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) local: SocketAddr,
    pub(crate) half_open: SynBacklog<FragList>,
    /// What accepted connections begin with.
    pub(crate) options: SocketSettings,
    accepted: VecDeque<SocketId>,
    accepted_ever: u64,
    backlog: usize,
    /// The link of repeated SYN-ACKs.
    pub(crate) link: LinkLimits,
}

impl Listener {
    pub(crate) fn new(
        local: SocketAddr,
        half_open: SynBacklog<FragList>,
        backlog: usize,
        link: LinkLimits,
        config: &tcp::ConnectionOptions,
    ) -> Self {
        Self {
            local,
            half_open,
            options: SocketSettings::new(config),
            accepted: VecDeque::new(),
            accepted_ever: 0,
            backlog,
            link,
        }
    }

    /// Returns whether another connection may wait.
    pub(crate) fn accept_queue(&self) -> AcceptQueue {
        if self.accepted.len() < self.backlog {
            AcceptQueue::HasRoom
        } else {
            AcceptQueue::Full
        }
    }

    /// Sets how many connections may wait, half-open ones as well; those that wait beyond it stay.
    pub(crate) fn set_backlog(&mut self, backlog: usize) {
        self.backlog = backlog;
        self.half_open.set_capacity(backlog);
    }

    /// Returns what the listener is ready for.
    pub(crate) fn readiness(&self) -> Readiness {
        (Readiness::ACCEPTABLE | Readiness::READABLE).when(!self.accepted.is_empty())
    }

    /// Counts the connections that were ever open and not accepted yet.
    pub(crate) fn accepted_ever(&self) -> u64 {
        self.accepted_ever
    }

    pub(crate) fn push(&mut self, id: SocketId) {
        self.accepted_ever += 1;
        self.accepted.push_back(id);
    }

    pub(crate) fn pop(&mut self) -> Option<SocketId> {
        self.accepted.pop_front()
    }
}
