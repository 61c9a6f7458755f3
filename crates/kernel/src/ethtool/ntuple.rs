//! Flow rules (ntuple): exact steering of a flow to a queue, before RSS. Only the ioctl supports them.

use std::fmt;
use std::net::IpAddr;

use devmem_uapi::Errno;
use serde::{Deserialize, Serialize};
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::{FLOW_UNION_LEN, FlowSpec, RxClassifier, TcpSpec};
use super::requests::{Ethtool, EthtoolError};
use crate::queue_id::KernelRxQueueId;
use crate::sys::ethtool::{RXNFC_LEN, RXNFC_RULE_LOCATIONS, command};

/// `TCP_V4_FLOW`, `TCP_V6_FLOW`.
const TCP_V4_FLOW: u32 = 1;
const TCP_V6_FLOW: u32 = 5;
/// `FLOW_RSS`: the rule names an RSS context.
const FLOW_RSS: u32 = 0x2000_0000;
/// `FLOW_EXT`, `FLOW_MAC_EXT`: the rule matches further fields, which are not parsed here.
const FLOW_EXTENSIONS: u32 = 0x8000_0000 | 0x4000_0000;
/// `RX_CLS_FLOW_DISC`, `RX_CLS_FLOW_WAKE`.
const COOKIE_DROP: u64 = u64::MAX;
const COOKIE_WAKE: u64 = u64::MAX - 1;
/// `RX_CLS_LOC_SPECIAL`, in the reply to a count: the driver chooses the locations of rules. `RX_CLS_LOC_ANY`.
const LOCATION_SPECIAL: u64 = 0x8000_0000;
const LOCATION_ANY: u32 = u32::MAX;
/// More rules than any NIC has; larger counts are treated as invalid.
const RULES_LIMIT: u32 = 1 << 20;
/// Maximum number of attempts to read a list of rules that grows meanwhile.
const ATTEMPTS: usize = 4;

/// TCP packets that a rule matches; `None` matches any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpFlow {
    /// IPv6 or IPv4. The addresses are of the same family.
    pub ipv6: bool,
    /// Source address.
    pub source: Option<IpAddr>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination address.
    pub destination: Option<IpAddr>,
    /// Destination port.
    pub destination_port: Option<u16>,
}

/// Action of a rule on packets that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// Steer them to this queue.
    Queue(KernelRxQueueId),
    /// Spread them by the table of an RSS context.
    Context {
        /// The context's number.
        context: u32,
        /// Number to add to each entry of the table; 0 in most rules.
        base: u32,
    },
    /// Drop them.
    Drop,
    /// Another action, such as a virtual function's queue or wake-on-LAN: the raw cookie.
    Other(u64),
}

/// A rule that is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledRule {
    /// Its location in the table; lower locations take precedence.
    pub location: u32,
    /// The packets it matches; `None` if a [`TcpFlow`] cannot express them.
    pub flow: Option<TcpFlow>,
    /// Its action.
    pub action: RuleAction,
}

/// Number of rules, and capacity of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RuleTable {
    /// Number of installed rules.
    pub rules: u32,
    /// Capacity, if the driver reports it.
    pub size: Option<u32>,
    /// The driver chooses the location of a new rule.
    pub driver_places: bool,
}

/// Prints the arguments of `ethtool -N`.
impl fmt::Display for TcpFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ipv6,
            source,
            source_port,
            destination,
            destination_port,
        } = self;
        write!(f, "flow-type tcp{}", if *ipv6 { 6 } else { 4 })?;
        for (word, address) in [("src-ip", source), ("dst-ip", destination)] {
            if let Some(address) = address {
                write!(f, " {word} {address}")?;
            }
        }
        for (word, port) in [("src-port", source_port), ("dst-port", destination_port)] {
            if let Some(port) = port {
                write!(f, " {word} {port}")?;
            }
        }
        Ok(())
    }
}

/// Prints the arguments of `ethtool -N`.
impl fmt::Display for RuleAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => write!(f, "action {queue}"),
            Self::Context { context, base: 0 } => write!(f, "context {context}"),
            Self::Context { context, base } => write!(f, "context {context} action {base}"),
            Self::Drop => f.write_str("action -1"),
            Self::Other(cookie) => write!(f, "action {cookie:#x}"),
        }
    }
}

impl TcpFlow {
    /// Returns the flow type, values and masks; `None` if an address is of the wrong family.
    fn encode(&self) -> Option<(u32, [u8; FLOW_UNION_LEN], [u8; FLOW_UNION_LEN])> {
        match self.ipv6 {
            true => {
                let (value, mask) = self.specs(octets6)?;
                Some((TCP_V6_FLOW, union(value.as_bytes()), union(mask.as_bytes())))
            }
            false => {
                let (value, mask) = self.specs(octets4)?;
                Some((TCP_V4_FLOW, union(value.as_bytes()), union(mask.as_bytes())))
            }
        }
    }

    /// Returns values and masks; `octets` converts an address of the flow's family.
    fn specs<const LEN: usize>(
        &self,
        octets: fn(IpAddr) -> Option<[u8; LEN]>,
    ) -> Option<(TcpSpec<LEN>, TcpSpec<LEN>)> {
        // A field that is given is compared as a whole; the mask of all others is 0.
        let address = |address: Option<IpAddr>| match address {
            Some(address) => Some((octets(address)?, [0xff; LEN])),
            None => Some(([0; LEN], [0; LEN])),
        };
        let port = |port: Option<u16>| match port {
            Some(port) => (U16::new(port), U16::MAX_VALUE),
            None => (U16::ZERO, U16::ZERO),
        };
        let (source, source_mask) = address(self.source)?;
        let (destination, destination_mask) = address(self.destination)?;
        let (source_port, source_port_mask) = port(self.source_port);
        let (destination_port, destination_port_mask) = port(self.destination_port);
        let value = TcpSpec {
            source,
            destination,
            source_port,
            destination_port,
            ..TcpSpec::new_zeroed()
        };
        let mask = TcpSpec {
            source: source_mask,
            destination: destination_mask,
            source_port: source_port_mask,
            destination_port: destination_port_mask,
            ..TcpSpec::new_zeroed()
        };
        Some((value, mask))
    }

    /// Parses the packets that a rule matches; `None` if it matches other fields, or parts of these.
    fn decode(spec: &FlowSpec) -> Option<Self> {
        let extended = spec.mask_extension.iter().any(|&byte| byte != 0);
        if spec.flow_type & FLOW_EXTENSIONS != 0 && extended {
            return None;
        }
        let flow = match spec.flow_type & !(FLOW_RSS | FLOW_EXTENSIONS) {
            TCP_V4_FLOW => Self::of_specs::<4>(spec)?,
            TCP_V6_FLOW => Self::of_specs::<16>(spec)?,
            _ => return None,
        };
        // The rest of the mask (type of service, padding) must be 0.
        let (_, _, mask) = flow.encode()?;
        (mask == spec.mask).then_some(flow)
    }

    /// Parses values and masks.
    fn of_specs<const LEN: usize>(spec: &FlowSpec) -> Option<Self>
    where
        IpAddr: From<[u8; LEN]>,
    {
        let (value, _) = TcpSpec::<LEN>::read_from_prefix(&spec.value).ok()?;
        let (mask, _) = TcpSpec::<LEN>::read_from_prefix(&spec.mask).ok()?;
        let port = |mask: U16, value: U16| exact(mask.as_bytes(), value.get());
        Some(Self {
            ipv6: IpAddr::from(value.source).is_ipv6(),
            source: exact(&mask.source, IpAddr::from(value.source))?,
            source_port: port(mask.source_port, value.source_port)?,
            destination: exact(&mask.destination, IpAddr::from(value.destination))?,
            destination_port: port(mask.destination_port, value.destination_port)?,
        })
    }
}

/// Returns `Some(Some(value))` if all bits of `mask` are set, `Some(None)` if none is, and `None` otherwise.
fn exact<T>(mask: &[u8], value: T) -> Option<Option<T>> {
    if mask.iter().all(|&byte| byte == 0xff) {
        Some(Some(value))
    } else if mask.iter().all(|&byte| byte == 0) {
        Some(None)
    } else {
        None
    }
}

fn octets4(address: IpAddr) -> Option<[u8; 4]> {
    match address {
        IpAddr::V4(address) => Some(address.octets()),
        IpAddr::V6(_) => None,
    }
}

fn octets6(address: IpAddr) -> Option<[u8; 16]> {
    match address {
        IpAddr::V6(address) => Some(address.octets()),
        IpAddr::V4(_) => None,
    }
}

fn union(spec: &[u8]) -> [u8; FLOW_UNION_LEN] {
    let mut padded = [0; FLOW_UNION_LEN];
    padded[..spec.len()].copy_from_slice(spec);
    padded
}

impl RuleAction {
    fn decode(spec: &FlowSpec, context: u32) -> Self {
        match (spec.ring_cookie, u32::try_from(spec.ring_cookie)) {
            (COOKIE_DROP, _) => Self::Drop,
            (COOKIE_WAKE, _) => Self::Other(COOKIE_WAKE),
            (_, Ok(base)) if spec.flow_type & FLOW_RSS != 0 => Self::Context { context, base },
            (_, Ok(queue)) => Self::Queue(KernelRxQueueId(queue)),
            (cookie, Err(_)) => Self::Other(cookie),
        }
    }

    /// Returns the flow type's flag, the ring cookie and the context.
    fn encode(self) -> (u32, u64, u32) {
        match self {
            Self::Queue(queue) => (0, u64::from(queue.0), 0),
            Self::Context { context, base } => (FLOW_RSS, u64::from(base), context),
            Self::Drop => (0, COOKIE_DROP, 0),
            Self::Other(cookie) => (0, cookie, 0),
        }
    }
}

impl InstalledRule {
    /// Returns the command `command` on a rule, without a location; `None` if an address is of the wrong family.
    fn encode(command: u32, flow: &TcpFlow, action: RuleAction) -> Option<RxClassifier> {
        let (flow_type, value, mask) = flow.encode()?;
        let (flag, ring_cookie, context) = action.encode();
        let mut raw = RxClassifier::new(command);
        raw.spec.flow_type = flow_type | flag;
        raw.spec.value = value;
        raw.spec.mask = mask;
        raw.spec.ring_cookie = ring_cookie;
        raw.count_or_context = context;
        Some(raw)
    }

    fn decode(raw: &RxClassifier) -> Self {
        Self {
            location: raw.spec.location,
            flow: TcpFlow::decode(&raw.spec),
            action: RuleAction::decode(&raw.spec, raw.count_or_context),
        }
    }
}

/// Parses `bytes` as the ioctl's reply about one rule, for fuzzing.
///
/// # Panics
///
/// If a rule that a [`TcpFlow`] can express changes when it is encoded and parsed again.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(super) fn fuzz_rule(bytes: &[u8]) {
    let mut raw = RxClassifier::new(command::GET_RULE);
    let len = bytes.len().min(RXNFC_LEN);
    raw.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
    let rule = InstalledRule::decode(&raw);
    let Some(flow) = rule.flow else { return };
    let written = InstalledRule::encode(command::INSERT_RULE, &flow, rule.action);
    let written = written.expect("the addresses are of the flow's family");
    let again = InstalledRule::decode(&written);
    assert_eq!((again.flow, again.action), (rule.flow, rule.action));
    assert!(!format!("{flow} {}", rule.action).is_empty());
}

/// Chooses the location of a new rule in a table of `size`, where `taken` are in use: the last free one, as ethtool does,
/// so that a newer rule takes precedence over older ones.
fn free_location(size: u32, taken: &[u32]) -> Option<u32> {
    (0..size).rev().find(|location| !taken.contains(location))
}

impl Ethtool {
    /// Reads the number of rules.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver does not support rules.
    pub fn rule_table(&mut self) -> Result<RuleTable, EthtoolError> {
        let mut raw = RxClassifier::new(command::GET_RULE_COUNT);
        self.ioctl("count the flow rules of", raw.as_mut_bytes())?;
        let size = raw.data & !LOCATION_SPECIAL;
        Ok(RuleTable {
            rules: raw.count_or_context,
            size: u32::try_from(size).ok().filter(|&size| size != 0),
            driver_places: raw.data & LOCATION_SPECIAL != 0,
        })
    }

    /// Returns the locations of the rules, and the capacity of the table.
    fn rule_locations(&mut self) -> Result<(Vec<u32>, u32), EthtoolError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let count = self.rule_table()?.rules.min(RULES_LIMIT);
            let mut raw = RxClassifier::new(command::GET_RULE_LOCATIONS);
            raw.count_or_context = count;
            let mut buffer = raw.as_bytes().to_vec();
            let list_end = RXNFC_RULE_LOCATIONS + 4 * count as usize;
            buffer.resize(list_end.max(RXNFC_LEN), 0);
            match self.ioctl("list the flow rules of", &mut buffer) {
                // Another program added a rule in between.
                Err(error) if error.errno() == Some(Errno::EMSGSIZE) && attempt < ATTEMPTS => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let (raw, _) = RxClassifier::read_from_prefix(&buffer)
                        .expect("the buffer starts with this structure");
                    let filled = count.min(raw.count_or_context) as usize;
                    let (words, _) = buffer[RXNFC_RULE_LOCATIONS..].as_chunks::<4>();
                    let locations = words.iter().take(filled).map(|w| u32::from_ne_bytes(*w));
                    let size = u32::try_from(raw.data & !LOCATION_SPECIAL).unwrap_or(0);
                    return Ok((locations.collect(), size.min(RULES_LIMIT)));
                }
            }
        }
    }

    /// Reads the rule at a location; `None` if there is none.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver does not support rules.
    pub fn rule(&mut self, location: u32) -> Result<Option<InstalledRule>, EthtoolError> {
        let mut raw = RxClassifier::new(command::GET_RULE);
        raw.spec.location = location;
        match self.ioctl("read a flow rule of", raw.as_mut_bytes()) {
            Ok(()) => Ok(Some(InstalledRule::decode(&raw))),
            // The errno for an empty location depends on the driver.
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists the rules.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver does not support rules.
    pub fn rules(&mut self) -> Result<Vec<InstalledRule>, EthtoolError> {
        let (locations, _) = self.rule_locations()?;
        let mut rules = Vec::with_capacity(locations.len());
        for location in locations {
            rules.extend(self.rule(location)?);
        }
        Ok(rules)
    }

    /// Adds a rule and returns its location.
    ///
    /// # Errors
    ///
    /// `EINVAL` or `EOPNOTSUPP` if the NIC cannot match this flow, or `flow` has addresses of the wrong
    /// kind; [`EthtoolError::RuleTableFull`]; `ENOSPC`.
    pub fn insert_rule(&mut self, flow: &TcpFlow, action: RuleAction) -> Result<u32, EthtoolError> {
        const VERB: &str = "add a flow rule to";
        let Some(mut raw) = InstalledRule::encode(command::INSERT_RULE, flow, action) else {
            return Err(EthtoolError::Ioctl {
                what: format!("{VERB} {}", self.name),
                errno: Errno::EINVAL,
            });
        };
        raw.spec.location = if self.rule_table()?.driver_places {
            LOCATION_ANY
        } else {
            let (taken, size) = self.rule_locations()?;
            free_location(size, &taken).ok_or_else(|| EthtoolError::RuleTableFull {
                interface: self.name.clone(),
                size,
            })?
        };
        self.ioctl(VERB, raw.as_mut_bytes())?;
        // The kernel writes the structure back, with the location that the driver chose.
        Ok(raw.spec.location)
    }

    /// Removes the rule at a location.
    ///
    /// # Errors
    ///
    /// `ENOENT` or `EINVAL` if there is none.
    pub fn delete_rule(&mut self, location: u32) -> Result<(), EthtoolError> {
        let mut raw = RxClassifier::new(command::DELETE_RULE);
        raw.spec.location = location;
        self.ioctl("remove a flow rule of", raw.as_mut_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(flow: &TcpFlow, action: RuleAction) -> RxClassifier {
        let mut raw = InstalledRule::encode(command::GET_RULE, flow, action).unwrap();
        raw.spec.location = 63;
        raw
    }

    fn flow4() -> TcpFlow {
        TcpFlow {
            ipv6: false,
            source: Some("10.0.0.1".parse().unwrap()),
            source_port: None,
            destination: Some("10.0.0.2".parse().unwrap()),
            destination_port: Some(5201),
        }
    }

    fn flow6() -> TcpFlow {
        TcpFlow {
            ipv6: true,
            source: None,
            source_port: Some(40000),
            destination: Some("fd77::2".parse().unwrap()),
            destination_port: Some(5201),
        }
    }

    #[test]
    fn an_ipv4_rule_has_the_kernels_bytes() {
        let raw = spec(&flow4(), RuleAction::Queue(KernelRxQueueId(15)));
        let bytes = raw.as_bytes();
        // Offsets of struct ethtool_rxnfc in C.
        assert_eq!(bytes[16..20], 1u32.to_ne_bytes());
        assert_eq!(bytes[20..32], [10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0x14, 0x51]);
        assert_eq!(
            bytes[92..104],
            [
                0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff
            ]
        );
        assert_eq!(bytes[168..176], 15u64.to_ne_bytes());
        assert_eq!(bytes[176..180], 63u32.to_ne_bytes());
    }

    #[test]
    fn an_encoded_rule_parses_to_the_same_rule() {
        let actions = [
            RuleAction::Queue(KernelRxQueueId(15)),
            RuleAction::Context {
                context: 3,
                base: 0,
            },
            RuleAction::Drop,
            RuleAction::Other(COOKIE_WAKE),
            RuleAction::Other(1 << 32 | 4),
        ];
        for flow in [flow4(), flow6()] {
            for action in actions {
                let rule = InstalledRule::decode(&spec(&flow, action));
                let expected = InstalledRule {
                    location: 63,
                    flow: Some(flow),
                    action,
                };
                assert_eq!(rule, expected);
            }
        }
    }

    #[test]
    fn a_rule_that_matches_other_fields_or_parts_of_fields_is_not_a_tcp_flow() {
        let queue = RuleAction::Queue(KernelRxQueueId(1));
        let mut prefix = spec(&flow4(), queue);
        prefix.spec.mask[3] = 0;
        assert_eq!(InstalledRule::decode(&prefix).flow, None);
        let mut tos = spec(&flow4(), queue);
        tos.spec.mask[12] = 0xff;
        assert_eq!(InstalledRule::decode(&tos).flow, None);
        let mut vlan = spec(&flow4(), queue);
        vlan.spec.flow_type |= 0x8000_0000;
        vlan.spec.mask_extension[10] = 0xff;
        assert_eq!(InstalledRule::decode(&vlan).flow, None);
        let mut udp = spec(&flow4(), queue);
        udp.spec.flow_type = 2;
        assert_eq!(InstalledRule::decode(&udp).flow, None);
    }

    #[test]
    fn an_address_of_the_wrong_family_cannot_be_encoded() {
        let mixed = TcpFlow {
            ipv6: true,
            ..flow4()
        };
        assert!(mixed.encode().is_none());
    }

    #[test]
    fn a_new_rule_gets_the_last_free_location() {
        assert_eq!(free_location(4, &[]), Some(3));
        assert_eq!(free_location(4, &[3, 1]), Some(2));
        assert_eq!(free_location(2, &[0, 1]), None);
        assert_eq!(free_location(0, &[]), None);
    }

    #[test]
    fn rules_are_printed_as_ethtool_arguments() {
        assert_eq!(
            flow4().to_string(),
            "flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.0.0.2 dst-port 5201"
        );
        assert_eq!(
            flow6().to_string(),
            "flow-type tcp6 dst-ip fd77::2 src-port 40000 dst-port 5201"
        );
        assert_eq!(
            RuleAction::Queue(KernelRxQueueId(15)).to_string(),
            "action 15"
        );
        let context = RuleAction::Context {
            context: 3,
            base: 0,
        };
        assert_eq!(context.to_string(), "context 3");
    }
}
