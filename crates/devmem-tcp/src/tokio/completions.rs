//! Asynchronous completions of sends.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use ::tokio::sync::Notify;

use super::signal::{Signal, Try};
use crate::error::{Error, ErrorKind};
use crate::send_id::{Completion, SendId};
use crate::signals::TaskSignal;

/// Reports when sends of a stream are complete. Any number of tasks may wait at the same time, and it may outlive the stream.
#[derive(Debug)]
pub struct Completions {
    completions: crate::Completions,
    signal: Signal,
}

impl Completions {
    pub(super) fn new(completions: crate::Completions) -> io::Result<Self> {
        let signal = Signal::new(completions.socket().task_signal(TaskSignal::Complete)?)?;
        Ok(Self {
            completions,
            signal,
        })
    }

    /// Waits until `id` and every earlier send are complete. Cancel-safe.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read. [`ErrorKind::WouldBlock`] if the runtime is shutting down.
    pub async fn wait(&self, id: SendId) -> Result<(), Error> {
        self.until(|completions| completions.wait(id)).await
    }

    /// Waits until every send so far is complete. Cancel-safe.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_all(&self) -> Result<(), Error> {
        self.until(crate::Completions::wait_all).await
    }

    /// Returns the inner handle, for the calls that never wait: [`try_next`](crate::Completions::try_next),
    /// [`pending`](crate::Completions::pending), [`counts`](crate::Completions::counts).
    pub fn get_ref(&self) -> &crate::Completions {
        &self.completions
    }

    /// Waits for the sends that became complete since the last report, and returns them. `None` is the end: the sending half
    /// of the stream is dropped, and all sends are complete and reported. Cancel-safe. Several handles share the reports.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn next(&self) -> Result<Option<Completion>, Error> {
        let attempt = |which| {
            self.arm_again(which);
            // Read before the queue, so that no send of a half that is dropped meanwhile is missed.
            let ended = self
                .completions
                .socket()
                .send_ended()
                .load(Ordering::Acquire);
            let next = self.completions.try_next();
            let is_over = || ended && self.completions.pending().is_ok_and(|pending| pending == 0);
            match next {
                // The last ones may have been completed since the queue was read: then they are in it, or this is the end.
                Ok(None) if is_over() => Some(self.completions.try_next()),
                Ok(None) => None,
                result => Some(result),
            }
        };
        let next = self.signal.wait(self.collected(), attempt).await;
        next.map_err(Error::not_complete)?
    }

    /// Returns the reports of [`next`](Self::next) as a stream, for the combinators of the crates `futures` and
    /// `tokio-stream`.
    pub fn into_stream(self) -> CompletionStream {
        CompletionStream {
            next: Box::pin(next_of(self)),
        }
    }

    async fn until(
        &self,
        call: impl Fn(&crate::Completions) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let attempt = |which| {
            self.arm_again(which);
            match call(&self.completions) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                result => Some(result),
            }
        };
        let done = self.signal.wait(self.collected(), attempt).await;
        done.map_err(Error::not_complete)?
    }

    /// Arms the signal before the attempt after which a task waits.
    fn arm_again(&self, which: Try) {
        if which == Try::Again {
            self.completions.socket().arm(TaskSignal::Complete);
        }
    }

    /// Returns the `Notify` that wakes tasks when any caller has read the error queue. The queue is empty then, so the fd
    /// does not become readable.
    fn collected(&self) -> &Notify {
        self.completions.socket().collected()
    }
}

/// Next report, and the handle for the one after it.
type Report = (Completions, Result<Option<Completion>, Error>);

async fn next_of(completions: Completions) -> Report {
    let next = completions.next().await;
    (completions, next)
}

/// Complete sends as a [`futures_core::Stream`]: see [`Completions::into_stream`].
pub struct CompletionStream {
    next: Pin<Box<dyn Future<Output = Report> + Send>>,
}

impl std::fmt::Debug for CompletionStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompletionStream")
    }
}

impl futures_core::Stream for CompletionStream {
    type Item = Result<Completion, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (completions, next) = ready!(self.next.as_mut().poll(cx));
        self.next = Box::pin(next_of(completions));
        Poll::Ready(next.transpose())
    }
}
