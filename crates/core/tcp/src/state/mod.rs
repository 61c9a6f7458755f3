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
use crate::seqnum::SeqNum;
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
pub(crate) enum ConnectionState<P> {
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
    /// Over, and the segment that came is answered by a RST of this number without ACK.
    Refuse(SeqNum),
}

/// Declares the reasons once: the enum, the list of all, and the names.
macro_rules! segment_drops {
    ($($(#[$doc:meta])+ $reason:ident => $name:literal,)+) => {
        /// Why a segment, or the payload of one, was dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum SegmentDrop {
            $($(#[$doc])+ $reason,)+
        }

        impl SegmentDrop {
            /// Every reason, in the order of their numbers, for tables.
            pub const ALL: &[SegmentDrop] = &[$(SegmentDrop::$reason),+];

            /// Returns the reason's stable name, for counters and JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(SegmentDrop::$reason => $name,)+
                }
            }
        }
    };
}

segment_drops! {
    /// The connection is closed.
    Closed => "tcp_closed",
    /// All of it was received before.
    Duplicate => "tcp_duplicate",
    /// It lies outside the receive window.
    OutOfWindow => "tcp_out_of_window",
    /// It lies beyond a window that is full or closed.
    NoSpace => "tcp_no_space",
    /// The receive queue holds as many segments as one connection may have, however small.
    TooManySegments => "tcp_too_many_segments",
    /// There are as many gaps or segments out of order as one connection may have.
    ReassemblyFull => "tcp_reassembly_full",
    /// It came ahead of its turn and was held, until the memory that it kept was needed for payload in
    /// order (linux `SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE`). One for each payload; the peer sends it again.
    OfoQueuePrune => "tcp_ofo_queue_prune",
    /// It came ahead of its turn while memory was kept for payload in order (linux `TCPOFODrop`).
    OfoNoMemory => "tcp_ofo_no_memory",
    /// It carries bytes behind the peer's FIN.
    AfterFin => "tcp_after_fin",
    /// Its timestamp is older than one already seen (RFC 7323 5.3).
    Paws => "tcp_paws",
    /// It has no ACK flag in a state where all have.
    NoAck => "tcp_no_ack",
    /// It acknowledges what was never sent.
    FutureAck => "tcp_future_ack",
    /// It acknowledges less than any segment still on its way could (RFC 5961 5.2).
    OldAck => "tcp_old_ack",
    /// A SYN in a synchronized state (RFC 5961 4.2).
    UnexpectedSyn => "tcp_unexpected_syn",
    /// A RST that is not exactly the next number (RFC 5961 3.2).
    InexactRst => "tcp_inexact_rst",
    /// A RST that is nowhere near the window.
    BlindRst => "tcp_blind_rst",
    /// It called for a challenge ACK, and there were enough of them lately.
    ChallengeAckLimited => "tcp_challenge_ack_limited",
    /// Bytes arrived for a reader that has closed; the connection was reset (RFC 9293 3.6.1, RFC
    /// 2525 2.17).
    ReaderGone => "tcp_reader_gone",
    /// A RST in TIME-WAIT (RFC 1337).
    TimeWaitRst => "tcp_time_wait_rst",
    /// A segment of a connection that is over, in TIME-WAIT.
    TimeWait => "tcp_time_wait",
    /// Neither SYN nor RST while a SYN waits for its answer.
    NoSyn => "tcp_no_syn",
    /// No connection waits for it.
    NoConnection => "tcp_no_connection",
    /// A RST that takes a handshake back, which is forgotten; counted, though nothing is wrong.
    Withdrawn => "tcp_withdrawn",
    /// The accept queue is full.
    AcceptQueueFull => "tcp_accept_queue_full",
    /// As many handshakes are under way as the listener allows, and it gives no cookies.
    SynBacklogFull => "tcp_syn_backlog_full",
    /// The listener waits for data, and the last ACK of the handshake brought none.
    AcceptDeferred => "tcp_accept_deferred",
    /// A SYN cookie came back wrong, or too late.
    BadCookie => "tcp_bad_cookie",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_drop_has_a_name_of_its_own() {
        let names: BTreeSet<_> = SegmentDrop::ALL
            .iter()
            .map(|reason| reason.name())
            .collect();
        assert_eq!(names.len(), SegmentDrop::ALL.len());
        let is_snake = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(
            names
                .iter()
                .all(|name| name.starts_with("tcp_") && is_snake(name))
        );
    }
}
