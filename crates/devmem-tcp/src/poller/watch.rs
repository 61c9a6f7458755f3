//! What a [`Poller`](super::Poller) waits for.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use rustix::event::PollFlags;
use stack::{Readiness, SocketId, Stack};

use crate::driver::StackIndex;
use crate::kernel;
use crate::listener::{ListenSocket, Listener};
use crate::shards::Shared;
use crate::signals::TaskSignal;
use crate::socket::{Inner, Socket};
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

/// One thing that a [`Poller`](super::Poller) waits for, from [`Stream::watch`] or [`Listener::watch`]. It does not keep the
/// connection open.
#[derive(Clone, Debug)]
pub struct Watch {
    on: Watched,
}

#[derive(Clone, Debug)]
enum Watched {
    User(UserWatch),
    /// The sockets of a listener, one for each shard.
    UserListener(Vec<UserWatch>),
    Kernel(KernelWatch),
}

/// Which stack of which driver, in this process. It does not keep the stack open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StackIdentity {
    /// The address of the state that the sockets of the stack share.
    shared: usize,
    at: StackIndex,
}

impl StackIdentity {
    pub(super) fn of(shared: &Arc<Shared>, at: StackIndex) -> Self {
        Self {
            shared: Arc::as_ptr(shared).addr(),
            at,
        }
    }
}

/// A socket of a user-space NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserWatch {
    stack: StackIdentity,
    pub(super) socket: SocketId,
    pub(super) interest: Readiness,
}

impl UserWatch {
    /// Returns whether the wait is over; a socket that was closed is ready.
    pub(super) fn is_ready(&self, stack: &Stack) -> bool {
        stack
            .readiness(self.socket)
            .map_or(true, |ready| ready.intersects(self.interest))
    }
}

/// A socket of the kernel.
#[derive(Clone, Debug)]
pub(super) struct KernelWatch {
    socket: KernelSocket,
    pub(super) events: PollFlags,
}

#[derive(Clone, Debug)]
enum KernelSocket {
    Connection(Weak<kernel::Socket>),
    Listener(Weak<kernel::Listening>),
}

/// A socket of the kernel that is kept open for a wait.
pub(super) enum OpenSocket {
    Connection(Arc<kernel::Socket>),
    Listener(Arc<kernel::Listening>),
}

impl KernelWatch {
    /// Returns the socket, unless it was closed.
    pub(super) fn open(&self) -> Option<OpenSocket> {
        match &self.socket {
            KernelSocket::Connection(socket) => socket.upgrade().map(OpenSocket::Connection),
            KernelSocket::Listener(socket) => socket.upgrade().map(OpenSocket::Listener),
        }
    }
}

impl AsFd for OpenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connection(socket) => socket.fd(),
            Self::Listener(listening) => listening.fd(),
        }
    }
}

impl Watch {
    /// Returns the socket on `stack`; `None` if it is on another shard, of another NIC, or of the kernel.
    pub(super) fn on_stack(&self, stack: StackIdentity) -> Option<UserWatch> {
        match &self.on {
            Watched::User(watch) => Some(*watch).filter(|watch| watch.stack == stack),
            Watched::UserListener(watches) => {
                watches.iter().find(|watch| watch.stack == stack).copied()
            }
            Watched::Kernel(_) => None,
        }
    }

    /// Returns the socket of a NIC of the kernel.
    pub(super) fn of_kernel(&self) -> Option<&KernelWatch> {
        match &self.on {
            Watched::Kernel(watch) => Some(watch),
            Watched::User(_) | Watched::UserListener(_) => None,
        }
    }
}

impl Stream {
    /// Names this stream to a [`Poller`](crate::Poller) of the same NIC, or of its shard.
    pub fn watch(&self, interest: Interest) -> Watch {
        let on = match self.socket() {
            Socket::User(inner) => Watched::User(UserWatch {
                stack: StackIdentity::of(&inner.shared, inner.at),
                socket: inner.socket,
                interest: interest.readiness(),
            }),
            Socket::Kernel(socket) => Watched::Kernel(KernelWatch {
                socket: KernelSocket::Connection(Arc::downgrade(socket)),
                events: interest.poll_flags(),
            }),
        };
        Watch { on }
    }
}

impl Listener {
    /// Names this listener to a [`Poller`](crate::Poller) of the same NIC, which waits for a connection to accept. A poller of one
    /// shard waits for the connections of that shard.
    pub fn watch(&self) -> Watch {
        let on = match self.socket() {
            ListenSocket::User(listening) => {
                let watch = |inner: &Arc<Inner>| UserWatch {
                    stack: StackIdentity::of(&inner.shared, inner.at),
                    socket: inner.socket,
                    interest: Readiness::ACCEPTABLE.union(Readiness::ERROR),
                };
                Watched::UserListener(listening.sockets().iter().map(watch).collect())
            }
            ListenSocket::Kernel(listening) => Watched::Kernel(KernelWatch {
                socket: KernelSocket::Listener(Arc::downgrade(listening)),
                events: PollFlags::IN,
            }),
        };
        Watch { on }
    }
}
