//! Waiting for one of several streams, for programs that never wait in a call of one stream.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use stack::{Readiness, SocketId, Stack};

use crate::driver::{NotReady, Wait, WaitLimit, clear, set};
use crate::kernel;
use crate::netdev::{Backend, Netdev, UserNic};
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
    User(SocketId),
    Kernel(Weak<kernel::Socket>),
}

impl Stream {
    /// Names this stream to a [`Poller`] of the same NIC.
    pub fn watch(&self, interest: Interest) -> Watch {
        let on = match self.socket() {
            Socket::User(inner) => Watched::User(inner.socket),
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
    /// Returns a poller for streams of `nic`.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn new(nic: &Netdev) -> io::Result<Self> {
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
    /// The NIC belongs to another process; poll(2) failed.
    pub fn wait(&self, watches: &[Watch], at_most: Duration) -> io::Result<bool> {
        match &self.nic.backend {
            Backend::User(nic) => self.wait_in_user_space(nic, watches, at_most),
            Backend::Kernel(_) => self.poll(watches, at_most),
        }
    }

    /// Ends the [`wait`](Self::wait) of another thread, or the next one if no thread waits.
    pub fn wake(&self) {
        match &self.nic.backend {
            Backend::User(nic) => {
                self.is_woken.store(true, Ordering::Release);
                nic.shared.driver.wake_any(nic.at);
            }
            Backend::Kernel(_) => set(self.wake.as_fd()),
        }
    }

    fn wait_in_user_space(
        &self,
        nic: &UserNic,
        watches: &[Watch],
        at_most: Duration,
    ) -> io::Result<bool> {
        let is_ready = |stack: &Stack| {
            watches.iter().any(|watch| match &watch.on {
                Watched::User(socket) => stack
                    .readiness(*socket)
                    .map_or(true, |ready| ready.intersects(watch.interest.readiness())),
                Watched::Kernel(_) => false,
            })
        };
        let wait = Wait {
            stack: nic.at,
            socket: None,
            limit: WaitLimit::For(at_most),
        };
        let waited = nic.shared.driver.wait_for(wait, |stack, _| {
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
