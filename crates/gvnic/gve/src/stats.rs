//! Counters, all from the making of the device on; no reset clears them.

/// Why a frame from the wire did not reach the guest.
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
    /// A super-packet whose headers do not say what its offload says.
    BadGso,
    /// A flow rule names a queue that the guest does not have now. Nobody else gets the frame: a devmem stream must
    /// not go on through ordinary memory while its queue is made anew.
    RuleNamesDeadQueue,
    /// No buffers, and the backlog is full.
    NoBuffers,
    /// The frame needs more buffers than the ring can hold.
    TooManyBuffers,
    /// A buffer or ring of the guest is not memory of the guest.
    BadAddress,
}

/// What one RX queue number has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxQueueStats {
    /// Packets given to the guest; a coalesced packet is one.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Packets of them whose payload was parted from the headers.
    pub split: u64,
    /// TCP packets of a splitting queue that were given whole: headers too long, or a test's wish.
    pub unsplit: u64,
    /// Packets of them that were coalesced.
    pub rsc: u64,
    /// Packets chosen by a flow rule.
    pub rule_hits: u64,
    /// Frames with a wrong transport checksum; the guest gets them and is told.
    pub bad_checksum: u64,
    /// Frames that found no buffers when they came.
    pub no_buffers: u64,
    /// Frames longer than may be: [`DropReason::OverMru`].
    pub over_mru: u64,
    /// All frames dropped.
    pub drops: u64,
    /// Frames held now.
    pub backlog: u64,
}

/// What one TX queue number has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxQueueStats {
    /// Packets the wire took; a super-packet is one.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Super-packets among them.
    pub gso: u64,
    /// Super-packets that the device cut because the wire does not.
    pub segmented: u64,
    /// Times the wire took nothing.
    pub busy: u64,
    /// Packets dropped: descriptors that make no sense.
    pub malformed: u64,
    /// Packets dropped: headers that do not fit the offload asked for.
    pub bad_offload: u64,
    /// Packets dropped: not memory of the guest.
    pub bad_address: u64,
    /// Packets the wire lost.
    pub lost: u64,
}

/// What the device has seen as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Admin commands done.
    pub adminq_commands: u64,
    /// Admin commands refused, for any reason.
    pub adminq_refused: u64,
    /// Times more commands were announced than the admin queue holds, or the queue is not memory.
    pub adminq_broken: u64,
    /// Doorbells of no queue or block, of odd width, or with an index past the ring.
    pub bad_doorbells: u64,
    /// Resets that the driver asked for.
    pub driver_resets: u64,
    /// Resets that the device asked the driver for.
    pub reset_requests: u64,
    /// Frames whose headers could not be followed: given to the guest unsplit, unhashed, unchecked.
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
