//! Every interleaving of threads that lock a stack, as accepts on a listener and the poll of a busy link do, and of calls with the
//! background thread that they may have to wake. Run with `--cfg devmem_loom`.

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use background_rest::BackgroundRest;
use handover::HandoverMutex;

#[path = "background_rest.rs"]
mod background_rest;
#[path = "handover.rs"]
#[allow(dead_code, reason = "the tests call some of its functions")]
mod handover;

/// A mutex whose every step is one of the model. That of loom takes the unlock for none, so that no thread would find it locked.
mod sync {
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

    use loom::sync::Condvar;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

    /// Whether a mutex is locked, and what threads wait on for its unlock.
    #[derive(Debug)]
    struct Gate {
        is_locked: loom::sync::Mutex<bool>,
        unlocked: Condvar,
    }

    #[derive(Debug)]
    pub(super) struct Mutex<T> {
        gate: Gate,
        value: loom::sync::Mutex<T>,
    }

    pub(super) struct MutexGuard<'a, T> {
        /// `None` while it is dropped.
        value: Option<loom::sync::MutexGuard<'a, T>>,
        gate: &'a Gate,
    }

    impl Gate {
        fn state(&self) -> loom::sync::MutexGuard<'_, bool> {
            self.is_locked
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self {
                gate: Gate {
                    is_locked: loom::sync::Mutex::new(false),
                    unlocked: Condvar::new(),
                },
                value: loom::sync::Mutex::new(value),
            }
        }

        pub(super) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            let mut is_locked = self.gate.state();
            match std::mem::replace(&mut *is_locked, true) {
                true => Err(TryLockError::WouldBlock),
                false => Ok(self.entered()),
            }
        }

        pub(super) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let mut is_locked = self.gate.state();
            while *is_locked {
                let woken = self.gate.unlocked.wait(is_locked);
                is_locked = woken.unwrap_or_else(PoisonError::into_inner);
            }
            *is_locked = true;
            Ok(self.entered())
        }

        fn entered(&self) -> MutexGuard<'_, T> {
            MutexGuard {
                value: Some(self.value.lock().unwrap_or_else(PoisonError::into_inner)),
                gate: &self.gate,
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().expect("it is locked")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().expect("it is locked")
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            drop(self.value.take());
            *self.gate.state() = false;
            self.gate.unlocked.notify_one();
        }
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(body);
}

/// A listener whose queue is filled by a polling thread, which hands its lock to the threads that accept. The queues of the shards
/// of a NIC have a lock each, so one stands for all.
#[test]
fn loom_every_connection_is_accepted_once_while_a_thread_polls() {
    model(|| {
        let backlog = Arc::new(HandoverMutex::new(VecDeque::from([1, 2])));
        let accepts = [(); 2].map(|()| {
            let backlog = Arc::clone(&backlog);
            thread::spawn(move || backlog.lock().pop_front().expect("one for each"))
        });
        let polling = backlog.lock();
        drop(backlog.hand_over(polling));
        let mut accepted = accepts.map(|thread| thread.join().expect("no panic"));
        accepted.sort_unstable();
        assert_eq!(accepted, [1, 2]);
        assert!(!backlog.is_wanted() && backlog.lock().is_empty());
    });
}

/// A thread that hands its lock over gets it back only after the thread that is next.
#[test]
fn loom_a_thread_that_waits_gets_the_lock_by_one_hand_over() {
    model(|| {
        let turns = Arc::new(HandoverMutex::new(0_u32));
        let mut polling = turns.lock();
        let before = *polling;
        let waiting = {
            let turns = Arc::clone(&turns);
            thread::spawn(move || *turns.lock() += 1)
        };
        // In some of the interleavings.
        if turns.has_next() {
            polling = turns.hand_over(polling);
            assert_eq!(*polling, before + 1);
        }
        drop(polling);
        waiting.join().expect("no panic");
    });
}

/// An eventfd: set by a call, waited for and cleared by the background thread.
#[derive(Default)]
struct Wake {
    is_set: loom::sync::Mutex<bool>,
    changed: loom::sync::Condvar,
}

impl Wake {
    fn set(&self) {
        *self.is_set.lock().expect("no panic") = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut is_set = self.is_set.lock().expect("no panic");
        while !std::mem::take(&mut *is_set) {
            is_set = self.changed.wait(is_set).expect("no panic");
        }
    }
}

/// The background thread looks without the lock, as it does while a call has it, and rests without a limit: a call whose leftovers it
/// had to be woken for, and was not, would leave it asleep, which the model takes for a deadlock.
#[test]
fn loom_a_call_wakes_the_background_thread_or_is_seen_before_its_rest() {
    model(|| {
        let shared = Arc::new((
            BackgroundRest::default(),
            AtomicUsize::new(0),
            Wake::default(),
        ));
        let calls = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (rest, left, wake) = &*shared;
                left.fetch_add(1, Ordering::Relaxed);
                if rest.may_have_begun() {
                    wake.set();
                }
            })
        });
        let (rest, left, wake) = &*shared;
        let mut sent = 0;
        while sent < 2 {
            rest.begin();
            match left.swap(0, Ordering::Relaxed) {
                0 => {
                    wake.wait();
                    rest.end();
                }
                some => {
                    rest.end();
                    sent += some;
                }
            }
        }
        for call in calls {
            call.join().expect("no panic");
        }
    });
}
