//! Packets that wait for a hardware address.

use nic::TxPacket;
use tcp::SeqNum;

use crate::socket::id::SocketId;

/// A packet that waits until the hardware address of its next hop is resolved.
#[derive(Debug)]
pub(crate) struct WaitingPacket {
    pub(super) packet: TxPacket,
    /// Socket to notify if resolution fails, and the sequence number of its segment.
    pub(super) owner: Option<(SocketId, SeqNum)>,
}
