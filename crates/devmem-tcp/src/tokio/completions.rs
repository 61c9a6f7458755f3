//! Asynchronous completions of sends.

use std::io;
use std::os::fd::AsFd;

use ::tokio::sync::Notify;

use super::signal::Signal;
use crate::error::CompletionError;
use crate::send::SendId;

/// Reports when sends of a stream are complete. Any number of tasks may wait at the same time, and it may outlive the stream.
#[derive(Debug)]
pub struct Completions {
    completions: crate::Completions,
    signal: Signal,
}

impl Completions {
    pub(super) fn new(completions: crate::Completions) -> io::Result<Self> {
        let signal = Signal::new(completions.socket().completion_signal()?.as_fd())?;
        Ok(Self {
            completions,
            signal,
        })
    }

    /// Waits until `id` and every earlier send are complete. Cancel-safe.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read. [`CompletionError::WouldBlock`] if the runtime is shutting down.
    pub async fn wait(&self, id: SendId) -> Result<(), CompletionError> {
        self.until(|completions| completions.wait(id)).await
    }

    /// Waits until every send so far is complete. Cancel-safe.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_all(&self) -> Result<(), CompletionError> {
        self.until(crate::Completions::wait_all).await
    }

    /// Returns the inner handle, for the calls that never wait: [`try_next`](crate::Completions::try_next),
    /// [`pending`](crate::Completions::pending), [`counts`](crate::Completions::counts).
    pub fn get_ref(&self) -> &crate::Completions {
        &self.completions
    }

    async fn until(
        &self,
        call: impl Fn(&crate::Completions) -> Result<(), CompletionError>,
    ) -> Result<(), CompletionError> {
        let attempt = || match call(&self.completions) {
            Err(CompletionError::WouldBlock) => None,
            result => Some(result),
        };
        self.signal.wait(self.collected(), attempt).await?
    }

    /// Returns the `Notify` that wakes tasks when any caller has read the error queue. The queue is empty then, so the fd
    /// does not become readable.
    fn collected(&self) -> &Notify {
        self.completions.socket().collected()
    }
}
