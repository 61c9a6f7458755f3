//! Why a call that waits has no result.

use super::Forked;

/// Why waiting ended without a result.
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

impl From<runtime::NotReady> for NotReady {
    fn from(reason: runtime::NotReady) -> Self {
        match reason {
            runtime::NotReady::WouldBlock => Self::WouldBlock,
            runtime::NotReady::TimedOut => Self::TimedOut,
        }
    }
}
