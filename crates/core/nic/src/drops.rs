//! Reasons for dropped packets, with one counter each.

use steer::Unsteered;

wire::drop_reasons! {
    /// Reason why the NIC dropped a packet.
    ///
    /// A dropped packet is counted and is not an error. The names are stable (they are
    /// keys of the tool's JSON) and follow `skb_drop_reason` where Linux has the same reason
    /// (linux v6.18 include/net/dropreason-core.h).
    DropReason {
        /// The queue's memory had no room for the payload: tokens are returned late, or the peer sent more than its window.
        RxNoBuffers => "rx_no_buffers",
        /// The host memory for linear bytes and for packets that are not split had no room for the bytes.
        RxNoHostBuffers => "rx_no_host_buffers",
        /// The frame is shorter than an Ethernet header.
        RxRunt => "rx_runt",
        /// The frame is longer than the maximum.
        RxOversize => "rx_oversize",
        /// The frame ends before its headers end, or before the end by the IP length.
        RxTruncated => "rx_truncated",
        /// IP version, header length or total length is invalid.
        RxBadIpHeader => "rx_bad_ip_header",
        /// The IPv4 header checksum is wrong.
        RxBadIpChecksum => "rx_bad_ip_checksum",
        /// The TCP data offset or the option area is invalid.
        RxBadTcpHeader => "rx_bad_tcp_header",
        /// The UDP length is invalid.
        RxBadUdpHeader => "rx_bad_udp_header",
        /// The IPv6 extension headers are too many, too long or malformed.
        RxBadExtensionHeaders => "rx_bad_extension_headers",
        /// The TCP or UDP checksum is wrong.
        RxBadChecksum => "rx_bad_checksum",
        /// The destination MAC address is that of another station.
        RxNotForUs => "rx_not_for_us",
        /// The frame carries a VLAN tag other than the priority tag (VID 0).
        RxVlan => "rx_vlan",
        /// A flow rule drops the packet.
        RxRuleDrop => "rx_rule_drop",
        /// Steering selected a queue that this NIC does not have.
        RxNoQueue => "rx_no_queue",
        /// The link went down, or failed while a frame was read.
        RxLinkError => "rx_link_error",
        /// The link's buffer was full: the machine sends faster than this NIC is polled.
        RxLinkFull => "rx_link_full",
        /// The mailbox of the shard with the packet's flow was full: that shard is not polled often enough.
        RxCrossingFull => "rx_crossing_full",
        /// The interface below the link merged packets without a record of their size (LRO), and the kernel refused to pass the
        /// result on.
        RxLro => "rx_lro",
        /// A frame names memory of its sender that does not exist, or is no frame at all: the peer of a UNIX wire is faulty.
        RxBadReference => "rx_bad_reference",
        /// The first packet of a process that connected to a listening end of a UNIX wire: it takes no super-packets, and was refused.
        RxPeerRefused => "rx_peer_refused",
        /// A device failed to copy the payload to its memory.
        RxDeviceFailed => "rx_device_failed",
        /// The packet is longer than the link allows, or its headers are not valid for computing its checksum or cutting it.
        TxInvalid => "tx_invalid",
        /// The transmit queue is full: the stack sends faster than the link.
        TxBusy => "tx_busy",
        /// The link is down; queued packets are dropped.
        TxLinkDown => "tx_link_down",
        /// The link refused the frame.
        TxLinkError => "tx_link_error",
        /// A device failed to copy the payload from its memory.
        TxDeviceFailed => "tx_device_failed",
    }
}

impl From<Unsteered> for DropReason {
    fn from(why: Unsteered) -> Self {
        match why {
            Unsteered::Dropped => Self::RxRuleDrop,
            Unsteered::NoQueue => Self::RxNoQueue,
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
        self.counts[reason as usize] += packets;
    }

    /// Returns the number of packets dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts[reason as usize]
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
