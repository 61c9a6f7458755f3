//! The socket of a stream, of either backend, and what both halves of a stream ask of it.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use devmem_uapi::{DmabufId, DmabufToken, Errno, MsgFlags};
use netmem::{Dmabuf, MemoryObserver};
use rustix::event::epoll::EventFlags;
use stack::{OptionName, PlaceInUse, Readiness, SendMsg, SocketId, SocketOption, Stack};
use steer::RxQueueId;

use crate::batch::{BatchSink, Item, RxBatch};
use crate::connect::ConnectOptions;
use crate::driver::{Idling, NotReady, StackIndex, Wait, WaitLimit};
use crate::error::{
    ConnectError, ErrorKind, Forked, HeldMemory, RecvError, Refusal, ReleaseError, SendError,
    ShutdownError,
};
use crate::kernel;
use crate::recv_half::Placement;
use crate::send::Sends;
use crate::shards::Shared;
use crate::signals::TaskSignal;
use crate::tcp_info::TcpInfo;
use crate::tcp_options::Keepalive;

/// One receive: how much, how long, and with which flags beside `SOCK_DEVMEM`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvRequest {
    pub(crate) placement: Placement,
    pub(crate) limit: WaitLimit,
    /// Most bytes, device and host together.
    pub(crate) max_bytes: usize,
    /// `PEEK` for bytes that stay queued, or none.
    pub(crate) flags: MsgFlags,
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

/// Calls that either half of a stream offers.
impl Socket {
    pub(crate) fn recv(
        &self,
        batch: &mut RxBatch,
        request: RecvRequest,
    ) -> Result<usize, RecvError> {
        let received = match self {
            Self::User(inner) => inner.recv(batch, request),
            Self::Kernel(socket) => batch.fill(socket, request),
        };
        received.map_err(|error| self.with_cause(error))
    }

    pub(crate) fn read(&self, out: &mut [u8], limit: WaitLimit) -> Result<usize, RecvError> {
        self.check()?;
        let read = match self {
            Self::User(inner) => inner.read(out, limit),
            Self::Kernel(socket) => socket.read(out, limit),
        };
        read.map_err(|error| self.with_cause(error))
    }

    /// Adds to a timeout who holds the memory that the peer's bytes need.
    fn with_cause(&self, error: RecvError) -> RecvError {
        match error {
            RecvError::TimedOut { .. } => RecvError::TimedOut {
                held: self.held_memory().map(Box::new),
            },
            error => error,
        }
    }

    /// Returns who holds the memory that the connection receives into; `None` while enough is free.
    pub(crate) fn held_memory(&self) -> Option<HeldMemory> {
        self.check().ok()?;
        match self {
            Self::User(inner) => {
                let holders = inner.with(|stack| stack.memory_holders(inner.socket));
                holders.ok()?.ok().flatten().map(HeldMemory::of_stack)
            }
            Self::Kernel(socket) => socket.held_memory(),
        }
    }

    pub(crate) fn write(&self, bytes: &[u8], limit: WaitLimit) -> Result<usize, SendError> {
        self.check()?;
        match self {
            Self::User(inner) => inner.write(bytes, limit),
            Self::Kernel(socket) => socket.write(bytes, limit),
        }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<(), ShutdownError> {
        self.check()?;
        match self {
            Self::User(inner) => inner.shutdown(how),
            Self::Kernel(socket) => socket.shutdown(how),
        }
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.check()?;
        match self {
            Self::User(inner) => {
                let peer = inner.with(|stack| stack.peer_addr(inner.socket))?;
                let peer = peer.map_err(Refusal::from)?;
                peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
            }
            Self::Kernel(socket) => socket.peer_addr(),
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.check()?;
        match self {
            Self::User(inner) => {
                let local = inner.with(|stack| stack.local_addr(inner.socket))?;
                Ok(local.map_err(Refusal::from)?)
            }
            Self::Kernel(socket) => socket.local_addr(),
        }
    }

    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        self.check().ok()?;
        match self {
            Self::User(inner) => {
                let info = inner.with(|stack| stack.info(inner.socket));
                info.ok()?.ok().flatten().map(TcpInfo::from)
            }
            Self::Kernel(socket) => socket.tcp_info(),
        }
    }

    pub(crate) fn queue(&self) -> Option<RxQueueId> {
        self.check().ok()?;
        match self {
            Self::User(inner) => inner.with(|stack| stack.rx_queue(inner.socket)).ok()?.ok(),
            Self::Kernel(socket) => Some(RxQueueId(u16::try_from(socket.queue()?).ok()?)),
        }
    }

    pub(crate) fn shard(&self) -> usize {
        match self {
            Self::User(inner) => inner.shared.number.index(),
            Self::Kernel(_) => 0,
        }
    }

    pub(crate) fn returned(&self) -> u64 {
        match self {
            Self::User(inner) => inner.returned.load(Ordering::Relaxed),
            Self::Kernel(socket) => socket.returned(),
        }
    }

    pub(crate) fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.check()?;
        match self {
            Self::User(inner) => inner.set_option(SocketOption::NoDelay(nodelay)),
            Self::Kernel(socket) => socket.set_nodelay(nodelay),
        }
    }

    /// Sends what waits for further sends to fill a packet.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.check()?;
        match self {
            Self::User(inner) => {
                let flush = |stack: &mut Stack, now| stack.flush(now);
                inner
                    .shared
                    .driver
                    .with(inner.at, flush)
                    .map_err(Into::into)
            }
            // The kernel gathers only while the NIC is busy.
            Self::Kernel(_) => Ok(()),
        }
    }

    pub(crate) fn nodelay(&self) -> io::Result<bool> {
        self.check()?;
        match self {
            Self::User(inner) => {
                let option = inner.with(|stack| stack.option(inner.socket, OptionName::NoDelay))?;
                Ok(option.map_err(Refusal::from)? == SocketOption::NoDelay(true))
            }
            Self::Kernel(socket) => socket.nodelay(),
        }
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        self.check()?;
        let keepalive = keepalive.map(Keepalive::check).transpose()?;
        match self {
            Self::User(inner) => {
                inner.set_option(SocketOption::KeepAlive(keepalive.map(Into::into)))
            }
            Self::Kernel(socket) => socket.set_keepalive(keepalive),
        }
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.check()?;
        let aborts = linger == Some(Duration::ZERO);
        match self {
            Self::User(inner) if linger.is_none() || aborts => {
                inner.aborts.store(aborts, Ordering::Relaxed);
                Ok(())
            }
            Self::User(_) => {
                let reason = "a user-space NIC never blocks in the drop of a stream";
                let remedy = "call `Netdev::close` at the end, which waits for all streams, or set a linger time of 0 or none";
                let refusal = Refusal::new(ErrorKind::Unsupported, Errno::EOPNOTSUPP, reason);
                Err(refusal.with_remedy(remedy).into())
            }
            Self::Kernel(socket) => socket.set_linger(linger),
        }
    }

    /// The sending half is dropped: a FIN follows the queued data, unless dropping the socket resets the connection.
    pub(crate) fn end_sending(&self) {
        if self.check().is_err() {
            // In a child of fork(2): the connection belongs to the parent, and so do the locks of its tasks.
            return;
        }
        let aborts = match self {
            Self::User(inner) => inner.aborts.load(Ordering::Relaxed),
            Self::Kernel(socket) => socket.aborts(),
        };
        if !aborts {
            // An error means that the connection has ended already.
            let _ = self.shutdown(Shutdown::Write);
        }
        self.send_ended().store(true, Ordering::Release);
        #[cfg(feature = "tokio")]
        self.collected().notify_waiters();
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

    /// Waits until the connection is established or TCP gives up, within the time of the options.
    pub(crate) fn await_connected(&self, options: &ConnectOptions) -> Result<(), ConnectError> {
        match self {
            Self::User(inner) => {
                let connected = inner.connected(WaitLimit::within(options.timeout));
                connected.ok_or(ConnectError::TimedOut)?
            }
            Self::Kernel(socket) => socket.await_connected(options),
        }
    }

    /// Set when the sending half is dropped: no more sends will follow.
    pub(crate) fn send_ended(&self) -> &AtomicBool {
        match self {
            Self::User(inner) => &inner.send_ended,
            Self::Kernel(socket) => socket.send_ended(),
        }
    }
}

/// What a program waits on that never blocks in a call.
impl Socket {
    /// Returns a new descriptor of a task signal, to register edge-triggered. In user space it has an event after each
    /// [`arm`](Inner::arm); with a kernel NIC the kernel reports every change.
    pub(crate) fn task_signal(&self, signal: TaskSignal) -> io::Result<OwnedFd> {
        self.check()?;
        match (self, signal) {
            (Self::User(inner), _) => {
                let fd = inner
                    .shared
                    .driver
                    .enter()?
                    .task_fd(inner.at, inner.socket, signal)?;
                fd.try_clone()
            }
            (Self::Kernel(socket), TaskSignal::Receive) => {
                socket.readiness_fd()?.try_clone_to_owned()
            }
            (Self::Kernel(socket), TaskSignal::Send) => Ok(socket.edges(EventFlags::OUT)?),
            (Self::Kernel(socket), TaskSignal::Complete) => Ok(socket.edges(EventFlags::ERR)?),
        }
    }
}

/// What asynchronous tasks wait on.
#[cfg(feature = "tokio")]
impl Socket {
    /// Arms a task signal for one event. An attempt of the call must follow, so that no earlier event is missed.
    pub(crate) fn arm(&self, signal: TaskSignal) {
        if let Self::User(inner) = self {
            inner.arm(signal);
        }
    }

    /// Fails in virtual time.
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        match self {
            Self::User(inner) => inner.assert_real_time(),
            Self::Kernel(_) => Ok(()),
        }
    }

    /// Returns the `Notify` that wakes tasks when any caller has read completions from the error queue.
    pub(crate) fn collected(&self) -> &::tokio::sync::Notify {
        match self {
            Self::User(inner) => &inner.collected,
            Self::Kernel(socket) => socket.collected(),
        }
    }
}

/// Has a new socket, or the connections of a new listener, deliver frags that touch as one: fewer tokens, and longer ranges.
pub(crate) fn merging_frags(stack: &mut Stack, socket: SocketId) -> SocketId {
    let set = stack.set_option(socket, SocketOption::MergeFrags(true));
    debug_assert!(set.is_ok(), "{set:?}");
    socket
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
    /// Dropping the socket resets the connection.
    aborts: AtomicBool,
    /// No more sends will follow: the sending half was dropped.
    send_ended: AtomicBool,
    /// Wakes tasks when any caller has read completions from the error queue, and when the sending half is dropped.
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
            aborts: AtomicBool::new(false),
            send_ended: AtomicBool::new(false),
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
            .map_err(ReleaseError::from)
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

    /// Arms a task signal for one event. An attempt of the call must follow, so that no earlier event is missed. Does nothing
    /// in a child of fork(2).
    pub(crate) fn arm(&self, signal: TaskSignal) {
        if let Ok(mut core) = self.shared.driver.enter() {
            core.arm(self.at, self.socket, signal);
        }
    }

    pub(crate) fn count_returned(&self, frags: usize) {
        self.returned.fetch_add(frags as u64, Ordering::Relaxed);
    }

    /// Fails in virtual time, where the clock stands still between calls.
    #[cfg(feature = "tokio")]
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        self.shared.driver.check()?;
        if self.shared.driver.is_virtual() {
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
            socket: Some(self.socket),
            limit,
            idling: Idling::Spin,
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
        request: RecvRequest,
    ) -> Result<usize, RecvError> {
        let strict = request.placement == Placement::Strict;
        let socket = self.socket;
        let flags = request.flags | MsgFlags::SOCK_DEVMEM;
        let (items, host, max_frags) = batch.host_room();
        let outcome = self.wait(request.limit, |stack, _| {
            let mut sink = BatchSink::new(items, max_frags);
            // With no room for host bytes, recvmsg stops before them and returns `NoBuffer`.
            let host: &mut [u8] = if strict { &mut [] } else { host };
            let mut message = stack::RecvMsg::with_len(host, request.max_bytes);
            match stack.recvmsg(socket, &mut message, &mut sink, flags) {
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

    /// Reads bytes that are in host memory.
    fn read(&self, out: &mut [u8], limit: WaitLimit) -> Result<usize, RecvError> {
        let read = self.wait(limit, |stack, _| {
            let mut items = Vec::new();
            let mut sink = BatchSink::new(&mut items, 0);
            let mut message = stack::RecvMsg::new(out);
            match stack.recvmsg(self.socket, &mut message, &mut sink, MsgFlags::empty()) {
                Err(stack::RecvError::WouldBlock) => None,
                result => Some(result),
            }
        });
        Ok(read??.bytes)
    }

    /// Sends bytes of host memory, by a copy.
    fn write(&self, bytes: &[u8], limit: WaitLimit) -> Result<usize, SendError> {
        let sent = self.wait(limit, |stack, _| {
            match stack.sendmsg(self.socket, &SendMsg::new(bytes), MsgFlags::empty()) {
                // All connections share the memory for sending; an ACK on any of them can free some.
                Err(stack::SendError::WouldBlock | stack::SendError::NoMemory) => None,
                result => Some(result),
            }
        });
        Ok(sent??)
    }

    /// Calls `call` with the stack.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Stack) -> T) -> Result<T, Forked> {
        self.shared.driver.with(self.at, |stack, _| call(stack))
    }

    fn set_option(&self, option: SocketOption) -> io::Result<()> {
        let set = self.with(|stack| stack.set_option(self.socket, option))?;
        set.map_err(|error| Refusal::from(error).into())
    }

    /// Returns bytes of `place` that some stream of the NIC still needs, the frags `gathered` of this one aside.
    pub(crate) fn place_in_use(
        &self,
        memory: &Dmabuf,
        place: &Range<usize>,
        gathered: &[DmabufToken],
    ) -> Option<PlaceInUse> {
        let ranges = std::slice::from_ref(place);
        self.shared
            .find_in_stacks(self.at, |stack, is_ours| match is_ours {
                true => stack.place_in_use(memory, place.clone(), self.socket, gathered),
                false => stack.places_in_use(memory, ranges),
            })
    }

    /// Notes that the bytes of lent frags were gathered.
    pub(crate) fn note_gathered(&self, tokens: &[DmabufToken]) {
        let mut core = self.shared.driver.lock();
        // Refused only after the socket was closed, and this keeps it open.
        let noted = core.stacks[self.at.0].gathered(self.socket, tokens);
        debug_assert!(noted.is_ok(), "{noted:?}");
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
            let closed = match self.aborts.load(Ordering::Relaxed) {
                true => stack.abort(self.socket),
                false => stack.close(self.socket),
            };
            debug_assert!(closed.is_ok(), "{closed:?}");
        });
        // In a child of fork(2) the socket belongs to the parent.
        if closed.is_ok() {
            self.shared.driver.lock().forget(self.at, self.socket);
        }
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
            ConnectError::Ended(Refusal::ended(error))
        })));
    }
    ready.contains(Readiness::WRITABLE).then_some(Ok(()))
}
