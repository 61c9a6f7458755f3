//! Waiting for one of several streams, for programs that never wait in a call of one stream.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use devmem_uapi::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use stack::{Readiness, SocketId, Stack};
use steer::ShardId;

use crate::driver::{NotReady, Wait, WaitLimit, clear, set};
use crate::error::{ErrorKind, Refusal};
use crate::kernel;
use crate::netdev::{Backend, Netdev};
use crate::shards::UserShard;
use crate::signals::TaskSignal;
use crate::socket::Socket;
use crate::stream::Stream;

/// What to wait for on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// A receive returns data, the end of the stream, or an error.
    Receive,
    /// A send queues at least one byte, or fails.
    Send,
    /// A send is complete, or its connection has failed.
    Complete,
}

impl Interest {
    const fn readiness(self) -> Readiness {
        match self {
            Self::Receive => TaskSignal::Receive,
            Self::Send => TaskSignal::Send,
            Self::Complete => TaskSignal::Complete,
        }
        .interest()
    }

    /// poll(2) reports POLLERR, which completions set, without being asked for it.
    const fn poll_flags(self) -> PollFlags {
        match self {
            Self::Receive => PollFlags::IN,
            Self::Send => PollFlags::OUT,
            Self::Complete => PollFlags::empty(),
        }
    }
}

/// One thing that a [`Poller`] waits for, from [`Stream::watch`]. It does not keep the connection open.
#[derive(Clone, Debug)]
pub struct Watch {
    on: Watched,
    interest: Interest,
}

#[derive(Clone, Debug)]
enum Watched {
    User(ShardId, SocketId),
    Kernel(Weak<kernel::Socket>),
}

impl Stream {
    /// Names this stream to a [`Poller`] of the same NIC, or of its shard.
    pub fn watch(&self, interest: Interest) -> Watch {
        let on = match self.socket() {
            Socket::User(inner) => Watched::User(inner.shared.number, inner.socket),
            Socket::Kernel(socket) => Watched::Kernel(Arc::downgrade(socket)),
        };
        Watch { on, interest }
    }
}

/// Waits for one of several streams of a NIC. The waiting thread polls a user-space NIC itself, as in a blocking call, so that
/// received data is not passed between threads.
///
/// ```
/// use devmem_tcp::{Interest, Netdev, Poller};
/// use std::io::Write;
/// use std::time::Duration;
///
/// let a = Netdev::user("mem:poller", "10.77.0.1/24")?;
/// let b = Netdev::user("mem:poller", "10.77.0.2/24")?;
/// let listener = b.listen("10.77.0.2:5201")?;
/// let mut streams = [a.connect("10.77.0.2:5201")?, a.connect("10.77.0.2:5201")?];
/// let (accepted, _) = listener.accept()?;
/// let poller = Poller::new(&b)?;
/// let watch = [accepted.watch(Interest::Receive)];
/// assert!(!poller.wait(&watch, Duration::ZERO)?);
/// streams[0].write_all(b"to the first connection")?;
/// assert!(poller.wait(&watch, Duration::from_secs(10))?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Poller {
    nic: Netdev,
    /// [`wake`](Self::wake) was called, of a user-space NIC.
    is_woken: AtomicBool,
    /// The same of a NIC of the kernel, for poll(2).
    wake: OwnedFd,
}

impl Poller {
    /// Returns a poller for streams of `nic`, which has one shard: make one for each of [`Netdev::shards`].
    ///
    /// # Errors
    /// The NIC has several shards; the process has no free file descriptor.
    pub fn new(nic: &Netdev) -> io::Result<Self> {
        if let Backend::User(user) = &nic.backend
            && user.shards().len() > 1
        {
            let refusal = Refusal::new(
                ErrorKind::InvalidInput,
                Errno::EINVAL,
                "a poller waits for streams of one shard, and this NIC has several",
            );
            return Err(refusal
                .with_remedy("make a poller for each NIC that `Netdev::shards` returns")
                .into());
        }
        Ok(Self {
            nic: nic.clone(),
            is_woken: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    /// Waits until one of `watches` is ready or [`wake`](Self::wake) is called, for at most `at_most`. Returns whether that happened
    /// in time. A stream that was closed is ready.
    ///
    /// # Errors
    /// The NIC belongs to another process; a stream is on another shard of the NIC; poll(2) failed.
    pub fn wait(&self, watches: &[Watch], at_most: Duration) -> io::Result<bool> {
        match &self.nic.backend {
            Backend::User(nic) => self.wait_on_shard(nic.first(), watches, at_most),
            Backend::Kernel(_) => self.poll(watches, at_most),
        }
    }

    /// Ends the [`wait`](Self::wait) of another thread, or the next one if no thread waits.
    pub fn wake(&self) {
        match &self.nic.backend {
            Backend::User(nic) => {
                self.is_woken.store(true, Ordering::Release);
                let shard = nic.first();
                shard.shared.driver.wake_any(shard.at);
            }
            Backend::Kernel(_) => set(self.wake.as_fd()),
        }
    }

    fn wait_on_shard(
        &self,
        shard: &UserShard,
        watches: &[Watch],
        at_most: Duration,
    ) -> io::Result<bool> {
        let number = shard.shared.number;
        let is_elsewhere = |watch: &Watch| matches!(watch.on, Watched::User(of, _) if of != number);
        if watches.iter().any(is_elsewhere) {
            let refusal = Refusal::new(
                ErrorKind::InvalidInput,
                Errno::EINVAL,
                "a watched stream is on another shard than the poller",
            );
            return Err(refusal
                .with_remedy("watch it with a poller of its shard, which `Stream::shard` returns")
                .into());
        }
        let is_ready = |stack: &Stack| {
            watches.iter().any(|watch| match &watch.on {
                Watched::User(_, socket) => stack
                    .readiness(*socket)
                    .map_or(true, |ready| ready.intersects(watch.interest.readiness())),
                Watched::Kernel(_) => false,
            })
        };
        let wait = Wait {
            stack: shard.at,
            socket: None,
            limit: WaitLimit::For(at_most),
        };
        let waited = shard.shared.driver.wait_for(wait, |stack, _| {
            (is_ready(stack) || self.is_woken.swap(false, Ordering::Acquire)).then_some(())
        });
        match waited {
            Ok(()) => Ok(true),
            Err(NotReady::TimedOut | NotReady::WouldBlock) => Ok(false),
            Err(NotReady::Forked(forked)) => Err(forked.into()),
        }
    }

    fn poll(&self, watches: &[Watch], at_most: Duration) -> io::Result<bool> {
        let mut sockets = Vec::with_capacity(watches.len());
        for watch in watches {
            let Watched::Kernel(socket) = &watch.on else {
                continue;
            };
            match socket.upgrade() {
                Some(socket) => sockets.push((socket, watch.interest)),
                None => return Ok(true),
            }
        }
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        for (socket, interest) in &sockets {
            let fd = socket.readiness_fd()?;
            fds.push(PollFd::from_borrowed_fd(fd, interest.poll_flags()));
        }
        let ready = kernel::poll_for(&mut fds, at_most)?;
        if !fds[0].revents().is_empty() {
            clear(self.wake.as_fd());
        }
        Ok(ready > 0)
    }
}
