//! Limits of a wait, and how it ends.

use std::time::Duration;

use stack::SocketId;
use wire::Instant;

use super::{Idling, LONGEST_SLEEP, StackIndex};
use crate::error::Forked;

/// The socket that a call waits for, and its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) stack: StackIndex,
    /// `None`: several sockets. A change of any one of the stack is an attempt.
    pub(crate) socket: Option<SocketId>,
    pub(crate) limit: WaitLimit,
    pub(crate) idling: Idling,
}

impl Wait {
    pub(super) fn awaits(self) -> Awaited {
        Awaited {
            stack: self.stack,
            socket: self.socket,
        }
    }
}

/// What a thread of the application waits for, as in [`Wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) stack: StackIndex,
    pub(crate) socket: Option<SocketId>,
}

impl Awaited {
    /// Returns whether a change of the socket `of` concerns the thread.
    pub(super) fn is(self, stack: StackIndex, of: SocketId) -> bool {
        self.stack == stack && self.socket.is_none_or(|socket| socket == of)
    }

    /// Returns whether the thread waits for several sockets of the stack.
    pub(super) fn is_any(self, stack: StackIndex) -> bool {
        self.stack == stack && self.socket.is_none()
    }
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// Does not wait: a non-blocking socket.
    Never,
    /// Waits until the socket is ready.
    Forever,
    /// Waits at most this long.
    For(Duration),
}

/// Why [`Driver::wait_for`](super::Driver::wait_for) returned without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// The socket is non-blocking.
    WouldBlock,
    /// The timeout has expired.
    TimedOut,
    /// The driver belongs to the process that this one was forked from.
    Forked(Forked),
}

impl From<Forked> for NotReady {
    fn from(forked: Forked) -> Self {
        Self::Forked(forked)
    }
}

impl WaitLimit {
    /// Returns the limit of a blocking or non-blocking socket.
    pub(crate) fn of_nonblocking(nonblocking: bool) -> Self {
        if nonblocking {
            Self::Never
        } else {
            Self::Forever
        }
    }

    /// Returns the limit for a timeout; `None` waits forever.
    pub(crate) fn within(timeout: Option<Duration>) -> Self {
        timeout.map_or(Self::Forever, Self::For)
    }

    /// Returns when the wait times out.
    pub(super) fn end(self, started: Instant) -> Option<Instant> {
        match self {
            Self::For(limit) => Some(started + limit),
            Self::Never | Self::Forever => None,
        }
    }

    /// Returns how long a thread may sleep.
    pub(crate) fn left(self, started: Instant, now: Instant) -> Duration {
        match self {
            Self::For(limit) => (started + limit).saturating_since(now),
            Self::Never | Self::Forever => LONGEST_SLEEP,
        }
    }

    pub(crate) fn over(self, started: Instant, now: Instant) -> Option<NotReady> {
        match self {
            Self::Never => Some(NotReady::WouldBlock),
            Self::Forever => None,
            Self::For(limit) if now.saturating_since(started) >= limit => Some(NotReady::TimedOut),
            Self::For(_) => None,
        }
    }
}
