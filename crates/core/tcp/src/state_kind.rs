//! The names of the states, and the transitions of the two FINs (RFC 9293 3.6, figure 5).

use core::fmt;

use crate::disposition::Next;

/// State of a connection, without its data; `Display` writes the name of RFC 9293.
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
    /// Our FIN is sent or queued, and not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged, the peer still sends.
    FinWait2,
    /// The peer's FIN is received, we still send.
    CloseWait,
    /// Both FINs are sent, ours is not acknowledged; ours was sent before the peer's was received.
    Closing,
    /// As `Closing`, but the peer's FIN was received first.
    LastAck,
    /// Both FINs are acknowledged; late segments may still arrive.
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

impl StateKind {
    /// Returns the state after this side has queued its FIN.
    pub(crate) fn after_close(self) -> StateKind {
        match self {
            StateKind::Established => StateKind::FinWait1,
            StateKind::CloseWait => StateKind::LastAck,
            other => other,
        }
    }

    /// Returns the state after the peer's FIN was consumed.
    pub(crate) fn after_peer_fin(self) -> (StateKind, Next) {
        match self {
            StateKind::Established => (StateKind::CloseWait, Next::Stay),
            StateKind::FinWait1 => (StateKind::Closing, Next::Stay),
            StateKind::FinWait2 => (StateKind::TimeWait, Next::TimeWait),
            other => (other, Next::Stay),
        }
    }

    /// Returns the state after the peer acknowledged our FIN.
    pub(crate) fn after_fin_acked(self) -> (StateKind, Next) {
        match self {
            StateKind::FinWait1 => (StateKind::FinWait2, Next::Stay),
            StateKind::Closing => (StateKind::TimeWait, Next::TimeWait),
            StateKind::LastAck => (StateKind::Closed, Next::Closed(None)),
            other => (other, Next::Stay),
        }
    }

    /// Returns whether this side may still send bytes.
    pub(crate) fn can_send(self) -> bool {
        matches!(self, StateKind::Established | StateKind::CloseWait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_figure_5_of_rfc_9293() {
        use StateKind as S;
        assert_eq!(S::Established.after_close(), S::FinWait1);
        assert_eq!(S::CloseWait.after_close(), S::LastAck);
        assert_eq!(S::FinWait2.after_close(), S::FinWait2);
        assert_eq!(S::Established.after_peer_fin(), (S::CloseWait, Next::Stay));
        assert_eq!(S::FinWait1.after_peer_fin(), (S::Closing, Next::Stay));
        assert_eq!(S::FinWait2.after_peer_fin(), (S::TimeWait, Next::TimeWait));
        assert_eq!(S::FinWait1.after_fin_acked(), (S::FinWait2, Next::Stay));
        assert_eq!(S::Closing.after_fin_acked(), (S::TimeWait, Next::TimeWait));
        assert_eq!(
            S::LastAck.after_fin_acked(),
            (S::Closed, Next::Closed(None))
        );
        assert_eq!(
            S::Established.after_fin_acked(),
            (S::Established, Next::Stay)
        );
    }
}
