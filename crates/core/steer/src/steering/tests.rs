use super::*;
use crate::testing::{Packet, arp};
use crate::{FlowType, IndirectionTable, NtupleRule, PortMatch, RxQueueId, ToeplitzKey};

fn steering() -> Steering {
    let table = IndirectionTable::new(&[RxQueueId(2)], 4).unwrap();
    let mut rules = Rules::default();
    let to_three = RuleAction::Queue(RxQueueId(3));
    let rule = NtupleRule {
        dst_port: PortMatch::exact(5201),
        ..NtupleRule::any(FlowType::Tcp4, to_three)
    };
    rules.insert(Some(RuleLocation(63)), rule).unwrap();
    Steering {
        rss: Rss::new(ToeplitzKey::MICROSOFT, table),
        rules,
        ntuple: true,
    }
}

fn to(queue: u16, by: SelectedBy) -> Selected {
    Selected::Queue {
        queue: RxQueueId(queue),
        by,
    }
}

#[test]
fn a_rule_beats_rss() {
    let selected = steering().select_queue(&Packet::tcp4().headers());
    assert_eq!(selected, to(3, SelectedBy::Rule(RuleLocation(63))));
}

#[test]
fn packets_without_a_matching_rule_use_rss() {
    let other = Packet {
        dst_port: 80,
        ..Packet::tcp4()
    };
    assert_eq!(
        steering().select_queue(&other.headers()),
        to(2, SelectedBy::Rss)
    );
    assert_eq!(
        steering().select_queue(&Packet::tcp6().headers()),
        to(2, SelectedBy::Rss)
    );
}

#[test]
fn rules_count_only_while_ntuple_is_on() {
    let steering = Steering {
        ntuple: false,
        ..steering()
    };
    assert_eq!(
        steering.select_queue(&Packet::tcp4().headers()),
        to(2, SelectedBy::Rss)
    );
}

#[test]
fn packets_without_a_hash_go_to_queue_zero() {
    assert_eq!(steering().select_queue(&arp()), to(0, SelectedBy::Default));
}

#[test]
fn a_rule_may_drop() {
    let mut steering = steering();
    let drop = NtupleRule::any(FlowType::Tcp4, RuleAction::Drop);
    let location = steering.rules.insert(None, drop).unwrap();
    assert_eq!(
        steering.select_queue(&Packet::tcp4().headers()),
        Selected::Drop(location)
    );
}

#[test]
fn with_several_queues_the_hash_decides() {
    let table = IndirectionTable::round_robin(128, 4).unwrap();
    let steering = Steering {
        rss: Rss::new(ToeplitzKey::MICROSOFT, table),
        ..steering()
    };
    let headers = Packet::tcp6().headers();
    let hash = steering.rss.hash(&headers).unwrap();
    let queue = (hash % 128 % 4) as u16;
    assert_eq!(steering.select_queue(&headers), to(queue, SelectedBy::Rss));
}
