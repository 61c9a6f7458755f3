//! A mutex that a thread with much to do hands to the threads that wait for it.
//!
//! A thread that unlocks a mutex of std and locks it again nearly always gets it back, because a thread that sleeps in `lock`
//! takes tens of microseconds to wake up. Short calls gain from that: none of them waits for another thread to run. But a
//! thread that polls a busy link would keep the mutex from all others for as long as packets arrive.

use std::sync::{PoisonError, TryLockError};

// Those of std; the model has those of loom.
use super::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// A mutex with [`hand_over`](Self::hand_over). A poisoned one is locked as usual.
///
/// Lock order: `next`, then `value`.
#[derive(Debug)]
pub(crate) struct HandoverMutex<T> {
    value: Mutex<T>,
    /// Held by the waiting thread that locks `value` next. The others wait for it.
    next: Mutex<()>,
    /// Number of threads that wait in [`lock`](Self::lock).
    waiting: AtomicUsize,
}

impl<T> HandoverMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            next: Mutex::new(()),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Locks; waits while another thread has the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.lock_in_turn())
    }

    /// Locks, if no other thread has the lock.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns whether a thread is the next to lock.
    #[cfg(test)]
    #[cfg_attr(devmem_loom, allow(dead_code, reason = "its tests are not built"))]
    pub(crate) fn has_next(&self) -> bool {
        self.next.try_lock().is_err()
    }

    /// Returns whether a thread waits for the lock.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Locks after the thread that has waited for the lock longest, if one waits. For threads that lock again and again.
    pub(crate) fn lock_behind_waiting(&self) -> MutexGuard<'_, T> {
        match self.is_wanted() {
            true => self.lock_in_turn(),
            false => self.lock(),
        }
    }

    /// Gives the lock to a thread that waits for it, and takes it back after that thread. Keeps it if none waits.
    pub(crate) fn hand_over<'a>(&'a self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        if !self.is_wanted() {
            return guard;
        }
        drop(guard);
        self.lock_in_turn()
    }

    /// Locks as the last of the waiting threads. The first of them holds `next` until it has the lock, so a thread that has
    /// just unlocked and comes here cannot lock before it.
    fn lock_in_turn(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let guard = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        drop(next);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}

#[cfg(all(test, not(devmem_loom)))]
mod tests {
    use super::*;

    /// Waits until a thread is the next to lock.
    fn until_wanted(mutex: &HandoverMutex<Vec<u32>>) {
        while !mutex.has_next() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_lock_that_nobody_waits_for_is_kept() {
        let mutex = HandoverMutex::new(1);
        let guard = mutex.lock();
        assert!(mutex.try_lock().is_none());
        let guard = mutex.hand_over(guard);
        assert!(mutex.try_lock().is_none() && !mutex.is_wanted());
        drop(guard);
        assert_eq!(mutex.try_lock().as_deref(), Some(&1));
    }

    type Guard<'a> = MutexGuard<'a, Vec<u32>>;

    /// Lets four threads wait, and asserts that each call of `pass_on` lets at least one of them lock.
    fn pass_on_to_four(
        pass_on: impl for<'a> Fn(&'a HandoverMutex<Vec<u32>>, Guard<'a>) -> Guard<'a>,
    ) {
        let mutex = HandoverMutex::new(Vec::new());
        std::thread::scope(|scope| {
            let mut guard = mutex.lock();
            for thread in 0..4 {
                let mutex = &mutex;
                scope.spawn(move || mutex.lock().push(thread));
            }
            while guard.len() < 4 {
                until_wanted(&mutex);
                let before = guard.len();
                guard = pass_on(&mutex, guard);
                assert!(guard.len() > before, "{guard:?}");
            }
        });
        mutex.lock().sort_unstable();
        assert_eq!(*mutex.lock(), [0, 1, 2, 3]);
    }

    #[test]
    fn every_hand_over_gives_the_lock_to_a_waiting_thread() {
        pass_on_to_four(|mutex, guard| mutex.hand_over(guard));
    }

    #[test]
    fn a_thread_that_locks_again_behind_waiting_ones_lets_one_go_first() {
        pass_on_to_four(|mutex, guard| {
            drop(guard);
            mutex.lock_behind_waiting()
        });
    }

    #[test]
    fn a_panic_of_another_thread_leaves_the_lock_usable() {
        let mutex = HandoverMutex::new(7);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = mutex.lock();
                panic!("expected by the test");
            });
            holder.join()
        });
        assert!(panicked.is_err());
        assert_eq!((*mutex.lock(), mutex.try_lock().as_deref()), (7, None));
        assert_eq!(*mutex.lock_behind_waiting(), 7);
    }
}
