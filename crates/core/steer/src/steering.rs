//! Selection of the RX queue of a packet: the table of flow rules has priority over RSS.

use wire::{Network, RxHeaders, Transport};

use crate::ids::RxQueueId;
use crate::ntuple::{DEFAULT_RULES, FlowType, NtupleRule, RuleAction, RuleError, RuleLocation};
use crate::rss::Rss;

/// Settings that determine the RX queue of a packet.
#[derive(Clone, Debug)]
pub struct Steering {
    /// Receive side scaling.
    pub rss: Rss,
    /// Flow rules.
    pub rules: Rules,
}

/// Why a packet has no RX queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsteered {
    /// The matching flow rule drops it.
    Dropped,
    /// The selected queue does not exist.
    NoQueue,
}

impl Steering {
    /// Returns the queue of a packet, of `queues` that there are: that of the matching flow rule with the lowest location, else
    /// that of the indirection table, else queue 0.
    ///
    /// # Errors
    /// [`Unsteered`].
    #[inline]
    pub fn select_queue(&self, headers: &RxHeaders, queues: usize) -> Result<RxQueueId, Unsteered> {
        if queues == 1 && self.rules.is_empty() {
            // Every packet goes to the only queue; no hash is needed.
            return Ok(RxQueueId(0));
        }
        let queue = match self.rules.lookup(headers) {
            Some((_, RuleAction::Queue(queue))) => queue,
            // A rule matches TCP and UDP only, which the default hash types cover.
            Some((_, RuleAction::Spread(range))) => {
                range.queue(self.rss.hash(headers).unwrap_or(0))
            }
            Some((_, RuleAction::Drop)) => return Err(Unsteered::Dropped),
            None => self.rss.queue(headers).unwrap_or(RxQueueId(0)),
        };
        match queue.index() < queues {
            true => Ok(queue),
            false => Err(Unsteered::NoQueue),
        }
    }
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

/// A rule with what it compares.
#[derive(Clone, Debug)]
struct RuleEntry {
    location: RuleLocation,
    rule: NtupleRule,
    value: Fields,
    mask: Fields,
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
        let (flow, src_ip, dst_ip, tos) = match &headers.network {
            Network::Ipv4(ip) => {
                let flow = if tcp { FlowType::Tcp4 } else { FlowType::Udp4 };
                let (src_ip, dst_ip) = (ip.src.to_bits().into(), ip.dst.to_bits().into());
                (flow, src_ip, dst_ip, ip.dscp_ecn)
            }
            Network::Ipv6(ip) => {
                let flow = if tcp { FlowType::Tcp6 } else { FlowType::Udp6 };
                (flow, ip.src.to_bits(), ip.dst.to_bits(), ip.traffic_class)
            }
            Network::Arp | Network::Other => return None,
        };
        let fields = Self {
            src_ip,
            dst_ip,
            src_port,
            dst_port,
            tos,
        };
        Some((flow, fields))
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

#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod tests;
