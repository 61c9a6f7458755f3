//! Limits of a wait, and how it ends.

use std::time::Duration;

use wire::Instant;

use crate::calls::Awaited;

/// Longest single sleep: bounds the delay of a missed wake-up.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// What a call waits for, its limit, and what its thread does when a poll finds nothing.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// A change of it is an attempt.
    pub awaits: Awaited,
    /// How long the call may wait.
    pub limit: WaitLimit,
    /// What the thread does.
    pub idling: Idling,
}

/// What a thread does when a poll finds nothing, before it sleeps on the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idling {
    /// Polls again and again, as long as that finds work often enough.
    Spin,
    /// Sleeps for this long once per call, and polls then: packets that arrive meanwhile are received together.
    Rest(Duration),
}

impl Idling {
    /// Returns how long to rest.
    pub(crate) fn rest(self) -> Option<Duration> {
        match self {
            Self::Spin => None,
            Self::Rest(rest) => Some(rest),
        }
    }
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// Does not wait: a non-blocking socket.
    Never,
    /// Waits until the socket is ready.
    Forever,
    /// Waits at most this long.
    For(Duration),
}

/// Why a wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The call must not wait.
    WouldBlock,
    /// The timeout has expired.
    TimedOut,
}

impl WaitLimit {
    /// Returns the limit of a blocking or non-blocking socket.
    pub fn of_nonblocking(nonblocking: bool) -> Self {
        if nonblocking {
            Self::Never
        } else {
            Self::Forever
        }
    }

    /// Returns the limit for a timeout; `None` waits forever.
    pub fn within(timeout: Option<Duration>) -> Self {
        timeout.map_or(Self::Forever, Self::For)
    }

    /// Returns when the wait times out.
    pub fn end(self, started: Instant) -> Option<Instant> {
        match self {
            Self::For(limit) => Some(started + limit),
            Self::Never | Self::Forever => None,
        }
    }

    /// Returns how long a thread may sleep.
    pub fn left(self, started: Instant, now: Instant) -> Duration {
        match self {
            Self::For(limit) => (started + limit).saturating_since(now),
            Self::Never | Self::Forever => LONGEST_SLEEP,
        }
    }

    /// Returns why a wait that began at `started` must end now, if it must.
    pub fn over(self, started: Instant, now: Instant) -> Option<NotReady> {
        match self {
            Self::Never => Some(NotReady::WouldBlock),
            Self::Forever => None,
            Self::For(limit) if now.saturating_since(started) >= limit => Some(NotReady::TimedOut),
            Self::For(_) => None,
        }
    }
}
