//! A listener: the backlog of half-open connections and the accept queue, both bounded.

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
    /// Options that its connections inherit.
    pub(crate) options: SocketSettings,
    accepted: VecDeque<SocketId>,
    accepted_ever: u64,
    backlog: usize,
    /// The link has ended for good.
    link_gone: bool,
    /// Link limits for repeated SYN-ACKs.
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
            link_gone: false,
            link,
        }
    }

    /// Returns whether the accept queue has room.
    pub(crate) fn accept_queue(&self) -> AcceptQueue {
        if self.accepted.len() < self.backlog {
            AcceptQueue::HasRoom
        } else {
            AcceptQueue::Full
        }
    }

    /// Sets the maximum number of connections in the accept queue, and of half-open ones; existing ones stay.
    pub(crate) fn set_backlog(&mut self, backlog: usize) {
        self.backlog = backlog;
        self.half_open.set_capacity(backlog);
    }

    /// Returns what the listener is ready for.
    pub(crate) fn readiness(&self) -> Readiness {
        // Accepting does not wait when the link has ended: it returns the error.
        (Readiness::ACCEPTABLE | Readiness::READABLE)
            .when(!self.accepted.is_empty() || self.link_gone)
    }

    /// Notes that the link has ended for good.
    pub(crate) fn on_link_gone(&mut self) {
        self.link_gone = true;
    }

    /// Returns whether the link has ended for good.
    pub(crate) fn is_link_gone(&self) -> bool {
        self.link_gone
    }

    /// Returns the total number of connections that were added to the accept queue.
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
