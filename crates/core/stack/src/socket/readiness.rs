//! Readiness of sockets, as reported by poll(2).

use tcp::StateKind;

use super::connection::{ConnectionSocket, Owner};
use super::kind::SocketKind;
use super::listener::Listener;

bitflags::bitflags! {
    /// Readiness of a socket. It is level-triggered: it stays set as long as its cause lasts.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct Readiness: u8 {
        /// A receive returns data, the end of the stream, or an error (POLLIN).
        const READABLE = 1;
        /// A send queues at least one byte, or fails (POLLOUT).
        const WRITABLE = 1 << 1;
        /// A connection is waiting to be accepted (POLLIN of a listener).
        const ACCEPTABLE = 1 << 2;
        /// The peer has ended its stream (POLLRDHUP).
        const READ_CLOSED = 1 << 3;
        /// Nothing more can be sent: the socket was shut down, or the connection has ended.
        const WRITE_CLOSED = 1 << 4;
        /// The connection has failed; the next call returns the reason (POLLERR).
        const ERROR = 1 << 5;
        /// The error queue is not empty (POLLERR).
        const ERROR_QUEUE = 1 << 6;
        /// The byte that the peer last called urgent has arrived, and was not read (POLLPRI).
        const URGENT = 1 << 7;
    }
}

impl Readiness {
    /// Nothing.
    pub const NONE: Self = Self::empty();

    /// Returns `self` if `condition` is true, else [`Readiness::NONE`].
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
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

/// A type that a `SocketMut` may give access to.
pub(crate) trait Pollable {
    /// Returns the state that a program may wait for; `None` if no program has the socket's id.
    fn snapshot(&self) -> Option<Snapshot>;
}

impl Pollable for SocketKind {
    fn snapshot(&self) -> Option<Snapshot> {
        match self {
            Self::Connection(connection) => connection.snapshot(),
            Self::Listener(listener) => listener.snapshot(),
            Self::TimeWait(_) => None,
        }
    }
}

impl Pollable for Listener {
    fn snapshot(&self) -> Option<Snapshot> {
        Some(Snapshot {
            readiness: (Readiness::ACCEPTABLE | Readiness::READABLE).when(self.is_ready()),
            arrivals: self.accepted_ever(),
            error_arrivals: 0,
        })
    }
}

impl Pollable for ConnectionSocket {
    fn snapshot(&self) -> Option<Snapshot> {
        (self.owner() == Owner::Program).then(|| Snapshot {
            readiness: of_connection(self),
            arrivals: self.delivered(),
            error_arrivals: self.writer.errors.noted(),
        })
    }
}

fn of_connection(connection: &ConnectionSocket) -> Readiness {
    let ConnectionSocket {
        conn,
        reader,
        writer,
        options,
        ..
    } = connection;
    let (settings, state) = (&options.tcp, conn.state());
    let is_over = matches!(state, StateKind::Closed | StateKind::TimeWait);
    let is_opening = matches!(state, StateKind::SynSent | StateKind::SynReceived);
    let has_error = connection.has_error();
    let peer_finished = matches!(
        state,
        StateKind::CloseWait | StateKind::Closing | StateKind::LastAck
    );
    let read_closed = is_over || peer_finished || reader.is_shut_down();
    let write_closed =
        !is_opening && !matches!(state, StateKind::Established | StateKind::CloseWait);
    let readable = conn.readable_len();
    // linux `TCP_URG_VALID`
    let until_urgent = reader.until_urgent();
    let has_urgent = until_urgent.is_some_and(|before| before < readable as u64);
    Readiness::READABLE.when(readable > 0 || read_closed || has_error)
        | Readiness::WRITABLE.when(
            !is_opening
                && conn.write_room(settings) >= options.write_low()
                && conn.has_unsent_room(2, settings)
                || write_closed
                || has_error,
        )
        | Readiness::READ_CLOSED.when(read_closed)
        | Readiness::WRITE_CLOSED.when(write_closed)
        | Readiness::ERROR.when(has_error)
        | Readiness::ERROR_QUEUE.when(writer.errors.has_entries())
        | Readiness::URGENT.when(has_urgent)
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
        assert_eq!(format!("{both:?}"), "Readiness(READABLE | ERROR)");
    }
}
