//! Handles that any thread of Python may use, and waits that a signal can end.
//!
//! A handle is locked only while Python's lock is released, and for one slice of a wait at most. So no thread waits for the
//! one while it holds the other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::error::Error;
use crate::released::released;

/// How often a wait looks for signals (Ctrl-C).
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// The slice in virtual time, in which a wait without events ends after 200 ms of real time, whatever its limit.
const VIRTUAL_SLICE: Duration = Duration::from_secs(1000);

/// The clock of timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    Real,
    /// Those of a `Netdev.pair`.
    Virtual,
}

/// A timeout as `socket.settimeout` takes it: `None` waits for ever, 0 never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timeout(Option<Duration>);

impl Timeout {
    pub(crate) const FOREVER: Self = Self(None);

    pub(crate) fn new(seconds: Option<f64>) -> Result<Self, Error> {
        let Some(seconds) = seconds else {
            return Ok(Self::FOREVER);
        };
        let refused = || {
            Error::value(format!(
                "a timeout of {seconds} s\n  give 0 or more, or None"
            ))
        };
        let duration = Duration::try_from_secs_f64(seconds).map_err(|_out_of_range| refused())?;
        Ok(Self(Some(duration)))
    }

    pub(crate) fn seconds(self) -> Option<f64> {
        self.0.map(|duration| duration.as_secs_f64())
    }

    pub(crate) fn never_waits(self) -> bool {
        self.0 == Some(Duration::ZERO)
    }
}

/// How long one call of the library may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Never,
    For(Duration),
}

/// The wait of one call of Python: slices until the timeout.
#[derive(Debug)]
pub(crate) struct TimedWait {
    timeout: Timeout,
    time: Time,
    begun: Option<Instant>,
}

impl TimedWait {
    pub(crate) fn new(timeout: Timeout, time: Time) -> Self {
        Self {
            timeout,
            time,
            begun: None,
        }
    }

    /// Returns the limit of the next slice.
    fn slice(&mut self) -> Limit {
        match (self.timeout.0, self.time) {
            (Some(Duration::ZERO), _) => Limit::Never,
            (None, Time::Real) => Limit::For(SLICE),
            (None, Time::Virtual) => Limit::For(VIRTUAL_SLICE),
            // The clock of a pair cannot be read, so that this wait is one slice.
            (Some(all), Time::Virtual) => Limit::For(all),
            (Some(all), Time::Real) => {
                let left = all.saturating_sub(self.begun().elapsed());
                Limit::For(left.min(SLICE).max(Duration::from_micros(1)))
            }
        }
    }

    /// Whether the timeout has expired, after a slice that found nothing.
    pub(crate) fn is_over(&mut self) -> bool {
        match (self.timeout.0, self.time) {
            (None, _) => false,
            (Some(_), Time::Virtual) => true,
            (Some(all), Time::Real) => self.begun().elapsed() >= all,
        }
    }

    fn begun(&mut self) -> Instant {
        *self.begun.get_or_insert_with(Instant::now)
    }

    /// Repeats `attempt` on the handle, until it returns something else than that its time is over, the timeout expires or a
    /// signal handler of Python raises an exception.
    pub(crate) fn wait<T: Send, R: Send>(
        &mut self,
        py: Python<'_>,
        handle: &Handle<T>,
        mut attempt: impl FnMut(&mut T, Limit) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        loop {
            // Before the first slice, so that the time of the first slice counts.
            let limit = self.slice();
            let result = handle.with(py, |inner| attempt(inner, limit))?;
            match result {
                Err(error) if error.is_timeout() && !self.is_over() => {
                    py.check_signals()?;
                    handle.let_others(py);
                }
                result => return result,
            }
        }
    }
}

/// A handle of the library for any number of threads, which `close` empties.
#[derive(Debug)]
pub(crate) struct Handle<T: Send> {
    inner: Mutex<Option<T>>,
    /// Set before `inner` is emptied, so that a thread in a wait leaves after its slice.
    is_closing: AtomicBool,
    /// Threads that wait for the lock.
    queued: AtomicUsize,
    process: u32,
    what: &'static str,
}

/// How long a wait pauses between two slices while other threads wait for the handle: a thread that locks again at once would
/// always be first.
const TURN: Duration = Duration::from_millis(1);

impl<T: Send> Handle<T> {
    pub(crate) fn new(inner: T, what: &'static str) -> Self {
        Self {
            inner: Mutex::new(Some(inner)),
            is_closing: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            process: std::process::id(),
            what,
        }
    }

    /// Fails in a child of fork(2), where a thread that does not exist may hold the lock, and after a close.
    fn check(&self) -> Result<(), Error> {
        if self.process != std::process::id() {
            return Err(Error::forked(self.process));
        }
        match self.is_closing.load(Ordering::Acquire) {
            true => Err(Error::closed(self.what)),
            false => Ok(()),
        }
    }

    /// Calls `call` with the handle locked, and Python's lock released.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut T) -> R + Send,
    ) -> Result<R, Error> {
        self.check()?;
        released(py, || {
            self.queued.fetch_add(1, Ordering::Relaxed);
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            self.queued.fetch_sub(1, Ordering::Relaxed);
            match inner.as_mut() {
                Some(inner) => Ok(call(inner)),
                None => Err(Error::closed(self.what)),
            }
        })
    }

    /// Pauses if other threads wait for the handle.
    fn let_others(&self, py: Python<'_>) {
        if self.queued.load(Ordering::Relaxed) > 0 {
            released(py, || std::thread::sleep(TURN));
        }
    }

    /// Empties the handle, and returns what was in it; `None` if it was closed before, and in a child of fork(2).
    pub(crate) fn take(&self, py: Python<'_>) -> Option<T> {
        if self.process != std::process::id() {
            return None;
        }
        self.is_closing.store(true, Ordering::Release);
        released(py, || {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.take()
        })
    }

    /// Empties the handle, and drops what was in it with Python's lock released.
    pub(crate) fn close(&self, py: Python<'_>) {
        let inner = self.take(py);
        released(py, || drop(inner));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }
}

impl<T: Send> Drop for Handle<T> {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = inner.take() {
            // The last handle of a NIC waits for its peers; other threads of Python go on meanwhile.
            let mut inner = Some(inner);
            Python::try_attach(|py| released(py, || drop(inner.take())));
        }
    }
}
