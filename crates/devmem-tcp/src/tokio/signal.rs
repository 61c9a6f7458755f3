//! Waiting for an fd, around calls that may return `WouldBlock`.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::sync::Notify;

use crate::error::NotReady;

/// An fd that becomes readable when a call that would block can be retried.
#[derive(Debug)]
pub(super) struct Signal(AsyncFd<OwnedFd>);

/// Number of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Try {
    /// The attempt after the fd was ready.
    First,
    /// The attempt after a failed first one, which may arm the fd first. If this one fails, too, the task waits for the fd.
    Again,
}

impl Signal {
    /// Registers `fd` for becoming readable. It is a separate descriptor: epoll accepts each number only once.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        // Deprecated since tokio 1.54 because a type could change its fd meanwhile; an OwnedFd cannot, and the
        // replacement is an unsafe function.
        #[allow(deprecated, reason = "sound for an OwnedFd")]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self(fd))
    }

    /// Polls `attempt` until it returns a result. For one task at a time: only the last task that polled is woken.
    ///
    /// The readiness of the fd is checked before each attempt, so that a task with calls that never block uses up tokio's
    /// budget and yields. The registration is edge-triggered: every change of the fd is an event, and `clear_ready` clears
    /// only events from before the guard was created, so an event during the call is not lost.
    ///
    /// # Errors
    /// [`NotReady::WouldBlock`] if the runtime is shutting down.
    pub(super) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(Try) -> Option<T>,
    ) -> Poll<Result<T, NotReady>> {
        loop {
            let ready = ready!(self.0.poll_read_ready(cx));
            let mut guard = ready.map_err(|_shutting_down| NotReady::WouldBlock)?;
            if let Some(result) = attempt(Try::First) {
                return Poll::Ready(Ok(result));
            }
            guard.clear_ready();
            if let Some(result) = attempt(Try::Again) {
                return Poll::Ready(Ok(result));
            }
        }
    }

    /// Calls `attempt` until it returns a result: first at once, then after each event of the fd or notification of `notify`.
    /// For any number of tasks at the same time.
    ///
    /// # Errors
    /// As [`Signal::poll`].
    pub(super) async fn wait<T>(
        &self,
        notify: &Notify,
        mut attempt: impl FnMut(Try) -> Option<T>,
    ) -> Result<T, NotReady> {
        loop {
            // Registered before the attempt, so that a notification in between is not lost.
            let mut notified = pin!(notify.notified());
            notified.as_mut().enable();
            if let Some(result) = attempt(Try::First).or_else(|| attempt(Try::Again)) {
                return Ok(result);
            }
            let mut ready = pin!(self.0.readable());
            let guard = poll_fn(|cx| {
                if notified.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(None));
                }
                ready.as_mut().poll(cx).map_ok(Some)
            });
            match guard.await {
                // Cleared before the next attempt, so that every later change is a new event.
                Ok(Some(mut guard)) => guard.clear_ready(),
                Ok(None) => {}
                Err(_shutting_down) => return Err(NotReady::WouldBlock),
            }
        }
    }
}
