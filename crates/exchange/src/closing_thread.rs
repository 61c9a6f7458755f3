//! A thread that exists while there are connections to be closed in time, whatever the program calls: those of closed endpoints, and those
//! that have not become part of one. It ends when there are none.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at the connections.
const TICK: Duration = Duration::from_millis(10);

/// The thread, or none.
#[derive(Default)]
pub(crate) struct ClosingThread {
    state: Mutex<State>,
    /// Notified when the fabric is dropped.
    stopped: Condvar,
}

#[derive(Default)]
struct State {
    /// Of a thread that runs, or has ended. It is joined: a plugin may be unmapped afterwards.
    thread: Option<JoinHandle<()>>,
    is_running: bool,
    /// There is something to do that the thread may not have seen.
    is_wanted: bool,
    is_stopped: bool,
}

impl ClosingThread {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless it runs. It calls `look` every few milliseconds, as long as that returns that there are such connections.
    pub(crate) fn start(self: &Arc<Self>, look: impl Fn() -> bool + Send + 'static) {
        let mut state = self.state();
        state.is_wanted = true;
        if state.is_running || state.is_stopped {
            return;
        }
        if let Some(ended) = state.thread.take() {
            // An error is a panic of the thread, which has been printed already.
            let _ = ended.join();
        }
        let thread = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("devmem-closing".to_owned())
            .spawn(move || thread.run(look));
        // Without a thread the next call of the program goes on.
        state.thread = started.ok();
        state.is_running = state.thread.is_some();
    }

    fn run(&self, look: impl Fn() -> bool) {
        loop {
            let is_needed = look();
            let mut state = self.state();
            let is_wanted = std::mem::take(&mut state.is_wanted);
            if state.is_stopped || !is_needed && !is_wanted {
                state.is_running = false;
                return;
            }
            let goes_on = |state: &mut State| !state.is_stopped;
            let waited = self.stopped.wait_timeout_while(state, TICK, goes_on);
            drop(waited);
        }
    }

    /// Ends the thread and waits for its end. It is not started again.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        let thread = state.thread.take();
        drop(state);
        self.stopped.notify_all();
        if let Some(thread) = thread {
            // As in `start`.
            let _ = thread.join();
        }
    }
}
