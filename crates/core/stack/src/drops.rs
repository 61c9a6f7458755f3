//! Reasons for dropped packets, with one counter per reason.

use tcp::SegmentDrop;

/// Reason for which the stack dropped a received packet, or one that was to be sent.
///
/// Names are stable (they are keys of the tool's JSON) and follow `skb_drop_reason` where Linux has
/// the same reason (linux v6.18 include/net/dropreason-core.h). Segments that a connection drops
/// are counted by [`tcp::SegmentDrop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DropReason {
    /// Neither ARP, IPv4 nor IPv6.
    UnhandledProtocol,
    /// Invalid ARP: an address of another network, a multicast or zero hardware address, or neither a request nor a
    /// reply.
    ArpInvalid,
    /// ARP or an advertisement with which another station claims a local address (RFC 5227 2.4).
    AddressConflict,
    /// ARP or an advertisement that did not replace the known hardware address of a neighbour.
    NeighborClaimRefused,
    /// The destination is not a local address; packets are not forwarded.
    IpNotForUs,
    /// The source is a loopback, multicast, unspecified or local address.
    IpMartianSource,
    /// A fragment: reassembly is not supported.
    IpFragment,
    /// A transport protocol that is not supported, including UDP.
    IpNoProtocol,
    /// An ICMP message with a wrong checksum or length, or invalid neighbour discovery.
    IcmpInvalid,
    /// An ICMP message of a type that is not supported, or that does not apply.
    IcmpIgnored,
    /// An ICMP request or error beyond the rate limit.
    IcmpRateLimited,
    /// An ICMP error that quotes a packet which no connection has in flight (RFC 5927 4.1).
    IcmpNoConnection,
    /// TCP to a broadcast or multicast address (RFC 9293 3.9.2.3).
    TcpGroupDestination,
    /// No connection and no listener. The reply was a RST, unless the segment was a RST.
    TcpNoSocket,
    /// The next hop of a waiting packet did not answer.
    NeighborFailed,
    /// A packet of a connection waited for the address of its next hop, and was replaced by a newer one.
    NeighborQueueFull,
    /// A reply without a connection (a SYN-ACK, a RST, an echo reply) waited for the address of its next hop, and
    /// was replaced by a newer one.
    NeighborAnswersFull,
    /// A reply without a connection was not sent: the address of its next hop is unknown, and the limit of requests is
    /// reached.
    NeighborAskLimited,
    /// There is no route to the destination of a packet.
    NoRoute,
    /// There is no host memory for the payload of a packet.
    TxNoMemory,
}

impl DropReason {
    /// All reasons, in the order of the counters.
    pub const ALL: [Self; 20] = [
        Self::UnhandledProtocol,
        Self::ArpInvalid,
        Self::AddressConflict,
        Self::NeighborClaimRefused,
        Self::IpNotForUs,
        Self::IpMartianSource,
        Self::IpFragment,
        Self::IpNoProtocol,
        Self::IcmpInvalid,
        Self::IcmpIgnored,
        Self::IcmpRateLimited,
        Self::IcmpNoConnection,
        Self::TcpGroupDestination,
        Self::TcpNoSocket,
        Self::NeighborFailed,
        Self::NeighborQueueFull,
        Self::NeighborAnswersFull,
        Self::NeighborAskLimited,
        Self::NoRoute,
        Self::TxNoMemory,
    ];

    /// Returns the stable snake_case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnhandledProtocol => "unhandled_protocol",
            Self::ArpInvalid => "arp_invalid",
            Self::AddressConflict => "address_conflict",
            Self::NeighborClaimRefused => "neighbor_claim_refused",
            Self::IpNotForUs => "ip_not_for_us",
            Self::IpMartianSource => "ip_martian_source",
            Self::IpFragment => "ip_fragment",
            Self::IpNoProtocol => "ip_no_protocol",
            Self::IcmpInvalid => "icmp_invalid",
            Self::IcmpIgnored => "icmp_ignored",
            Self::IcmpRateLimited => "icmp_rate_limited",
            Self::IcmpNoConnection => "icmp_no_connection",
            Self::TcpGroupDestination => "tcp_group_destination",
            Self::TcpNoSocket => "tcp_no_socket",
            Self::NeighborFailed => "neighbor_failed",
            Self::NeighborQueueFull => "neighbor_queue_full",
            Self::NeighborAnswersFull => "neighbor_answers_full",
            Self::NeighborAskLimited => "neighbor_ask_limited",
            Self::NoRoute => "no_route",
            Self::TxNoMemory => "tx_no_memory",
        }
    }
}

/// One counter per [`DropReason`], and one per [`SegmentDrop`].
#[derive(Clone, Debug)]
pub(crate) struct Drops {
    packets: [u64; DropReason::ALL.len()],
    segments: [u64; SegmentDrop::ALL.len()],
}

impl Default for Drops {
    fn default() -> Self {
        Self {
            packets: [0; DropReason::ALL.len()],
            segments: [0; SegmentDrop::ALL.len()],
        }
    }
}

impl Drops {
    /// Counts one packet.
    pub(crate) fn count(&mut self, reason: DropReason) {
        if let Some(count) = self.packets.get_mut(reason as usize) {
            *count += 1;
        }
    }

    /// Counts one segment that a connection dropped, or part of it.
    pub(crate) fn count_segment(&mut self, reason: impl Into<Option<SegmentDrop>>) {
        if let Some(reason) = reason.into() {
            let index = SegmentDrop::ALL.iter().position(|&other| other == reason);
            if let Some(count) = index.and_then(|index| self.segments.get_mut(index)) {
                *count += 1;
            }
        }
    }

    /// Returns the number of packets dropped for `reason`.
    pub(crate) fn get(&self, reason: DropReason) -> u64 {
        self.packets.get(reason as usize).copied().unwrap_or(0)
    }

    /// Iterates over all counters, including those that are 0.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let packets = DropReason::ALL
            .iter()
            .map(|reason| reason.name())
            .zip(self.packets);
        packets.chain(
            SegmentDrop::ALL
                .iter()
                .map(|reason| reason.name())
                .zip(self.segments),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_its_own_name() {
        let mut drops = Drops::default();
        for (index, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, index);
            (0..=index).for_each(|_| drops.count(reason));
        }
        for (index, &reason) in SegmentDrop::ALL.iter().enumerate() {
            (0..=index).for_each(|_| drops.count_segment(reason));
        }
        let expected = (1..=DropReason::ALL.len()).chain(1..=SegmentDrop::ALL.len());
        assert!(drops.iter().map(|(_, count)| count as usize).eq(expected));
        let mut names: Vec<_> = drops.iter().map(|(name, _)| name).collect();
        names.extend(nic::DropReason::ALL.iter().map(|reason| reason.name()));
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(
            distinct.len(),
            names.len(),
            "names of all layers in {names:?}"
        );
    }
}
