//! Counters of queues.

/// Counters of one RX queue.
///
/// A packet counts under exactly one of `split` and `whole`, whatever else it counts under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxQueueStats {
    /// Packets passed to the stack.
    pub packets: u64,
    /// Payload bytes of those packets, in any memory.
    pub bytes: u64,
    /// Segments of those packets: a super-packet counts as the number of segments that the sender's TCP made.
    pub segments: u64,
    /// Packets with payload in this queue's memory.
    pub split: u64,
    /// Packets that are not split: headers and payload went to host memory.
    pub whole: u64,
    /// Packets that were received into another queue's memory and moved: the predicted queue was wrong.
    pub placed: u64,
    /// Bytes copied for `placed`.
    pub placed_bytes: u64,
    /// Payload bytes placed where the program wants them ([`DdpTable::add`](crate::DdpTable::add)).
    pub direct_bytes: u64,
    /// Of those, bytes that were copied there: another connection was predicted, or another header length, or the link does
    /// not scatter.
    pub direct_copied_bytes: u64,
    /// Packets whose payload stays in the memory of the other end of the link until the program reads it.
    pub kept: u64,
    /// Payload bytes of those packets.
    pub kept_bytes: u64,
    /// Bytes that were copied to this queue's memory because they lay where another connection wants its own.
    pub misdirected_bytes: u64,
    /// Bytes that were copied to this queue's memory because their packet was longer than the memory posted for it: the first long
    /// super-packets, before others are expected.
    pub spilled_bytes: u64,
    /// Packets with a longer header than predicted: the payload starts later in its memory; nothing is moved.
    pub header_longer: u64,
    /// Packets with a shorter header than predicted: the NIC moved a few bytes to the front of the payload.
    pub header_shorter: u64,
    /// Linear payload bytes: those in host memory before the frags ([`NicConfig::linear_bytes`](crate::NicConfig)).
    pub linear_bytes: u64,
    /// Packets with a TCP or UDP checksum that this NIC computed and found correct.
    pub checksum_verified: u64,
    /// Packets with a checksum that this NIC did not compute because the link had verified it, or it was partial.
    pub checksum_trusted: u64,
    /// net_iovs that were retired before they were full, so that the next super-packet is in one net_iov.
    pub tidied: u64,
    /// Small frags that were moved together when memory ran low, to free the net_iovs that they were in.
    pub collapsed: u64,
    /// Bytes copied for `collapsed`.
    pub collapsed_bytes: u64,
}

/// Counters of the transmit side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxStats {
    /// Packets sent on the link; a super-packet counts once.
    pub packets: u64,
    /// Header and payload bytes of those packets.
    pub bytes: u64,
    /// Frames sent on the link: more than packets if this NIC segments.
    pub frames: u64,
    /// Packets that this NIC cut into segments because the link does not.
    pub software_tso: u64,
    /// Super-packets that were cut into shorter super-packets because the link had no memory for one of their length.
    pub shortened: u64,
    /// Checksums that this NIC computed because the link does not.
    pub software_checksum: u64,
    /// Number of times that the link was busy and the packet was queued.
    pub busy: u64,
    /// Packets to this NIC's own address. They do not pass the link, and no other counter includes them.
    pub looped: u64,
}
