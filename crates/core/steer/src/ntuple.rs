//! Flow rules: steering by exact match, with priority over RSS.

use std::net::IpAddr;
use std::num::NonZeroU16;

use wire::{Network, RxHeaders, Transport};

use crate::RxQueueId;

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
    fn bits(self, flow: FlowType) -> Option<(u128, u128)> {
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

/// The compared fields of a packet, of a rule's values or of its masks.
#[derive(Clone, Copy, Debug)]
struct Fields {
    src_ip: u128,
    dst_ip: u128,
    src_port: u16,
    dst_port: u16,
    tos: u8,
}

impl Fields {
    #[inline]
    fn matches(&self, value: &Self, mask: &Self) -> bool {
        // Ports first: rules differ in them most often.
        (self.dst_port ^ value.dst_port) & mask.dst_port == 0
            && (self.src_port ^ value.src_port) & mask.src_port == 0
            && (self.dst_ip ^ value.dst_ip) & mask.dst_ip == 0
            && (self.src_ip ^ value.src_ip) & mask.src_ip == 0
            && (self.tos ^ value.tos) & mask.tos == 0
    }

    #[inline]
    fn of_packet(headers: &RxHeaders) -> Option<(FlowType, Self)> {
        let (src_port, dst_port) = headers.ports()?;
        let tcp = matches!(headers.transport, Transport::Tcp(_));
        Some(match &headers.network {
            Network::Ipv4(ip) => {
                let flow = if tcp { FlowType::Tcp4 } else { FlowType::Udp4 };
                let (src_ip, dst_ip) = (ip.src.to_bits().into(), ip.dst.to_bits().into());
                (
                    flow,
                    Self {
                        src_ip,
                        dst_ip,
                        src_port,
                        dst_port,
                        tos: ip.dscp_ecn,
                    },
                )
            }
            Network::Ipv6(ip) => {
                let flow = if tcp { FlowType::Tcp6 } else { FlowType::Udp6 };
                let (src_ip, dst_ip) = (ip.src.to_bits(), ip.dst.to_bits());
                (
                    flow,
                    Self {
                        src_ip,
                        dst_ip,
                        src_port,
                        dst_port,
                        tos: ip.traffic_class,
                    },
                )
            }
            Network::Arp | Network::Other => return None,
        })
    }

    /// Returns value and mask of a rule, `None` if families are mixed.
    fn of_rule(rule: &NtupleRule) -> Option<(Self, Self)> {
        let NtupleRule {
            flow,
            src_ip,
            dst_ip,
            src_port,
            dst_port,
            tos,
            action: _,
        } = *rule;
        let (src_value, src_mask) = src_ip.bits(flow)?;
        let (dst_value, dst_mask) = dst_ip.bits(flow)?;
        let value = Self {
            src_ip: src_value,
            dst_ip: dst_value,
            src_port: src_port.port,
            dst_port: dst_port.port,
            tos: tos.tos,
        };
        let mask = Self {
            src_ip: src_mask,
            dst_ip: dst_mask,
            src_port: src_port.mask,
            dst_port: dst_port.mask,
            tos: tos.mask,
        };
        Some((value, mask))
    }
}

#[derive(Clone, Debug)]
struct RuleEntry {
    location: RuleLocation,
    rule: NtupleRule,
    value: Fields,
    mask: Fields,
}

/// A bounded table of flow rules.
#[derive(Clone, Debug)]
pub struct Rules {
    /// By location, ascending.
    entries: Vec<RuleEntry>,
    capacity: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self::new(DEFAULT_RULES)
    }
}

impl Rules {
    /// Returns an empty table with locations 0 to `capacity - 1`.
    pub const fn new(capacity: u32) -> Self {
        Self {
            entries: Vec::new(),
            capacity,
        }
    }

    /// Stores `rule` at `location`, replacing a rule there, or without `location` at the first free one;
    /// returns the location.
    ///
    /// # Errors
    /// [`RuleError::FamilyMismatch`], [`RuleError::NoSuchLocation`], [`RuleError::Full`].
    pub fn insert(
        &mut self,
        location: Option<RuleLocation>,
        rule: NtupleRule,
    ) -> Result<RuleLocation, RuleError> {
        let (value, mask) = Fields::of_rule(&rule).ok_or(RuleError::FamilyMismatch)?;
        let capacity = self.capacity;
        let location = match location {
            Some(location) if location.0 < capacity => location,
            Some(location) => return Err(RuleError::NoSuchLocation { location, capacity }),
            None => self.first_free().ok_or(RuleError::Full { capacity })?,
        };
        let entry = RuleEntry {
            location,
            rule,
            value,
            mask,
        };
        match self.find(location) {
            Ok(at) => self.entries[at] = entry,
            Err(at) => self.entries.insert(at, entry),
        }
        Ok(location)
    }

    /// Removes the rule at `location`.
    ///
    /// # Errors
    /// [`RuleError::NoRule`].
    pub fn remove(&mut self, location: RuleLocation) -> Result<NtupleRule, RuleError> {
        let at = self
            .find(location)
            .map_err(|_| RuleError::NoRule { location })?;
        Ok(self.entries.remove(at).rule)
    }

    /// Removes all rules.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the rule at `location`.
    pub fn get(&self, location: RuleLocation) -> Option<&NtupleRule> {
        self.find(location).ok().map(|at| &self.entries[at].rule)
    }

    /// Iterates over the rules, lowest location first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (RuleLocation, &NtupleRule)> {
        self.entries
            .iter()
            .map(|entry| (entry.location, &entry.rule))
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of locations.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Checks that every rule names one of the first `queues` queues; for use before the number of queues is reduced.
    ///
    /// # Errors
    /// [`RuleError::NoSuchQueue`] for the first that does not.
    pub fn check(&self, queues: u16) -> Result<(), RuleError> {
        for (location, rule) in self.iter() {
            if let Some(queue) = rule.queue().filter(|queue| queue.0 >= queues) {
                return Err(RuleError::NoSuchQueue {
                    location,
                    queue,
                    queues,
                });
            }
        }
        Ok(())
    }

    /// Returns the matching rule with the lowest location.
    #[inline]
    pub fn lookup(&self, headers: &RxHeaders) -> Option<(RuleLocation, RuleAction)> {
        if self.entries.is_empty() {
            return None;
        }
        let (flow, packet) = Fields::of_packet(headers)?;
        self.entries
            .iter()
            .find(|entry| entry.rule.flow == flow && packet.matches(&entry.value, &entry.mask))
            .map(|entry| (entry.location, entry.rule.action))
    }

    fn find(&self, location: RuleLocation) -> Result<usize, usize> {
        self.entries
            .binary_search_by_key(&location, |entry| entry.location)
    }

    /// Returns the lowest location without a rule, `None` if every location has one.
    fn first_free(&self) -> Option<RuleLocation> {
        // Entries are sorted by location: up to the first gap, each location equals its index.
        let mut locations = self.entries.iter().map(|entry| entry.location.0);
        (0..self.capacity)
            .find(|at| locations.next() != Some(*at))
            .map(RuleLocation)
    }
}

#[cfg(test)]
mod tests;
