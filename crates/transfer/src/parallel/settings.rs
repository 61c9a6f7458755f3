//! The settings of a load or a store.

use std::time::Duration;

use super::Window;

/// Most connections: a server counts them, and each takes its share of the bound memory.
const MAX_CONNECTIONS: usize = 1024;
/// Connections if no number is set.
const CONNECTIONS: usize = 4;
/// Connections on which the files of a checkpoint are opened, if no number is set: a short request and a round trip for each file.
const OPENINGS: usize = 16;
/// Smallest piece: a request for less costs more than its bytes.
const MIN_PIECE_BYTES: u64 = 4 << 10;

/// How pieces are requested, and when connections are given up.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `None`: the usual number.
    connections: Option<usize>,
    /// `None`: as many as the kind of server needs.
    piece_bytes: Option<u64>,
    /// Requests in flight on one connection; `None`: as many as ask for enough bytes.
    window: Option<usize>,
    idle_limit: Duration,
    attempts: u32,
}

impl Settings {
    /// Returns settings with the usual number of connections, and as many requests in flight as ask for enough bytes.
    pub(crate) fn new() -> Self {
        Self {
            connections: None,
            piece_bytes: None,
            window: None,
            idle_limit: Duration::from_secs(30),
            attempts: 8,
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.unwrap_or(CONNECTIONS)
    }

    /// Returns how many files are opened at the same time.
    pub(crate) fn openings(&self) -> usize {
        self.connections.unwrap_or(OPENINGS)
    }

    /// Returns the length of a piece: `usual` if none is set.
    pub(crate) fn piece_bytes(&self, usual: u64) -> u64 {
        self.piece_bytes.unwrap_or(usual)
    }

    /// Returns the limits of the requests in flight on one connection: `usual` if no number is set.
    pub(crate) fn window(&self, usual: Window) -> Window {
        self.window.map_or(usual, Window::of)
    }

    pub(crate) fn idle_limit(&self) -> Duration {
        self.idle_limit
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(crate) fn set_connections(&mut self, connections: usize) {
        self.connections = Some(connections.clamp(1, MAX_CONNECTIONS));
    }

    pub(crate) fn set_piece_bytes(&mut self, bytes: u64) {
        self.piece_bytes = Some(bytes.max(MIN_PIECE_BYTES));
    }

    pub(crate) fn set_window(&mut self, requests: usize) {
        self.window = Some(requests.max(1));
    }

    pub(crate) fn set_idle_limit(&mut self, limit: Duration) {
        self.idle_limit = limit;
    }

    pub(crate) fn set_attempts(&mut self, attempts: u32) {
        self.attempts = attempts.max(1);
    }
}

/// Gives a type with a field `settings` the methods that change them.
macro_rules! settable {
    ($Type:ty) => {
        impl $Type {
            /// Sets the number of connections, from 1 to 1024; by default 4, and 16 while the files of a checkpoint are opened. A load uses fewer while more are not faster. There is only one to an HTTP server that serves no ranges, or to
            /// an NBD server that does not promise that all connections see the same data, and no more than an NVMe controller
            /// grants I/O queues.
            #[must_use]
            pub fn connections(mut self, connections: usize) -> Self {
                self.settings.set_connections(connections);
                self
            }

            /// Sets the length of a piece, at least 4 KiB: the bytes of one request. If their connection breaks, those that are missing are requested
            /// again. It is rounded up to the block of an NBD server, and down to its longest payload.
            #[must_use]
            pub fn piece_bytes(mut self, bytes: u64) -> Self {
                self.settings.set_piece_bytes(bytes);
                self
            }

            /// Sets the time in which each connection must move 4 KiB of payload, or what is left of a request, to count as one
            /// that works; 30 s by default. Only payload counts: a server that sends heads, informational responses, trailers or
            /// empty chunks without an end is given up, and one that sends a byte now and then. The answer to the request that
            /// opens a file of a checkpoint must come in that time, and a flush of an NBD server must be done.
            #[must_use]
            pub fn idle_limit(mut self, limit: std::time::Duration) -> Self {
                self.settings.set_idle_limit(limit);
                self
            }

            /// Sets how often a connection may fail in a row, without progress, before the transfer fails; 8 by default.
            /// Between the attempts it waits, up to 5 s each time.
            #[must_use]
            pub fn attempts(mut self, attempts: u32) -> Self {
                self.settings.set_attempts(attempts);
                self
            }
        }
    };
}

pub(crate) use settable;
