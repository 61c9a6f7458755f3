//! Flow rules and RSS, compared with the decisions of `steer`.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::frames::Frame;
use crate::common::{Bench, take_rx, up, up_default};
use gve::{DropReason, RxOutcome};
use gve_defs::adminq::{
    AdminqStatus, ConfigureFlowRule, ConfigureRss, FLOW_RULE_ADD, FLOW_RULE_DEL,
    FLOW_RULE_QUERY_IDS, FLOW_RULE_QUERY_RULES, FLOW_RULE_QUERY_STATS, FLOW_RULE_RESET,
    QueriedFlowRules, QueryFlowRules, QueryRss, flow_type, opcode,
};
use gve_driver::{Driver, DriverError, QueueOptions};
use steer::RuleLocation;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn rule(location: u32, queue: u16, port: u16) -> ConfigureFlowRule {
    let mut rule = ConfigureFlowRule::new_zeroed();
    rule.opcode = FLOW_RULE_ADD.into();
    rule.location = location.into();
    rule.rule.flow_type = flow_type::TCPV4.into();
    rule.rule.action = queue.into();
    rule.rule.key.src_port = port.into();
    rule.rule.mask.src_port = u16::MAX.into();
    rule
}

/// Delivers a frame and returns the queue that received it.
fn queue_of(bench: &mut Bench, driver: &mut Driver, frame: &Frame) -> u16 {
    assert_eq!(bench.receive_plain(&frame.bytes()), RxOutcome::Delivered);
    let got: Vec<_> = (0..4)
        .filter(|queue| !take_rx(bench, driver, *queue).is_empty())
        .collect();
    assert_eq!(got.len(), 1);
    got[0]
}

fn queue_by_steer(bench: &Bench, frame: &Frame) -> u16 {
    let bytes = frame.bytes();
    let headers = wire::RxHeaders::parse(&bytes, bytes.len()).unwrap();
    let queue = bench.device.steering().select_queue(&headers, 4);
    queue.expect("no rule drops").0
}

fn refused(result: Result<(), DriverError>) -> AdminqStatus {
    match result {
        Err(DriverError::Refused { status, .. }) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_device_chooses_the_same_queue_as_steer() {
    let (mut bench, mut driver) = up_default();
    driver.flow_rule(&mut bench, &rule(5, 2, 1003)).unwrap();
    driver.flow_rule(&mut bench, &rule(4, 1, 1005)).unwrap();
    driver.flow_rule(&mut bench, &rule(6, 3, 1005)).unwrap();
    let mut seen = [0; 4];
    for port in 1000..1200 {
        for frame in [
            Frame::tcp4(10),
            Frame::tcp6(10),
            Frame::udp4(10),
            Frame::udp6(10).tagged(),
        ] {
            let frame = frame.with_port(port);
            let queue = queue_of(&mut bench, &mut driver, &frame);
            assert_eq!(queue, queue_by_steer(&bench, &frame), "{frame:?}");
            seen[usize::from(queue)] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    assert_eq!(
        queue_of(&mut bench, &mut driver, &Frame::tcp4(1).with_port(1003)),
        2
    );
    assert_eq!(
        queue_of(&mut bench, &mut driver, &Frame::tcp4(1).with_port(1005)),
        1
    );
}

#[test]
fn the_hash_in_the_completion_is_that_of_the_microsoft_test_suite() {
    let (mut bench, mut driver) = up_default();
    // 66.9.149.187:2794 to 161.142.100.80:1766 is 0x51ccc178 with the suite's key.
    let frame = Frame {
        src: IpAddr::V4(Ipv4Addr::new(66, 9, 149, 187)),
        dst: IpAddr::V4(Ipv4Addr::new(161, 142, 100, 80)),
        src_port: 2794,
        dst_port: 1766,
        ..Frame::tcp4(1)
    };
    bench.receive_plain(&frame.bytes());
    let packets: Vec<_> = (0..4)
        .flat_map(|queue| take_rx(&mut bench, &mut driver, queue))
        .collect();
    assert_eq!(packets[0].hash, 0x51cc_c178);
}

#[test]
fn key_and_table_have_defaults_until_the_driver_sets_them() {
    let (mut bench, mut driver) = up_default();
    let (addr, _) = driver.argument();
    let query = QueryRss {
        available_length: 560.into(),
        rss_descriptor_addr: addr.into(),
    };
    let status = driver.command(&mut bench, opcode::QUERY_RSS, &query);
    assert_eq!(status, Ok(AdminqStatus::PASSED));
    let answer = bench.ram.get(addr, 560);
    assert_eq!(answer[..8], [0, 0, 2, 0x30, 0, 0xd2, 1, 0]);
    assert_eq!(answer[8..48], steer::ToeplitzKey::MICROSOFT.0);
    let queues = answer[48..].chunks(4).map(|entry| entry[3]);
    assert!(queues.eq((0..128).map(|entry| entry % 4)));
    driver
        .configure_rss(&mut bench, Some(&[9; 40]), Some(&[3; 128]))
        .unwrap();
    let status = driver.command(&mut bench, opcode::QUERY_RSS, &query);
    assert_eq!(status, Ok(AdminqStatus::PASSED));
    let answer = bench.ram.get(addr, 560);
    assert_eq!(answer[8..48], [9; 40]);
    assert!(answer[48..].chunks(4).all(|entry| entry == [0, 0, 0, 3]));
    assert_eq!(queue_of(&mut bench, &mut driver, &Frame::tcp4(1)), 3);
    driver
        .configure_rss(&mut bench, None, Some(&[1; 128]))
        .unwrap();
    assert_eq!(bench.device.steering().rss.key.0, [9; 40]);
    assert_eq!(queue_of(&mut bench, &mut driver, &Frame::tcp4(1)), 1);
}

#[test]
fn a_field_of_zero_does_not_change_its_part_of_rss() {
    let (mut bench, mut driver) = up_default();
    driver
        .configure_rss(&mut bench, Some(&[9; 40]), None)
        .unwrap();
    let before = bench.device.steering().rss;
    let (addr, _) = driver.argument();
    bench.ram.put(addr, &[0, 0, 0, 2].repeat(128));
    // The driver of Linux 6.12 sets a table in this way.
    let mut table_only = ConfigureRss::new_zeroed();
    table_only.hash_lut_size = 128.into();
    table_only.hash_lut_addr = addr.into();
    let status = driver.command(&mut bench, opcode::CONFIGURE_RSS, &table_only);
    assert_eq!(status, Ok(AdminqStatus::PASSED));
    let after = bench.device.steering().rss;
    assert_eq!((after.key, after.types), (before.key, before.types));
    assert_eq!(queue_of(&mut bench, &mut driver, &Frame::tcp4(1)), 2);
    table_only.hash_alg = 2;
    let status = driver.command(&mut bench, opcode::CONFIGURE_RSS, &table_only);
    assert_eq!(status, Ok(AdminqStatus::UNIMPLEMENTED));
}

#[test]
fn a_table_with_a_queue_that_the_device_lacks_is_refused() {
    let (mut bench, mut driver) = up_default();
    let before = bench.device.steering().rss;
    let mut lut = [0; 128];
    for bad in [4, 65_536, u32::MAX] {
        lut[127] = bad;
        let set = driver.configure_rss(&mut bench, Some(&[1; 40]), Some(&lut));
        assert_eq!(refused(set), AdminqStatus::INVALID_ARGUMENT);
        assert_eq!(bench.device.steering().rss, before);
    }
    for (key, lut) in [(&[1; 39][..], &[][..]), (&[], &[0; 127])] {
        let set = driver.configure_rss(&mut bench, Some(key), Some(lut));
        assert_eq!(refused(set), AdminqStatus::INVALID_ARGUMENT);
    }
}

#[test]
fn packets_for_a_destroyed_queue_of_the_table_go_to_an_existing_one() {
    let (mut bench, mut driver) = up(QueueOptions {
        pairs: 2,
        ..QueueOptions::default()
    });
    let mut delivered = 0;
    for port in 0..100 {
        let frame = Frame::tcp4(1).with_port(port).bytes();
        assert_eq!(bench.receive_plain(&frame), RxOutcome::Delivered);
        delivered += take_rx(&mut bench, &mut driver, 0).len();
        delivered += take_rx(&mut bench, &mut driver, 1).len();
    }
    assert_eq!(delivered, 100);
}

#[test]
fn packets_of_a_rule_with_a_destroyed_queue_go_to_no_other_queue() {
    let (mut bench, mut driver) = up_default();
    driver.flow_rule(&mut bench, &rule(0, 3, 1003)).unwrap();
    driver.stop_rx(&mut bench, 3).unwrap();
    let frame = Frame::tcp4(1).with_port(1003);
    let dropped = RxOutcome::Dropped(DropReason::RuleNamesDeadQueue);
    assert_eq!(bench.receive_plain(&frame.bytes()), dropped);
    assert_eq!(bench.stats().rx[3].drops, 1);
}

#[test]
fn rules_and_rss_survive_a_reset_and_the_restart_of_a_queue() {
    let (mut bench, mut driver) = up_default();
    driver.flow_rule(&mut bench, &rule(0, 3, 1003)).unwrap();
    driver
        .configure_rss(&mut bench, None, Some(&[1; 128]))
        .unwrap();
    for _ in 0..3 {
        driver.reset(&mut bench).unwrap();
        let by_rule = Frame::tcp4(1).with_port(1003);
        assert_eq!(queue_of(&mut bench, &mut driver, &by_rule), 3);
        assert_eq!(queue_of(&mut bench, &mut driver, &Frame::tcp4(1)), 1);
        driver.restart_rx(&mut bench, 3).unwrap();
        assert_eq!(queue_of(&mut bench, &mut driver, &by_rule), 3);
    }
}

#[test]
fn removing_the_driver_removes_its_rules() {
    let (mut bench, mut driver) = up_default();
    driver.flow_rule(&mut bench, &rule(0, 3, 1003)).unwrap();
    driver.remove(&mut bench).unwrap();
    assert!(bench.device.steering().rules.is_empty());
}

#[test]
fn rules_are_added_replaced_and_deleted() {
    let (mut bench, mut driver) = up_default();
    let frame = Frame::tcp4(1).with_port(1003);
    driver.flow_rule(&mut bench, &rule(63, 3, 1003)).unwrap();
    assert_eq!(queue_of(&mut bench, &mut driver, &frame), 3);
    driver.flow_rule(&mut bench, &rule(63, 2, 1003)).unwrap();
    assert_eq!(queue_of(&mut bench, &mut driver, &frame), 2);
    let mut delete = rule(63, 0, 0);
    delete.opcode = FLOW_RULE_DEL.into();
    driver.flow_rule(&mut bench, &delete).unwrap();
    assert_eq!(
        refused(driver.flow_rule(&mut bench, &delete)),
        AdminqStatus::NOT_FOUND
    );
    let mut clear = rule(0, 0, 0);
    for location in 0..64 {
        driver
            .flow_rule(&mut bench, &rule(location, 1, 1000))
            .unwrap();
    }
    assert_eq!(bench.device.steering().rules.len(), 64);
    clear.opcode = FLOW_RULE_RESET.into();
    driver.flow_rule(&mut bench, &clear).unwrap();
    assert!(bench.device.steering().rules.is_empty());
}

#[test]
fn invalid_rules_are_refused() {
    let (mut bench, mut driver) = up_default();
    type Spoil<'a> = &'a dyn Fn(&mut ConfigureFlowRule);
    let cases: [(Spoil<'_>, AdminqStatus); 6] = [
        (
            &|rule| rule.location = 64.into(),
            AdminqStatus::INVALID_ARGUMENT,
        ),
        (
            &|rule| rule.location = u32::MAX.into(),
            AdminqStatus::INVALID_ARGUMENT,
        ),
        (
            &|rule| rule.rule.action = 4.into(),
            AdminqStatus::INVALID_ARGUMENT,
        ),
        (
            &|rule| rule.opcode = 3.into(),
            AdminqStatus::INVALID_ARGUMENT,
        ),
        (
            &|rule| rule.rule.flow_type = 10.into(),
            AdminqStatus::INVALID_ARGUMENT,
        ),
        (
            &|rule| rule.rule.flow_type = flow_type::ESPV6.into(),
            AdminqStatus::UNIMPLEMENTED,
        ),
    ];
    for (spoil, status) in cases {
        let mut bad = rule(0, 0, 0);
        spoil(&mut bad);
        assert_eq!(refused(driver.flow_rule(&mut bench, &bad)), status);
    }
    assert!(bench.device.steering().rules.is_empty());
}

/// Queries flow rules; returns the status, the header and the bytes after it.
fn query(
    bench: &mut Bench,
    driver: &mut Driver,
    (opcode, start, room): (u16, u32, u64),
) -> (AdminqStatus, QueriedFlowRules, Vec<u8>) {
    let (addr, _) = driver.argument();
    bench.ram.put(addr, &[0; 8192]);
    let command = QueryFlowRules {
        opcode: opcode.into(),
        padding: [0; 2],
        starting_rule_id: start.into(),
        available_length: room.into(),
        rule_descriptor_addr: addr.into(),
    };
    let status = driver
        .command(bench, opcode::QUERY_FLOW_RULES, &command)
        .unwrap();
    let bytes = bench.ram.get(addr, 8192);
    let (header, _) = QueriedFlowRules::read_from_prefix(&bytes).unwrap();
    let total = header.total_length.get() as usize;
    let items = bytes.get(16..total).unwrap_or_default().to_vec();
    (status, header, items)
}

#[test]
fn a_query_returns_the_rules_that_were_set() {
    let (mut bench, mut driver) = up_default();
    let mut six = rule(7, 2, 1);
    six.rule.flow_type = flow_type::UDPV6.into();
    six.rule.key.src_ip = [0xfd; 16];
    six.rule.mask.src_ip = [0xff; 16];
    six.rule.key.tos = 4;
    six.rule.mask.tos = 0xfc;
    let mut four = rule(3, 1, 2);
    four.rule.key.dst_ip[..4].copy_from_slice(&[10, 0, 0, 1]);
    four.rule.mask.dst_ip[..4].copy_from_slice(&[255, 0, 0, 0]);
    driver.flow_rule(&mut bench, &six).unwrap();
    driver.flow_rule(&mut bench, &four).unwrap();
    let (status, header, items) = query(&mut bench, &mut driver, (FLOW_RULE_QUERY_RULES, 0, 8192));
    assert_eq!(status, AdminqStatus::PASSED);
    assert_eq!(
        (header.num_flow_rules.get(), header.max_flow_rules.get()),
        (2, 64)
    );
    assert_eq!(header.num_queried_rules.get(), 2);
    let expected = [
        3u32.to_be_bytes().to_vec(),
        four.rule.as_bytes().to_vec(),
        7u32.to_be_bytes().to_vec(),
        six.rule.as_bytes().to_vec(),
    ];
    assert_eq!(items, expected.concat());
}

#[test]
fn repeated_queries_return_all_locations() {
    let (mut bench, mut driver) = up_default();
    for location in (0..64).step_by(3) {
        driver
            .flow_rule(&mut bench, &rule(location, 1, 1000))
            .unwrap();
    }
    let (mut start, mut got) = (0, Vec::new());
    loop {
        let asked = (FLOW_RULE_QUERY_IDS, start, 16 + 5 * 4 + 3);
        let (status, header, items) = query(&mut bench, &mut driver, asked);
        assert_eq!(status, AdminqStatus::PASSED);
        assert_eq!(header.total_length.get() as usize, 16 + items.len());
        if header.num_queried_rules.get() == 0 {
            break;
        }
        got.extend(items.chunks(4).map(|id| u32::from(id[3])));
        start = got[got.len() - 1] + 1;
    }
    assert_eq!(got, (0..64).step_by(3).collect::<Vec<_>>());
    assert!(
        bench
            .device
            .steering()
            .rules
            .iter()
            .any(|(location, _)| location == RuleLocation(63))
    );
    let stats = query(&mut bench, &mut driver, (FLOW_RULE_QUERY_STATS, 0, 16));
    assert_eq!(stats.1.num_flow_rules.get(), 22);
    assert_eq!(stats.2, []);
    for bad in [(3, 0, 4096), (0, 0, 15), (0, 0, 0)] {
        assert_eq!(
            query(&mut bench, &mut driver, bad).0,
            AdminqStatus::INVALID_ARGUMENT
        );
    }
    let all = query(&mut bench, &mut driver, (FLOW_RULE_QUERY_IDS, 0, u64::MAX));
    assert_eq!(all.1.num_queried_rules.get(), 22);
}
