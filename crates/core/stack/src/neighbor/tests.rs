use super::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const STRANGER: Purpose = Purpose::Answer { from: Some(OTHER) };
const NO_FRAME: Purpose = Purpose::Answer { from: None };
const OURS: Purpose = Purpose::Connection;

fn ip(last: u16) -> IpAddr {
    IpAddr::from([10, 0, (last >> 8) as u8, last as u8])
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn neighbors() -> Neighbors<u32> {
    Neighbors::new([7; 16])
}

fn solicit(last: u16, known: Option<MacAddr>) -> Option<NeighborAction<u32>> {
    Some(NeighborAction::Solicit {
        ip: ip(last),
        known,
    })
}

fn claim(mac: MacAddr, learnt: LearnedFrom) -> Claim {
    Claim {
        mac,
        learnt,
        change: Change::Replaces,
    }
}

fn answer(mac: MacAddr) -> Claim {
    claim(mac, LearnedFrom::Answer)
}

fn hearsay(mac: MacAddr) -> Claim {
    claim(mac, LearnedFrom::Hearsay)
}

/// A table that has sent all broadcast requests for replies that are allowed at time 0.
fn flooded() -> Neighbors<u32> {
    let mut cache = neighbors();
    for last in 0..ANSWER_BROADCASTS_PER_SECOND as u16 {
        assert_eq!(
            cache.hold(ip(1000 + last), 0, NO_FRAME, at(0)),
            HoldOutcome::Waits
        );
    }
    let all = ANSWER_BROADCASTS_PER_SECOND as usize;
    assert_eq!(questions(&mut cache, at(0)), (0, all));
    cache
}

/// Takes all requests that are due; returns the number of unicast requests, and that of broadcasts.
fn questions(cache: &mut Neighbors<u32>, now: Instant) -> (usize, usize) {
    let (mut one, mut all) = (0, 0);
    while let Some(action) = cache.poll(now) {
        match action {
            NeighborAction::Solicit { known: Some(_), .. } => one += 1,
            NeighborAction::Solicit { known: None, .. } => all += 1,
            NeighborAction::Unreachable { .. } => {}
        }
    }
    (one, all)
}

#[test]
fn a_packet_waits_for_the_answer_and_then_leaves() {
    let mut cache = neighbors();
    assert_eq!(cache.lookup(ip(1), OURS, at(0)), None);
    assert_eq!(cache.hold(ip(1), 11, OURS, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.hold(ip(1), 12, OURS, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(0)), solicit(1, None));
    assert_eq!(cache.poll(at(0)), None);
    assert_eq!(cache.learn(ip(1), answer(MAC), at(3)), Ok(vec![11, 12]));
    assert_eq!(cache.lookup(ip(1), OURS, at(4)), Some(MAC));
    assert_eq!(cache.of_connections.len(), 0);
    assert_eq!(cache.poll(at(5000)), None);
    assert_eq!(cache.next_deadline(), None);
}

#[test]
fn after_three_questions_the_address_is_unreachable_and_the_packets_come_back() {
    let mut cache = neighbors();
    assert_eq!(cache.hold(ip(1), 11, OURS, at(0)), HoldOutcome::Waits);
    for second in 0..3 {
        assert_eq!(cache.poll(at(second * 1000)), solicit(1, None));
        assert_eq!(cache.poll(at(second * 1000 + 999)), None);
    }
    let held = vec![11];
    assert_eq!(
        cache.poll(at(3000)),
        Some(NeighborAction::Unreachable { ip: ip(1), held })
    );
    assert_eq!((cache.of_connections.len(), cache.questions()), (0, 0));
    assert_eq!(cache.poll(at(9000)), None);
}

#[test]
fn a_stale_address_is_used_and_asked_about_by_unicast() {
    let mut cache = neighbors();
    assert_eq!(cache.hold(ip(1), 11, OURS, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.learn(ip(1), answer(MAC), at(0)), Ok(vec![11]));
    assert_eq!(cache.lookup(ip(1), OURS, at(30_000)), Some(MAC));
    assert_eq!(cache.poll(at(30_000)), None);
    assert_eq!(cache.lookup(ip(1), OURS, at(30_001)), Some(MAC));
    assert_eq!(cache.poll(at(30_001)), solicit(1, Some(MAC)));
    assert_eq!(cache.learn(ip(1), answer(OTHER), at(30_002)), Ok(vec![]));
    assert_eq!(cache.lookup(ip(1), OURS, at(31_001)), Some(OTHER));
    assert_eq!(cache.poll(at(31_001)), None);
}

#[test]
fn a_probe_without_an_answer_forgets_the_address() {
    let mut cache = neighbors();
    assert_eq!(cache.expect(ip(1), hearsay(MAC), at(0)), Ok(vec![]));
    assert_eq!(cache.lookup(ip(1), OURS, at(1)), Some(MAC));
    for second in 0..3 {
        assert_eq!(
            cache.poll(at(1 + second * 1000)),
            solicit(1, Some(MAC)),
            "{second}"
        );
    }
    let held = vec![];
    assert_eq!(
        cache.poll(at(3001)),
        Some(NeighborAction::Unreachable { ip: ip(1), held })
    );
    assert_eq!(cache.lookup(ip(1), OURS, at(3002)), None);
}

#[test]
fn hearsay_moves_an_address_but_makes_no_entry_and_confirms_nothing() {
    let mut cache = neighbors();
    assert_eq!(cache.learn(ip(1), hearsay(MAC), at(0)), Ok(vec![]));
    assert_eq!(cache.lookup(ip(1), OURS, at(0)), None);
    assert_eq!(cache.expect(ip(1), hearsay(MAC), at(0)), Ok(vec![]));
    assert_eq!(cache.learn(ip(1), answer(MAC), at(0)), Ok(vec![]));
    assert_eq!(cache.learn(ip(1), hearsay(MAC), at(29_000)), Ok(vec![]));
    assert_eq!(cache.lookup(ip(1), OURS, at(30_001)), Some(MAC));
    assert_eq!(cache.poll(at(30_001)), solicit(1, Some(MAC)));
    assert_eq!(cache.learn(ip(1), hearsay(OTHER), at(30_002)), Ok(vec![]));
    assert_eq!(cache.lookup(ip(1), OURS, at(30_002)), Some(OTHER));
}

#[test]
fn arp_that_is_not_gratuitous_changes_no_entry_within_a_second_of_its_last_change() {
    let mut cache = neighbors();
    let later = |learnt| Claim {
        change: Change::AfterLock,
        ..claim(OTHER, learnt)
    };
    assert_eq!(cache.hold(ip(1), 11, OURS, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.learn(ip(1), answer(MAC), at(500)), Ok(vec![11]));
    for learnt in [LearnedFrom::Answer, LearnedFrom::Hearsay] {
        assert_eq!(
            cache.learn(ip(1), later(learnt), at(1500)),
            Err(ClaimIgnored)
        );
        assert_eq!(cache.peek(ip(1)), Some(MAC));
    }
    assert_eq!(
        cache.learn(ip(1), later(LearnedFrom::Answer), at(1501)),
        Ok(vec![])
    );
    assert_eq!(cache.peek(ip(1)), Some(OTHER));
}

#[test]
fn an_advertisement_without_override_has_a_reachable_entry_asked_about_and_changes_nothing_else() {
    let mut cache = neighbors();
    let doubt = Claim {
        change: Change::Doubts,
        ..answer(OTHER)
    };
    assert_eq!(cache.hold(ip(1), 11, OURS, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(0)), solicit(1, None));
    assert_eq!(cache.learn(ip(1), answer(MAC), at(0)), Ok(vec![11]));
    assert_eq!(cache.learn(ip(1), doubt, at(10)), Err(ClaimIgnored));
    assert_eq!(cache.lookup(ip(1), OURS, at(11)), Some(MAC));
    assert_eq!(cache.poll(at(11)), solicit(1, Some(MAC)));
    // A stale entry does not change: the probe continues.
    assert_eq!(cache.learn(ip(1), doubt, at(20)), Err(ClaimIgnored));
    assert_eq!(cache.poll(at(1011)), solicit(1, Some(MAC)));
}

#[test]
fn the_oldest_waiting_packet_of_a_neighbour_gives_way_and_then_the_oldest_of_all() {
    let mut cache = neighbors();
    for packet in 0..MAX_HELD_PER_NEIGHBOR as u32 {
        assert_eq!(cache.hold(ip(1), packet, OURS, at(0)), HoldOutcome::Waits);
    }
    assert_eq!(cache.hold(ip(1), 99, OURS, at(0)), HoldOutcome::GaveWay(0));
    for last in 2..100 {
        for packet in 0..MAX_HELD_PER_NEIGHBOR as u32 {
            let _ = cache.hold(ip(last), packet, OURS, at(0));
        }
    }
    assert_eq!(cache.of_connections.len(), MAX_HELD);
    assert_eq!(cache.questions(), MAX_HELD / MAX_HELD_PER_NEIGHBOR);
    assert_eq!(cache.hold(ip(200), 7, OURS, at(0)), HoldOutcome::GaveWay(0));
    assert_eq!(cache.learn(ip(200), answer(MAC), at(1)), Ok(vec![7]));
}

#[test]
fn answers_have_room_of_their_own_and_take_none_of_connections() {
    let mut cache = neighbors();
    for last in 0..2000 {
        let packet = u32::from(last);
        let expected = match packet.checked_sub(MAX_ANSWERS_HELD as u32) {
            None => HoldOutcome::Waits,
            Some(oldest) => HoldOutcome::GaveWay(oldest),
        };
        let now = at(u64::from(last));
        assert_eq!(cache.hold(ip(last), packet, STRANGER, now), expected);
    }
    assert_eq!(cache.questions(), MAX_ANSWERS_HELD);
    assert_eq!(cache.due.len(), MAX_ANSWERS_HELD);
    for packet in 0..5 {
        let kept = packet < MAX_ANSWERS_PER_NEIGHBOR as u32;
        let held = cache.hold(ip(3000), packet, STRANGER, at(2000));
        assert_eq!(held == HoldOutcome::GaveWay(0), !kept, "{held:?}");
    }
    for packet in 0..MAX_HELD as u32 {
        assert_eq!(
            cache.hold(ip(4000 + packet as u16), packet, OURS, at(2000)),
            HoldOutcome::Waits
        );
    }
}

#[test]
fn beyond_the_limit_an_unknown_neighbour_is_solicited_at_the_source_of_its_packet() {
    let mut cache = neighbors();
    assert_eq!(cache.hold(ip(1), 1, STRANGER, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(0)), solicit(1, None), "as long as it may be");
    let mut cache = flooded();
    assert_eq!(
        cache.hold(ip(2), 1, NO_FRAME, at(0)),
        HoldOutcome::NotAsked(1)
    );
    assert_eq!(cache.hold(ip(1), 1, STRANGER, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(0)), solicit(1, Some(OTHER)));
    assert_eq!(cache.poll(at(0)), None);
    // The same address from another station: a request goes there, too, at once.
    let from = Some(MAC);
    let honest = Purpose::Answer { from };
    assert_eq!(cache.hold(ip(1), 2, honest, at(1)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(1)), solicit(1, Some(MAC)));
    assert_eq!(cache.hold(ip(1), 3, honest, at(2)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(2)), None);
    assert_eq!(cache.learn(ip(1), answer(MAC), at(3)), Ok(vec![1, 2, 3]));
}

#[test]
fn a_connection_to_an_address_that_was_solicited_by_unicast_solicits_by_broadcast_at_once() {
    let mut cache = flooded();
    assert_eq!(cache.hold(ip(1), 1, STRANGER, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(0)), solicit(1, Some(OTHER)));
    assert_eq!(cache.hold(ip(1), 2, OURS, at(1)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(1)), solicit(1, None));
    assert_eq!(cache.hold(ip(1), 3, OURS, at(2)), HoldOutcome::Waits);
    assert_eq!(cache.poll(at(2)), None);
    assert_eq!(cache.learn(ip(1), answer(MAC), at(3)), Ok(vec![2, 3, 1]));
}

#[test]
fn questions_for_answers_are_limited_and_those_of_connections_are_not() {
    let mut cache = neighbors();
    let (mut one, mut all, mut not_asked) = (0, 0, 0);
    for last in 0..50_000_u16 {
        let now = at(u64::from(last / 50));
        let purpose = [STRANGER, NO_FRAME][usize::from(last % 2)];
        let held = cache.hold(ip(last), 0, purpose, now);
        not_asked += usize::from(matches!(held, HoldOutcome::NotAsked(_)));
        let (to_one, to_all) = questions(&mut cache, now);
        (one, all) = (one + to_one, all + to_all);
    }
    let most = ANSWER_UNICASTS_PER_SECOND as usize + ANSWER_UNICASTS_BURST as usize;
    assert!((most - 100..=most).contains(&one), "{one} to one station");
    assert!((190..=200).contains(&all), "{all} to everybody");
    assert_eq!(not_asked, 50_000 - one - all);
    for last in 0..100 {
        assert_eq!(
            cache.hold(ip(60_000 + last), 1, OURS, at(1000)),
            HoldOutcome::Waits
        );
    }
    assert_eq!(questions(&mut cache, at(1000)).1, 100);
}

#[test]
fn questions_that_were_not_answered_vanish() {
    let mut cache = neighbors();
    for last in 0..1000 {
        let _ = cache.hold(ip(last), 1, STRANGER, at(0));
    }
    questions(&mut cache, at(0));
    assert_eq!(cache.questions(), MAX_ANSWERS_HELD);
    let (mut one, mut all, mut now) = (0, 0, at(0));
    while let Some(next) = cache.next_deadline() {
        now = next;
        let (to_one, to_all) = questions(&mut cache, now);
        (one, all) = (one + to_one, all + to_all);
    }
    assert_eq!(now, at(3000));
    assert_eq!((one, all), (0, 200), "asked again within the limit");
    let left = (cache.questions(), cache.answers.len(), cache.due.len());
    assert_eq!(left, (0, 0, 0));
}

#[test]
fn the_cache_is_bounded_and_keeps_neighbours_in_use() {
    let mut cache = neighbors();
    for last in 0..2 * MAX_NEIGHBORS as u16 {
        let now = at(u64::from(last));
        assert_eq!(cache.expect(ip(last), hearsay(MAC), now), Ok(vec![]));
        assert_eq!(cache.lookup(ip(0), OURS, now), Some(MAC), "{last}");
        assert!(cache.known() <= MAX_NEIGHBORS);
    }
    assert!(cache.known() >= MAX_NEIGHBORS - EVICTED_AT_ONCE);
}

#[test]
fn a_full_table_of_neighbours_in_use_accepts_only_neighbours_of_connections() {
    let mut cache = neighbors();
    let full = MAX_NEIGHBORS as u16;
    for last in 0..full {
        assert_eq!(cache.expect(ip(last), answer(MAC), at(0)), Ok(vec![]));
        assert_eq!(cache.lookup(ip(last), OURS, at(u64::from(last))), Some(MAC));
    }
    assert_eq!(cache.expect(ip(full), hearsay(MAC), at(1100)), Ok(vec![]));
    assert_eq!((cache.peek(ip(full)), cache.known()), (None, MAX_NEIGHBORS));
    // The reply to an unknown station is sent, although its address is not kept.
    assert_eq!(
        cache.hold(ip(full), 5, STRANGER, at(1100)),
        HoldOutcome::Waits
    );
    assert_eq!(cache.learn(ip(full), answer(MAC), at(1101)), Ok(vec![5]));
    assert_eq!(cache.peek(ip(full)), None);
    assert_eq!(cache.hold(ip(full), 6, OURS, at(1102)), HoldOutcome::Waits);
    assert_eq!(cache.learn(ip(full), answer(MAC), at(1103)), Ok(vec![6]));
    assert_eq!((cache.peek(ip(full)), cache.peek(ip(0))), (Some(MAC), None));
    // After five seconds without use, the least recently used entry is evicted for any other.
    assert_eq!(cache.expect(ip(2000), hearsay(MAC), at(6000)), Ok(vec![]));
    assert_eq!((cache.peek(ip(2000)), cache.peek(ip(1))), (Some(MAC), None));
    assert_eq!(cache.known(), MAX_NEIGHBORS);
}

#[test]
fn clearing_returns_the_queued_packets() {
    let mut cache = neighbors();
    assert_eq!(cache.hold(ip(1), 11, OURS, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.hold(ip(1), 12, STRANGER, at(0)), HoldOutcome::Waits);
    assert_eq!(cache.expect(ip(2), hearsay(MAC), at(0)), Ok(vec![]));
    assert_eq!(cache.clear(), [11, 12]);
    assert_eq!((cache.next_deadline(), cache.peek(ip(2))), (None, None));
    assert_eq!((cache.known(), cache.questions()), (0, 0));
    assert_eq!(cache.poll(at(0)), None);
}
