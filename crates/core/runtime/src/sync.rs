//! What `handover` and `background_rest` are made of. Their model in loom has other types.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
