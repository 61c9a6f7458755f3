//! A connected socket of a stack in user space.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use devmem_uapi::{DmabufId, Errno};
use netmem::Dmabuf;
use stack::{FlushScope, SocketId, SocketOption, Stack};
use steer::RxQueueId;

use super::sends::Sends;
use super::shard::Shard;
use crate::congestion::Congestion;
use crate::driver::{Idling, Wait, WaitLimit};
use crate::error::{Error, Forked, HeldMemory, NotReady, Remedy};
use crate::signals::TaskSignal;
use crate::tcp_info::TcpInfo;
use crate::tcp_options::Keepalive;

/// The socket of a stream. It stays open until the stream and everything received from it are dropped, because closing a
/// socket frees all frags that it lent.
#[derive(Debug)]
pub(crate) struct Socket {
    shard: Shard,
    id: SocketId,
    pub(super) returned: AtomicU64,
    pub(super) sends: Mutex<Sends>,
    /// Created by the first call of [`readiness_fd`](Self::readiness_fd).
    readiness: OnceLock<Arc<OwnedFd>>,
    /// Dropping the socket resets the connection.
    aborts: AtomicBool,
    /// No more sends will follow: the sending half was dropped.
    send_ended: AtomicBool,
    /// Wakes tasks when any caller has read completions from the error queue, and when the sending half is dropped.
    #[cfg(feature = "tokio")]
    pub(super) collected: ::tokio::sync::Notify,
}

impl Socket {
    pub(super) fn new(shard: &Shard, id: SocketId) -> Arc<Self> {
        Arc::new(Self {
            shard: shard.clone(),
            id,
            returned: AtomicU64::new(0),
            sends: Mutex::default(),
            readiness: OnceLock::new(),
            aborts: AtomicBool::new(false),
            send_ended: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            collected: ::tokio::sync::Notify::new(),
        })
    }

    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(super) fn id(&self) -> SocketId {
        self.id
    }

    /// Fails in a child of fork(2) of the process that opened the NIC.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.shard.check()
    }

    /// Calls `call` with the stack and the id of the socket.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut Stack, SocketId) -> T) -> T {
        self.shard.with(|stack, _| call(stack, self.id))
    }

    /// Repeats `attempt` until it returns a result or the limit is reached.
    pub(super) fn wait<T>(
        &self,
        limit: WaitLimit,
        mut attempt: impl FnMut(&mut Stack, SocketId) -> Option<T>,
    ) -> Result<T, NotReady> {
        let wait = Wait {
            stack: self.shard.at(),
            socket: Some(self.id),
            limit,
            idling: Idling::Spin,
        };
        let driver = self.shard.driver();
        driver.wait_for(wait, |stack, _| attempt(stack, self.id))
    }

    /// Returns the memory of a binding, if it has not been freed.
    pub(crate) fn memory(&self, dmabuf: DmabufId) -> Option<Dmabuf> {
        self.shard.memory(dmabuf)
    }

    /// Returns who holds the memory that the connection receives into; `None` while enough is free.
    pub(crate) fn held_memory(&self) -> Option<HeldMemory> {
        let holders = self.with(|stack, id| stack.memory_holders(id));
        holders.ok().flatten().map(HeldMemory::of_stack)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        Ok(self.with(|stack, id| stack.shutdown(id, how))?)
    }

    /// Returns the pending error of the connection and clears it.
    pub(crate) fn take_error(&self) -> io::Result<Option<Error>> {
        let taken = self.with(|stack, id| stack.take_error(id));
        let taken = taken.map_err(Error::from)?;
        Ok(taken.map(Error::ended))
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.with(|stack, id| stack.peer_addr(id));
        let peer = peer.map_err(Error::from)?;
        peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.with(|stack, id| stack.local_addr(id));
        Ok(local.map_err(Error::from)?)
    }

    /// Returns the state and measurements of the connection.
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        let info = self.with(|stack, id| stack.info(id));
        info.ok().flatten().map(TcpInfo::from)
    }

    /// Returns the RX queue on which the connection's packets arrive.
    pub(crate) fn queue(&self) -> Option<RxQueueId> {
        self.with(|stack, id| stack.rx_queue(id)).ok()
    }

    /// Sends what waits for further sends to fill a packet.
    pub(crate) fn flush(&self) {
        self.shard
            .with(|stack, now| stack.flush(FlushScope::All, now));
    }

    fn set_option(&self, option: SocketOption) -> io::Result<()> {
        let set = self.with(|stack, id| stack.set_option(id, option));
        set.map_err(|error| Error::from(error).into())
    }

    pub(crate) fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_option(SocketOption::NoDelay(nodelay))
    }

    pub(crate) fn nodelay(&self) -> io::Result<bool> {
        let nodelay = self.with(|stack, id| stack.has_nodelay(id));
        Ok(nodelay.map_err(Error::from)?)
    }

    pub(crate) fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        self.set_option(SocketOption::Congestion(congestion.into()))
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        self.set_option(SocketOption::KeepAlive(keepalive.map(Into::into)))
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let aborts = linger == Some(Duration::ZERO);
        if linger.is_some() && !aborts {
            let reason = "a user-space NIC never blocks in the drop of a stream";
            let refused = Error::of_errno(Errno::EOPNOTSUPP, reason);
            return Err(refused.with_remedy(Remedy::CloseNic).into());
        }
        self.aborts.store(aborts, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether closing the socket resets the connection.
    pub(crate) fn aborts(&self) -> bool {
        self.aborts.load(Ordering::Relaxed)
    }

    pub(crate) fn send_ended(&self) -> &AtomicBool {
        &self.send_ended
    }

    /// Returns the fd that is readable while this socket is ready.
    pub(crate) fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(fd) = self.readiness.get() {
            return Ok(fd.as_fd());
        }
        let fd = self.shard.driver().readiness_fd(self.shard.at(), self.id)?;
        // The driver returns the same fd to every caller, so it does not matter which call stores it.
        Ok(self.readiness.get_or_init(|| fd).as_fd())
    }

    /// Returns a new descriptor of a task signal, which has an event after each [`arm`](Self::arm).
    pub(crate) fn task_signal(&self, signal: TaskSignal) -> io::Result<OwnedFd> {
        let mut core = self.shard.driver().lock();
        core.task_fd(self.shard.at(), self.id, signal)?.try_clone()
    }

    /// Arms a task signal for one event. An attempt of the call must follow, so that no earlier event is missed. Does nothing
    /// in a child of fork(2).
    pub(crate) fn arm(&self, signal: TaskSignal) {
        let driver = self.shard.driver();
        if driver.is_here() {
            driver.lock().arm(self.shard.at(), self.id, signal);
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn collected(&self) -> &::tokio::sync::Notify {
        &self.collected
    }

    /// Fails in virtual time, where the clock stands still between calls.
    #[cfg(feature = "tokio")]
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        if self.shard.driver().is_virtual() {
            let reason =
                "in virtual time only calls move the clock, and a task would wait for ever";
            let refused = Error::of_errno(Errno::EOPNOTSUPP, reason);
            return Err(refused.with_remedy(Remedy::RealTime).into());
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let driver = self.shard.driver();
        // In a child of fork(2) the socket belongs to the parent.
        if !driver.is_here() {
            return;
        }
        self.with(|stack, id| {
            // Cannot fail: only this handle closes the socket.
            let closed = match self.aborts() {
                true => stack.abort(id),
                false => stack.close(id),
            };
            debug_assert!(closed.is_ok(), "{closed:?}");
        });
        driver.lock().forget(self.shard.at(), self.id);
    }
}
