//! Counters since the creation of the device; no reset clears them.

/// Reason why a frame from the wire was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The link is down.
    LinkDown,
    /// The guest has no RX queue.
    NoQueue,
    /// The frame is shorter than an Ethernet header.
    Runt,
    /// The frame is longer than the largest MTU, or a super-packet longer than an IP packet can be.
    OverMru,
    /// The headers of a super-packet contradict its offload metadata.
    BadGso,
    /// A flow rule names a queue that does not exist at the moment. The frame goes to no other queue: a devmem stream
    /// must not continue in ordinary memory while its queue is being recreated.
    RuleNamesDeadQueue,
    /// No buffers are posted, and the backlog is full.
    NoBuffers,
    /// The frame needs more buffers than the ring can hold.
    TooManyBuffers,
    /// A buffer or ring of the guest is not guest memory.
    BadAddress,
}

/// Counters of one RX queue number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxQueueStats {
    /// Packets delivered to the guest; a coalesced packet counts once.
    pub packets: u64,
    /// Bytes of delivered packets.
    pub bytes: u64,
    /// Delivered packets with split headers.
    pub split: u64,
    /// TCP packets that a queue with header split delivered whole: headers too long, or an injected fault.
    pub unsplit: u64,
    /// Delivered packets that were coalesced.
    pub rsc: u64,
    /// Packets steered by a flow rule.
    pub rule_hits: u64,
    /// Frames with a wrong transport checksum; they are delivered with an error bit.
    pub bad_checksum: u64,
    /// Frames that arrived when no buffers were posted.
    pub no_buffers: u64,
    /// Frames that were too long: [`DropReason::OverMru`].
    pub over_mru: u64,
    /// All frames dropped.
    pub drops: u64,
    /// Frames in the backlog now.
    pub backlog: u64,
}

/// Counters of one TX queue number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxQueueStats {
    /// Packets that the wire accepted; a super-packet counts once.
    pub packets: u64,
    /// Bytes of accepted packets.
    pub bytes: u64,
    /// Super-packets among them.
    pub gso: u64,
    /// Super-packets that the device segmented because the wire does not.
    pub segmented: u64,
    /// Number of times that the wire was full.
    pub busy: u64,
    /// Packets dropped: invalid descriptors.
    pub malformed: u64,
    /// Packets dropped: headers do not match the requested offload.
    pub bad_offload: u64,
    /// Packets dropped: an address is not guest memory.
    pub bad_address: u64,
    /// Packets the wire lost.
    pub lost: u64,
}

/// Counters of the whole device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Admin commands executed.
    pub adminq_commands: u64,
    /// Admin commands refused, for any reason.
    pub adminq_refused: u64,
    /// Number of times that the driver announced more commands than the admin queue has entries, or the queue was not guest
    /// memory.
    pub adminq_broken: u64,
    /// Doorbell writes without a queue or block, of a wrong width, or with an index past the ring.
    pub bad_doorbells: u64,
    /// Resets requested by the driver.
    pub driver_resets: u64,
    /// Resets that the device requested from the driver.
    pub reset_requests: u64,
    /// Frames with headers that do not parse; they are delivered without split, hash and checksum status.
    pub headers_refused: u64,
    /// Frames with an 802.1Q tag.
    pub vlan: u64,
    /// Frames with IPv6 extension headers.
    pub ipv6_extensions: u64,
    /// Frames dropped before a queue was chosen.
    pub drops: u64,
}

/// A copy of all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Of the device.
    pub device: DeviceStats,
    /// By RX queue.
    pub rx: Vec<RxQueueStats>,
    /// By TX queue.
    pub tx: Vec<TxQueueStats>,
}
