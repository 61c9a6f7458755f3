//! A TCP connection.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use devmem_uapi::{DmabufId, DmabufToken, MsgFlags};
use netmem::{Dmabuf, MemoryObserver};
#[cfg(feature = "tokio")]
use rustix::event::epoll::EventFlags;
use stack::{Readiness, SendMsg, SocketId};

use crate::batch::{BatchSink, Item, RxBatch};
use crate::driver::{NotReady, StackIndex, Wait, WaitLimit};
use crate::error::{ConnectError, Forked, RecvError, ReleaseError, SendError, ShutdownError};
use crate::kernel;
use crate::netdev::Shared;
use crate::send::Sends;

/// How a stream treats bytes that did not land in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Deliver them in order as [`Frag::Linear`](crate::Frag::Linear).
    #[default]
    Mixed,
    /// Return [`RecvError::Misplaced`] with the cause. The bytes stay queued: switch to `Mixed` to receive them.
    Strict,
}

/// The socket of a stream, of either backend. The socket closes when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    User(Arc<Inner>),
    Kernel(Arc<kernel::Socket>),
}

impl Socket {
    /// Fails in a child of fork(2) of the process that opened the NIC. Must be called before a lock is taken.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        match self {
            Self::User(inner) => inner.shared.driver.check(),
            Self::Kernel(socket) => socket.nic().check(),
        }
    }

    /// Returns the memory of a binding, if it has not been freed.
    pub(crate) fn memory(&self, dmabuf: DmabufId) -> Result<Option<Dmabuf>, Forked> {
        self.check()?;
        Ok(match self {
            Self::User(inner) => inner.memory(dmabuf),
            Self::Kernel(socket) => socket.nic().memory(dmabuf),
        })
    }

    pub(crate) fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.check()?;
        match self {
            Self::User(inner) => inner.readiness_fd(),
            Self::Kernel(socket) => socket.readiness_fd(),
        }
    }
}

/// What asynchronous tasks wait on.
#[cfg(feature = "tokio")]
impl Socket {
    /// Fails in virtual time.
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        match self {
            Self::User(inner) => inner.assert_real_time(),
            Self::Kernel(_) => Ok(()),
        }
    }

    /// Returns an fd that becomes readable when a send that would have blocked can be retried, once after each
    /// [`arm_send_signal`](Self::arm_send_signal).
    pub(crate) fn send_signal(&self) -> io::Result<Arc<OwnedFd>> {
        match self {
            Self::User(inner) => {
                let mut core = inner.shared.driver.enter()?;
                Ok(core.senders.fd((inner.at, inner.socket))?)
            }
            Self::Kernel(socket) => Ok(Arc::new(socket.edges(EventFlags::OUT)?)),
        }
    }

    /// Arms the send signal for one event. Call it before the send attempt, so that no event is missed in between.
    pub(crate) fn arm_send_signal(&self) {
        if let Self::User(inner) = self
            && let Ok(mut core) = inner.shared.driver.enter()
        {
            core.senders.arm((inner.at, inner.socket));
        }
    }

    /// Returns an fd that becomes readable when sends complete.
    pub(crate) fn completion_signal(&self) -> io::Result<OwnedFd> {
        self.check()?;
        match self {
            Self::User(inner) => inner.readiness_fd()?.try_clone_to_owned(),
            Self::Kernel(socket) => Ok(socket.edges(EventFlags::ERR)?),
        }
    }

    /// Returns the `Notify` that wakes tasks when any caller has read completions from the error queue.
    pub(crate) fn collected(&self) -> &::tokio::sync::Notify {
        match self {
            Self::User(inner) => &inner.collected,
            Self::Kernel(socket) => socket.collected(),
        }
    }

    /// Returns the outcome of a connect, `None` while it is in progress. Never waits.
    pub(crate) fn connected(&self) -> Option<Result<(), ConnectError>> {
        match self {
            Self::User(inner) => inner.connected(WaitLimit::Never),
            Self::Kernel(socket) => match socket.nic().check() {
                Ok(()) => socket.connected_now(),
                Err(forked) => Some(Err(forked.into())),
            },
        }
    }
}

/// The socket of a stream in user space. It stays open until the stream and everything received from it are dropped, because
/// closing a socket frees all frags that it lent.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: StackIndex,
    pub(crate) socket: SocketId,
    returned: AtomicU64,
    pub(crate) sends: Mutex<Sends>,
    /// Created by the first call of [`readiness_fd`](Self::readiness_fd).
    readiness: OnceLock<Arc<OwnedFd>>,
    /// Wakes tasks when any caller has read completions from the error queue.
    #[cfg(feature = "tokio")]
    pub(crate) collected: ::tokio::sync::Notify,
}

impl Inner {
    pub(crate) fn new(shared: Arc<Shared>, at: StackIndex, socket: SocketId) -> Arc<Self> {
        Arc::new(Self {
            shared,
            at,
            socket,
            returned: AtomicU64::new(0),
            sends: Mutex::default(),
            readiness: OnceLock::new(),
            #[cfg(feature = "tokio")]
            collected: ::tokio::sync::Notify::new(),
        })
    }

    /// Returns tokens to the stack. Returns the number of frags freed.
    pub(crate) fn dontneed(&self, tokens: &[DmabufToken]) -> Result<usize, ReleaseError> {
        self.shared
            .driver
            .with(self.at, |stack, _| stack.dontneed(self.socket, tokens))?
            .map(|freed| freed as usize)
            .map_err(ReleaseError::Refused)
    }

    /// Returns the fd that is readable while this socket is ready.
    pub(crate) fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.shared.driver.check()?;
        if let Some(fd) = self.readiness.get() {
            return Ok(fd.as_fd());
        }
        let fd = self.shared.driver.readiness_fd(self.at, self.socket)?;
        // The driver returns the same fd to every caller, so it does not matter which call stores it.
        Ok(self.readiness.get_or_init(|| fd).as_fd())
    }

    pub(crate) fn count_returned(&self, frags: usize) {
        self.returned.fetch_add(frags as u64, Ordering::Relaxed);
    }

    /// Fails in virtual time, where the clock stands still between calls.
    #[cfg(feature = "tokio")]
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        if self.shared.driver.enter()?.clock.is_virtual() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "in virtual time only calls move the clock, and a task would wait for ever\n  use a wire in real time, \
                 as `Netdev::user(\"mem:NAME\", ...)`",
            ));
        }
        Ok(())
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), ShutdownError> {
        let shutdown = |stack: &mut stack::Stack, _| stack.shutdown(self.socket, how);
        Ok(self.shared.driver.with(self.at, shutdown)??)
    }

    /// Repeats `attempt` until it returns a result or the limit is reached.
    pub(crate) fn wait<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut(&mut stack::Stack, wire::Instant) -> Option<T>,
    ) -> Result<T, NotReady> {
        let wait = Wait {
            stack: self.at,
            socket: self.socket,
            limit,
        };
        self.shared.driver.wait_for(wait, attempt)
    }

    /// Waits for the outcome of a connect; `None` if the limit is reached first.
    pub(crate) fn connected(&self, limit: WaitLimit) -> Option<Result<(), ConnectError>> {
        let connected = |stack: &mut stack::Stack, _| connect_result(stack, self.socket);
        self.wait(limit, connected).ok()
    }

    /// Receives queued data into `batch`, which is empty; waits if there is none.
    fn recv(
        self: &Arc<Self>,
        batch: &mut RxBatch,
        placement: Placement,
        limit: WaitLimit,
    ) -> Result<usize, RecvError> {
        let strict = placement == Placement::Strict;
        let socket = self.socket;
        let (items, host, max_frags) = batch.host_room();
        let outcome = self.wait(limit, |stack, _| {
            let mut sink = BatchSink::new(items, max_frags);
            // With no room for host bytes, recvmsg stops before them and returns `NoBuffer`.
            let host: &mut [u8] = if strict { &mut [] } else { host };
            let mut message = stack::RecvMsg::with_len(host, usize::MAX);
            match stack.recvmsg(socket, &mut message, &mut sink, MsgFlags::SOCK_DEVMEM) {
                Err(stack::RecvError::WouldBlock) => None,
                result => Some(result),
            }
        });
        batch.owner = Some(Socket::User(Arc::clone(self)));
        let received = outcome.map_err(RecvError::from).and_then(|result| {
            result.map_err(|error| match error {
                stack::RecvError::NoBuffer { bytes } if strict => {
                    RecvError::Misplaced { bytes, cause: None }
                }
                error => error.into(),
            })
        });
        let host_bytes = received.as_ref().map_or(0, |outcome| outcome.host_bytes);
        batch.linear_bytes = host_bytes;
        if batch.items.is_empty() && host_bytes > 0 {
            // Bytes of a readable packet come without a control message.
            batch.items.push(Item::Linear(0..host_bytes));
        }
        received.map(|outcome| outcome.bytes)
    }

    /// Returns the memory of a binding, if it has not been freed. Must not be called in a child of fork(2).
    pub(crate) fn memory(&self, dmabuf: DmabufId) -> Option<Dmabuf> {
        self.shared
            .driver
            .lock()
            .memories
            .get(&(self.at, dmabuf))
            .and_then(MemoryObserver::upgrade)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let closed = self.shared.driver.with(self.at, |stack, _| {
            // Cannot fail: only this handle closes the socket.
            let closed = stack.close(self.socket);
            debug_assert!(closed.is_ok(), "{closed:?}");
        });
        // In a child of fork(2) the socket belongs to the parent.
        if closed.is_ok() {
            self.shared.driver.lock().forget(self.at, self.socket);
        }
    }
}

/// A TCP connection of a [`Netdev`](crate::Netdev).
///
/// [`recv`](Self::recv) receives into device memory, [`send`](Self::send) sends from device memory, and
/// [`Write`](io::Write) sends bytes of host memory. Dropping a stream sends a FIN after all queued data.
#[derive(Debug)]
pub struct Stream {
    pub(crate) socket: Socket,
    pub(crate) limit: WaitLimit,
    placement: Placement,
    stats: StreamStats,
}

/// Counters of what a stream has received and returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Bytes that landed in device memory.
    pub device_bytes: u64,
    /// Bytes that landed in host memory.
    pub linear_bytes: u64,
    /// Frags of device memory lent.
    pub device_frags: u64,
    /// Frags of device memory returned.
    pub tokens_returned: u64,
    /// Receive calls that returned data.
    pub receives: u64,
}

impl std::fmt::Display for StreamStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes in device memory ({} frags, {} returned), {} bytes in host memory, {} receives",
            self.device_bytes,
            self.device_frags,
            self.tokens_returned,
            self.linear_bytes,
            self.receives
        )
    }
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            limit: WaitLimit::Forever,
            placement: Placement::Mixed,
            stats: StreamStats::default(),
        }
    }

    /// Receives queued data into `batch`; waits if there is none. First releases the frags that `batch` held before.
    /// Returns the number of bytes, device and host together; 0 is the end of the stream.
    ///
    /// # Errors
    /// [`RecvError::WouldBlock`] if nothing is queued and the stream is non-blocking; [`RecvError::TimedOut`] if nothing
    /// arrived within the timeout; [`RecvError::Misplaced`] under [`Placement::Strict`]; [`RecvError::Release`] if the
    /// earlier frags cannot be returned; otherwise the reason why the connection ended.
    pub fn recv(&mut self, batch: &mut RxBatch) -> Result<usize, RecvError> {
        self.socket.check()?;
        batch.release()?;
        let received = match &self.socket {
            Socket::User(inner) => inner.recv(batch, self.placement, self.limit),
            Socket::Kernel(socket) => batch.fill(socket, self.placement, self.limit),
        };
        self.count(batch);
        received
    }

    fn count(&mut self, batch: &RxBatch) {
        if batch.is_empty() {
            return;
        }
        let linear_items = batch
            .items
            .iter()
            .filter(|item| matches!(item, Item::Linear(_)))
            .count();
        self.stats.device_bytes += batch.device_bytes() as u64;
        self.stats.linear_bytes += batch.linear_bytes as u64;
        self.stats.device_frags += (batch.items.len() - linear_items) as u64;
        self.stats.receives += 1;
    }

    /// Sets how to treat bytes that did not land in device memory; [`Placement::Mixed`] by default.
    pub fn set_placement(&mut self, placement: Placement) {
        self.placement = placement;
    }

    /// Makes calls return [`WouldBlock`](RecvError::WouldBlock) instead of waiting. Overrides an earlier
    /// [`set_timeout`](Self::set_timeout).
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.limit = WaitLimit::of_nonblocking(nonblocking);
    }

    /// Sets how long a call waits; `None` waits forever. Overrides an earlier [`set_nonblocking`](Self::set_nonblocking).
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.limit = WaitLimit::within(timeout);
    }

    /// Returns the address of the peer; `None` if the connection is closed, or in a child of fork(2).
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::User(inner) => {
                let peer = |stack: &mut stack::Stack, _| stack.peer_addr(inner.socket);
                inner
                    .shared
                    .driver
                    .with(inner.at, peer)
                    .ok()?
                    .ok()
                    .flatten()
            }
            Socket::Kernel(socket) => socket.peer_addr(),
        }
    }

    /// Returns the local address; `None` in a child of fork(2).
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::User(inner) => {
                let local = |stack: &mut stack::Stack, _| stack.local_addr(inner.socket);
                inner.shared.driver.with(inner.at, local).ok()?.ok()
            }
            Socket::Kernel(socket) => socket.local_addr(),
        }
    }

    /// Ends the sending direction: a FIN follows the queued data. Receiving is still possible.
    ///
    /// # Errors
    /// The connection is not established, or not any more.
    pub fn shutdown_write(&mut self) -> Result<(), ShutdownError> {
        self.socket.check()?;
        match &self.socket {
            Socket::User(inner) => inner.shutdown(Shutdown::Write),
            Socket::Kernel(socket) => socket.shutdown(Shutdown::Write),
        }
    }

    /// Returns the counters of the stream.
    pub fn stats(&self) -> StreamStats {
        let tokens_returned = match &self.socket {
            Socket::User(inner) => inner.returned.load(Ordering::Relaxed),
            Socket::Kernel(socket) => socket.returned(),
        };
        StreamStats {
            tokens_returned,
            ..self.stats
        }
    }

    /// Returns the state and measurements of the connection: Linux' `TCP_INFO`, or the same fields of the user-space stack.
    /// Fields that the kernel does not report are 0.
    pub fn tcp_info(&self) -> Option<tcp::Info> {
        match &self.socket {
            Socket::User(inner) => {
                let info = |stack: &mut stack::Stack, _| stack.info(inner.socket);
                inner
                    .shared
                    .driver
                    .with(inner.at, info)
                    .ok()?
                    .ok()
                    .flatten()
            }
            Socket::Kernel(socket) => socket.tcp_info(),
        }
    }

    /// Returns an fd for poll and epoll. It is readable while the stream has data, or has ended. A pending error and
    /// completed sends make it readable, too, or set POLLERR, which poll reports without being asked for it. With a kernel
    /// NIC it is the socket; in user space the first call creates it. [`AsFd`] returns the same fd.
    ///
    /// # Errors
    /// The process has no free file descriptor, or is a fork of the one that opened the NIC.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.readiness_fd()
    }
}

impl AsFd for Stream {
    /// Returns [`Stream::readiness_fd`].
    ///
    /// # Panics
    /// If `readiness_fd` fails; call that first to handle its error. After one success it fails only in a child of fork(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness_fd()
            .expect("a file descriptor for the readiness of a stream")
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.check()?;
        let inner = match &self.socket {
            Socket::User(inner) => inner,
            Socket::Kernel(socket) => return Ok(socket.write(bytes, self.limit)?),
        };
        let sent = inner.wait(self.limit, |stack, _| {
            match stack.sendmsg(inner.socket, &SendMsg::new(bytes), MsgFlags::empty()) {
                // All connections share the memory for sending; an ACK on any of them can free some.
                Err(stack::SendError::WouldBlock | stack::SendError::NoMemory) => None,
                result => Some(result),
            }
        });
        sent.map_err(SendError::from)
            .and_then(|result| result.map_err(SendError::from))
            .map_err(io::Error::from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The socket itself closes when the last frag received from it is dropped. An error means that the connection
        // has ended already.
        let _ = self.shutdown_write();
    }
}

/// Returns the outcome of a connect, `None` while it is in progress.
fn connect_result(stack: &mut stack::Stack, socket: SocketId) -> Option<Result<(), ConnectError>> {
    let ready = match stack.readiness(socket) {
        Ok(ready) => ready,
        Err(error) => return Some(Err(ConnectError::Ended(error.into()))),
    };
    if ready.contains(Readiness::ERROR) {
        let error = stack.take_error(socket).ok().flatten();
        return Some(Err(error.map_or(ConnectError::TimedOut, |error| {
            ConnectError::Ended(stack::RecvError::Connection(error))
        })));
    }
    ready.contains(Readiness::WRITABLE).then_some(Ok(()))
}
