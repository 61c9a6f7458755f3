//! Reasons for dropped packets, with one counter each.

/// Reason why the NIC dropped a packet.
///
/// A dropped packet is counted and is not an error. The names are stable (they are
/// keys of the tool's JSON) and follow `skb_drop_reason` where Linux has the same reason
/// (linux v6.18 include/net/dropreason-core.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DropReason {
    /// The queue's memory had no room for the payload: tokens are returned late, or the peer sent more than its window.
    RxNoBuffers,
    /// The host memory for linear bytes and for packets that are not split had no room for the bytes.
    RxNoHostBuffers,
    /// The frame is shorter than an Ethernet header.
    RxRunt,
    /// The frame is longer than the maximum.
    RxOversize,
    /// The frame ends before its headers end, or before the end by the IP length.
    RxTruncated,
    /// IP version, header length or total length is invalid.
    RxBadIpHeader,
    /// The IPv4 header checksum is wrong.
    RxBadIpChecksum,
    /// The TCP data offset or the option area is invalid.
    RxBadTcpHeader,
    /// The UDP length is invalid.
    RxBadUdpHeader,
    /// The IPv6 extension headers are too many, too long or malformed.
    RxBadExtensionHeaders,
    /// The TCP or UDP checksum is wrong.
    RxBadChecksum,
    /// The destination MAC address is that of another station.
    RxNotForUs,
    /// The frame carries a VLAN tag other than the priority tag (VID 0).
    RxVlan,
    /// A flow rule drops the packet.
    RxRuleDrop,
    /// Steering selected a queue that this NIC does not have.
    RxNoQueue,
    /// The link went down, or failed while a frame was read.
    RxLinkError,
    /// The link's buffer was full: the machine sends faster than this NIC is polled.
    RxLinkFull,
    /// The mailbox of the shard with the packet's flow was full: that shard is not polled often enough.
    RxCrossingFull,
    /// The interface below the link merged packets without a record of their size (LRO), and the kernel refused to pass the
    /// result on.
    RxLro,
    /// A frame names memory of its sender that does not exist, or is no frame at all: the peer of a UNIX wire is faulty.
    RxBadReference,
    /// The first packet of a process that connected to a listening end of a UNIX wire: it takes no super-packets, and was refused.
    RxPeerRefused,
    /// A device failed to copy the payload to its memory.
    RxDeviceFailed,
    /// The packet is longer than the link allows, or its headers are not valid for computing its checksum or cutting it.
    TxInvalid,
    /// The transmit queue is full: the stack sends faster than the link.
    TxBusy,
    /// The link is down; queued packets are dropped.
    TxLinkDown,
    /// The link refused the frame.
    TxLinkError,
    /// A device failed to copy the payload from its memory.
    TxDeviceFailed,
}

impl DropReason {
    /// All reasons, in the order of the counters.
    pub const ALL: [Self; 27] = [
        Self::RxNoBuffers,
        Self::RxNoHostBuffers,
        Self::RxRunt,
        Self::RxOversize,
        Self::RxTruncated,
        Self::RxBadIpHeader,
        Self::RxBadIpChecksum,
        Self::RxBadTcpHeader,
        Self::RxBadUdpHeader,
        Self::RxBadExtensionHeaders,
        Self::RxBadChecksum,
        Self::RxNotForUs,
        Self::RxVlan,
        Self::RxRuleDrop,
        Self::RxNoQueue,
        Self::RxLinkError,
        Self::RxLinkFull,
        Self::RxCrossingFull,
        Self::RxLro,
        Self::RxBadReference,
        Self::RxPeerRefused,
        Self::RxDeviceFailed,
        Self::TxInvalid,
        Self::TxBusy,
        Self::TxLinkDown,
        Self::TxLinkError,
        Self::TxDeviceFailed,
    ];

    /// Returns the stable snake_case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RxNoBuffers => "rx_no_buffers",
            Self::RxNoHostBuffers => "rx_no_host_buffers",
            Self::RxRunt => "rx_runt",
            Self::RxOversize => "rx_oversize",
            Self::RxTruncated => "rx_truncated",
            Self::RxBadIpHeader => "rx_bad_ip_header",
            Self::RxBadIpChecksum => "rx_bad_ip_checksum",
            Self::RxBadTcpHeader => "rx_bad_tcp_header",
            Self::RxBadChecksum => "rx_bad_checksum",
            Self::RxBadUdpHeader => "rx_bad_udp_header",
            Self::RxBadExtensionHeaders => "rx_bad_extension_headers",
            Self::RxNotForUs => "rx_not_for_us",
            Self::RxVlan => "rx_vlan",
            Self::RxRuleDrop => "rx_rule_drop",
            Self::RxNoQueue => "rx_no_queue",
            Self::RxLinkError => "rx_link_error",
            Self::RxLinkFull => "rx_link_full",
            Self::RxCrossingFull => "rx_crossing_full",
            Self::RxLro => "rx_lro",
            Self::RxBadReference => "rx_bad_reference",
            Self::RxPeerRefused => "rx_peer_refused",
            Self::RxDeviceFailed => "rx_device_failed",
            Self::TxInvalid => "tx_invalid",
            Self::TxBusy => "tx_busy",
            Self::TxLinkDown => "tx_link_down",
            Self::TxLinkError => "tx_link_error",
            Self::TxDeviceFailed => "tx_device_failed",
        }
    }
}

/// One counter per [`DropReason`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    counts: [u64; DropReason::ALL.len()],
}

impl Drops {
    /// Counts one dropped packet.
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.count_many(reason, 1);
    }

    /// Counts several dropped packets.
    pub(crate) fn count_many(&mut self, reason: DropReason, packets: u64) {
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count += packets;
        }
    }

    /// Returns the number of packets dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts.get(reason as usize).copied().unwrap_or(0)
    }

    /// Returns the number of dropped packets.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Iterates over the names and counters of all reasons, zeros included.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason.name(), self.get(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_separate_counter_and_name() {
        let mut drops = Drops::default();
        for (index, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, index);
            for _ in 0..=index {
                drops.count(reason);
            }
        }
        let mut names: Vec<_> = drops.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
        assert_eq!(
            drops.iter().map(|(_, n)| n).collect::<Vec<_>>(),
            (1..=27).collect::<Vec<u64>>()
        );
        assert_eq!(drops.total(), 27 * 28 / 2);
    }
}
