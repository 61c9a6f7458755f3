//! What a recvmsg receives into, and what it returns.

use wire::Instant;

/// Destination of the bytes of a [`recvmsg`](crate::Stack::recvmsg), and their maximum number.
#[derive(Debug)]
pub struct RecvMsg<'a> {
    pub(crate) host: &'a mut [u8],
    pub(crate) len: usize,
}

impl<'a> RecvMsg<'a> {
    /// Receives at most `host.len()` bytes. Bytes in host memory are copied to `host`.
    pub fn new(host: &'a mut [u8]) -> Self {
        let len = host.len();
        Self { host, len }
    }

    /// Receives at most `len` bytes. Bytes in host memory are copied to `host`.
    ///
    /// An empty `host` corresponds to a NULL `iov_base`, of a caller that expects device memory only.
    pub fn with_len(host: &'a mut [u8], len: usize) -> Self {
        Self { host, len }
    }
}

/// Why a [`recvmsg`](crate::Stack::recvmsg) did not return more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It returned the requested number of bytes.
    Full,
    /// No more data has arrived. Only in this case a blocking caller with MSG_WAITALL continues to wait.
    Empty,
    /// The peer sends no more; the next call returns 0.
    Eof,
    /// A border between readable and unreadable data.
    Border,
    /// The control buffer has no room for the next message.
    ControlFull,
    /// The next call returns the reason as an error.
    Refused,
    /// It read the error queue: one entry, and no bytes.
    ErrorQueue,
}

/// Result of a [`recvmsg`](crate::Stack::recvmsg).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvOutcome {
    /// Payload bytes delivered: copied, discarded, or described by control messages. 0 is the end of the stream.
    pub bytes: usize,
    /// Of those, bytes copied to the iovec.
    pub host_bytes: usize,
    /// Arrival time of the segment with the last of these bytes, if timestamps were enabled then.
    pub arrived: Option<Instant>,
    /// Why it did not return more.
    pub stopped: Stopped,
}

impl RecvOutcome {
    /// Returns the outcome of a call that delivered nothing.
    pub(crate) const fn without_bytes(stopped: Stopped) -> Self {
        Self {
            bytes: 0,
            host_bytes: 0,
            arrived: None,
            stopped,
        }
    }
}
