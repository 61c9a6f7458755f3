//! Commands for flow rules.

use std::net::IpAddr;

use gve_defs::adminq::{
    AdminqStatus, ConfigureFlowRule, ExtendedCommand, FLOW_RULE_ADD, FLOW_RULE_DEL,
    FLOW_RULE_QUERY_IDS, FLOW_RULE_QUERY_RULES, FLOW_RULE_QUERY_STATS, FLOW_RULE_RESET, FlowRule,
    FlowSpec, QueriedFlowRule, QueriedFlowRules, QueryFlowRules, flow_type, opcode,
};
use steer::{
    FlowType, IpMatch, NtupleRule, PortMatch, RuleAction, RuleError, RuleLocation, RxQueueId,
    TosMatch,
};
use zerocopy::{FromZeros, IntoBytes};

use super::{answer, read_argument};
use crate::device::Gve;
use crate::env::GuestMemory;

impl Gve {
    pub(super) fn extended(
        &mut self,
        command: &ExtendedCommand,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        if command.inner_opcode.get() != opcode::CONFIGURE_FLOW_RULE {
            return Err(AdminqStatus::UNIMPLEMENTED);
        }
        if u64::from(command.inner_length.get()) < size_of::<ConfigureFlowRule>() as u64 {
            return Err(AdminqStatus::INVALID_ARGUMENT);
        }
        let inner: ConfigureFlowRule = read_argument(memory, command.inner_command_addr.get())?;
        self.configure_flow_rule(&inner)
    }

    fn configure_flow_rule(&mut self, command: &ConfigureFlowRule) -> Result<(), AdminqStatus> {
        let location = RuleLocation(command.location.get());
        let rules = &mut self.steering.rules;
        let done = match command.opcode.get() {
            FLOW_RULE_ADD => {
                let rule = from_guest(&command.rule, self.config.queue_pairs)?;
                rules.insert(Some(location), rule).map(drop)
            }
            FLOW_RULE_DEL => rules.remove(location).map(drop),
            FLOW_RULE_RESET => {
                rules.clear();
                Ok(())
            }
            _ => return Err(AdminqStatus::INVALID_ARGUMENT),
        };
        done.map_err(|error| match error {
            RuleError::NoRule { .. } => AdminqStatus::NOT_FOUND,
            RuleError::Full { .. } => AdminqStatus::RESOURCE_EXHAUSTED,
            RuleError::NoSuchLocation { .. }
            | RuleError::FamilyMismatch
            | RuleError::NoSuchQueue { .. } => AdminqStatus::INVALID_ARGUMENT,
        })
    }

    pub(super) fn query_flow_rules(
        &self,
        command: &QueryFlowRules,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        let header_len = size_of::<QueriedFlowRules>();
        let room = usize::try_from(command.available_length.get()).unwrap_or(usize::MAX);
        let room = room
            .checked_sub(header_len)
            .ok_or(AdminqStatus::INVALID_ARGUMENT)?;
        let start = RuleLocation(command.starting_rule_id.get());
        let rules = &self.steering.rules;
        let asked = rules.iter().filter(|(location, _)| *location >= start);
        let (items, item_len) = match command.opcode.get() {
            FLOW_RULE_QUERY_RULES => {
                let len = size_of::<QueriedFlowRule>();
                let items = asked.take(room / len).flat_map(queried_rule);
                (items.collect(), len)
            }
            FLOW_RULE_QUERY_IDS => {
                let len = size_of::<u32>();
                let items = asked
                    .take(room / len)
                    .flat_map(|(location, _)| location.0.to_be_bytes());
                (items.collect(), len)
            }
            FLOW_RULE_QUERY_STATS => (Vec::new(), 1),
            _ => return Err(AdminqStatus::INVALID_ARGUMENT),
        };
        let count = items.len() / item_len;
        // All at most 64 rules of 88 bytes.
        let header = QueriedFlowRules {
            num_flow_rules: (rules.len() as u32).into(),
            max_flow_rules: rules.capacity().into(),
            num_queried_rules: (count as u32).into(),
            total_length: ((header_len + items.len()) as u32).into(),
        };
        let bytes = [header.as_bytes(), &items].concat();
        answer(memory, command.rule_descriptor_addr.get(), &bytes)
    }
}

fn queried_rule((location, rule): (RuleLocation, &NtupleRule)) -> Vec<u8> {
    let item = QueriedFlowRule {
        location: location.0.into(),
        flow_rule: to_guest(rule),
    };
    item.as_bytes().to_vec()
}

/// Converts a rule of the guest; the device has `queues` RX queues.
fn from_guest(rule: &FlowRule, queues: u16) -> Result<NtupleRule, AdminqStatus> {
    let FlowRule {
        flow_type,
        action,
        key,
        mask,
    } = rule;
    let flow = match flow_type.get() {
        flow_type::TCPV4 => FlowType::Tcp4,
        flow_type::UDPV4 => FlowType::Udp4,
        flow_type::TCPV6 => FlowType::Tcp6,
        flow_type::UDPV6 => FlowType::Udp6,
        // Valid flow types, but this device does not parse such packets.
        flow_type::SCTPV4
        | flow_type::AHV4
        | flow_type::ESPV4
        | flow_type::SCTPV6
        | flow_type::AHV6
        | flow_type::ESPV6 => return Err(AdminqStatus::UNIMPLEMENTED),
        _ => return Err(AdminqStatus::INVALID_ARGUMENT),
    };
    if action.get() >= queues {
        return Err(AdminqStatus::INVALID_ARGUMENT);
    }
    let ip = |addr: [u8; 16], mask: [u8; 16]| IpMatch::Masked {
        addr: ip_from(addr, flow),
        mask: ip_from(mask, flow),
    };
    Ok(NtupleRule {
        flow,
        src_ip: ip(key.src_ip, mask.src_ip),
        dst_ip: ip(key.dst_ip, mask.dst_ip),
        src_port: PortMatch {
            port: key.src_port.get(),
            mask: mask.src_port.get(),
        },
        dst_port: PortMatch {
            port: key.dst_port.get(),
            mask: mask.dst_port.get(),
        },
        tos: TosMatch {
            tos: key.tos,
            mask: mask.tos,
        },
        action: RuleAction::Queue(RxQueueId(action.get())),
    })
}

fn ip_from(bytes: [u8; 16], flow: FlowType) -> IpAddr {
    let [a, b, c, d, ..] = bytes;
    match flow.is_ipv6() {
        true => IpAddr::from(bytes),
        false => IpAddr::from([a, b, c, d]),
    }
}

/// Converts a rule to the guest's format.
fn to_guest(rule: &NtupleRule) -> FlowRule {
    let NtupleRule {
        flow,
        src_ip,
        dst_ip,
        src_port,
        dst_port,
        tos,
        action,
    } = *rule;
    let flow_type = match flow {
        FlowType::Tcp4 => flow_type::TCPV4,
        FlowType::Udp4 => flow_type::UDPV4,
        FlowType::Tcp6 => flow_type::TCPV6,
        FlowType::Udp6 => flow_type::UDPV6,
    };
    let queue = match action {
        RuleAction::Queue(RxQueueId(queue)) => queue,
        // A guest cannot create such a rule.
        RuleAction::Spread(_) | RuleAction::Drop => u16::MAX,
    };
    let mut key = FlowSpec::new_zeroed();
    let mut mask = FlowSpec::new_zeroed();
    (key.src_ip, mask.src_ip) = ip_to(src_ip);
    (key.dst_ip, mask.dst_ip) = ip_to(dst_ip);
    (key.src_port, mask.src_port) = (src_port.port.into(), src_port.mask.into());
    (key.dst_port, mask.dst_port) = (dst_port.port.into(), dst_port.mask.into());
    (key.tos, mask.tos) = (tos.tos, tos.mask);
    FlowRule {
        flow_type: flow_type.into(),
        action: queue.into(),
        key,
        mask,
    }
}

fn ip_to(ip: IpMatch) -> ([u8; 16], [u8; 16]) {
    match ip {
        IpMatch::Any => ([0; 16], [0; 16]),
        IpMatch::Masked { addr, mask } => (ip_bytes(addr), ip_bytes(mask)),
    }
}

fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip {
        IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes = ip.octets(),
    }
    bytes
}
