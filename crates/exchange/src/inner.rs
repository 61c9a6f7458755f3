//! What all handles of a fabric share.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::ProgressThread;
use crate::fabric_state::FabricState;
use crate::shared::Shared;

/// The state, and the thread for its endpoints, if the program wants one.
pub(crate) struct FabricInner {
    pub(crate) state: Arc<FabricState>,
    pub(crate) thread: Option<ProgressThread>,
}

impl FabricInner {
    /// Lets the thread make progress with an endpoint.
    pub(crate) fn serve(&self, endpoint: &Arc<Shared>) {
        if let Some(thread) = &self.thread {
            thread.add(endpoint);
        }
    }

    /// Ends [`serve`](Self::serve).
    pub(crate) fn stop_serving(&self, endpoint: &Arc<Shared>) {
        if let Some(thread) = &self.thread {
            thread.remove(endpoint);
        }
    }
}

impl Drop for FabricInner {
    /// Waits, for at most two seconds, until the peers of closed endpoints have closed, too.
    fn drop(&mut self) {
        if self.state.connections.is_forked() {
            // Not dropped: that would wait for the end of a thread that does not exist here.
            std::mem::forget(self.thread.take());
            return;
        }
        // The thread has no handle of the fabric: it serves no endpoint any more.
        drop(self.thread.take());
        while self.state.connections.step_lingering() > 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.state.connections.closing_thread.stop();
    }
}
