//! A packet that the driver sends, by its descriptors.

use wire::EthernetHeader;

use crate::tx_desc::TsoContext;

/// Maximum bytes of a packet: an IP packet and a tagged Ethernet header.
pub(crate) const MAX_PACKET: u32 = 65_535 + EthernetHeader::TAGGED_LEN as u32;

/// A packet by its descriptors; its buffers are in [`TxScratch::ranges`](crate::tx_offload::TxScratch).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TxPacket {
    /// Number of its descriptors.
    pub(crate) descs: u16,
    /// Number of buffers among them.
    pub(crate) buffers: u16,
    /// Tag of its last buffer.
    pub(crate) tag: u16,
    /// Bytes of its buffers.
    pub(crate) len: u32,
    /// Its checksum must be completed.
    pub(crate) checksum: bool,
    /// It is a super-packet.
    pub(crate) tso: Option<TsoContext>,
    /// Its descriptors are invalid.
    pub(crate) malformed: bool,
}
