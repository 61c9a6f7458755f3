//! The handshake of a connection that was opened by its SYN.

use wire::FastOpen;

use crate::fast_open::pending::PendingSlot;
use crate::state::syn::SynReceived;

/// What a connection has of its handshake until the peer acknowledges the SYN-ACK.
#[derive(Debug)]
pub(crate) struct Opening {
    /// Timer and fields of the SYN-ACK.
    pub(crate) half_open: SynReceived,
    /// Option of the first SYN-ACK; repetitions have none (linux `tcp_rtx_synack`).
    pub(crate) option: Option<FastOpen>,
    /// Its place among the listener's pending opens.
    pub(crate) slot: PendingSlot,
}
