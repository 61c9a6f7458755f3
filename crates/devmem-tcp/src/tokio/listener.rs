//! A listening socket, awaited.

use std::io;
use std::net::SocketAddr;

use ::tokio::sync::Notify;

use super::Stream;
use super::signal::Signal;
use crate::error::AcceptError;

/// Waits for connections. Dropping it refuses further ones; those accepted live on.
#[derive(Debug)]
pub struct Listener {
    listener: crate::Listener,
    signal: Signal,
    /// Wakes the other tasks that wait here, when one took what made the fd speak up.
    taken: Notify,
}

impl Listener {
    /// Lets tasks wait for the connections of `listener`.
    ///
    /// # Errors
    /// The process is out of file descriptors; the NIC is one in virtual time ([`io::ErrorKind::Unsupported`]).
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without I/O.
    pub fn new(mut listener: crate::Listener) -> io::Result<Self> {
        listener.assert_real_time()?;
        listener.set_nonblocking(true);
        let signal = Signal::new(listener.readiness_fd()?)?;
        Ok(Self {
            listener,
            signal,
            taken: Notify::new(),
        })
    }

    /// Waits for the next connection. Returns it and its peer's address. Cancel-safe.
    ///
    /// # Errors
    /// As [`Listener::accept`](crate::Listener::accept). [`AcceptError::WouldBlock`]: the runtime is shutting down.
    pub async fn accept(&self) -> Result<(Stream, SocketAddr), AcceptError> {
        let attempt = || match self.listener.accept() {
            Err(AcceptError::WouldBlock) => None,
            result => Some(result),
        };
        let accepted = self.signal.wait(&self.taken, attempt).await?;
        // More may wait, and the fd speaks up once: to one task.
        self.taken.notify_waiters();
        let (stream, peer) = accepted?;
        let stream = Stream::new(stream).map_err(AcceptError::System)?;
        Ok((stream, peer))
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// The listener without tokio, blocking again.
    pub fn into_inner(self) -> crate::Listener {
        let mut listener = self.listener;
        listener.set_nonblocking(false);
        listener
    }
}
