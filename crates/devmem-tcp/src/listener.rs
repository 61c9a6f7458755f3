//! A listening socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use crate::backend::Listening;
use crate::congestion::Congestion;
use crate::driver::WaitLimit;
use crate::error::Error;
use crate::limit::CallLimit;
use crate::stream::Stream;
use crate::syn_data::EarlyCookie;

/// A listening socket. Dropping it closes it: further connections are refused, accepted ones stay open.
#[derive(Debug)]
pub struct Listener {
    socket: Listening,
    limit: CallLimit,
}

impl Listener {
    pub(crate) fn new(socket: Listening) -> Self {
        Self {
            socket,
            limit: CallLimit::new(WaitLimit::Forever),
        }
    }

    pub(crate) fn socket(&self) -> &Listening {
        &self.socket
    }

    /// Fails in virtual time.
    #[cfg(feature = "tokio")]
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        self.socket.assert_real_time()
    }

    /// Waits for the next connection and returns it with the address of its peer. On a NIC with several shards, the connection
    /// is on the shard of its addresses and ports ([`Stream::shard`]).
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock) if none is pending and the listener is non-blocking; [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if none
    /// arrived within the timeout; with `ENETDOWN` ([`Error::errno`](crate::Error::errno)) if the link has ended for good
    /// ([`LinkState::Gone`](crate::LinkState::Gone)) and all connections from before are accepted.
    pub fn accept(&self) -> Result<(Stream, SocketAddr), Error> {
        let (socket, peer) = self.socket.accept(self.limit.get())?;
        Ok((Stream::new(socket), peer))
    }

    /// Returns the address that the socket listens on.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sets how many connections may wait to be accepted, on each shard: 4,096 by default. The kernel limits it to
    /// net.core.somaxconn.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn set_backlog(&self, connections: u16) -> io::Result<()> {
        self.socket.set_backlog(connections)
    }

    /// Allows TCP Fast Open (RFC 7413) to peers that have a cookie of this host: the payload of their SYN can be received before
    /// the handshake is over. At most `pending` connections at a time wait for the end of theirs; 0, the default:
    /// peers must complete the handshake first.
    ///
    /// The network can deliver a SYN twice, and then its payload is received on two connections: allow Fast Open only to
    /// requests that may be repeated (RFC 7413 2.1). [`Netdev::connect_with_data`](crate::Netdev::connect_with_data) sends
    /// such SYNs.
    ///
    /// # Errors
    /// The kernel's setting `net.ipv4.tcp_fastopen` forbids it; the NIC belongs to another process.
    #[doc(alias = "TCP_FASTOPEN")]
    pub fn set_fast_open(&self, pending: u16) -> io::Result<()> {
        self.socket.set_fast_open(pending)
    }

    /// Sets whether payload of a SYN needs a cookie of this host, where [`set_fast_open`](Self::set_fast_open) allows it. By default
    /// it does; [`EarlyCookie`] says what the other setting is good for.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    #[doc(alias = "TCP_FASTOPEN_NO_COOKIE")]
    pub fn set_early_cookie(&self, cookie: EarlyCookie) -> io::Result<()> {
        self.socket.set_early_cookie(cookie)
    }

    /// Sets the congestion control of the connections that are accepted from now on. By default it is that of the NIC, or of the kernel.
    ///
    /// # Errors
    /// The kernel of a kernel NIC does not have it, or permits it to root only; the NIC belongs to another process.
    #[doc(alias = "TCP_CONGESTION")]
    pub fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        self.socket.set_congestion(congestion)
    }

    /// Makes [`accept`](Self::accept) return `WouldBlock` instead of waiting. Overrides an earlier
    /// [`set_timeout`](Self::set_timeout).
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.limit.set_nonblocking(nonblocking);
    }

    /// Sets how long [`accept`](Self::accept) waits; `None` waits forever. Overrides an earlier
    /// [`set_nonblocking`](Self::set_nonblocking).
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.limit.set_timeout(timeout);
    }

    /// Returns an fd for poll and epoll that is readable while a connection is pending. With a kernel NIC it is the socket;
    /// in user space the first call creates it. [`AsFd`] returns the same fd.
    ///
    /// # Errors
    /// The process has no free file descriptor, or is a fork of the one that opened the NIC.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.readiness_fd()
    }
}

impl AsFd for Listener {
    /// Returns [`Listener::readiness_fd`].
    ///
    /// # Panics
    /// If `readiness_fd` fails; call that first to handle its error. After one success it fails only in a child of fork(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness_fd()
            .expect("a file descriptor for the readiness of a listener")
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
