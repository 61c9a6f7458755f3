//! A listening socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use devmem_uapi::Errno;
use runtime::fds::sleep_until_readable;
use rustix::event::{PollFd, PollFlags, epoll};
use stack::SocketId;

use crate::driver::{NotReady, WaitLimit};
use crate::early::EarlyCookie;
use crate::error::{AcceptError, ErrorKind, Refusal};
use crate::kernel::Listening;
use crate::socket::{Inner, Socket};
use crate::stream::Stream;

/// A listening socket of either backend.
#[derive(Debug)]
pub(crate) enum ListenSocket {
    User(UserListening),
    Kernel(Arc<Listening>),
}

/// The listening sockets of the shards of a user-space NIC, on one address.
#[derive(Debug)]
pub(crate) struct UserListening {
    /// Never empty.
    sockets: Vec<Arc<Inner>>,
    /// Number of accepts: the shards take turns.
    accepts: AtomicUsize,
    /// Readable while one of several sockets is. Created by the first call of [`readiness_fd`](Self::readiness_fd).
    any: OnceLock<OwnedFd>,
}

impl UserListening {
    pub(crate) fn new(sockets: Vec<Arc<Inner>>) -> Self {
        Self {
            sockets,
            accepts: AtomicUsize::new(0),
            any: OnceLock::new(),
        }
    }

    fn first(&self) -> &Arc<Inner> {
        &self.sockets[0]
    }

    /// Returns the listening socket of each shard.
    pub(crate) fn sockets(&self) -> &[Arc<Inner>] {
        &self.sockets
    }

    /// Changes the listening socket of each shard.
    fn change(
        &self,
        change: impl Fn(&mut stack::Stack, SocketId) -> Result<(), stack::BadSocket>,
    ) -> io::Result<()> {
        for inner in &self.sockets {
            let changed = inner.with(|stack| change(stack, inner.socket))?;
            changed.map_err(Refusal::from)?;
        }
        Ok(())
    }

    /// Accepts a connection of any shard.
    fn accept(&self, limit: WaitLimit) -> Result<(Arc<Inner>, SocketAddr), AcceptError> {
        if let [only] = &self.sockets[..] {
            return accept_on(only, limit);
        }
        let driver = &self.first().shared.driver;
        driver.check()?;
        let started = driver.now();
        loop {
            match self.accept_on_any() {
                Err(AcceptError::WouldBlock) => {}
                result => return result,
            }
            if let Some(reason) = limit.over(started, driver.now()) {
                return Err(NotReady::from(reason).into());
            }
            // While this thread sleeps, the background threads of the shards keep the fd up to date.
            let fd = self.readiness_fd().map_err(cannot_wait)?;
            let left = limit.left(started, driver.now());
            sleep_until_readable(&mut [PollFd::new(&fd, PollFlags::IN)], left);
        }
    }

    /// Accepts a connection that is pending on any shard. The shards take turns to be first. An error of one of them is returned if no
    /// other one has a connection.
    fn accept_on_any(&self) -> Result<(Arc<Inner>, SocketAddr), AcceptError> {
        let turn = self.accepts.fetch_add(1, Ordering::Relaxed);
        let mut failed = AcceptError::WouldBlock;
        for n in 0..self.sockets.len() {
            let inner = &self.sockets[turn.wrapping_add(n) % self.sockets.len()];
            match accept_on(inner, WaitLimit::Never) {
                Ok(accepted) => return Ok(accepted),
                Err(AcceptError::WouldBlock) => {}
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let [only] = &self.sockets[..] {
            return only.readiness_fd();
        }
        self.first().shared.driver.check()?;
        if let Some(any) = self.any.get() {
            return Ok(any.as_fd());
        }
        let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for inner in &self.sockets {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&any, inner.readiness_fd()?, data, epoll::EventFlags::IN)?;
        }
        // Of two threads that come here at once, one drops its own.
        Ok(self.any.get_or_init(|| any).as_fd())
    }
}

/// The fd of all shards cannot be created.
fn cannot_wait(error: io::Error) -> AcceptError {
    let errno = error.raw_os_error().map_or(Errno::ENOMEM, Errno);
    let reason = format!("cannot wait for connections of several shards: {error}");
    let refusal = Refusal::new(ErrorKind::of_errno(errno), errno, reason);
    let remedy = "the process may be out of file descriptors: see `ulimit -n`";
    refusal.with_remedy(remedy).caused_by(error).into()
}

/// Accepts a connection on the listening socket of one shard.
fn accept_on(
    inner: &Arc<Inner>,
    limit: WaitLimit,
) -> Result<(Arc<Inner>, SocketAddr), AcceptError> {
    let (accepted, peer) = inner.wait(limit, |stack, _| match stack.accept(inner.socket) {
        Err(stack::AcceptError::WouldBlock) => None,
        result => Some(result),
    })??;
    let accepted = Inner::new(Arc::clone(&inner.shared), inner.at, accepted);
    Ok((accepted, peer))
}

/// A listening socket. Dropping it closes it: further connections are refused, accepted ones stay open.
#[derive(Debug)]
pub struct Listener {
    socket: ListenSocket,
    limit: WaitLimit,
}

impl Listener {
    pub(crate) fn new(socket: ListenSocket) -> Self {
        Self {
            socket,
            limit: WaitLimit::Forever,
        }
    }

    pub(crate) fn socket(&self) -> &ListenSocket {
        &self.socket
    }

    /// Fails in virtual time.
    #[cfg(feature = "tokio")]
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        match &self.socket {
            ListenSocket::User(listening) => listening.first().assert_real_time(),
            ListenSocket::Kernel(_) => Ok(()),
        }
    }

    /// Waits for the next connection and returns it with the address of its peer. On a NIC with several shards, the connection
    /// is on the shard of its addresses and ports ([`Stream::shard`]).
    ///
    /// # Errors
    /// [`AcceptError::WouldBlock`] if none is pending and the listener is non-blocking; [`AcceptError::TimedOut`] if none
    /// arrived within the timeout; with `ENETDOWN` ([`Refusal::errno`](crate::Refusal::errno)) if the link has ended for good
    /// ([`LinkState::Gone`](crate::LinkState::Gone)) and all connections from before are accepted.
    pub fn accept(&self) -> Result<(Stream, SocketAddr), AcceptError> {
        let (socket, peer) = match &self.socket {
            ListenSocket::User(listening) => {
                let (accepted, peer) = listening.accept(self.limit)?;
                (Socket::User(accepted), peer)
            }
            ListenSocket::Kernel(listening) => {
                listening.nic().check()?;
                let (socket, peer) = listening.accept(self.limit)?;
                (Socket::Kernel(socket), peer)
            }
        };
        Ok((Stream::new(socket), peer))
    }

    /// Returns the address that the socket listens on.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.socket {
            ListenSocket::User(listening) => {
                let inner = listening.first();
                let local = inner.with(|stack| stack.local_addr(inner.socket))?;
                Ok(local.map_err(Refusal::from)?)
            }
            ListenSocket::Kernel(listening) => {
                listening.nic().check()?;
                listening.local_addr()
            }
        }
    }

    /// Sets how many connections may wait to be accepted, on each shard: 4,096 by default. The kernel limits it to
    /// net.core.somaxconn.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn set_backlog(&self, connections: u16) -> io::Result<()> {
        match &self.socket {
            ListenSocket::User(listening) => {
                listening.change(|stack, socket| stack.set_backlog(socket, connections.into()))
            }
            ListenSocket::Kernel(listening) => {
                listening.nic().check()?;
                listening.set_backlog(connections)
            }
        }
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
        match &self.socket {
            ListenSocket::User(listening) => listening.change(|stack, socket| {
                stack.change_fast_open(socket, |listener| {
                    listener.queue_len = Some(pending.into());
                })
            }),
            ListenSocket::Kernel(listening) => {
                listening.nic().check()?;
                listening.set_fast_open(pending)
            }
        }
    }

    /// Sets whether payload of a SYN needs a cookie of this host, where [`set_fast_open`](Self::set_fast_open) allows it. By default
    /// it does; [`EarlyCookie`] says what the other setting is good for.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    #[doc(alias = "TCP_FASTOPEN_NO_COOKIE")]
    pub fn set_early_cookie(&self, cookie: EarlyCookie) -> io::Result<()> {
        match &self.socket {
            ListenSocket::User(listening) => listening.change(|stack, socket| {
                stack.change_fast_open(socket, |listener| {
                    listener.no_cookie = cookie == EarlyCookie::NotNeeded;
                })
            }),
            ListenSocket::Kernel(listening) => {
                listening.nic().check()?;
                listening.set_early_cookie(cookie)
            }
        }
    }

    /// Makes [`accept`](Self::accept) return `WouldBlock` instead of waiting. Overrides an earlier
    /// [`set_timeout`](Self::set_timeout).
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.limit = WaitLimit::of_nonblocking(nonblocking);
    }

    /// Sets how long [`accept`](Self::accept) waits; `None` waits forever. Overrides an earlier
    /// [`set_nonblocking`](Self::set_nonblocking).
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.limit = WaitLimit::within(timeout);
    }

    /// Returns an fd for poll and epoll that is readable while a connection is pending. With a kernel NIC it is the socket;
    /// in user space the first call creates it. [`AsFd`] returns the same fd.
    ///
    /// # Errors
    /// The process has no free file descriptor, or is a fork of the one that opened the NIC.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.socket {
            ListenSocket::User(listening) => listening.readiness_fd(),
            ListenSocket::Kernel(listening) => {
                listening.nic().check()?;
                Ok(listening.fd())
            }
        }
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
