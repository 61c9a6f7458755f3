//! Notifications that have come and that the program has not taken.

use std::collections::VecDeque;
use std::sync::Arc;

/// Beyond either, records of peers are not read, and TCP stops them.
const MAX_MESSAGES: usize = 1 << 16;
const MAX_BYTES: usize = 64 << 20;

/// A notification.
#[derive(Debug)]
pub(crate) struct Notification {
    /// Name of the agent that has sent it.
    pub(crate) from: Arc<str>,
    pub(crate) message: Vec<u8>,
}

/// Notifications in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiting: VecDeque<Notification>,
    bytes: usize,
}

impl Inbox {
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < MAX_MESSAGES && self.bytes < MAX_BYTES
    }

    pub(crate) fn push(&mut self, from: &Arc<str>, message: Vec<u8>) {
        self.bytes += message.len();
        self.waiting.push_back(Notification {
            from: Arc::clone(from),
            message,
        });
    }

    pub(crate) fn take(&mut self) -> VecDeque<Notification> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}
