//! Reasons for dropped packets, with one counter per reason.

use tcp::SegmentDrop;

wire::drop_reasons! {
    /// Reason for which the stack dropped a received packet, or one that was to be sent.
    ///
    /// Names are stable (they are keys of the tool's JSON) and follow `skb_drop_reason` where Linux has
    /// the same reason (linux v6.18 include/net/dropreason-core.h). Segments that a connection drops
    /// are counted by [`tcp::SegmentDrop`].
    DropReason {
        /// Neither ARP, IPv4 nor IPv6.
        UnhandledProtocol => "unhandled_protocol",
        /// Invalid ARP: an address of another network, a multicast or zero hardware address, or neither a request nor a
        /// reply.
        ArpInvalid => "arp_invalid",
        /// ARP or an advertisement with which another station claims a local address (RFC 5227 2.4).
        AddressConflict => "address_conflict",
        /// ARP or an advertisement that did not replace the known hardware address of a neighbour.
        NeighborClaimRefused => "neighbor_claim_refused",
        /// The destination is not a local address; packets are not forwarded.
        IpNotForUs => "ip_not_for_us",
        /// The source is a loopback, multicast, unspecified or local address.
        IpMartianSource => "ip_martian_source",
        /// A fragment: reassembly is not supported.
        IpFragment => "ip_fragment",
        /// A transport protocol that is not supported, including UDP.
        IpNoProtocol => "ip_no_protocol",
        /// An ICMP message with a wrong checksum or length, or invalid neighbour discovery.
        IcmpInvalid => "icmp_invalid",
        /// An ICMP message of a type that is not supported, or that does not apply.
        IcmpIgnored => "icmp_ignored",
        /// An ICMP request or error beyond the rate limit.
        IcmpRateLimited => "icmp_rate_limited",
        /// An ICMP error that quotes a packet which no connection has in flight (RFC 5927 4.1).
        IcmpNoConnection => "icmp_no_connection",
        /// TCP to a broadcast or multicast address (RFC 9293 3.9.2.3).
        TcpGroupDestination => "tcp_group_destination",
        /// No connection and no listener. The reply was a RST, unless the segment was a RST.
        TcpNoSocket => "tcp_no_socket",
        /// The next hop of a waiting packet did not answer.
        NeighborFailed => "neighbor_failed",
        /// A packet of a connection waited for the address of its next hop, and was replaced by a newer one.
        NeighborQueueFull => "neighbor_queue_full",
        /// A reply without a connection (a SYN-ACK, a RST, an echo reply) waited for the address of its next hop, and
        /// was replaced by a newer one.
        NeighborAnswersFull => "neighbor_answers_full",
        /// A reply without a connection was not sent: the address of its next hop is unknown, and the limit of requests is
        /// reached.
        NeighborAskLimited => "neighbor_ask_limited",
        /// There is no route to the destination of a packet.
        NoRoute => "no_route",
        /// There is no host memory for the payload of a packet.
        TxNoMemory => "tx_no_memory",
    }
}

/// One counter per [`DropReason`], and one per [`SegmentDrop`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Drops {
    packets: [u64; DropReason::ALL.len()],
    segments: [u64; SegmentDrop::ALL.len()],
}

impl Drops {
    /// Counts one packet.
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.packets[reason as usize] += 1;
    }

    /// Counts one segment that a connection dropped, or part of it.
    pub(crate) fn count_segment(&mut self, reason: impl Into<Option<SegmentDrop>>) {
        if let Some(reason) = reason.into() {
            self.segments[reason as usize] += 1;
        }
    }

    /// Iterates over all counters, including those that are 0.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let packets = DropReason::ALL.iter().map(|reason| reason.name());
        let segments = SegmentDrop::ALL.iter().map(|reason| reason.name());
        packets.zip(self.packets).chain(segments.zip(self.segments))
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
            (0..=index).for_each(|_| drops.count(reason));
        }
        for (index, &reason) in SegmentDrop::ALL.iter().enumerate() {
            (0..=index).for_each(|_| drops.count_segment(reason));
        }
        let expected = (1..=DropReason::ALL.len()).chain(1..=SegmentDrop::ALL.len());
        assert!(drops.iter().map(|(_, count)| count as usize).eq(expected));
        let mut names: Vec<_> = drops.iter().map(|(name, _)| name).collect();
        names.extend(nic::DropReason::ALL.iter().map(|reason| reason.name()));
        let is_snake = |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(names.iter().all(is_snake), "{names:?}");
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(
            distinct.len(),
            names.len(),
            "names of all layers in {names:?}"
        );
    }
}
