//! Why the stack dropped a packet: one counter per reason, moved in one place.

/// Reason for which the stack dropped a packet that the NIC had handed on, or one that waited to leave.
///
/// Names are stable (they are keys of the tool's JSON) and follow `skb_drop_reason` where Linux has a word for it
/// (linux v6.18 include/net/dropreason-core.h). Segments that a connection refuses are counted by the connection's
/// own reasons, see [`tcp::SegmentDrop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DropReason {
    /// Neither ARP, IPv4 nor IPv6.
    UnhandledProtocol,
    /// ARP that cannot be: about another network, or from a group address.
    ArpInvalid,
    /// The destination is not one of our addresses: we do not forward.
    IpNotForUs,
    /// The source is a loopback, group, unspecified or our own address.
    IpMartianSource,
    /// A fragment: reassembly is not supported.
    IpFragment,
    /// A transport protocol nobody here speaks, UDP included.
    IpNoProtocol,
    /// An ICMP message with a wrong checksum or length, or against the rules of neighbour discovery.
    IcmpInvalid,
    /// An ICMP message that asks for nothing we do.
    IcmpIgnored,
    /// An ICMP request or error beyond the rate limit.
    IcmpRateLimited,
    /// An ICMP error about a packet that no connection has under way (RFC 5927 4.1).
    IcmpNoConnection,
    /// TCP to a broadcast or multicast address (RFC 9293 3.9.2.3).
    TcpGroupDestination,
    /// No connection and no listener; a RST answered it unless it was one.
    TcpNoSocket,
    /// Data for a connection that nobody can read any more; a RST answered it.
    TcpClosed,
    /// The accept queue is full: the peer will try again.
    TcpAcceptQueueFull,
    /// A packet waited for its neighbour's address, and nobody answered.
    NeighborFailed,
    /// A packet gave way to newer ones that wait for their neighbour's address.
    NeighborQueueFull,
    /// No route to the destination of something we had to send.
    NoRoute,
    /// A packet was not sent for want of host memory for its payload.
    TxNoMemory,
}

impl DropReason {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 18] = [
        Self::UnhandledProtocol,
        Self::ArpInvalid,
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
        Self::TcpClosed,
        Self::TcpAcceptQueueFull,
        Self::NeighborFailed,
        Self::NeighborQueueFull,
        Self::NoRoute,
        Self::TxNoMemory,
    ];

    /// Returns the stable snake_case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnhandledProtocol => "unhandled_protocol",
            Self::ArpInvalid => "arp_invalid",
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
            Self::TcpClosed => "tcp_closed",
            Self::TcpAcceptQueueFull => "tcp_accept_queue_full",
            Self::NeighborFailed => "neighbor_failed",
            Self::NeighborQueueFull => "neighbor_queue_full",
            Self::NoRoute => "no_route",
            Self::TxNoMemory => "tx_no_memory",
        }
    }
}
