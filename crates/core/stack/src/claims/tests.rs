//! Tests of the claims to addresses.

use super::conflicts::KEPT_CONFLICTS;
use super::*;

const OURS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 3));
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn claims(check: AddressCheck) -> Claims {
    Claims::new(check, [OURS], AddressConflicts::default())
}

/// Runs `claims` up to a time; returns what was done, and when.
fn run(claims: &mut Claims, until: u64) -> Vec<(u64, ClaimAction)> {
    let mut done = Vec::new();
    while let Some(next) = claims.next_deadline().filter(|next| *next <= ms(until)) {
        let action = claims.poll(next).expect("it is due");
        done.push((next.as_millis(), action));
    }
    done
}

#[test]
fn an_address_is_asked_about_three_times_used_and_announced_twice() {
    for check in [AddressCheck::AskFirst, AddressCheck::AskMeanwhile] {
        let mut claims = claims(check);
        assert_eq!(claims.next_deadline(), None, "the link is down");
        claims.on_link_up(ms(50));
        assert_eq!(claims.is_checking(), check == AddressCheck::AskFirst);
        let done = run(&mut claims, 100_000);
        let expected = [
            (50, ClaimAction::Probe(OURS)),
            (150, ClaimAction::Probe(OURS)),
            (250, ClaimAction::Probe(OURS)),
            (350, ClaimAction::Use(OURS)),
            (2350, ClaimAction::Announce(OURS)),
        ];
        assert_eq!(done, expected, "{check:?}");
        assert!(!claims.is_checking());
    }
}

#[test]
fn an_address_that_nobody_else_can_have_is_announced_once() {
    let mut claims = claims(AddressCheck::Announce);
    claims.on_link_up(ms(5));
    assert!(!claims.is_checking());
    let done = run(&mut claims, 100_000);
    assert_eq!(done, [(5, ClaimAction::Announce(OURS))]);
}

#[test]
fn an_address_that_another_station_has_is_not_used() {
    for (check, outcome) in [
        (AddressCheck::AskFirst, ConflictOutcome::NotUsed),
        (AddressCheck::AskMeanwhile, ConflictOutcome::Lost),
    ] {
        let mut claims = claims(check);
        claims.on_link_up(ms(0));
        run(&mut claims, 150);
        assert_eq!(claims.on_claimed(SECOND, OTHER, ms(160)), None, "not ours");
        assert_eq!(claims.on_claimed(OURS, OTHER, ms(160)), Some(outcome));
        let conflict = AddressConflict {
            ip: OURS,
            by: OTHER,
            outcome,
        };
        assert_eq!(claims.take_lost(), [conflict]);
        assert_eq!(claims.take_lost(), []);
        assert!(!claims.is_checking());
        assert_eq!(run(&mut claims, 100_000), [], "{check:?}");
        assert_eq!(claims.conflicts().since(0), [conflict]);
    }
}

#[test]
fn of_two_stations_that_ask_at_the_same_time_neither_uses_the_address() {
    let mut asking = claims(AddressCheck::AskFirst);
    asking.on_link_up(ms(0));
    run(&mut asking, 299);
    let outcome = asking.on_probed(OURS, OTHER, ms(299));
    assert_eq!(outcome, Some(ConflictOutcome::NotUsed));
    // One that has it answers, and keeps it.
    let mut holding = claims(AddressCheck::AskFirst);
    holding.on_link_up(ms(0));
    run(&mut holding, 300);
    assert_eq!(holding.on_probed(OURS, OTHER, ms(301)), None);
    assert_eq!(holding.take_lost(), []);
}

#[test]
fn an_address_in_use_is_defended_once_in_ten_seconds() {
    let mut claims = claims(AddressCheck::Announce);
    claims.on_link_up(ms(0));
    let defended = Some(ConflictOutcome::Defended);
    assert_eq!(claims.on_claimed(OURS, OTHER, ms(1_000)), defended);
    assert_eq!(claims.take_lost(), []);
    assert_eq!(claims.on_claimed(OURS, OTHER, ms(11_000)), defended);
    let lost = claims.on_claimed(OURS, OTHER, ms(20_999));
    assert_eq!(lost, Some(ConflictOutcome::Lost));
    assert_eq!(claims.take_lost().len(), 1);
    assert_eq!(
        claims.on_claimed(OURS, OTHER, ms(21_000)),
        None,
        "it is not ours any more"
    );
    assert_eq!(claims.conflicts().count(), 3);
    assert_eq!(claims.conflicts().since(1).len(), 2);
}

#[test]
fn shards_defend_together_and_lose_an_address_together() {
    let conflicts = AddressConflicts::default();
    let shard = || Claims::new(AddressCheck::Announce, [OURS, SECOND], conflicts.clone());
    let (mut one, mut other) = (shard(), shard());
    let defended = Some(ConflictOutcome::Defended);
    assert_eq!(one.on_claimed(OURS, OTHER, ms(1)), defended);
    // The next frame arrives at another shard.
    let lost = other.on_claimed(OURS, OTHER, ms(2));
    assert_eq!(lost, Some(ConflictOutcome::Lost));
    for shard in [&mut one, &mut other] {
        let lost = shard.take_lost();
        assert_eq!(lost.iter().map(|it| it.ip).collect::<Vec<_>>(), [OURS]);
        assert!(!shard.has(OURS) && shard.has(SECOND));
    }
}

#[test]
fn the_addresses_are_asked_about_again_when_the_link_comes_back_and_are_used_meanwhile() {
    let mut claims = claims(AddressCheck::AskFirst);
    claims.on_link_up(ms(0));
    run(&mut claims, 5_000);
    claims.on_link_down();
    assert_eq!(claims.next_deadline(), None);
    claims.on_link_up(ms(10_000));
    assert!(!claims.is_checking());
    assert_eq!(
        run(&mut claims, 10_000),
        [(10_000, ClaimAction::Probe(OURS))]
    );
    // The station that was there meanwhile keeps it.
    let lost = claims.on_claimed(OURS, OTHER, ms(10_001));
    assert_eq!(lost, Some(ConflictOutcome::Lost));
}

#[test]
fn addresses_that_are_lent_were_asked_about_and_what_comes_with_them_was_not() {
    let mut claims = Claims::new(AddressCheck::AskFirst, [], AddressConflicts::default());
    claims.add_used(OURS);
    claims.use_and_ask(OURS, ms(0));
    claims.use_and_ask(SECOND, ms(0));
    claims.on_link_up(ms(0));
    assert!(!claims.is_checking());
    let done = run(&mut claims, 0);
    let expected = [
        (0, ClaimAction::Announce(OURS)),
        (0, ClaimAction::Probe(SECOND)),
    ];
    assert_eq!(done, expected);
}

#[test]
fn conflicts_are_kept_up_to_a_number() {
    let mut claims = claims(AddressCheck::Announce);
    for n in 0..200 {
        let outcome = claims.on_claimed(OURS, OTHER, ms(n * 20_000));
        assert_eq!(outcome, Some(ConflictOutcome::Defended));
    }
    assert_eq!(claims.conflicts().count(), 200);
    assert_eq!(claims.conflicts().since(0).len(), KEPT_CONFLICTS);
    assert_eq!(claims.conflicts().since(198).len(), 2);
    assert_eq!(claims.conflicts().since(200).len(), 0);
    assert_eq!(claims.conflicts().log().defended.len(), 1);
}
