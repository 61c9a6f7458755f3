//! Why a packet was dropped: one counter per reason, moved in one place.

/// Reason for which the NIC dropped a packet.
///
/// A dropped packet is not an error: nobody can be told but these counters. The names are stable (they are
/// keys of the tool's JSON) and follow `skb_drop_reason` where Linux has a word for it
/// (linux v6.18 include/net/dropreason-core.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DropReason {
    /// The queue's memory could not take the payload: tokens are late, or the peer sent past its window.
    RxNoBuffers,
    /// The host memory for linear bytes and for packets that are not split could not take the bytes.
    RxNoHostBuffers,
    /// The frame is shorter than an Ethernet header.
    RxRunt,
    /// The frame is longer than any frame may be.
    RxOversize,
    /// The frame ends before the headers or the IP length say it does.
    RxTruncated,
    /// IP version, header length or total length cannot be.
    RxBadIpHeader,
    /// The IPv4 header checksum is wrong.
    RxBadIpChecksum,
    /// The TCP data offset or the option area cannot be.
    RxBadTcpHeader,
    /// The UDP length cannot be.
    RxBadUdpHeader,
    /// The IPv6 extension headers are too many, too long or malformed.
    RxBadExtensionHeaders,
    /// The TCP or UDP checksum is wrong.
    RxBadChecksum,
    /// The destination MAC address is another station's.
    RxNotForUs,
    /// The frame carries a VLAN tag other than the priority tag (VID 0).
    RxVlan,
    /// A flow rule says drop.
    RxRuleDrop,
    /// Steering names a queue this NIC does not have.
    RxNoQueue,
    /// The link went down, or failed while a frame was read.
    RxLinkError,
    /// The packet is longer than the link carries, or its headers are none that it could be finished or cut by.
    TxInvalid,
    /// The transmit queue is full: the link does not take frames as fast as they come.
    TxBusy,
    /// The link is down; what was queued is gone, as it is on a cable that was pulled.
    TxLinkDown,
    /// The link refused the frame.
    TxLinkError,
}

impl DropReason {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 20] = [
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
        Self::TxInvalid,
        Self::TxBusy,
        Self::TxLinkDown,
        Self::TxLinkError,
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
            Self::TxInvalid => "tx_invalid",
            Self::TxBusy => "tx_busy",
            Self::TxLinkDown => "tx_link_down",
            Self::TxLinkError => "tx_link_error",
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
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count += 1;
        }
    }

    /// Returns how many packets were dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts.get(reason as usize).copied().unwrap_or(0)
    }

    /// Returns how many packets were dropped in all.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Iterates over all reasons, those that never happened included.
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
    fn every_reason_has_its_own_counter_and_its_own_name() {
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
            (1..=20).collect::<Vec<u64>>()
        );
        assert_eq!(drops.total(), 20 * 21 / 2);
    }
}
