//! A connected socket of the kernel.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use devmem_linux::errors::Operation;
use devmem_linux::socket::{DontneedError, FragReturns, set_receive_low_water};
use devmem_uapi::{DmabufId, Errno, FragToken, Freed};
use netmem::Dmabuf;
use rustix::event::PollFlags;
use rustix::event::epoll;
use rustix::net::{SendFlags, getpeername, getsockname, send, shutdown, sockopt};
use tcp::TcpError;

use super::ledger::{Leaving, Ledger};
use super::nic::Nic;
use super::wait::Deadline;
use crate::congestion::Congestion;
use crate::driver::WaitLimit;
use crate::error::{Error, Forked, NotReady};
use crate::frags::Frags;
use crate::signals::TaskSignal;
use crate::tcp_options::Keepalive;

/// Largest value of SO_RCVLOWAT.
const MOST_LOW_WATER: usize = i32::MAX as usize;

/// The socket of a stream. It stays open until the stream and everything received from it are dropped, because closing a
/// socket frees all frags that it lent.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Shared with the NIC.
    pub(super) ledger: Arc<Ledger>,
    pub(super) nic: Arc<Nic>,
    /// Tokens to return; the list is kept to reuse its allocation. Locked last.
    returns: Mutex<FragReturns>,
    /// Closing it resets the connection.
    aborts: AtomicBool,
    /// No more sends will follow: the sending half was dropped.
    send_ended: AtomicBool,
    /// Queued bytes from which on the socket is readable (SO_RCVLOWAT).
    low_water: AtomicUsize,
}

impl Socket {
    /// Creates it from a connected, non-blocking socket.
    pub(super) fn new(fd: OwnedFd, nic: &Arc<Nic>) -> Arc<Self> {
        Arc::new(Self {
            ledger: Ledger::new(fd),
            nic: Arc::clone(nic),
            returns: Mutex::default(),
            aborts: AtomicBool::new(false),
            send_ended: AtomicBool::new(false),
            low_water: AtomicUsize::new(1),
        })
    }

    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Fails in a child of fork(2) of the process that opened the NIC.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.nic.check()
    }

    /// Returns the memory of a binding, if it has not been freed.
    pub(crate) fn memory(&self, dmabuf: DmabufId) -> Option<Dmabuf> {
        self.nic.memory(dmabuf)
    }

    /// Returns frags to the kernel, merged into ranges, in as few calls as its limits allow. Returns the number of frags that it
    /// freed.
    pub(crate) fn release(&self, frags: &mut Frags) -> Result<usize, Error> {
        self.release_tokens(frags.items.drain(..).filter_map(|item| item.token()))
    }

    /// Returns one frag that was taken out of its batch.
    pub(crate) fn release_one(&self, token: FragToken) {
        // Frags are returned in `drop`, which cannot report an error.
        let _ = self.release_tokens(std::iter::once(token));
    }

    fn release_tokens(&self, tokens: impl Iterator<Item = FragToken>) -> Result<usize, Error> {
        let freed = self.give_back(tokens);
        let count = match &freed {
            Ok(freed) => freed.freed,
            Err(error) => error.freed.freed,
        };
        self.ledger.count_returned(count);
        match freed {
            // Fits: not more than the number of tokens, which are in memory.
            Ok(freed) => Ok(usize::try_from(freed.freed).unwrap_or(usize::MAX)),
            Err(error) => {
                let name = self.nic.name();
                let operation = format!("give frags back on {name}");
                let refusal = Error::of_kernel(&operation, error.errno, &error.cause);
                Err(refusal.on(name))
            }
        }
    }

    /// Returns frags that are in no batch.
    pub(super) fn give_back(
        &self,
        tokens: impl Iterator<Item = FragToken>,
    ) -> Result<Freed, DontneedError> {
        let mut returns = self.returns.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.for_each(|token| returns.push(token));
        returns.flush(self.fd())
    }

    /// Returns the number of frags returned so far.
    pub(crate) fn returned(&self) -> u64 {
        self.ledger.returned()
    }

    /// Counts frags that were lent to the program.
    pub(super) fn count_lent(&self, frags: usize) {
        if self.ledger.count_lent(frags) {
            self.nic.known().lenders.push(Arc::downgrade(&self.ledger));
        }
    }

    /// Returns the number of frags that the program has and has not returned.
    pub(super) fn outstanding(&self) -> u64 {
        self.ledger.outstanding()
    }

    /// Sends bytes of host memory; the kernel copies them.
    pub(crate) fn write(&self, bytes: &[u8], limit: WaitLimit) -> Result<usize, Error> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let deadline = Deadline::of(limit);
        loop {
            match send(&self.ledger.fd, bytes, flags) {
                Ok(taken) => return Ok(taken),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self
                    .wait(deadline, PollFlags::OUT)
                    .map_err(Error::no_room)?,
                Err(errno) => return Err(self.send_error(Errno(errno.raw_os_error()))),
            }
        }
    }

    /// Makes the socket readable when `bytes` are queued. The kernel makes it readable before, if its buffer has no room for them.
    pub(super) fn readable_from(&self, bytes: usize) {
        // The option is an int.
        let bytes = bytes.min(MOST_LOW_WATER);
        if self.low_water.swap(bytes, Ordering::Relaxed) != bytes {
            let _ = set_receive_low_water(self.fd(), bytes);
        }
    }

    /// Waits for `events`, which is the first byte for a receive. Reads completions that arrive meanwhile, because their POLLERR would end
    /// every later poll at once.
    pub(super) fn wait(&self, deadline: Deadline, events: PollFlags) -> Result<(), NotReady> {
        if events.contains(PollFlags::IN) {
            self.readable_from(1);
        }
        let got = deadline.wait(self.fd(), events)?;
        if got.contains(PollFlags::ERR) {
            // An error of the connection itself is returned by the call that follows.
            let _ = self.collect();
        }
        Ok(())
    }

    pub(super) fn send_error(&self, errno: Errno) -> Error {
        self.refused("send", Operation::Send, errno)
    }

    /// Returns the error for a refused operation, with its cause; for the end of the connection that of both backends.
    pub(super) fn refused(&self, what: &str, operation: Operation, errno: Errno) -> Error {
        refused(&self.nic, what, operation, errno)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        shutdown(&self.ledger.fd, how).map_err(|errno| {
            let errno = Errno(errno.raw_os_error());
            self.refused("shut down", Operation::Socket, errno)
        })
    }

    /// Returns the pending error of the connection and clears it.
    pub(crate) fn take_error(&self) -> io::Result<Option<Error>> {
        let pending = sockopt::socket_error(&self.ledger.fd)?.err();
        let refused = |errno: rustix::io::Errno| {
            self.refused("connection", Operation::Socket, Errno(errno.raw_os_error()))
        };
        Ok(pending.map(refused))
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        let address = getpeername(&self.ledger.fd)?.ok_or(io::ErrorKind::NotConnected)?;
        Ok(SocketAddr::try_from(address)?)
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(getsockname(&self.ledger.fd)?)?)
    }

    pub(crate) fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(&self.ledger.fd, nodelay)?)
    }

    pub(crate) fn nodelay(&self) -> io::Result<bool> {
        Ok(sockopt::tcp_nodelay(&self.ledger.fd)?)
    }

    pub(crate) fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        Ok(sockopt::set_tcp_congestion(
            &self.ledger.fd,
            congestion.name(),
        )?)
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        let fd = &self.ledger.fd;
        if let Some(Keepalive {
            idle,
            interval,
            probes,
        }) = keepalive
        {
            sockopt::set_tcp_keepidle(fd, idle)?;
            sockopt::set_tcp_keepintvl(fd, interval)?;
            sockopt::set_tcp_keepcnt(fd, probes.into())?;
        }
        Ok(sockopt::set_socket_keepalive(fd, keepalive.is_some())?)
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_linger(&self.ledger.fd, linger)?;
        let aborts = linger == Some(Duration::ZERO);
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

    /// Returns a new descriptor that has an event at every change that `signal` stands for.
    pub(crate) fn task_signal(&self, signal: TaskSignal) -> io::Result<OwnedFd> {
        match signal {
            TaskSignal::Receive => {
                self.readable_from(1);
                self.fd().try_clone_to_owned()
            }
            TaskSignal::Send => Ok(self.edges(epoll::EventFlags::OUT)?),
            TaskSignal::Complete => Ok(self.edges(epoll::EventFlags::ERR)?),
        }
    }

    /// Returns an epoll fd that becomes readable at each of `events` and at each entry of the error queue.
    ///
    /// tokio would treat an entry of the error queue of the socket itself as the permanent end of writing; the epoll fd hides
    /// it.
    fn edges(&self, events: epoll::EventFlags) -> rustix::io::Result<OwnedFd> {
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(
            &edges,
            &self.ledger.fd,
            data,
            events | epoll::EventFlags::ET,
        )?;
        Ok(edges)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn collected(&self) -> &::tokio::sync::Notify {
        &self.ledger.collected
    }

    /// Returns the descriptor to wait for, which is readable from the first byte on.
    pub(crate) fn readiness_fd(&self) -> BorrowedFd<'_> {
        self.readable_from(1);
        self.fd()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.ledger.fd.as_fd()
    }
}

/// As [`Socket::refused`], before there is a socket.
pub(super) fn refused(nic: &Nic, what: &str, operation: Operation, errno: Errno) -> Error {
    match end_of_connection(errno) {
        Some(end) => Error::ended(end),
        None => Error::of_call(nic.name(), what, operation, errno),
    }
}

/// Returns how a connection ended, if `errno` means that.
pub(super) fn end_of_connection(errno: Errno) -> Option<TcpError> {
    Some(match errno {
        Errno::ECONNREFUSED => TcpError::Refused,
        Errno::ECONNRESET => TcpError::Reset,
        Errno::EPIPE => TcpError::BrokenPipe,
        Errno::ETIMEDOUT => TcpError::TimedOut,
        Errno::EHOSTUNREACH => TcpError::HostUnreachable,
        Errno::ENETUNREACH => TcpError::NetUnreachable,
        Errno::ECONNABORTED => TcpError::Aborted,
        _ => return None,
    })
}

impl Drop for Socket {
    fn drop(&mut self) {
        // In a child of fork(2) the sends belong to the parent, and only the copy of the descriptor is closed.
        if self.nic.check().is_ok()
            && let Some(leaving) = Leaving::of(&self.ledger)
        {
            self.nic.known().leaving.push(leaving);
        }
    }
}
