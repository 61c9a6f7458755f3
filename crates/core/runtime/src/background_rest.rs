//! Whether the background thread must be woken to see what a call has left.
//!
//! The thread announces that it rests, then checks for work. A call leaves its work, then checks whether the thread rests. With a fence
//! between the two steps of each, at least one of them sees the other.

// Those of std; the model has those of loom.
use super::sync::{AtomicBool, Ordering, fence};

/// Whether the background thread rests, or may do so next without a look at what calls leave from now on.
#[derive(Debug)]
pub(crate) struct BackgroundRest(AtomicBool);

impl Default for BackgroundRest {
    /// Of a thread that has not looked yet.
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl BackgroundRest {
    /// The thread looks at the state, and rests if that asks for nothing. All that it decides by must be read after this.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread will look again before it rests.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Returns whether the thread must be woken to see what was written before this.
    pub(crate) fn may_have_begun(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst)
    }
}
