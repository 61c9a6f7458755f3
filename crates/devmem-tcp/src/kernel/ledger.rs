//! What an interface knows of its sockets: the frags that they have lent, and the sends whose memory is not free yet.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_linux::socket::CompletionError;

use super::sends::{Retained, Sends};

/// The frags and sends of a socket.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) fd: OwnedFd,
    /// May be locked inside [`Nic::known`](super::Nic::known), never the other way round.
    sends: Mutex<Sends>,
    /// Frags lent to the program so far, and those that it has returned.
    lent: AtomicU64,
    returned: AtomicU64,
    /// Wakes tasks when any caller has read completions from the error queue, and when the sending half is dropped.
    #[cfg(feature = "tokio")]
    pub(super) collected: ::tokio::sync::Notify,
}

impl Ledger {
    pub(super) fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            fd,
            sends: Mutex::default(),
            lent: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            #[cfg(feature = "tokio")]
            collected: ::tokio::sync::Notify::new(),
        })
    }

    pub(super) fn sends(&self) -> MutexGuard<'_, Sends> {
        // Each operation leaves it consistent, so a panic of another thread does not matter.
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the error queue until it is empty. Returns the number of sends that are complete without a gap.
    pub(super) fn collect(&self) -> Result<u64, CompletionError> {
        let mut sends = self.sends();
        #[cfg(feature = "tokio")]
        let before = sends.set.complete();
        let collected = sends.collect(&self.fd);
        #[cfg(feature = "tokio")]
        if sends.set.complete() > before {
            self.collected.notify_waiters();
        }
        collected.map(|()| sends.set.through())
    }

    /// Counts frags that were lent to the program. Returns whether they are the first.
    pub(super) fn count_lent(&self, frags: usize) -> bool {
        frags > 0 && self.lent.fetch_add(frags as u64, Ordering::Relaxed) == 0
    }

    pub(super) fn count_returned(&self, frags: u64) {
        self.returned.fetch_add(frags, Ordering::Relaxed);
    }

    /// Returns the number of frags returned so far.
    pub(super) fn returned(&self) -> u64 {
        self.returned.load(Ordering::Relaxed)
    }

    /// Returns the number of frags that the program has and has not returned.
    pub(super) fn outstanding(&self) -> u64 {
        let returned = self.returned();
        self.lent.load(Ordering::Relaxed).saturating_sub(returned)
    }
}

/// A dropped socket, kept open until its sends are complete, because only its error queue reports that the memory is free.
#[derive(Debug)]
pub(super) struct Leaving(Arc<Ledger>);

impl Leaving {
    /// Keeps the socket of a ledger open if it has incomplete sends.
    pub(super) fn of(ledger: &Arc<Ledger>) -> Option<Self> {
        // If the queue cannot be read, what is known of it counts.
        let _ = ledger.collect();
        let is_leaving = !ledger.sends().kept.is_empty();
        is_leaving.then(|| Self(Arc::clone(ledger)))
    }

    /// Reads the error queue. Returns whether sends are incomplete, and their completion can still be read.
    pub(super) fn is_needed(&self) -> bool {
        // If the queue cannot be read, the connection is dead and no completion will arrive.
        self.0.collect().is_ok() && !self.0.sends().kept.is_empty()
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // The completion of these bytes can no longer be read, so they are leaked.
        for (_, kept) in self.0.sends().kept.drain(..) {
            if let Retained::Bytes { .. } = kept {
                std::mem::forget(kept);
            }
        }
    }
}
