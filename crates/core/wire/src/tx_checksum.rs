//! Checksum offload.

/// Start of the bytes that a NIC sums for checksum offload, and position of the checksum field
/// (`csum_start` and `csum_offset` of a virtio-net header, VIRTIO 1.2 5.1.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxChecksum {
    /// First byte of the frame to sum: the transport header.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}
