//! Waiting for an fd, around calls that may say "would block".

use std::future::poll_fn;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::sync::Notify;

use crate::driver::NotReady;

/// One fd that says when a call that would block may be tried again.
///
/// It is a duplicate: a stream and its completions wait by the same file, which epoll takes only once under the same
/// number.
#[derive(Debug)]
pub(super) struct Signal(AsyncFd<OwnedFd>);

/// Which of two attempts it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Try {
    /// The fd said that it may succeed.
    First,
    /// The first was in vain: if this one is, too, the task waits for the fd.
    Again,
}

impl Signal {
    /// Waits by a duplicate of `fd` for being readable.
    ///
    /// # Errors
    /// No fd is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without I/O.
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = fd.try_clone_to_owned()?;
        // Deprecated since tokio 1.54 because a type could change its fd meanwhile; an OwnedFd cannot, and the
        // replacement is an unsafe function.
        #[allow(deprecated, reason = "sound for an OwnedFd")]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self(fd))
    }

    /// Polls `attempt` until it has a result. One task at a time: the last that polled is woken.
    ///
    /// The fd is asked before the call, so that a task whose calls never block takes part in tokio's budget and lets
    /// others run. The registration is edge-triggered: the fd speaks up at every change, and `clear_ready` forgets
    /// only what was known when the guard was made, so that a change behind the call's back is not lost.
    ///
    /// An attempt in vain is followed by another, [`Try::Again`], which may first ask that the fd speaks up.
    ///
    /// # Errors
    /// [`NotReady::WouldBlock`]: the runtime is shutting down, nobody can wait any more.
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

    /// Calls `attempt` until it has a result, at first and after each change of the fd or word from `notify`. Any number
    /// of tasks at a time.
    ///
    /// # Errors
    /// As [`Signal::poll`].
    pub(super) async fn wait<T>(
        &self,
        notify: &Notify,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T, NotReady> {
        loop {
            // Listening before looking: what another task takes off the queue in between is told.
            let mut notified = pin!(notify.notified());
            notified.as_mut().enable();
            if let Some(result) = attempt() {
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
                // Forgotten before the next look, so that whatever changes after it is news.
                Ok(Some(mut guard)) => guard.clear_ready(),
                Ok(None) => {}
                Err(_shutting_down) => return Err(NotReady::WouldBlock),
            }
        }
    }
}
