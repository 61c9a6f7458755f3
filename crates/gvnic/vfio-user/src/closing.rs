//! Closing descriptors of a client without blocking.
//!
//! close(2) of the last descriptor of a file may block. Only the kinds of files that a client needs to send, memory files and
//! eventfds, are closed directly; all others in a separate thread ([`close_aside`]).

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};

use peer_socket::{PeerFds, close_aside, is_memory};

use crate::eventfd::Signaller;

/// Descriptors that a client sent with one message.
#[derive(Debug, Default)]
pub(crate) struct ClientFds(Vec<OwnedFd>);

impl ClientFds {
    /// Adds descriptors.
    pub(crate) fn extend(&mut self, fds: PeerFds) {
        self.0.extend(fds.into_vec());
    }

    /// Returns the descriptors. The caller has checked that closing them does not block.
    pub(crate) fn into_checked(mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.0)
    }
}

impl Deref for ClientFds {
    type Target = [OwnedFd];

    fn deref(&self) -> &[OwnedFd] {
        &self.0
    }
}

impl Drop for ClientFds {
    fn drop(&mut self) {
        let fds = std::mem::take(&mut self.0);
        if fds.is_empty() {
            return;
        }
        let is_eventfd = |fd: &OwnedFd| {
            let signaller = Signaller::of_process();
            signaller.is_ok_and(|signaller| signaller.is_eventfd(fd.as_fd()) == Ok(true))
        };
        let foreign = fds
            .into_iter()
            .filter(|fd| !is_memory(fd.as_fd()) && !is_eventfd(fd));
        close_aside(foreign.collect());
    }
}
