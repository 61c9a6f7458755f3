//! What follows from a segment or a timer.

use crate::error::TcpError;
use crate::segment_drop::SegmentDrop;
use crate::seqnum::SeqNum;

/// What the caller must do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use = "readers and writers wait for what a disposition says, and a reply waits to be polled"]
pub struct Disposition {
    /// The connection is open now: `connect` is done, `accept` may return it.
    pub established: bool,
    /// The connection is CLOSED; `Connection::error` is the reason.
    pub closed: bool,
    /// `Connection::poll_send` may have a segment to send that must not wait for segments that were received together with this one.
    /// After those, each connection that has received any must be polled.
    pub reply: bool,
    /// A SYN in TIME-WAIT may open a new connection between the same endpoints: drop this connection and pass the segment to
    /// the listener, which must choose a larger ISN than this (RFC 9293 3.10.7.4, RFC 6191).
    pub reopen: Option<SeqNum>,
    /// Reason why a part of the segment was dropped; each reason has a counter.
    pub drop: Option<SegmentDrop>,
}

impl Disposition {
    /// The connection is CLOSED, and nothing else follows.
    pub(crate) const CLOSED: Disposition = Disposition {
        closed: true,
        ..Disposition::NONE
    };

    /// A reply may be due, and nothing else follows.
    pub(crate) const REPLY: Disposition = Disposition {
        reply: true,
        ..Disposition::NONE
    };

    const NONE: Disposition = Disposition {
        established: false,
        closed: false,
        reply: false,
        reopen: None,
        drop: None,
    };

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

/// Transition of a connection after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Stay,
    TimeWait,
    /// Closed, with the error for readers and writers, if any.
    Closed(Option<TcpError>),
    /// Closed, and a RST is sent.
    Abort(Option<TcpError>),
    /// Closed as by a RST of the peer, and a RST with this sequence number and without ACK answers the segment.
    Refuse(SeqNum),
}
