//! What a queue did, in counters.

/// Counters of one RX queue.
///
/// A packet counts under exactly one of `split` and `whole`, whatever else it counts under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxQueueStats {
    /// Packets handed on.
    pub packets: u64,
    /// Payload bytes of those packets, in whatever memory.
    pub bytes: u64,
    /// Segments those packets stand for: a super-packet counts as many as the sender's TCP made of it.
    pub segments: u64,
    /// Packets whose payload went to this queue's memory.
    pub split: u64,
    /// Packets that are not split: all they carry went to host memory.
    pub whole: u64,
    /// Packets that had landed in another queue's memory and were moved: the steering guess was wrong.
    pub placed: u64,
    /// Bytes copied for `placed`.
    pub placed_bytes: u64,
    /// Packets whose header was longer than predicted: the payload starts later in its memory, nothing moved.
    pub header_longer: u64,
    /// Packets whose header was shorter than predicted: the NIC moved a few bytes in front of the payload.
    pub header_shorter: u64,
    /// Payload bytes left in host memory in front of the frags (the LINEAR option).
    pub linear_bytes: u64,
    /// Packets whose TCP or UDP checksum this NIC computed and found right.
    pub checksum_verified: u64,
    /// Packets whose checksum the link vouched for.
    pub checksum_trusted: u64,
    /// net_iovs left early so that the next super-packet lies in one piece.
    pub tidied: u64,
    /// Small frags moved out of net_iovs that they kept from others, when memory ran low.
    pub collapsed: u64,
    /// Bytes copied for `collapsed`.
    pub collapsed_bytes: u64,
}

/// Counters of the transmit side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxStats {
    /// Packets the link took; a super-packet counts once.
    pub packets: u64,
    /// Header and payload bytes of those.
    pub bytes: u64,
    /// Frames on the link: more than packets when this NIC segments.
    pub frames: u64,
    /// Packets cut into segments by this NIC because the link does not.
    pub software_tso: u64,
    /// Super-packets cut into shorter super-packets because the link had no memory for one that long.
    pub shortened: u64,
    /// Checksums computed by this NIC because the link does not.
    pub software_checksum: u64,
    /// Times the link said it was busy; the packet waited.
    pub busy: u64,
    /// Packets to this NIC's own address, which the link never saw and which count as none of the above.
    pub looped: u64,
}
