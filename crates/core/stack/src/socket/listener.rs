//! A listener: the backlog of half-open connections and the accept queue, both bounded.

use std::collections::VecDeque;
use std::net::SocketAddr;

use netmem::FragList;
use tcp::{AcceptQueue, LinkLimits, SynBacklog};

use super::error::AcceptError;
use super::id::SocketId;
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
    /// Why no peer can connect any more.
    end: Option<AcceptError>,
    /// Link limits for repeated SYN-ACKs.
    pub(crate) link: LinkLimits,
}

impl Listener {
    pub(crate) fn new(
        local: SocketAddr,
        half_open: SynBacklog<FragList>,
        backlog: usize,
        link: LinkLimits,
        settings: &tcp::Settings,
    ) -> Self {
        Self {
            local,
            half_open,
            options: SocketSettings::new(settings),
            accepted: VecDeque::new(),
            accepted_ever: 0,
            backlog,
            end: None,
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

    /// Returns whether accepting does not wait: a connection is there, or the error that no peer can connect.
    pub(super) fn is_ready(&self) -> bool {
        !self.accepted.is_empty() || self.end.is_some()
    }

    /// Notes that no peer can connect any more.
    pub(crate) fn on_end(&mut self, end: AcceptError) {
        self.end.get_or_insert(end);
    }

    /// Returns why there is no connection to accept.
    pub(crate) fn why_empty(&self) -> AcceptError {
        self.end.unwrap_or(AcceptError::WouldBlock)
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
