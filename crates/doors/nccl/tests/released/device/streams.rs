//! Streams and events, as threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What a stream does next.
pub type Work = Box<dyn FnOnce() + Send>;

/// A thread that does work in order.
pub struct Stream {
    work: Sender<Work>,
    pending: Arc<AtomicUsize>,
}

impl Default for Stream {
    fn default() -> Self {
        let (work, next) = channel::<Work>();
        let pending = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&pending);
        // Ends when the stream is dropped, and its work is done.
        thread::spawn(move || {
            for work in next {
                work();
                left.fetch_sub(1, Ordering::Release);
            }
        });
        Self { work, pending }
    }
}

impl Stream {
    pub fn submit(&self, work: Work) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.work.send(work).expect("its thread runs");
    }

    pub fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Waits until all work is done.
    pub fn finish(&self) {
        let (done, end) = channel();
        self.submit(Box::new(move || done.send(()).expect("somebody waits")));
        end.recv().expect("its thread runs");
    }
}

/// A point in a stream that another one waits for: how often it was recorded, and the last of these that was reached.
#[derive(Default)]
pub struct Event {
    times: Mutex<(u64, u64)>,
    reached: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Event {
    /// Returns what is to be reached.
    pub fn record(&self) -> u64 {
        let mut times = lock(&self.times);
        times.0 += 1;
        times.0
    }

    pub fn recorded(&self) -> u64 {
        lock(&self.times).0
    }

    pub fn reach(&self, time: u64) {
        let mut times = lock(&self.times);
        times.1 = times.1.max(time);
        self.reached.notify_all();
    }

    pub fn is_reached(&self) -> bool {
        let times = lock(&self.times);
        times.1 >= times.0
    }

    pub fn wait(&self, time: u64) {
        let times = lock(&self.times);
        let waited = self.reached.wait_while(times, |times| times.1 < time);
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
