//! Streams, as threads, and events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What a stream does next.
pub type Work = Box<dyn FnOnce() + Send>;

/// Work that a thread does in order.
pub struct Stream {
    next: Mutex<Sender<Work>>,
    done: Arc<Done>,
    submitted: AtomicU64,
}

/// How much work is done.
#[derive(Default)]
pub struct Done(Mutex<u64>, Condvar);

/// A point in a stream, once it is recorded: this much work is to be done.
pub type Event = Mutex<Option<(Arc<Done>, u64)>>;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Stream {
    fn default() -> Self {
        let (next, work): (_, Receiver<Work>) = channel();
        let done = Arc::new(Done::default());
        let reached = Arc::clone(&done);
        // Ends when the stream is dropped, and its work is done.
        thread::spawn(move || {
            for work in work {
                work();
                *lock(&reached.0) += 1;
                reached.1.notify_all();
            }
        });
        let (next, submitted) = (Mutex::new(next), AtomicU64::new(0));
        Self {
            next,
            done,
            submitted,
        }
    }
}

impl Stream {
    pub fn submit(&self, work: Work) {
        let next = lock(&self.next);
        self.submitted.fetch_add(1, Ordering::Relaxed);
        next.send(work).expect("its thread runs");
    }

    /// Returns the point behind all work.
    pub fn end(&self) -> (Arc<Done>, u64) {
        let _next = lock(&self.next);
        (
            Arc::clone(&self.done),
            self.submitted.load(Ordering::Relaxed),
        )
    }
}

/// Whether work up to a point is done. An event that was not recorded is none.
pub fn is_done(point: Option<(Arc<Done>, u64)>) -> bool {
    point.is_none_or(|(done, count)| *lock(&done.0) >= count)
}

pub fn wait(point: Option<(Arc<Done>, u64)>) {
    if let Some((Done(done, more), count)) = point.as_ref().map(|(done, count)| (&**done, count)) {
        let waited = more.wait_while(lock(done), |done| *done < *count);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// What NCCL knows by numbers.
pub struct Handles<T>(Mutex<BTreeMap<usize, Arc<T>>>);

impl<T: Default> Handles<T> {
    /// The numbers below are the default stream.
    const FIRST: usize = 3;

    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub fn create(&self) -> usize {
        let mut known = lock(&self.0);
        let last = known.last_key_value();
        let number = last.map_or(0, |(last, _)| last + 1).max(Self::FIRST);
        known.insert(number, Arc::default());
        number
    }

    pub fn get(&self, number: usize) -> Option<Arc<T>> {
        let mut known = lock(&self.0);
        match number < Self::FIRST {
            true => Some(Arc::clone(known.entry(0).or_default())),
            false => known.get(&number).map(Arc::clone),
        }
    }

    pub fn remove(&self, number: usize) -> Option<Arc<T>> {
        lock(&self.0).remove(&number)
    }
}
