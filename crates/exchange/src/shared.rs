//! What an endpoint and the thread of its fabric share.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use devmem_tcp::Watch;

use crate::core::Core;

/// The state of an endpoint behind its lock, and who waits for its events.
pub(crate) struct Shared {
    /// Locked before the locks of the fabric, apart from the list of endpoints.
    core: Mutex<Core>,
    /// Notified when there is an event and the thread makes progress.
    arrived: Condvar,
}

impl Shared {
    pub(crate) fn new(core: Core) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(core),
            arrived: Condvar::new(),
        })
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a turn for the thread, and wakes threads of the program that wait for an event. Returns whether it did something.
    /// Afterwards `watches` has what must happen before another turn can do something.
    pub(crate) fn turn(&self, watches: &mut Vec<Watch>) -> bool {
        let mut core = self.core();
        let worked = core.turn();
        self.tell(&core);
        core.watch(watches);
        worked
    }

    /// Wakes threads of the program that wait for an event, if there is one.
    pub(crate) fn tell(&self, core: &Core) {
        if !core.ops.events.is_empty() {
            self.arrived.notify_all();
        }
    }

    /// Sleeps until there is an event, for at most `at_most`.
    pub(crate) fn wait(&self, at_most: Duration) {
        let is_empty = |core: &mut Core| core.ops.events.is_empty();
        let waited = self
            .arrived
            .wait_timeout_while(self.core(), at_most, is_empty);
        drop(waited);
    }
}
