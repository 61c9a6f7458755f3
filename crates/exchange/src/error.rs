//! Why an endpoint broke, and why a call was refused. `Display` writes the reason; the remedy is a value of its own.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use devmem_tcp::Stream;

use crate::limits::{MAX_NOTIFY_BYTES, MAX_PARTS};
use crate::record::{BadRecord, Failure};
use crate::remedy::Remedy;
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
    #[error("{stream} failed: {error}")]
    Stream {
        /// Which one.
        stream: StreamName,
        /// What the stack or the kernel says.
        error: devmem_tcp::Error,
    },
    /// A message was longer than the room that was posted for it. `is_ours`: this side sent it.
    #[error(
        "a message of {sent} bytes with the tag {tag} met a receive of {posted} bytes; {}",
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
    #[error("the peer broke the protocol: {0}")]
    Protocol(Violation),
    /// The peer broke the endpoint, and said so.
    #[error("the peer broke the endpoint: {}", failure_text(.0))]
    PeerFailed(Failure),
    /// Host memory was taken away while an operation used it.
    #[error("the memory of an operation was taken away before the operation was done")]
    MemoryGone,
    /// Received bytes could not be copied to their place, or bytes to send could not be read.
    #[error("cannot copy between the memory of the NIC and of an operation: {0}")]
    Copy(devmem_tcp::Error),
}

fn failure_text(failure: &Failure) -> &'static str {
    match failure {
        Failure::TooLong { .. } => "a message was longer than its receive",
        Failure::Protocol => "it says that this side broke the protocol",
        Failure::Region => "a put or get named a region or range that it has not published",
        Failure::Other => "one of its connections or memories failed",
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

/// What to do about a peer that speaks another version of the protocol.
pub(crate) const SAME_RELEASE: &str = "use the same release on both sides";
/// What to do about a region of another fabric.
const OWN_FABRIC: &str = "register the memory with the fabric of the endpoint";

impl Cause {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::TooLong { .. } | Self::PeerFailed(Failure::TooLong { .. }) => Remedy::SameLength,
            Self::Protocol(_) | Self::PeerFailed(Failure::Protocol) => SAME_RELEASE.into(),
            Self::PeerFailed(Failure::Other) => {
                "the error on the side of the peer says which".into()
            }
            Self::Stream { error, .. } | Self::Copy(error) => {
                return error.remedy().map(Remedy::Library);
            }
            Self::PeerClosed | Self::PeerFailed(Failure::Region) | Self::MemoryGone => return None,
        })
    }

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
        let silent = || io::Error::new(io::ErrorKind::TimedOut, Silent);
        (info.retransmits >= MAX_TIMEOUTS).then(|| Self::of_stream(name, silent()))
    }

    /// Received bytes are not where they were announced.
    pub(crate) fn misplaced(text: &'static str) -> Self {
        Self::Copy(io::Error::other(text).into())
    }

    pub(crate) fn of_stream(stream: StreamName, error: impl Into<devmem_tcp::Error>) -> Self {
        Self::Stream {
            stream,
            error: error.into(),
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
    #[error("the NIC has no IP address")]
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
    #[error("{what} failed: {error}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        error: std::io::Error,
    },
}

impl FabricError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoAddress => Some("add one: ip address add ADDRESS/LENGTH dev INTERFACE".into()),
            Self::Nic(error) => error.remedy().map(Remedy::Library),
            Self::Bind(error) => error.remedy().map(Remedy::Library),
            Self::Options(_) | Self::System { .. } => None,
        }
    }
}

/// Why no endpoint could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The bytes are no ticket.
    #[error(transparent)]
    Ticket(#[from] BadTicket),
    /// A connection could not be established.
    #[error("cannot connect {stream}: {error}")]
    Connect {
        /// Which one.
        stream: StreamName,
        /// Why.
        error: devmem_tcp::Error,
    },
    /// The other side broke the connection before the endpoint was ready.
    #[error("the listener closed the connection before the endpoint was ready: {0}")]
    Refused(Cause),
    /// The listening sockets of the fabric failed.
    #[error("cannot accept connections: {0}")]
    Accept(devmem_tcp::Error),
}

impl ConnectError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Ticket(bad) => Some(bad.remedy()),
            Self::Connect { error, .. } | Self::Accept(error) => {
                error.remedy().map(Remedy::Library)
            }
            Self::Refused(_) => Some(
                "the process that made the ticket may have ended, or it speaks another version"
                    .into(),
            ),
        }
    }
}

impl From<devmem_tcp::Error> for ConnectError {
    fn from(error: devmem_tcp::Error) -> Self {
        Self::Accept(error)
    }
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
    #[error("{what} failed: {error}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        error: std::io::Error,
    },
}

impl RegisterError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Import(error) => error.remedy().map(Remedy::Library),
            Self::OutOfBounds { .. } | Self::System { .. } => None,
        }
    }
}

/// A region that operations still use.
#[derive(Debug, thiserror::Error)]
#[error("{operations} operations still use the region")]
pub struct RegionInUse {
    pub(crate) operations: usize,
}

impl RegionInUse {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        Some("wait for their events, or close the endpoint".into())
    }
}

/// Why a region was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The region permits nothing.
    #[error("the region permits neither puts nor gets")]
    Private,
    /// The region belongs to another fabric.
    #[error("the region belongs to another fabric")]
    OtherFabric,
    /// The system has no random numbers.
    #[error("getrandom failed: {0}")]
    System(std::io::Error),
}

impl PublishError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Private => Some(Remedy::PermitAccess),
            Self::OtherFabric => Some(OWN_FABRIC.into()),
            Self::System(_) => None,
        }
    }
}

/// Why an operation was not taken. The state has not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// Too many operations are in flight: try again after an event.
    #[error("too many operations are in flight")]
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
    #[error("the region belongs to another fabric")]
    OtherFabric,
}

impl PostError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Full => Some("make progress and try again".into()),
            Self::OtherFabric => Some(OWN_FABRIC.into()),
            Self::OutOfBounds { .. } | Self::Parts { .. } | Self::NotifyTooLong { .. } => None,
        }
    }
}

/// Returns the reason of an error of this crate in one line, and what helps, for an interface that has its own words for remedies; `None`
/// for other errors. It does not look at sources.
pub fn explain(error: &(dyn Error + 'static)) -> Option<(String, Option<Remedy>)> {
    macro_rules! first_of {
        ($($kind:ty),* $(,)?) => {$(
            if let Some(error) = error.downcast_ref::<$kind>() {
                return Some((error.to_string(), error.remedy()));
            }
        )*};
    }
    first_of!(
        Cause,
        // As an endpoint returns it.
        Arc<Cause>,
        FabricError,
        ConnectError,
        RegisterError,
        RegionInUse,
        PublishError,
        PostError,
    );
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_interface() -> devmem_tcp::Error {
        devmem_tcp::Netdev::kernel("nosuch0").unwrap_err()
    }

    #[test]
    fn a_text_is_the_reason_and_the_remedy_is_a_value() {
        let too_long = || Cause::TooLong {
            sent: 2,
            posted: 1,
            tag: 0,
            is_ours: true,
        };
        let library = || no_interface().remedy().map(Remedy::Library);
        assert!(library().is_some());
        let stream = StreamName::Control;
        let own_fabric = Some(OWN_FABRIC.into());
        let of_causes: [(Cause, Option<Remedy>); 5] = [
            (too_long(), Some(Remedy::SameLength)),
            (Violation::Order.into(), Some(SAME_RELEASE.into())),
            (
                Cause::PeerFailed(Failure::Protocol),
                Some(SAME_RELEASE.into()),
            ),
            (Cause::of_stream(stream, no_interface()), library()),
            (Cause::Copy(no_interface()), library()),
        ];
        for (cause, remedy) in of_causes {
            check(&cause, remedy.as_ref());
            check(&Arc::new(cause), remedy.as_ref());
        }
        let error = no_interface();
        check(&ConnectError::Connect { stream, error }, library().as_ref());
        check(&ConnectError::Accept(no_interface()), library().as_ref());
        check(
            &ConnectError::Ticket(BadTicket::Magic),
            Some(&Remedy::WholeTicket),
        );
        check(&FabricError::Nic(no_interface()), library().as_ref());
        check(&RegisterError::Import(no_interface()), library().as_ref());
        check(&PublishError::Private, Some(&Remedy::PermitAccess));
        check(&PublishError::OtherFabric, own_fabric.as_ref());
        check(&PostError::OtherFabric, own_fabric.as_ref());
        for error in [
            &FabricError::NoAddress as &(dyn Error + 'static),
            &ConnectError::Refused(too_long()),
            &RegionInUse { operations: 1 },
            &PostError::Full,
        ] {
            let (_, remedy) = explain(error).unwrap();
            check(error, Some(&remedy.unwrap()));
        }
    }

    /// Checks that the text of an error has no remedy in it, that it has this one, and one line.
    #[track_caller]
    fn check(error: &(dyn Error + 'static), remedy: Option<&Remedy>) {
        let (reason, found) = explain(error).unwrap();
        assert_eq!(found.as_ref(), remedy, "{error}");
        assert_eq!(reason, error.to_string());
        assert_eq!(reason.lines().count(), 1, "{reason}");
        let words = remedy.map(Remedy::to_string).unwrap_or_default();
        assert!(!reason.contains(&words), "{reason}");
    }
}
