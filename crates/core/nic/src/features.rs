//! Settings as in ethtool: rings, RSS, flow rules. Some changes are refused while device memory is
//! bound to a queue.

use steer::{IndirectionTable, RxQueueId};

/// Maximum number of RX queues of a NIC.
pub const MAX_RX_QUEUES: u16 = 64;

/// Maximum length of the transmit queue in packets.
pub const MAX_TX_PACKETS: u32 = 4096;

/// Default number of entries in the indirection table, as in most NICs.
const DEFAULT_INDIRECTION_ENTRIES: usize = 128;

/// Returns the table that distributes packets evenly over `queues` queues, 1 to [`MAX_RX_QUEUES`].
pub(crate) fn default_table(queues: u16) -> IndirectionTable {
    IndirectionTable::round_robin(DEFAULT_INDIRECTION_ENTRIES, queues)
        .expect("a power of two of entries, each naming one of at least one queue")
}

/// ethtool's `tcp-data-split`.
///
/// Linux distinguishes "on" from "chosen by the driver", and binds device memory only if it is "on".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpDataSplit {
    /// Not set: this NIC splits.
    #[default]
    Auto,
    /// Headers and payload stay together, in host memory.
    Disabled,
    /// Payload is split from the headers.
    Enabled,
}

/// ethtool's rings (`ethtool -g`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Maximum number of packets that are queued while the link is busy.
    pub tx_packets: u32,
    /// Header split.
    pub tcp_data_split: TcpDataSplit,
}

/// What is known of a received packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumVerdict {
    /// The packet has no checksum, or none that this NIC knows.
    NoChecksum,
    /// The link has verified it.
    Trusted,
    /// This NIC has verified it.
    Verified,
}

/// Error of [`Nic::set_rings`](crate::Nic::set_rings).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetRingsError {
    /// Header split cannot be switched off while device memory is bound.
    #[error("tcp-data-split cannot be switched off while device memory is bound to rx queue {0}")]
    SplitNeeded(RxQueueId),
    /// The length of the transmit queue is out of range.
    #[error("a transmit queue of {0} packets: take 1 to {MAX_TX_PACKETS}")]
    TxPackets(u32),
}
