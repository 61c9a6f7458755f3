//! An asynchronous listening socket.

use std::io;
use std::net::SocketAddr;

use ::tokio::sync::Notify;

use super::Stream;
use super::signal::{Signal, Try};
use crate::congestion::Congestion;
use crate::error::{Error, ErrorKind};
use crate::syn_data::EarlyCookie;

/// A listening socket. Dropping it closes it: further connections are refused, accepted ones stay open.
#[derive(Debug)]
pub struct Listener {
    listener: crate::Listener,
    signal: Signal,
    /// Wakes the other waiting tasks after one has accepted a connection.
    taken: Notify,
}

impl Listener {
    /// Creates an asynchronous listener from `listener`.
    ///
    /// # Errors
    /// The process has no free file descriptor; the NIC runs in virtual time ([`io::ErrorKind::Unsupported`]).
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled.
    pub fn new(listener: crate::Listener) -> io::Result<Self> {
        listener.assert_real_time()?;
        listener.set_nonblocking(true);
        let signal = Signal::new(listener.readiness_fd()?.try_clone_to_owned()?)?;
        Ok(Self {
            listener,
            signal,
            taken: Notify::new(),
        })
    }

    /// Waits for the next connection and returns it with the address of its peer. Cancel-safe.
    ///
    /// # Errors
    /// As [`Listener::accept`]. [`ErrorKind::WouldBlock`] if the runtime is shutting down.
    pub async fn accept(&self) -> Result<(Stream, SocketAddr), Error> {
        let attempt = |which| match which {
            Try::First => match self.listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                result => Some(result),
            },
            // The readiness fd needs no arming.
            Try::Again => None,
        };
        let accepted = self.signal.wait(&self.taken, attempt).await;
        let accepted = accepted.map_err(Error::no_connection)?;
        // More connections may be pending, but one fd event wakes only one task.
        self.taken.notify_waiters();
        let (stream, peer) = accepted?;
        let stream = Stream::new(stream).map_err(super::no_fd)?;
        Ok((stream, peer))
    }

    /// Allows TCP Fast Open: see [`Listener::set_fast_open`](crate::Listener::set_fast_open).
    ///
    /// # Errors
    /// The kernel's setting `net.ipv4.tcp_fastopen` forbids it; the NIC belongs to another process.
    pub fn set_fast_open(&self, pending: u16) -> io::Result<()> {
        self.listener.set_fast_open(pending)
    }

    /// Sets the congestion control of accepted connections: see [`Listener::set_congestion`](crate::Listener::set_congestion).
    ///
    /// # Errors
    /// As [`Listener::set_congestion`](crate::Listener::set_congestion).
    pub fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        self.listener.set_congestion(congestion)
    }

    /// Sets whether payload of a SYN needs a cookie: see [`Listener::set_early_cookie`](crate::Listener::set_early_cookie).
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn set_early_cookie(&self, cookie: EarlyCookie) -> io::Result<()> {
        self.listener.set_early_cookie(cookie)
    }

    /// Returns the address that the socket listens on.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the blocking listener.
    pub fn into_inner(self) -> crate::Listener {
        let listener = self.listener;
        listener.set_nonblocking(false);
        listener
    }
}
