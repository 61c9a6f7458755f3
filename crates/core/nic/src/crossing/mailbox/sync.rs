//! What a mailbox is built of. The loom tests put models in the place of these types.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
pub(super) use std::sync::Arc;
pub(super) use std::sync::atomic::{AtomicU8, Ordering};
pub(super) use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that is readable while it is set.
#[derive(Debug)]
pub(super) struct Eventfd(OwnedFd);

impl Eventfd {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self(eventfd(0, flags)?))
    }

    pub(super) fn set(&self) {
        // Fails only when the counter is at its maximum: the descriptor is readable then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn reset(&self) {
        // Fails only when the counter is 0: nothing has to be reset then.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
