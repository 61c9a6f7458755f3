//! Memory that counts, and what else waits for the same changes.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A bound on memory, and beside it what is guarded by the same lock.
#[derive(Debug)]
pub(super) struct Budget<T> {
    pub(super) limit: u64,
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State<T> {
    /// Bytes that count.
    pub(super) held: u64,
    /// Bytes that somebody waits for, because they do not fit.
    pub(super) wanted: Option<u64>,
    /// Since when the program waits while only it can make room.
    pub(super) starved: Option<Instant>,
    pub(super) is_ended: bool,
    pub(super) it: T,
}

/// Memory that counts until this is dropped.
pub struct Share {
    bytes: u64,
    budget: Weak<dyn GiveBack>,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("bytes", &self.bytes).finish()
    }
}

trait GiveBack: Send + Sync {
    fn give_back(&self, bytes: u64);
}

impl<T: Send> GiveBack for Budget<T> {
    fn give_back(&self, bytes: u64) {
        let mut state = self.locked();
        let held = state.held.saturating_sub(bytes);
        state.held = held;
        // Nothing is short any more, however late the thread that waits for it wakes up.
        state.wanted.take_if(|wanted| self.limit - held >= *wanted);
        state.starved = None;
        drop(state);
        self.changed();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(budget) = self.budget.upgrade() {
            budget.give_back(self.bytes);
        }
    }
}

impl<T> Budget<T> {
    pub(super) fn new(limit: u64, it: T) -> Arc<Self> {
        Arc::new(Self {
            limit,
            state: Mutex::new(State {
                held: 0,
                wanted: None,
                starved: None,
                is_ended: false,
                it,
            }),
            changed: Condvar::new(),
        })
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all that wait.
    pub(super) fn changed(&self) {
        self.changed.notify_all();
    }

    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, State<T>>,
        limit: Duration,
    ) -> MutexGuard<'a, State<T>> {
        let waited = self.changed.wait_timeout(state, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until `bytes` fit, at most the limit, and counts them; `None` if the end comes first. `before_wait` is called before the wait.
    pub(super) fn want(&self, bytes: u64, before_wait: &(dyn Fn() + Send + Sync)) -> Option<()> {
        let fits = |state: &State<T>| self.limit - state.held >= bytes;
        let mut state = self.locked();
        if !fits(&state) && !state.is_ended {
            state.wanted = Some(bytes);
            drop(state);
            self.changed();
            before_wait();
            state = self.locked();
        }
        while !fits(&state) && !state.is_ended {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.wanted = None;
        state.starved = None;
        if state.is_ended {
            return None;
        }
        state.held += bytes;
        Some(())
    }

    /// Ends all waits.
    pub(super) fn end(&self) {
        self.locked().is_ended = true;
        self.changed();
    }
}

impl<T: Send + 'static> Budget<T> {
    /// Returns the share of bytes that are counted already.
    pub(super) fn share(budget: &Arc<Self>, bytes: u64) -> Share {
        let budget: Arc<dyn GiveBack> = Arc::<Self>::clone(budget);
        Share {
            bytes,
            budget: Arc::downgrade(&budget),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn nothing_is_short_from_the_moment_on_in_which_it_fits() {
        let budget = Budget::new(100, ());
        let shares = [30, 30].map(|bytes| {
            budget.want(bytes, &|| {}).unwrap();
            Budget::share(&budget, bytes)
        });
        budget.locked().wanted = Some(80);
        let [first, second] = shares;
        drop(first);
        assert_eq!(budget.locked().wanted, Some(80));
        drop(second);
        assert_eq!(budget.locked().wanted, None);
    }

    #[test]
    fn who_wants_more_than_fits_waits_until_shares_are_dropped_or_the_end() {
        let budget = Budget::new(100, ());
        assert_eq!(budget.want(60, &|| {}), Some(()));
        let share = Budget::share(&budget, 60);
        let (sender, receiver) = channel();
        let waiter = thread::spawn({
            let budget = Arc::clone(&budget);
            move || {
                let before_wait = move || sender.send(()).unwrap();
                budget.want(41, &before_wait)
            }
        });
        receiver.recv().unwrap();
        assert_eq!(budget.locked().wanted, Some(41));
        drop(share);
        assert_eq!(waiter.join().unwrap(), Some(()));
        let state = budget.locked();
        assert_eq!((state.held, state.wanted), (41, None));
        drop(state);
        budget.end();
        assert_eq!(budget.want(100, &|| {}), None);
        let late = Budget::share(&budget, 41);
        drop(budget);
        drop(late);
    }
}
