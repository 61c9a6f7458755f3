//! Flow rules and RSS settings of a guest, compared with a model and with the decisions of `steer`.

use std::collections::BTreeMap;

use gve::{DropReason, RxOutcome};
use gve_defs::adminq::{
    AdminqStatus, ConfigureFlowRule, FLOW_RULE_ADD, FLOW_RULE_DEL, FLOW_RULE_QUERY_RULES,
    FLOW_RULE_RESET, FlowRule, QueryFlowRules, flow_type, opcode,
};
use gve_driver::{Driver, DriverError};
use wire::RxHeaders;
use zerocopy::{FromBytes, IntoBytes};

use crate::common::Bench;
use crate::input::{Input, small_device};

/// Steps of one input.
const STEPS: usize = 100;

/// The rules from the guest's point of view.
type Model = BTreeMap<u32, FlowRule>;

/// Parses `data` as rules to add and delete, RSS settings, and frames.
///
/// # Panics
///
/// If the device panics, changes a rule, or delivers a frame to another queue than `steer` selects.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (mut bench, mut driver) = small_device();
    let mut model = Model::new();
    for _ in 0..STEPS {
        let Some(step) = input.byte() else { break };
        match step {
            0..=99 => configure(&mut bench, &mut driver, &mut input, &mut model),
            100..=119 => {
                let key = input.bytes(40);
                let lut: Vec<_> = input
                    .bytes(128)
                    .iter()
                    .map(|queue| u32::from(*queue % 3))
                    .collect();
                let set = driver.configure_rss(&mut bench, Some(key), Some(&lut));
                let good = [0, 40].contains(&key.len())
                    && [0, 128].contains(&lut.len())
                    && lut.iter().all(|queue| *queue < 2);
                assert_eq!(set.is_ok(), good, "{set:?}");
            }
            120..=139 => driver
                .reset(&mut bench)
                .expect("a reset succeeds in any state"),
            140..=149 => compare(&mut bench, &mut driver, &model),
            _ => receive(&mut bench, &mut driver, &mut input),
        }
    }
    compare(&mut bench, &mut driver, &model);
}

fn configure(bench: &mut Bench, driver: &mut Driver, input: &mut Input<'_>, model: &mut Model) {
    let shape = input.or_zero();
    let mut bytes = [0; size_of::<ConfigureFlowRule>()];
    let given = input.bytes(bytes.len() - 8);
    bytes[4..4 + given.len()].copy_from_slice(given);
    let Ok(mut command) = ConfigureFlowRule::read_from_bytes(&bytes) else {
        return;
    };
    let location = u32::from(input.or_zero()) % 70;
    command.location = location.into();
    command.opcode = u16::from(shape % 4).into();
    if shape & 0x80 == 0 {
        command.rule.flow_type = ([0, 1, 5, 6][usize::from(shape >> 2 & 3)]).into();
        command.rule.action = u16::from(shape >> 4 & 3).into();
    }
    if shape & 0x40 == 0 {
        command.rule.mask =
            FlowRule::read_from_bytes(&[0; 84]).map_or(command.rule.mask, |zero| zero.mask);
        command.rule.mask.src_port = 0x3f.into();
    }
    let done = driver.flow_rule(bench, &command);
    let kind = command.rule.flow_type.get();
    let known = [
        flow_type::TCPV4,
        flow_type::UDPV4,
        flow_type::TCPV6,
        flow_type::UDPV6,
    ];
    let addable = location < 64 && command.rule.action.get() < 2 && known.contains(&kind);
    let expected = match command.opcode.get() {
        FLOW_RULE_ADD if addable => {
            model.insert(location, as_kept(command.rule));
            true
        }
        FLOW_RULE_DEL => model.remove(&location).is_some(),
        FLOW_RULE_RESET => {
            model.clear();
            true
        }
        _ => false,
    };
    match done {
        Ok(()) => assert!(expected),
        Err(DriverError::Refused { status, .. }) => {
            assert!(!expected && status != AdminqStatus::UNSET && status != AdminqStatus::PASSED);
        }
        Err(other) => panic!("{other}"),
    }
}

/// Returns a rule as the device stores it: without padding, and without the unused bytes of IPv4 addresses.
fn as_kept(mut rule: FlowRule) -> FlowRule {
    let six = [flow_type::TCPV6, flow_type::UDPV6].contains(&rule.flow_type.get());
    for spec in [&mut rule.key, &mut rule.mask] {
        spec.padding = [0; 3];
        if !six {
            spec.src_ip[4..].fill(0);
            spec.dst_ip[4..].fill(0);
        }
    }
    rule
}

fn compare(bench: &mut Bench, driver: &mut Driver, model: &Model) {
    let (addr, room) = driver.argument();
    let query = QueryFlowRules {
        opcode: FLOW_RULE_QUERY_RULES.into(),
        padding: [0; 2],
        starting_rule_id: 0.into(),
        available_length: (room as u64).into(),
        rule_descriptor_addr: addr.into(),
    };
    let status = driver.command(bench, opcode::QUERY_FLOW_RULES, &query);
    assert_eq!(status, Ok(AdminqStatus::PASSED));
    let expected: Vec<u8> = model
        .iter()
        .flat_map(|(location, rule)| [&location.to_be_bytes(), rule.as_bytes()].concat())
        .collect();
    assert_eq!(bench.ram.get(addr + 16, expected.len()), expected);
    assert_eq!(bench.device.steering().rules.len(), model.len());
}

fn receive(bench: &mut Bench, driver: &mut Driver, input: &mut Input<'_>) {
    const QUEUES: u16 = 2;
    let bytes = input.frame().bytes();
    let Ok(headers) = RxHeaders::parse(&bytes, bytes.len()) else {
        return;
    };
    let selected = bench
        .device
        .steering()
        .select_queue(&headers, QUEUES.into());
    let received = bench.receive_plain(&bytes);
    let got: Vec<_> = (0..QUEUES)
        .map(|queue| crate::common::take_rx(bench, driver, queue).len())
        .collect();
    if received == RxOutcome::Dropped(DropReason::OverMru) {
        return;
    }
    assert_eq!(received, RxOutcome::Delivered);
    let queue = selected.expect("a guest cannot add a rule that drops, or names another queue");
    assert_eq!(got[queue.index()], 1, "{selected:?}");
    assert_eq!(got.iter().sum::<usize>(), 1);
}
