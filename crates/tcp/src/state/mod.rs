//! The states of RFC 9293 3.3.2, one type per group of states that can do the same things, and what
//! a segment or a timer asks of the caller.
//!
//! [`syn`] opens, [`established`] is the life with both halves working, [`closing`] holds the
//! transitions of the two FINs and TIME-WAIT, [`listen`] is the passive side before there is a
//! connection.

pub(crate) mod closing;
pub(crate) mod cookie;
pub(crate) mod established;
pub(crate) mod listen;
pub(crate) mod syn;

use core::fmt;

use crate::error::TcpError;
use crate::state::closing::TimeWait;
use crate::state::established::Synchronized;
use crate::state::syn::{SynReceived, SynSent};

/// What a connection is and has, by state. Most live long in `Synchronized`, so its size is no
/// waste.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "an idle connection is Synchronized; a box would only add to it"
)]
pub(crate) enum State<P> {
    Closed,
    SynSent(SynSent),
    SynReceived(SynReceived),
    /// ESTABLISHED and the six states in which one or both FINs are on their way.
    Synchronized(Synchronized<P>),
    TimeWait(TimeWait),
}

/// The name of a connection's state; `Display` spells it as RFC 9293 does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StateKind {
    /// No connection.
    #[default]
    Closed,
    /// Waits for a SYN-ACK.
    SynSent,
    /// Waits for the ACK of its SYN-ACK.
    SynReceived,
    /// Open in both directions.
    Established,
    /// Our FIN is sent or queued, not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged, the peer still sends.
    FinWait2,
    /// The peer's FIN came, we still send.
    CloseWait,
    /// Both FINs are on their way, ours is not acknowledged; we closed before the peer's came.
    Closing,
    /// As `Closing`, but the peer's FIN came first.
    LastAck,
    /// Both FINs are acknowledged; stays for the sake of late segments.
    TimeWait,
}

impl fmt::Display for StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StateKind::Closed => "CLOSED",
            StateKind::SynSent => "SYN-SENT",
            StateKind::SynReceived => "SYN-RECEIVED",
            StateKind::Established => "ESTABLISHED",
            StateKind::FinWait1 => "FIN-WAIT-1",
            StateKind::FinWait2 => "FIN-WAIT-2",
            StateKind::CloseWait => "CLOSE-WAIT",
            StateKind::Closing => "CLOSING",
            StateKind::LastAck => "LAST-ACK",
            StateKind::TimeWait => "TIME-WAIT",
        })
    }
}

/// What an event asks of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use = "readers and writers wait for what a disposition says, and a reply waits to be polled"]
pub struct Disposition {
    /// The connection has just become open: a `connect` is done, an `accept` may return it.
    pub established: bool,
    /// There are more bytes to read, or the end of the stream has come.
    pub readable: bool,
    /// There is room again in a send queue that was full.
    pub writable: bool,
    /// The connection is over, in state CLOSED; `Connection::error` says why.
    pub closed: bool,
    /// `Connection::poll_send` has something that should leave at once.
    pub reply: bool,
    /// A SYN for a new connection between the same endpoints arrived in TIME-WAIT and may have it:
    /// drop this connection and hand the segment to the listener, with an ISN after this one (RFC
    /// 9293 3.10.7.4, RFC 6191).
    pub reopen: Option<crate::seqnum::SeqNum>,
    /// Something of the segment was not used, and why: one counter each.
    pub drop: Option<SegmentDrop>,
}

impl Disposition {
    /// Returns the disposition of a segment that was dropped without an answer.
    pub(crate) fn dropped(reason: SegmentDrop) -> Disposition {
        Disposition {
            drop: Some(reason),
            ..Disposition::default()
        }
    }

    /// Returns the disposition of a segment that was dropped with an answer.
    pub(crate) fn answered(reason: SegmentDrop) -> Disposition {
        Disposition {
            drop: Some(reason),
            reply: true,
            ..Disposition::default()
        }
    }
}

/// Which way a connection goes after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Stay,
    TimeWait,
    /// Over; with the error that readers and writers see, if any.
    Closed(Option<TcpError>),
    /// Over, and the peer is told by a RST.
    Abort(Option<TcpError>),
}

/// Why a segment, or the payload of one, was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SegmentDrop {
    /// The connection is closed.
    Closed,
    /// All of it was received before.
    Duplicate,
    /// It lies outside the receive window.
    OutOfWindow,
    /// It lies beyond a window that is full or closed.
    NoSpace,
    /// The receive queue holds as many segments as one connection may have, however small.
    TooManySegments,
    /// There are as many gaps or segments out of order as one connection may have.
    ReassemblyFull,
    /// It carries bytes behind the peer's FIN.
    AfterFin,
    /// Its timestamp is older than one already seen (RFC 7323 5.3).
    Paws,
    /// It has no timestamp though both sides agreed on them (RFC 7323 3.2).
    NoTimestamp,
    /// It has no ACK flag in a state where all have.
    NoAck,
    /// It acknowledges what was never sent.
    FutureAck,
    /// It acknowledges less than any segment still on its way could (RFC 5961 5.2).
    OldAck,
    /// A SYN in a synchronized state (RFC 5961 4.2).
    UnexpectedSyn,
    /// A RST that is not exactly the next number (RFC 5961 3.2).
    InexactRst,
    /// A RST that is nowhere near the window.
    BlindRst,
    /// It called for a challenge ACK, and there were enough of them lately.
    ChallengeAckLimited,
    /// Bytes arrived for a reader that has closed; the connection was reset (RFC 9293 3.6.1, RFC
    /// 2525 2.17).
    ReaderGone,
    /// A RST in TIME-WAIT (RFC 1337).
    TimeWaitRst,
    /// A segment of a connection that is over, in TIME-WAIT.
    TimeWait,
    /// Neither SYN nor RST while a SYN waits for its answer.
    NoSyn,
    /// No connection waits for it.
    NoConnection,
    /// The accept queue is full.
    AcceptQueueFull,
    /// A SYN cookie came back wrong, or too late.
    BadCookie,
}

impl SegmentDrop {
    /// Every reason, for tables.
    pub const ALL: [SegmentDrop; 23] = [
        SegmentDrop::Closed,
        SegmentDrop::Duplicate,
        SegmentDrop::OutOfWindow,
        SegmentDrop::NoSpace,
        SegmentDrop::TooManySegments,
        SegmentDrop::ReassemblyFull,
        SegmentDrop::AfterFin,
        SegmentDrop::Paws,
        SegmentDrop::NoTimestamp,
        SegmentDrop::NoAck,
        SegmentDrop::FutureAck,
        SegmentDrop::OldAck,
        SegmentDrop::UnexpectedSyn,
        SegmentDrop::InexactRst,
        SegmentDrop::BlindRst,
        SegmentDrop::ChallengeAckLimited,
        SegmentDrop::ReaderGone,
        SegmentDrop::TimeWaitRst,
        SegmentDrop::TimeWait,
        SegmentDrop::NoSyn,
        SegmentDrop::NoConnection,
        SegmentDrop::AcceptQueueFull,
        SegmentDrop::BadCookie,
    ];

    /// Returns the reason's stable name, for counters and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SegmentDrop::Closed => "tcp_closed",
            SegmentDrop::Duplicate => "tcp_duplicate",
            SegmentDrop::OutOfWindow => "tcp_out_of_window",
            SegmentDrop::NoSpace => "tcp_no_space",
            SegmentDrop::TooManySegments => "tcp_too_many_segments",
            SegmentDrop::ReassemblyFull => "tcp_reassembly_full",
            SegmentDrop::AfterFin => "tcp_after_fin",
            SegmentDrop::Paws => "tcp_paws",
            SegmentDrop::NoTimestamp => "tcp_no_timestamp",
            SegmentDrop::NoAck => "tcp_no_ack",
            SegmentDrop::FutureAck => "tcp_future_ack",
            SegmentDrop::OldAck => "tcp_old_ack",
            SegmentDrop::UnexpectedSyn => "tcp_unexpected_syn",
            SegmentDrop::InexactRst => "tcp_inexact_rst",
            SegmentDrop::BlindRst => "tcp_blind_rst",
            SegmentDrop::ChallengeAckLimited => "tcp_challenge_ack_limited",
            SegmentDrop::ReaderGone => "tcp_reader_gone",
            SegmentDrop::TimeWaitRst => "tcp_time_wait_rst",
            SegmentDrop::TimeWait => "tcp_time_wait",
            SegmentDrop::NoSyn => "tcp_no_syn",
            SegmentDrop::NoConnection => "tcp_no_connection",
            SegmentDrop::AcceptQueueFull => "tcp_accept_queue_full",
            SegmentDrop::BadCookie => "tcp_bad_cookie",
        }
    }
}
