//! Streams, as threads, and events.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

pub static STREAMS: Handles<Stream> = Handles::new();
pub static EVENTS: Handles<Event> = Handles::new();

/// What a stream does next.
pub type Work = Box<dyn FnOnce() + Send>;

/// A point in a stream: set when the work before it is done.
pub type Point = Arc<OnceLock<()>>;

/// The point at which it was recorded.
pub type Event = Option<Point>;

/// Work that a thread does in order. It ends with the last copy of the stream, when all is done.
#[derive(Clone)]
pub struct Stream(Sender<Work>);

impl Default for Stream {
    fn default() -> Self {
        let (next, work) = channel::<Work>();
        thread::spawn(move || work.into_iter().for_each(|work| work()));
        Self(next)
    }
}

impl Stream {
    pub fn submit(&self, work: Work) {
        self.0.send(work).expect("its thread runs");
    }

    /// Returns the point behind all work.
    pub fn end(&self) -> Point {
        let point = Point::default();
        let reached = Arc::clone(&point);
        self.submit(Box::new(move || reached.set(()).expect("set here only")));
        point
    }
}

/// What NCCL knows by numbers.
pub struct Handles<T>(Mutex<BTreeMap<usize, T>>);

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone + Default> Handles<T> {
    /// The numbers below are the default stream.
    const FIRST: usize = 3;

    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub fn create(&self) -> usize {
        let mut known = lock(&self.0);
        let last = known.last_key_value();
        let number = last.map_or(0, |(last, _)| last + 1).max(Self::FIRST);
        known.insert(number, T::default());
        number
    }

    pub fn get(&self, number: usize) -> Option<T> {
        let mut known = lock(&self.0);
        match number < Self::FIRST {
            true => Some(known.entry(0).or_default().clone()),
            false => known.get(&number).cloned(),
        }
    }

    /// Gives a number another meaning. Returns whether it had one.
    pub fn set(&self, number: usize, value: T) -> bool {
        let mut known = lock(&self.0);
        known.get_mut(&number).map(|it| *it = value).is_some()
    }

    /// Returns whether it was there.
    pub fn remove(&self, number: usize) -> bool {
        let removed = lock(&self.0).remove(&number);
        removed.is_some()
    }
}
