//! How far the zero-copy sends of a socket are, and what is kept until they are complete.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use devmem_linux::socket::{CompletionError, ErrorQueue};

use super::completions::CompletionSet;
use super::pieces::Pieces;

/// The zero-copy sends of one socket.
#[derive(Debug, Default)]
pub(super) struct Sends {
    /// SO_ZEROCOPY is set.
    pub(super) enabled: bool,
    pub(super) set: CompletionSet,
    /// The pieces of the packet that is being filled.
    pub(super) pieces: Pieces,
    /// Number of complete sends returned by `Completions::try_next`.
    pub(super) told: u64,
    /// Number of complete sends that were copied.
    pub(super) copied: u64,
    /// What is kept for incomplete sends, by their numbers.
    pub(super) kept: VecDeque<(u64, Retained)>,
}

/// What is kept until a send is complete.
#[derive(Debug)]
pub(super) enum Retained {
    /// A count in the incomplete sends of a binding.
    Counted { _in_flight: InFlight },
    /// The bytes themselves.
    Bytes { _bytes: Arc<[u8]> },
}

/// Guard that counts one incomplete send.
#[derive(Debug)]
pub(super) struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sends {
    /// Adds the completions read from an error queue.
    fn note(&mut self, queue: &ErrorQueue) {
        for range in &queue.completions {
            let complete = self.set.note(*range);
            self.copied += if range.copied { complete } else { 0 };
        }
        let set = &self.set;
        while let Some((number, _)) = self.kept.front()
            && set.contains(*number)
        {
            self.kept.pop_front();
        }
        // Out-of-order completions are rare.
        if set.complete() != set.through() {
            self.kept.retain(|(number, _)| !set.contains(*number));
        }
    }

    /// Reads the error queue until it is empty.
    pub(super) fn collect(&mut self, fd: &OwnedFd) -> Result<(), CompletionError> {
        let mut queue = ErrorQueue::default();
        let drained = queue.drain(fd.as_fd());
        self.note(&queue);
        drained.map(drop)
    }
}
