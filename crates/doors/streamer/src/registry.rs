//! Streamers by number: what a caller has for a pointer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::streamer::Streamer;

static STREAMERS: Mutex<BTreeMap<usize, Arc<Streamer>>> = Mutex::new(BTreeMap::new());

fn locked() -> MutexGuard<'static, BTreeMap<usize, Arc<Streamer>>> {
    STREAMERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a streamer, and returns its number, which is not 0 and no other streamer has had.
pub(crate) fn add(streamer: Streamer) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    locked().insert(number, Arc::new(streamer));
    number
}

/// Returns a streamer that was not ended.
pub(crate) fn get(number: usize) -> Option<Arc<Streamer>> {
    locked().get(&number).map(Arc::clone)
}

/// Removes a streamer.
pub(crate) fn remove(number: usize) -> Option<Arc<Streamer>> {
    locked().remove(&number)
}
