//! Sockets of streams.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use devmem_uapi::{DmabufId, DmabufToken, FragToken};
use netmem::Dmabuf;
use stack::PlaceInUse;
use steer::RxQueueId;

use super::binding::{Target, Tx, kernel_places_nothing};
use crate::congestion::Congestion;
use crate::connect::ConnectOptions;
use crate::driver::WaitLimit;
use crate::error::{Error, Forked, HeldMemory, RecvError};
use crate::frags::Frags;
use crate::ranges::{HowToSend, check_ranges, send_ranges};
use crate::recv_request::RecvRequest;
use crate::send_id::{Completion, SendCounts, SendId};
use crate::signals::TaskSignal;
use crate::tcp_info::TcpInfo;
use crate::tcp_options::Keepalive;
use crate::{kernel, user};

/// The socket of a stream. It closes when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    User(Arc<user::Socket>),
    Kernel(Arc<kernel::Socket>),
}

impl From<Arc<user::Socket>> for Socket {
    fn from(socket: Arc<user::Socket>) -> Self {
        Self::User(socket)
    }
}

impl From<Arc<kernel::Socket>> for Socket {
    fn from(socket: Arc<kernel::Socket>) -> Self {
        Self::Kernel(socket)
    }
}

impl Socket {
    /// Fails in a child of fork(2) of the process that opened the NIC.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        each!(self, socket => socket.check())
    }

    /// Returns this socket; fails in a child of fork(2).
    #[inline]
    fn here(&self) -> Result<&Self, Forked> {
        self.check()?;
        Ok(self)
    }
}

/// Connecting.
impl Socket {
    /// Returns the outcome of a connect, `None` while it is in progress. Never waits.
    pub(crate) fn connected(&self) -> Option<Result<(), Error>> {
        match self.here() {
            Ok(socket) => each!(socket, socket => socket.connected_now()),
            Err(forked) => Some(Err(forked.into())),
        }
    }

    /// Waits until the connection is established or TCP gives up, within the time of the options.
    pub(crate) fn await_connected(&self, options: &ConnectOptions) -> Result<(), Error> {
        each!(self.here()?, socket => socket.await_connected(options))
    }
}

/// Receiving, and the return of frags.
impl Socket {
    /// Receives queued data into `frags`, which is empty; waits if there is none.
    pub(crate) fn recv(&self, frags: &mut Frags, request: RecvRequest) -> Result<usize, RecvError> {
        let received = each!(self.here()?, socket => socket.recv(frags, request));
        received.map_err(|error| self.with_cause(error))
    }

    /// Reads bytes that are in host memory; `None` if the next ones are in device memory.
    pub(crate) fn read(
        &self,
        out: &mut [u8],
        limit: WaitLimit,
    ) -> Result<Option<usize>, RecvError> {
        let read = each!(self.here()?, socket => socket.read(out, limit));
        read.map_err(|error| self.with_cause(error))
    }

    /// Reads bytes that are in host memory into `range` of `memory`, if that takes them; a stack in user space places them by itself.
    pub(crate) fn read_into(
        &self,
        memory: &Dmabuf,
        range: &Range<usize>,
        limit: WaitLimit,
    ) -> Result<Option<usize>, RecvError> {
        match self.here()? {
            Self::User(_) => Ok(None),
            Self::Kernel(socket) => {
                let read = socket.read_into(memory, range, limit);
                read.map_err(|error| self.with_cause(error))
            }
        }
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
        each!(self.here().ok()?, socket => socket.held_memory())
    }

    /// Returns the frags that this socket has lent, which are none then. Returns the number of frags freed.
    pub(crate) fn release(&self, frags: &mut Frags) -> Result<usize, Error> {
        each!(self.here()?, socket => socket.release(frags))
    }

    /// Returns one frag that was taken out of its batch.
    pub(crate) fn release_one(&self, token: FragToken) {
        if let Ok(socket) = self.here() {
            each!(socket, socket => socket.release_one(token));
        }
    }

    /// Returns the number of frags returned so far.
    pub(crate) fn returned(&self) -> u64 {
        each!(self, socket => socket.returned())
    }

    /// Returns the memory of a binding, if it has not been freed.
    pub(crate) fn memory(&self, dmabuf: DmabufId) -> Result<Option<Dmabuf>, Forked> {
        Ok(each!(self.here()?, socket => socket.memory(dmabuf)))
    }

    /// Has the next bytes received in `ranges` of `target`.
    pub(crate) fn place_next(&self, target: &Target, ranges: &[Range<usize>]) -> Result<(), Error> {
        match self.here()? {
            Self::User(socket) => socket.place_next(target, ranges),
            Self::Kernel(_) => Err(kernel_places_nothing()),
        }
    }

    /// Returns whether frags may lie where streams of the NIC receive directly.
    pub(crate) fn has_targets(&self) -> bool {
        matches!(self.here(), Ok(Self::User(socket)) if socket.has_targets())
    }

    /// Returns bytes of `place` that some stream of the NIC still needs, the frags `gathered` of this one aside.
    pub(crate) fn place_in_use(
        &self,
        memory: &Dmabuf,
        place: &Range<usize>,
        gathered: &[DmabufToken],
    ) -> Option<PlaceInUse> {
        match self.here().ok()? {
            Self::User(socket) => socket.place_in_use(memory, place, gathered),
            Self::Kernel(_) => None,
        }
    }

    /// Notes that the bytes of lent frags were gathered.
    pub(crate) fn note_gathered(&self, tokens: &[DmabufToken]) {
        if let Ok(Self::User(socket)) = self.here() {
            socket.note_gathered(tokens);
        }
    }
}

/// Sending, and completions of sends.
impl Socket {
    /// Sends bytes of host memory, by a copy.
    pub(crate) fn write(&self, bytes: &[u8], limit: WaitLimit) -> Result<usize, Error> {
        each!(self.here()?, socket => socket.write(bytes, limit))
    }

    /// Sends ranges of bound memory, without a copy.
    pub(crate) fn send(
        &self,
        tx: &Tx,
        ranges: &[Range<usize>],
        how: HowToSend,
    ) -> Result<SendId, Error> {
        match (self.here()?, tx) {
            (Self::User(socket), Tx::User(tx)) if tx.is_at(socket.shard()) => {
                self.send_zerocopy(ranges, how, |now, limit| socket.send_device(tx, now, limit))
            }
            (Self::Kernel(socket), Tx::Kernel(tx)) if tx.is_on(socket.nic()) => {
                check_ranges(tx.id(), tx.size(), ranges)?;
                self.send_zerocopy(ranges, how, |now, limit| socket.send_device(tx, now, limit))
            }
            _ => Err(tx.is_elsewhere()),
        }
    }

    /// Sends bytes of host memory with `MSG_ZEROCOPY`.
    pub(crate) fn send_host(
        &self,
        bytes: &Arc<[u8]>,
        range: &Range<usize>,
        how: HowToSend,
    ) -> Result<SendId, Error> {
        let socket = self.here()?;
        self.send_zerocopy(
            std::slice::from_ref(range),
            how,
            |now, limit| each!(socket, socket => socket.send_host(bytes, &now[0], limit)),
        )
    }

    /// Calls `once` until it has queued as many bytes as `how` says.
    fn send_zerocopy(
        &self,
        ranges: &[Range<usize>],
        how: HowToSend,
        once: impl FnMut(&[Range<usize>], WaitLimit) -> Result<usize, Error>,
    ) -> Result<SendId, Error> {
        each!(self, socket => socket.enable_zerocopy())?;
        send_ranges(ranges, how, || self.sent(), once)
    }

    /// Sends what waits for further sends to fill a packet.
    pub(crate) fn flush(&self) -> io::Result<()> {
        // The kernel gathers only while the NIC is busy.
        if let Self::User(socket) = self.here()? {
            socket.flush();
        }
        Ok(())
    }

    /// Returns the number of zero-copy sends so far.
    pub(crate) fn sent(&self) -> u64 {
        each!(self, socket => socket.sent())
    }

    /// Reads the error queue; returns the number of sends that are complete without a gap.
    pub(crate) fn collect(&self) -> Result<u64, Error> {
        each!(self.here()?, socket => socket.collect())
    }

    /// Reads the error queue and returns the counts of the sends.
    pub(crate) fn counts(&self) -> Result<SendCounts, Error> {
        each!(self.here()?, socket => socket.counts())
    }

    /// Returns the sends that became complete since the last call.
    pub(crate) fn report(&self) -> Result<Option<Completion>, Error> {
        each!(self.here()?, socket => socket.report())
    }

    /// Waits until all sends before `end` are complete.
    pub(crate) fn wait_until(&self, end: u64, limit: WaitLimit) -> Result<(), Error> {
        each!(self.here()?, socket => socket.wait_until(end, limit))
    }

    /// The sending half is dropped: a FIN follows the queued data, unless dropping the socket resets the connection.
    pub(crate) fn end_sending(&self) {
        let Ok(socket) = self.here() else {
            // The connection belongs to the parent, and so do the locks of its tasks.
            return;
        };
        if !each!(socket, socket => socket.aborts()) {
            // An error means that the connection has ended already.
            let _ = each!(socket, socket => socket.shutdown(Shutdown::Write));
        }
        self.send_ended().store(true, Ordering::Release);
        #[cfg(feature = "tokio")]
        self.collected().notify_waiters();
    }

    /// Set when the sending half is dropped: no more sends will follow.
    pub(crate) fn send_ended(&self) -> &AtomicBool {
        each!(self, socket => socket.send_ended())
    }
}

/// Settings and state of the connection.
impl Socket {
    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        each!(self.here()?, socket => socket.shutdown(how))
    }

    /// Returns the pending error of the connection and clears it.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let taken: Option<Error> = each!(self.here()?, socket => socket.take_error())?;
        Ok(taken.map(io::Error::from))
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        each!(self.here()?, socket => socket.peer_addr())
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        each!(self.here()?, socket => socket.local_addr())
    }

    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        each!(self.here().ok()?, socket => socket.tcp_info())
    }

    pub(crate) fn queue(&self) -> Option<RxQueueId> {
        each!(self.here().ok()?, socket => socket.queue())
    }

    /// Returns the number of the shard that has the connection.
    pub(crate) fn shard(&self) -> usize {
        match self {
            Self::User(socket) => socket.shard().number(),
            Self::Kernel(_) => 0,
        }
    }

    pub(crate) fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        each!(self.here()?, socket => socket.set_nodelay(nodelay))
    }

    pub(crate) fn nodelay(&self) -> io::Result<bool> {
        each!(self.here()?, socket => socket.nodelay())
    }

    pub(crate) fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        each!(self.here()?, socket => socket.set_congestion(congestion))
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        let socket = self.here()?;
        let keepalive = keepalive.map(Keepalive::check).transpose()?;
        each!(socket, socket => socket.set_keepalive(keepalive))
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        each!(self.here()?, socket => socket.set_linger(linger))
    }
}

/// What a program waits on that never blocks in a call.
impl Socket {
    pub(crate) fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self.here()? {
            Self::User(socket) => socket.readiness_fd(),
            Self::Kernel(socket) => Ok(socket.readiness_fd()),
        }
    }

    /// Returns a new descriptor of a task signal, to register edge-triggered. In user space it has an event after each
    /// [`arm`](user::Socket::arm); with a kernel NIC the kernel reports every change.
    pub(crate) fn task_signal(&self, signal: TaskSignal) -> io::Result<OwnedFd> {
        each!(self.here()?, socket => socket.task_signal(signal))
    }

    /// Returns the socket whose task signals must be armed; with a kernel NIC there is none.
    pub(crate) fn armed(&self) -> Weak<user::Socket> {
        match self {
            Self::User(socket) => Arc::downgrade(socket),
            Self::Kernel(_) => Weak::new(),
        }
    }
}

/// What asynchronous tasks wait on.
#[cfg(feature = "tokio")]
impl Socket {
    /// Arms a task signal for one event. An attempt of the call must follow, so that no earlier event is missed.
    pub(crate) fn arm(&self, signal: TaskSignal) {
        if let Self::User(socket) = self {
            socket.arm(signal);
        }
    }

    /// Fails in virtual time.
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        match self.here()? {
            Self::User(socket) => socket.assert_real_time(),
            Self::Kernel(_) => Ok(()),
        }
    }

    /// Returns the `Notify` that wakes tasks when any caller has read completions from the error queue.
    pub(crate) fn collected(&self) -> &::tokio::sync::Notify {
        each!(self, socket => socket.collected())
    }
}
