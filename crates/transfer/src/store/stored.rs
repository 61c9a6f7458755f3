//! The outcome of a store.

use std::time::Duration;

/// The outcome of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Bytes that the server has acknowledged.
    pub bytes: u64,
    /// Bytes among them that were not sent, because they are zeros or discarded.
    pub unsent_bytes: u64,
    /// Time from the first connection to the last reply.
    pub elapsed: Duration,
    /// Pieces that were acknowledged.
    pub pieces: u64,
    /// Pieces that were written again, because a connection broke.
    pub repeated: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Flushes. Without one, the server may have the bytes in its memory only, unless each write was durable.
    pub flushes: u64,
    /// Zero-copy sends.
    pub sends: u64,
    /// Sends whose bytes were copied by the stack.
    pub copied_sends: u64,
}
