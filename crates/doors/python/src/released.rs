//! Calls with Python's lock released, and what becomes of them at the end of the interpreter.
//!
//! A thread that takes the lock when the interpreter has begun to end is ended by CPython (before 3.14) in a way that Rust
//! answers with an abort of the process. So from the last moment on at which that is safe, threads that come back from a
//! call stay where they are, as CPython 3.14 has it, too.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The interpreter begins to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Threads that take the lock now, or have it in [`attached`]: what is called there may release it, and take it again.
static TAKING: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the interpreter: it goes on.
static ENDING: Mutex<Option<ThreadId>> = Mutex::new(None);

/// How long the end waits for threads that take the lock: far longer than they need.
const PATIENCE: Duration = Duration::from_secs(2);

/// Calls `call` with Python's lock released.
pub(crate) fn released<R: Send>(py: Python<'_>, call: impl FnOnce() -> R + Send) -> R {
    let result = py.detach(|| {
        let result = call();
        // Announced before the question, and asked after the announcement: `end` sees this thread, or this thread sees `end`.
        TAKING.fetch_add(1, Ordering::SeqCst);
        if IS_ENDING.load(Ordering::SeqCst) && !is_ending_here() {
            TAKING.fetch_sub(1, Ordering::SeqCst);
            loop {
                thread::park();
            }
        }
        result
    });
    TAKING.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Calls `call` with Python's lock, from a call without it; `None` if the interpreter ends.
pub(crate) fn attached<R>(call: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    TAKING.fetch_add(1, Ordering::SeqCst);
    if IS_ENDING.load(Ordering::SeqCst) && !is_ending_here() {
        TAKING.fetch_sub(1, Ordering::SeqCst);
        return None;
    }
    let result = Python::attach(call);
    TAKING.fetch_sub(1, Ordering::SeqCst);
    Some(result)
}

fn is_ending_here() -> bool {
    let ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    *ending == Some(thread::current().id())
}

/// What `atexit` calls: no other thread takes the lock after this.
#[pyfunction]
pub(crate) fn _end(py: Python<'_>) {
    *ENDING.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current().id());
    IS_ENDING.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    while TAKING.load(Ordering::SeqCst) > 0 && begun.elapsed() < PATIENCE {
        py.detach(thread::yield_now);
    }
}

/// What `os.register_at_fork` calls in a child: the other threads are not there.
#[pyfunction]
pub(crate) fn _forked() {
    TAKING.store(0, Ordering::SeqCst);
}

/// Registers both.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?
        .call_method1("register", (module.getattr("_end")?,))?;
    let hooks = pyo3::types::PyDict::new(py);
    hooks.set_item("after_in_child", module.getattr("_forked")?)?;
    py.import("os")?
        .call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}
