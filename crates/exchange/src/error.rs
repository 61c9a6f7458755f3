//! Why an endpoint broke, and why a call was refused.

use std::error::Error;
use std::fmt;

use devmem_tcp::Stream;

use crate::limits::{MAX_NOTIFY_BYTES, MAX_PARTS};
use crate::record::{BadRecord, Failure};
use crate::ticket::BadTicket;

/// Timeouts of the retransmission timer in a row after which a peer is gone. It doubles each time, from 200 ms on a short path: 25 s.
const MAX_TIMEOUTS: u8 = 7;

/// The peer answers nothing.
#[derive(Debug, thiserror::Error)]
#[error(
    "the peer has not answered {MAX_TIMEOUTS} transmissions of the same bytes; its process, its machine or the way there is gone"
)]
struct Silent;

/// One of the connections of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamName {
    /// The connection with the records.
    Control,
    /// A connection with payload.
    Data(u16),
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("the control stream"),
            Self::Data(index) => write!(f, "data stream {index}"),
        }
    }
}

/// Why an endpoint broke. Every operation that was not done ends with it, on both sides.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The peer has closed the endpoint, or its process has ended.
    #[error("the peer closed the endpoint; operations that were not done will not be")]
    PeerClosed,
    /// A connection failed.
    #[error("{stream} failed: {source}")]
    Stream {
        /// Which one.
        stream: StreamName,
        /// What the stack or the kernel says.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A message was longer than the room that was posted for it. `is_ours`: this side sent it.
    #[error(
        "a message of {sent} bytes with the tag {tag} met a receive of {posted} bytes; {}\n  \
         the two sides disagree on the length: with NCCL, check that all ranks pass the same counts and have the same \
         NCCL_PROTO and NCCL_ALGO",
        if *.is_ours { "this side sent it" } else { "the peer sent it" }
    )]
    TooLong {
        /// Bytes of the message.
        sent: u64,
        /// Bytes of room.
        posted: u64,
        /// The tag of both.
        tag: u32,
        /// This side sent the message.
        is_ours: bool,
    },
    /// The peer sent what the protocol does not allow.
    #[error("the peer broke the protocol: {0}\n  use the same release on both sides")]
    Protocol(Violation),
    /// The peer broke the endpoint, and said so.
    #[error("the peer broke the endpoint: {}", failure_text(.0))]
    PeerFailed(Failure),
    /// Host memory was taken away while an operation used it.
    #[error("the memory of an operation was taken away before the operation was done")]
    MemoryGone,
    /// Received bytes could not be copied to their place, or bytes to send could not be read.
    #[error("cannot copy between the memory of the NIC and of an operation: {0}")]
    Copy(Box<dyn Error + Send + Sync>),
}

fn failure_text(failure: &Failure) -> &'static str {
    match failure {
        Failure::TooLong { .. } => "a message was longer than its receive",
        Failure::Protocol => {
            "it says that this side broke the protocol; use the same release on both sides"
        }
        Failure::Region => "a put or get named a region or range that it has not published",
        Failure::Other => "one of its connections or memories failed; its own message says which",
    }
}

/// What the peer did that the protocol does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Bytes that are no record.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A record that belongs to the beginning, or not to it.
    #[error("a record came at the wrong time")]
    Order,
    /// A chunk for a receive that does not exist.
    #[error("a chunk for a receive that was not posted")]
    UnknownReceive,
    /// A chunk that does not follow the one before, or has a wrong length.
    #[error("a chunk does not continue its message")]
    Chunk,
    /// A chunk on a stream that does not exist.
    #[error("a chunk on a stream that does not exist")]
    UnknownStream,
    /// More posted parts than a side may have.
    #[error("more receives were posted than allowed")]
    TooManyPosted,
    /// A put or get outside of a published region, or of one that does not permit it.
    #[error("a put or get named a region or range that is not published for it")]
    Region,
}

impl Cause {
    /// Returns what the peer is told.
    pub(crate) fn to_failure(&self) -> Option<Failure> {
        Some(match self {
            Self::PeerClosed | Self::PeerFailed(_) => return None,
            Self::TooLong {
                sent, posted, tag, ..
            } => Failure::TooLong {
                sent: *sent,
                posted: *posted,
                tag: *tag,
            },
            Self::Protocol(Violation::Region) => Failure::Region,
            Self::Protocol(_) => Failure::Protocol,
            Self::Stream { .. } | Self::MemoryGone | Self::Copy(_) => Failure::Other,
        })
    }

    /// Returns the cause for what the peer tells.
    pub(crate) fn of_failure(failure: Failure) -> Self {
        match failure {
            Failure::TooLong { sent, posted, tag } => Self::TooLong {
                sent,
                posted,
                tag,
                is_ours: true,
            },
            failure => Self::PeerFailed(failure),
        }
    }

    /// Returns the cause if the peer of `stream` does not answer. A window of zero is an answer.
    pub(crate) fn of_silence(stream: &Stream, name: StreamName) -> Option<Self> {
        let info = stream.tcp_info()?;
        (info.retransmits >= MAX_TIMEOUTS).then(|| Self::of_stream(name, Silent))
    }

    pub(crate) fn of_stream(
        stream: StreamName,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Stream {
            stream,
            source: source.into(),
        }
    }
}

impl From<Violation> for Cause {
    fn from(violation: Violation) -> Self {
        Self::Protocol(violation)
    }
}

impl From<BadRecord> for Cause {
    fn from(bad: BadRecord) -> Self {
        Self::Protocol(bad.into())
    }
}

/// Why a fabric could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The NIC has no address to listen on.
    #[error("the NIC has no IP address\n  add one: ip address add ADDRESS/LENGTH dev INTERFACE")]
    NoAddress,
    /// An option has an impossible value.
    #[error("{0}")]
    Options(&'static str),
    /// Cannot listen, or the queues or the memory for the pool are refused.
    #[error(transparent)]
    Nic(#[from] devmem_tcp::Error),
    /// The pool could not be bound.
    #[error(transparent)]
    Bind(#[from] devmem_tcp::BindError),
    /// A system call failed.
    #[error("{what} failed: {source}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

/// Why no endpoint could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The bytes are no ticket.
    #[error(transparent)]
    Ticket(#[from] BadTicket),
    /// A connection could not be established.
    #[error("cannot connect {stream}: {source}")]
    Connect {
        /// Which one.
        stream: StreamName,
        /// Why.
        source: devmem_tcp::Error,
    },
    /// The other side broke the connection before the endpoint was ready.
    #[error(
        "the listener closed the connection before the endpoint was ready: {0}\n  the process that made the ticket may have ended, or it speaks another version"
    )]
    Refused(Cause),
    /// The listening sockets of the fabric failed.
    #[error("cannot accept connections: {0}")]
    Accept(#[from] devmem_tcp::Error),
}

/// Why memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The range is not inside of the memory.
    #[error("bytes {offset} to {end} are outside of the memory, which has {size} bytes")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// First byte after the range.
        end: usize,
        /// Bytes of the memory.
        size: usize,
    },
    /// The descriptor is no dma-buf that the CPU can map.
    #[error(transparent)]
    Import(#[from] devmem_tcp::Error),
    /// A system call failed.
    #[error("{what} failed: {source}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

/// A region that operations still use.
#[derive(Debug, thiserror::Error)]
#[error(
    "{operations} operations still use the region\n  wait for their events, or close the endpoint"
)]
pub struct RegionInUse {
    pub(crate) operations: usize,
}

/// Why a region was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The region permits nothing.
    #[error(
        "the region permits neither puts nor gets; register the memory with `Access::PUBLIC`, or with one of the two"
    )]
    Private,
    /// The region belongs to another fabric.
    #[error(
        "the region belongs to another fabric; register the memory with the fabric of the endpoint"
    )]
    OtherFabric,
    /// The system has no random numbers.
    #[error("getrandom failed: {0}")]
    System(std::io::Error),
}

/// Why an operation was not taken. The state has not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// Too many operations are in flight: try again after an event.
    #[error("too many operations are in flight; make progress and try again")]
    Full,
    /// The range is not inside of the region.
    #[error("bytes {offset} to {end} are outside of the region, which has {size} bytes")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// First byte after the range.
        end: usize,
        /// Bytes of the region.
        size: usize,
    },
    /// A receive has no part, or more than [`MAX_PARTS`].
    #[error("a receive has {parts} parts; it needs 1 to {MAX_PARTS}")]
    Parts {
        /// Parts of the receive.
        parts: usize,
    },
    /// A notification is longer than [`MAX_NOTIFY_BYTES`].
    #[error("a notification of {bytes} bytes is longer than {MAX_NOTIFY_BYTES}")]
    NotifyTooLong {
        /// Bytes of the notification.
        bytes: usize,
    },
    /// The region belongs to another fabric.
    #[error(
        "the region belongs to another fabric; register the memory with the fabric of the endpoint"
    )]
    OtherFabric,
}
