use super::*;
use crate::testing::{Packet, arp};
use crate::{IndirectionTable, PortMatch, ToeplitzKey};

/// Number of queues: more than any test names, unless it says so.
const QUEUES: usize = 256;

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
    }
}

#[test]
fn a_rule_beats_rss() {
    let selected = steering().select_queue(&Packet::tcp4().headers(), QUEUES);
    assert_eq!(selected, Ok(RxQueueId(3)));
}

#[test]
fn packets_without_a_matching_rule_use_rss() {
    let other = Packet {
        dst_port: 80,
        ..Packet::tcp4()
    };
    assert_eq!(
        steering().select_queue(&other.headers(), QUEUES),
        Ok(RxQueueId(2))
    );
    assert_eq!(
        steering().select_queue(&Packet::tcp6().headers(), QUEUES),
        Ok(RxQueueId(2))
    );
}

#[test]
fn packets_without_a_hash_go_to_queue_zero() {
    assert_eq!(steering().select_queue(&arp(), QUEUES), Ok(RxQueueId(0)));
}

#[test]
fn a_rule_may_drop() {
    let mut steering = steering();
    let drop = NtupleRule::any(FlowType::Tcp4, RuleAction::Drop);
    steering.rules.insert(None, drop).unwrap();
    assert_eq!(
        steering.select_queue(&Packet::tcp4().headers(), QUEUES),
        Err(Unsteered::Dropped)
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
    assert_eq!(
        steering.select_queue(&headers, QUEUES),
        Ok(RxQueueId(queue))
    );
}

#[test]
fn a_rule_that_spreads_uses_every_queue_for_flows_from_even_ports() {
    for queues in [2u16, 3, 4] {
        let range = crate::QueueRange::new(RxQueueId(1), RxQueueId(queues)).unwrap();
        let mut steering = steering();
        let rule = NtupleRule::any(FlowType::Tcp4, RuleAction::Spread(range));
        steering.rules.insert(Some(RuleLocation(0)), rule).unwrap();
        let mut flows = vec![0; usize::from(queues) + 1];
        for flow in 0..16 {
            let packet = Packet {
                src_port: 40_000 + 2 * flow,
                ..Packet::tcp4()
            };
            let queue = steering.select_queue(&packet.headers(), QUEUES);
            flows[queue.expect("no rule drops").index()] += 1;
        }
        assert_eq!(flows[0], 0, "queue 0 is not in the range");
        assert!(
            flows[1..].iter().all(|count| *count >= 2),
            "{queues} queues: {flows:?}"
        );
    }
}

#[test]
fn a_range_of_queues_has_one_at_least_and_names_its_last() {
    let range = |first, last| crate::QueueRange::new(RxQueueId(first), RxQueueId(last));
    assert_eq!(range(3, 3).map(crate::QueueRange::last), Some(RxQueueId(3)));
    assert_eq!(range(3, 2), None);
    assert_eq!(range(0, u16::MAX), None);
    let all = range(1, u16::MAX).unwrap();
    assert_eq!(all.last(), RxQueueId(u16::MAX));
    assert_eq!(all.queue(0), RxQueueId(1));
}

#[test]
fn a_queue_that_does_not_exist_is_not_selected() {
    let steering = steering();
    for (packet, needed) in [(Packet::tcp4(), 4), (Packet::tcp6(), 3)] {
        let headers = packet.headers();
        let selected = steering.select_queue(&headers, needed);
        assert_eq!(selected, Ok(RxQueueId(needed as u16 - 1)));
        let selected = steering.select_queue(&headers, needed - 1);
        assert_eq!(selected, Err(Unsteered::NoQueue));
    }
}

#[test]
fn the_only_queue_takes_what_no_rule_matches() {
    let steering = Steering {
        rules: Rules::default(),
        ..steering()
    };
    let selected = steering.select_queue(&Packet::tcp4().headers(), 1);
    assert_eq!(selected, Ok(RxQueueId(0)));
}
