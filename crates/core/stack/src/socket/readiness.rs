//! Readiness of sockets, as reported by poll(2).

use std::fmt;

/// Readiness of a socket. It is level-triggered: it stays set as long as its cause lasts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Readiness(u8);

impl Readiness {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// A receive returns data, the end of the stream, or an error (POLLIN).
    pub const READABLE: Self = Self(1);
    /// A send queues at least one byte, or fails (POLLOUT).
    pub const WRITABLE: Self = Self(1 << 1);
    /// A connection is waiting to be accepted (POLLIN of a listener).
    pub const ACCEPTABLE: Self = Self(1 << 2);
    /// The peer has ended its stream (POLLRDHUP).
    pub const READ_CLOSED: Self = Self(1 << 3);
    /// Nothing more can be sent: the socket was shut down, or the connection has ended.
    pub const WRITE_CLOSED: Self = Self(1 << 4);
    /// The connection has failed; the next call returns the reason (POLLERR).
    pub const ERROR: Self = Self(1 << 5);
    /// The error queue is not empty (POLLERR).
    pub const ERROR_QUEUE: Self = Self(1 << 6);
    /// The byte that the peer last called urgent has arrived, and was not read (POLLPRI).
    pub const URGENT: Self = Self(1 << 7);

    /// Returns whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any flag of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the flags of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns `self` if `condition` is true, else [`Readiness::NONE`].
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }

    /// Returns whether no flag is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOr for Readiness {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = [
            "readable",
            "writable",
            "acceptable",
            "read closed",
            "write closed",
            "error",
            "error queue",
            "urgent",
        ];
        let set = NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.debug_set().entries(set.map(|(_, name)| name)).finish()
    }
}

/// The state of a socket that programs wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) readiness: Readiness,
    /// Total number of bytes or connections received: a program that waits for edges is notified if it grows.
    pub(crate) arrivals: u64,
    /// Total number of entries of the error queue.
    pub(crate) error_arrivals: u64,
}

impl Snapshot {
    /// The state of a new socket.
    pub(crate) const NONE: Self = Self {
        readiness: Readiness::NONE,
        arrivals: 0,
        error_arrivals: 0,
    };
}

/// A type that a [`SocketMut`] may give access to.
pub(crate) trait Pollable {
    /// Returns the state that a program may wait for; `None` if no program has the socket's id.
    fn snapshot(&self) -> Option<Snapshot>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_behaves_as_a_set_and_prints_its_names() {
        let both = Readiness::READABLE | Readiness::ERROR;
        assert!(
            both.contains(Readiness::ERROR)
                && !both.contains(Readiness::WRITABLE | Readiness::ERROR)
        );
        assert!(both.intersects(Readiness::WRITABLE | Readiness::ERROR));
        assert_eq!(Readiness::WRITABLE.when(false), Readiness::NONE);
        assert_eq!(format!("{both:?}"), r#"{"readable", "error"}"#);
    }
}
