//! Flow rules: what they match, and what becomes of a packet that matches. `steering.rs` has their table.

use std::net::IpAddr;
use std::num::NonZeroU16;

use crate::ids::RxQueueId;

/// Default capacity of a table, in rules.
pub const DEFAULT_RULES: u32 = 1024;

/// Kind of packets that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowType {
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv4.
    Udp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv6.
    Udp6,
}

impl FlowType {
    /// True if the packets are IPv6.
    pub const fn is_ipv6(self) -> bool {
        matches!(self, Self::Tcp6 | Self::Udp6)
    }
}

/// Matching addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpMatch {
    /// All of them.
    Any,
    /// Those equal to `addr` in every bit that is set in `mask`.
    Masked {
        /// Address.
        addr: IpAddr,
        /// Bits to compare; of the same family.
        mask: IpAddr,
    },
}

impl IpMatch {
    /// Returns a match of one address.
    pub const fn exact(addr: IpAddr) -> Self {
        let mask = match addr {
            IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::BROADCAST),
            IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::from_bits(u128::MAX)),
        };
        Self::Masked { addr, mask }
    }

    /// Returns value and mask as bits, `None` if one has the wrong address family.
    pub(crate) fn bits(self, flow: FlowType) -> Option<(u128, u128)> {
        match self {
            Self::Any => Some((0, 0)),
            Self::Masked { addr, mask } => {
                let has_family = |ip: IpAddr| ip.is_ipv6() == flow.is_ipv6();
                (has_family(addr) && has_family(mask)).then(|| (ip_bits(addr), ip_bits(mask)))
            }
        }
    }
}

fn ip_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Matching ports: those equal to `port` in every bit that is set in `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMatch {
    /// Port.
    pub port: u16,
    /// Bits to compare.
    pub mask: u16,
}

impl PortMatch {
    /// Matches all ports.
    pub const ANY: Self = Self { port: 0, mask: 0 };

    /// Returns a match of one port.
    pub const fn exact(port: u16) -> Self {
        Self {
            port,
            mask: u16::MAX,
        }
    }
}

/// Matching type of service (IPv4) or traffic class (IPv6): values equal to `tos` in every bit that
/// is set in `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TosMatch {
    /// Type of service.
    pub tos: u8,
    /// Bits to compare.
    pub mask: u8,
}

impl TosMatch {
    /// Matches all.
    pub const ANY: Self = Self { tos: 0, mask: 0 };
}

/// What to do with a packet that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Deliver it to this queue.
    Queue(RxQueueId),
    /// Deliver it to one of these queues, by the hash of its flow, as an RSS context of Linux does.
    Spread(QueueRange),
    /// Drop it.
    Drop,
}

/// Consecutive queues, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRange {
    first: u16,
    count: NonZeroU16,
}

impl QueueRange {
    /// Returns the queues from `first` to `last`, both included; `None` if `last` comes before `first`, or if they are
    /// 65,536.
    pub fn new(first: RxQueueId, last: RxQueueId) -> Option<Self> {
        let count = last.0.checked_sub(first.0)?.checked_add(1)?;
        Some(Self {
            first: first.0,
            count: NonZeroU16::new(count)?,
        })
    }

    /// Returns the last queue.
    pub const fn last(self) -> RxQueueId {
        RxQueueId(self.first + (self.count.get() - 1))
    }

    /// Returns the queue for a hash.
    ///
    /// The Toeplitz hash is linear: ports with a regular distance can agree in the low bits of their hashes. Multiplication by
    /// an odd constant (2^32 divided by the golden ratio) mixes all bits into the upper ones, which choose the queue.
    pub(crate) fn queue(self, hash: u32) -> RxQueueId {
        let mixed = u64::from(hash.wrapping_mul(0x9e37_79b9));
        let index = (mixed * u64::from(self.count.get())) >> 32;
        // Less than `count`.
        RxQueueId(self.first + index as u16)
    }
}

/// Position of a rule in the table; of several rules that match, the lowest location decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleLocation(pub u32);

impl std::fmt::Display for RuleLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One flow rule (linux include/uapi/linux/ethtool.h `ethtool_rx_flow_spec`; as there, bits that are
/// set in a mask are compared).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ethtool_rx_flow_spec")]
pub struct NtupleRule {
    /// Kind of packets.
    pub flow: FlowType,
    /// Source address.
    pub src_ip: IpMatch,
    /// Destination address.
    pub dst_ip: IpMatch,
    /// Source port.
    pub src_port: PortMatch,
    /// Destination port.
    pub dst_port: PortMatch,
    /// Type of service or traffic class.
    pub tos: TosMatch,
    /// What to do.
    pub action: RuleAction,
}

impl NtupleRule {
    /// Returns a rule that matches every packet of a kind; set further fields by struct update.
    pub const fn any(flow: FlowType, action: RuleAction) -> Self {
        Self {
            flow,
            src_ip: IpMatch::Any,
            dst_ip: IpMatch::Any,
            src_port: PortMatch::ANY,
            dst_port: PortMatch::ANY,
            tos: TosMatch::ANY,
            action,
        }
    }

    /// Returns the queue that the rule steers to, the last one of several; `None` if it drops.
    pub const fn queue(&self) -> Option<RxQueueId> {
        match self.action {
            RuleAction::Queue(queue) => Some(queue),
            RuleAction::Spread(queues) => Some(queues.last()),
            RuleAction::Drop => None,
        }
    }
}

/// Error of a change to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// No free location.
    #[error("all {capacity} flow rules are in use")]
    Full {
        /// Rules the table holds.
        capacity: u32,
    },
    /// The location is past the end of the table.
    #[error("flow rule location {location} is past the last of {capacity}")]
    NoSuchLocation {
        /// Location asked for.
        location: RuleLocation,
        /// Rules the table holds.
        capacity: u32,
    },
    /// The location has no rule.
    #[error("no flow rule at location {location}")]
    NoRule {
        /// Location asked for.
        location: RuleLocation,
    },
    /// An address or mask is of another family than the flow type.
    #[error("flow type and addresses are of different families")]
    FamilyMismatch,
    /// A rule steers to a queue that does not exist.
    #[error("flow rule at location {location} names queue {queue} of {queues}")]
    NoSuchQueue {
        /// Location of the rule.
        location: RuleLocation,
        /// The queue it names.
        queue: RxQueueId,
        /// Queues there are.
        queues: u16,
    },
}
