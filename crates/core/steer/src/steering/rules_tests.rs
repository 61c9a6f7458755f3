use proptest::prelude::*;
use wire::protocol;

use super::*;
use crate::ntuple::{IpMatch, PortMatch, TosMatch};
use crate::testing::{Packet, arp};

const TO_ONE: RuleAction = RuleAction::Queue(RxQueueId(1));

fn any_tcp4() -> NtupleRule {
    NtupleRule::any(FlowType::Tcp4, TO_ONE)
}

fn matches(rule: NtupleRule, packet: Packet) -> bool {
    let mut rules = Rules::default();
    rules.insert(None, rule).unwrap();
    rules.lookup(&packet.headers()).is_some()
}

fn masked(addr: &str, mask: &str) -> IpMatch {
    IpMatch::Masked {
        addr: addr.parse().unwrap(),
        mask: mask.parse().unwrap(),
    }
}

#[test]
fn a_rule_matches_one_kind_of_packets() {
    let udp4 = Packet {
        protocol: protocol::UDP,
        ..Packet::tcp4()
    };
    let udp6 = Packet {
        protocol: protocol::UDP,
        ..Packet::tcp6()
    };
    let flows = [
        FlowType::Tcp4,
        FlowType::Udp4,
        FlowType::Tcp6,
        FlowType::Udp6,
    ];
    for (at, packet) in [Packet::tcp4(), udp4, Packet::tcp6(), udp6]
        .into_iter()
        .enumerate()
    {
        for (of, flow) in flows.into_iter().enumerate() {
            assert_eq!(matches(NtupleRule::any(flow, TO_ONE), packet), at == of);
        }
    }
}

#[test]
fn other_packets_match_no_rule() {
    let mut rules = Rules::default();
    for flow in [
        FlowType::Tcp4,
        FlowType::Udp4,
        FlowType::Tcp6,
        FlowType::Udp6,
    ] {
        rules.insert(None, NtupleRule::any(flow, TO_ONE)).unwrap();
    }
    let icmp = Packet {
        protocol: protocol::ICMP,
        ..Packet::tcp4()
    };
    assert_eq!(rules.lookup(&icmp.headers()), None);
    assert_eq!(rules.lookup(&Packet::tcp4().fragment()), None);
    assert_eq!(rules.lookup(&arp()), None);
}

#[test]
fn an_exact_rule_matches_its_five_tuple_only() {
    let packet = Packet::tcp4();
    let rule = NtupleRule {
        src_ip: IpMatch::exact(packet.src),
        dst_ip: IpMatch::exact(packet.dst),
        src_port: PortMatch::exact(packet.src_port),
        dst_port: PortMatch::exact(packet.dst_port),
        ..any_tcp4()
    };
    assert!(matches(rule, packet));
    assert!(!matches(
        rule,
        Packet {
            src: [10, 77, 0, 9].into(),
            ..packet
        }
    ));
    assert!(!matches(
        rule,
        Packet {
            dst: [10, 77, 1, 2].into(),
            ..packet
        }
    ));
    assert!(!matches(
        rule,
        Packet {
            src_port: 40_001,
            ..packet
        }
    ));
    assert!(!matches(
        rule,
        Packet {
            dst_port: 5200,
            ..packet
        }
    ));
    assert!(!matches(
        rule,
        Packet {
            src: packet.dst,
            dst: packet.src,
            ..packet
        }
    ));
}

#[test]
fn masks_compare_only_their_bits() {
    let packet = Packet::tcp4();
    let net = NtupleRule {
        src_ip: masked("10.77.255.255", "255.255.0.0"),
        ..any_tcp4()
    };
    assert!(matches(net, packet));
    assert!(!matches(
        net,
        Packet {
            src: [10, 78, 0, 1].into(),
            ..packet
        }
    ));
    let low = NtupleRule {
        dst_ip: masked("0.0.0.2", "0.0.0.255"),
        ..any_tcp4()
    };
    assert!(matches(low, packet));
    assert!(!matches(
        low,
        Packet {
            dst: [10, 77, 0, 3].into(),
            ..packet
        }
    ));
    let even = NtupleRule {
        dst_port: PortMatch { port: 0, mask: 1 },
        ..any_tcp4()
    };
    assert!(!matches(even, packet));
    assert!(matches(
        even,
        Packet {
            dst_port: 5202,
            ..packet
        }
    ));
    let dscp = NtupleRule {
        tos: TosMatch {
            tos: 0xb8,
            mask: 0xfc,
        },
        ..any_tcp4()
    };
    assert!(!matches(dscp, packet));
    assert!(matches(
        dscp,
        Packet {
            tos: 0xbb,
            ..packet
        }
    ));
}

#[test]
fn all_128_bits_of_an_ipv6_address_are_compared() {
    let rule = NtupleRule {
        dst_ip: IpMatch::exact(Packet::tcp6().dst),
        tos: TosMatch { tos: 3, mask: 0xff },
        ..NtupleRule::any(FlowType::Tcp6, TO_ONE)
    };
    let packet = Packet {
        tos: 3,
        ..Packet::tcp6()
    };
    assert!(matches(rule, packet));
    assert!(!matches(
        rule,
        Packet {
            dst: "fd00::1:0:0:2".parse().unwrap(),
            ..packet
        }
    ));
    assert!(!matches(
        rule,
        Packet {
            dst: "7d00::2".parse().unwrap(),
            ..packet
        }
    ));
    assert!(!matches(rule, Packet { tos: 1, ..packet }));
}

#[test]
fn mixed_families_are_refused() {
    let mut rules = Rules::default();
    for ip in [
        masked("fd00::", "ffff::"),
        masked("10.0.0.1", "ffff::"),
        masked("fd00::", "255.0.0.0"),
    ] {
        for rule in [
            NtupleRule {
                src_ip: ip,
                ..any_tcp4()
            },
            NtupleRule {
                dst_ip: ip,
                ..any_tcp4()
            },
        ] {
            assert_eq!(rules.insert(None, rule), Err(RuleError::FamilyMismatch));
        }
    }
    let four = IpMatch::exact(Packet::tcp4().src);
    let rule = NtupleRule {
        src_ip: four,
        ..NtupleRule::any(FlowType::Udp6, TO_ONE)
    };
    assert_eq!(rules.insert(None, rule), Err(RuleError::FamilyMismatch));
    assert!(rules.is_empty());
}

#[test]
fn the_lowest_location_that_matches_decides() {
    let mut rules = Rules::default();
    let headers = Packet::tcp4().headers();
    let narrow = NtupleRule {
        dst_port: PortMatch::exact(5201),
        ..any_tcp4()
    };
    rules.insert(Some(RuleLocation(7)), any_tcp4()).unwrap();
    rules.insert(Some(RuleLocation(9)), narrow).unwrap();
    assert_eq!(rules.lookup(&headers), Some((RuleLocation(7), TO_ONE)));
    let drop = NtupleRule {
        action: RuleAction::Drop,
        ..narrow
    };
    rules.insert(Some(RuleLocation(3)), drop).unwrap();
    assert_eq!(
        rules.lookup(&headers),
        Some((RuleLocation(3), RuleAction::Drop))
    );
    let elsewhere = NtupleRule {
        dst_port: PortMatch::exact(1),
        ..any_tcp4()
    };
    rules.insert(Some(RuleLocation(1)), elsewhere).unwrap();
    assert_eq!(
        rules.lookup(&headers),
        Some((RuleLocation(3), RuleAction::Drop))
    );
    assert_eq!(
        rules.iter().map(|(at, _)| at.0).collect::<Vec<_>>(),
        [1, 3, 7, 9]
    );
}

#[test]
fn a_rule_without_location_takes_the_first_free_one() {
    let mut rules = Rules::new(4);
    let insert = |rules: &mut Rules, at: Option<u32>| {
        rules
            .insert(at.map(RuleLocation), any_tcp4())
            .map(|at| at.0)
    };
    assert_eq!(insert(&mut rules, Some(1)), Ok(1));
    assert_eq!(insert(&mut rules, None), Ok(0));
    assert_eq!(insert(&mut rules, None), Ok(2));
    assert_eq!(insert(&mut rules, None), Ok(3));
    assert_eq!(
        insert(&mut rules, None),
        Err(RuleError::Full { capacity: 4 })
    );
    assert!(rules.remove(RuleLocation(2)).is_ok());
    assert_eq!(insert(&mut rules, None), Ok(2));
    assert_eq!((rules.len(), rules.capacity()), (4, 4));
}

#[test]
fn a_location_past_the_end_is_refused_whether_full_or_not() {
    let mut rules = Rules::new(1);
    let error = |location| {
        Err(RuleError::NoSuchLocation {
            location: RuleLocation(location),
            capacity: 1,
        })
    };
    assert_eq!(rules.insert(Some(RuleLocation(1)), any_tcp4()), error(1));
    rules.insert(None, any_tcp4()).unwrap();
    assert_eq!(rules.insert(Some(RuleLocation(1)), any_tcp4()), error(1));
    assert_eq!(
        rules.insert(Some(RuleLocation(u32::MAX)), any_tcp4()),
        error(u32::MAX)
    );
    let mut none = Rules::new(0);
    assert_eq!(
        none.insert(None, any_tcp4()),
        Err(RuleError::Full { capacity: 0 })
    );
}

#[test]
fn a_rule_replaces_the_one_at_its_location() {
    let mut rules = Rules::new(1);
    rules.insert(None, any_tcp4()).unwrap();
    let other = NtupleRule {
        action: RuleAction::Drop,
        ..any_tcp4()
    };
    assert_eq!(
        rules.insert(Some(RuleLocation(0)), other),
        Ok(RuleLocation(0))
    );
    assert_eq!(
        rules.iter().collect::<Vec<_>>(),
        [(RuleLocation(0), &other)]
    );
}

#[test]
fn a_rule_that_is_not_there_cannot_be_removed() {
    let mut rules = Rules::default();
    let location = RuleLocation(5);
    assert_eq!(rules.remove(location), Err(RuleError::NoRule { location }));
    rules.insert(Some(location), any_tcp4()).unwrap();
    assert_eq!(rules.remove(location), Ok(any_tcp4()));
    assert_eq!(rules.remove(location), Err(RuleError::NoRule { location }));
    assert!(rules.is_empty());
    rules.insert(None, any_tcp4()).unwrap();
    rules.clear();
    assert!(rules.is_empty());
}

proptest! {
    #[test]
    fn a_table_has_the_same_rules_as_a_map(
        steps in proptest::collection::vec((any::<bool>(), proptest::option::of(0u32..10)), 0..60),
    ) {
        let mut rules = Rules::new(8);
        let mut model = std::collections::BTreeMap::new();
        for (port, (insert, at)) in steps.into_iter().enumerate() {
            let rule = NtupleRule { dst_port: PortMatch::exact(port as u16), ..any_tcp4() };
            if insert {
                let at = at.or_else(|| (0..8).find(|at| !model.contains_key(at)));
                let expected = at.filter(|at| *at < 8);
                prop_assert_eq!(rules.insert(at.map(RuleLocation), rule).ok().map(|at| at.0), expected);
                if let Some(at) = expected {
                    model.insert(at, rule);
                }
            } else {
                let at = at.unwrap_or(0);
                prop_assert_eq!(rules.remove(RuleLocation(at)).ok(), model.remove(&at));
            }
            let held: Vec<_> = rules.iter().map(|(at, rule)| (at.0, *rule)).collect();
            prop_assert_eq!(held, model.clone().into_iter().collect::<Vec<_>>());
        }
    }
}
