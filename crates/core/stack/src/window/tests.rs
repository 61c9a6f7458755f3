//! Tests of promises to connections.

use super::queue::{RESERVE_DIVISOR, SLACK_DIVISOR, WORTHWHILE_FACTOR};
use super::*;
use crate::random::SplitMix;

const QUEUE: RxQueueId = RxQueueId(0);
const MIB: u64 = 1 << 20;
const MSS: u16 = 1460;

fn ask(outstanding: u64, delivered: u64) -> Ask {
    Ask {
        outstanding,
        most: u64::MAX,
        delivered,
        mss: MSS,
    }
}

#[test]
fn a_new_connection_is_promised_little_and_more_with_use() {
    let mut windows = Windows::new(1);
    let mut promise = Promise::default();
    let mut grant = |received| windows.grant(0, &mut promise, 64 * MIB, ask(0, received));
    assert_eq!(grant(0), INITIAL_PROMISE);
    assert_eq!(grant(100_000), INITIAL_PROMISE + 200_000);
    let most = grant(1 << 40);
    assert_eq!(most, 28 * MIB, "half of seven eighths");
}

#[test]
fn a_promise_never_retreats() {
    let mut windows = Windows::new(1);
    let mut promise = Promise::default();
    let first = windows.grant(0, &mut promise, 8 * MIB, ask(0, 1 << 30));
    let later = windows.grant(0, &mut promise, 0, ask(first, 1 << 30));
    assert_eq!(later, first);
}

#[test]
fn two_busy_connections_get_about_the_same() {
    let mut windows = Windows::new(1);
    let mut a = Promise::default();
    let mut b = Promise::default();
    let whole = 8 * MIB;
    let (mut granted_a, mut granted_b) = (0, 0);
    for _ in 0..32 {
        granted_a = windows.grant(0, &mut a, whole, ask(0, 1 << 30));
        granted_b = windows.grant(1, &mut b, whole, ask(0, 1 << 30));
    }
    assert!(
        granted_a.abs_diff(granted_b) < granted_a / 16,
        "{granted_a} {granted_b}"
    );
    assert!(granted_a > 2 * MIB);
}

#[test]
fn idle_connections_leave_the_reserve_to_those_that_ask() {
    let mut windows = Windows::new(1);
    let whole = 8 * MIB;
    let mut promises: Vec<_> = (0..300).map(|_| Promise::default()).collect();
    let mut last = 0;
    for (slot, promise) in promises.iter_mut().enumerate() {
        last = windows.grant(slot as u32, promise, whole, ask(0, 0));
    }
    assert_eq!(last, 0, "nothing is left for idle ones");
    assert!(windows.promised(QUEUE) <= whole - whole / RESERVE_DIVISOR);
    let promise = promises.last_mut().unwrap();
    promise.note_probe();
    assert!(windows.grant(299, promise, whole, ask(0, 0)) >= 4 * u64::from(MSS));
    assert!(windows.promised(QUEUE) <= whole);
}

#[test]
fn peers_that_have_never_sent_take_no_memory_from_one_that_sends() {
    let mut windows = Windows::new(1);
    let whole = 64 * MIB;
    let mut busy = Promise::default();
    let alone = windows.grant(0, &mut busy, whole, ask(0, 1 << 40));
    let mut silent: Vec<_> = (0..10_000).map(|_| Promise::default()).collect();
    for (slot, promise) in (1..).zip(&mut silent) {
        assert!(windows.grant(slot, promise, whole, ask(0, 0)) <= INITIAL_PROMISE);
    }
    let all_silent = windows.queues[0].silent.set_aside();
    assert!(all_silent <= whole - alone, "{all_silent} and {alone}");
    assert_eq!(
        windows.grant(0, &mut busy, whole, ask(0, 1 << 40)),
        alone,
        "as if it were alone"
    );
    // One of them begins: its window is one of those that send now.
    windows.note_packet(&mut silent[0], 1460);
    windows.grant(1, &mut silent[0], whole, ask(0, 1460));
    assert!(windows.promised(QUEUE) > alone);
}

#[test]
fn the_end_of_a_connection_is_a_chance_for_those_that_got_too_little() {
    let mut windows = Windows::new(1);
    let whole = 8 * MIB;
    let mut greedy = Promise::default();
    windows.grant(0, &mut greedy, whole, ask(whole, 0));
    let mut other = Promise::default();
    assert_eq!(windows.grant(1, &mut other, whole, ask(0, 0)), 0);
    windows.note_free(QUEUE, whole);
    assert_eq!(windows.next_starved(QUEUE), None);
    // No memory is given back, but there is more to promise.
    windows.release(0, &mut greedy);
    assert!(windows.any_to_visit());
    assert_eq!(windows.next_starved(QUEUE), Some(1));
    assert!(windows.grant(1, &mut other, whole, ask(0, 0)) > 0);
}

#[test]
fn peers_that_pause_do_not_shut_out_one_that_speaks_while_memory_is_free() {
    let mut windows = Windows::new(1);
    let (whole, floor) = (8 * MIB, 4 * u64::from(MSS));
    let mut used = Promise::default();
    windows.grant(0, &mut used, whole, ask(whole, MIB));
    let mut one = Promise::default();
    assert_eq!(windows.grant(1, &mut one, whole, ask(0, 0)), 0);
    one.note_probe();
    let grant =
        |windows: &mut Windows, one: &mut Promise| windows.grant(1, one, whole, ask(0, MIB));
    assert_eq!(grant(&mut windows, &mut one), 0, "one probe is not enough");
    assert_eq!(grant(&mut windows, &mut one), 0, "nor is a second grant");
    one.note_probe();
    assert_eq!(grant(&mut windows, &mut one), whole / SLACK_DIVISOR / 2);
    // The same holds for as long as nothing changes.
    windows.note_packet(&mut one, 1460);
    assert!(grant(&mut windows, &mut one) >= floor);
    let mut others: Vec<_> = (2..100).map(|slot| (slot, Promise::default())).collect();
    for (slot, promise) in &mut others {
        promise.note_probe();
        windows.grant(*slot, promise, whole, ask(0, MIB));
        promise.note_probe();
        let granted = windows.grant(*slot, promise, whole, ask(0, MIB));
        assert!(granted >= floor, "{granted} for {slot}");
    }
    // With the memory in use there is nothing to be generous with.
    let mut late = Promise::default();
    late.note_probe();
    assert_eq!(windows.grant(100, &mut late, whole / 2 - 1, ask(0, MIB)), 0);
}

#[test]
fn each_request_of_a_peer_gets_one_grant() {
    let mut windows = Windows::new(1);
    let (whole, floor) = (8 * MIB, 4 * u64::from(MSS));
    let mut used = Promise::default();
    windows.grant(0, &mut used, whole, ask(whole, MIB));
    let mut one = Promise::default();
    one.note_probe();
    // Half of the memory is in use: only memory that is not promised can be granted.
    let free = whole / 2 - 1;
    let mut little = Promise::default();
    windows.release(0, &mut used);
    windows.grant(0, &mut used, whole, ask(free - floor, MIB));
    assert_eq!(windows.grant(1, &mut one, free, ask(0, MIB)), floor);
    assert_eq!(
        windows.grant(1, &mut one, free, ask(floor / 2, MIB)),
        floor / 2
    );
    windows.note_packet(&mut one, 1460);
    assert_eq!(windows.grant(1, &mut one, free, ask(floor / 2, MIB)), floor);
    little.note_probe();
    assert_eq!(windows.grant(2, &mut little, free, ask(0, MIB)), 0);
}

#[test]
fn newcomers_are_promised_a_burst_and_then_nothing() {
    let mut windows = Windows::new(1);
    assert_eq!(windows.newcomer(QUEUE, 64 * MIB, MSS, 0), 64 << 10);
    assert_eq!(windows.newcomer(QUEUE, 64 * MIB, MSS, 223), 64 << 10);
    assert_eq!(windows.newcomer(QUEUE, 64 * MIB, MSS, 224), 0);
    assert_eq!(windows.newcomer(QUEUE, 9 * MIB, MSS, 0), 64 << 10);
    assert_eq!(
        windows.newcomer(QUEUE, 8 * MIB, MSS, 0),
        0,
        "that is the reserve"
    );
}

#[test]
fn the_sum_of_promises_never_exceeds_the_memory() {
    for seed in 0..200 {
        let mut random = SplitMix::new(seed);
        let total = 64 * 1024 * (1 + random.next() % 64);
        let mut windows = Windows::new(1);
        let mut promises: Vec<_> = (0..20).map(|_| Promise::default()).collect();
        let mut granted = [0_u64; 20];
        let mut free = total;
        for step in 0..500 {
            let slot = (random.next() % 20) as usize;
            let promise = &mut promises[slot];
            match random.next() % 4 {
                // The peer uses some of its window.
                0 => {
                    let used = random.next() % (granted[slot] + 1);
                    let memory = promise.packing.memory_for(used);
                    granted[slot] -= used;
                    free -= memory.min(free);
                }
                1 => free = total,
                _ => {}
            }
            let ask = ask(granted[slot], random.next() % (1 << 24));
            let before = windows.promised(QUEUE);
            granted[slot] = windows.grant(slot as u32, promise, free, ask);
            let after = windows.promised(QUEUE);
            // A grant never makes the sum exceed the free memory, except by rounding.
            assert!(
                after <= free.max(before),
                "seed {seed} step {step}: {after} promised, {free} free"
            );
        }
        for (slot, promise) in promises.iter_mut().enumerate() {
            windows.release(slot as u32, promise);
        }
        assert_eq!(
            (windows.promised(QUEUE), windows.has_starved(QUEUE)),
            (0, false),
            "seed {seed}"
        );
    }
}

#[test]
fn tiny_packets_reduce_the_window_for_the_same_memory() {
    let mut windows = Windows::new(1);
    let mut promise = Promise::default();
    let whole = 8 * MIB;
    let before = windows.grant(0, &mut promise, whole, ask(0, 1 << 30));
    for _ in 0..10_000 {
        windows.note_packet(&mut promise, 1);
    }
    let after = windows.grant(0, &mut promise, whole, ask(0, 1 << 30));
    assert!(after < before / 60, "{before} {after}");
    for _ in 0..10_000 {
        windows.note_packet(&mut promise, 65_160);
    }
    assert!(windows.grant(0, &mut promise, whole, ask(0, 1 << 30)) >= before);
}

#[test]
fn the_window_of_a_pruned_connection_is_available_to_others_until_it_delivers() {
    let mut windows = Windows::new(1);
    let (whole, floor) = (8 * MIB, 4 * u64::from(MSS));
    let mut pruned = Promise::default();
    assert_eq!(windows.grant(0, &mut pruned, whole, ask(whole, 1)), whole);
    let mut other = Promise::default();
    assert_eq!(windows.grant(1, &mut other, whole, ask(0, MIB)), 0);
    windows.revoke(&mut pruned, MIB);
    // Its peer still sees the window.
    assert_eq!(windows.grant(0, &mut pruned, whole, ask(whole, 1)), whole);
    assert_eq!(windows.promised(QUEUE), floor);
    assert!(windows.grant(1, &mut other, whole, ask(0, MIB)) > MIB);
    windows.release(1, &mut other);
    windows.grant(0, &mut pruned, whole, ask(whole, MIB));
    assert_eq!(windows.promised(QUEUE), whole);
}

#[test]
fn a_byte_per_packet_does_not_set_aside_the_memory_of_others() {
    let mut windows = Windows::new(1);
    let whole = 8 * MIB;
    let mut tiny: Vec<_> = (0..5).map(|_| Promise::default()).collect();
    for (slot, promise) in tiny.iter_mut().enumerate() {
        windows.grant(slot as u32, promise, whole, ask(0, 0));
        (0..1000).for_each(|_| windows.note_packet(promise, 1));
        windows.grant(slot as u32, promise, whole, ask(INITIAL_PROMISE, 0));
    }
    assert_eq!(windows.promised(QUEUE), 5 * INITIAL_PROMISE);
}

#[test]
fn memory_that_comes_home_goes_to_those_that_have_least_and_among_them_to_those_that_waited_longest()
 {
    let mut windows = Windows::new(1);
    let (whole, floor) = (8 * MIB, 4 * u64::from(MSS));
    let mut promises: Vec<_> = (0..4).map(|_| Promise::default()).collect();
    windows.grant(9, &mut Promise::default(), whole, ask(whole, MIB));
    for slot in [2, 0, 3, 1] {
        let has = if slot == 3 { floor } else { 0 };
        let promise = &mut promises[slot as usize];
        assert_eq!(windows.grant(slot, promise, whole, ask(has, MIB)), has);
    }
    assert_eq!(windows.next_starved(QUEUE), None, "there is nothing");
    let mut visited = Vec::new();
    for freed in [2 * floor, 4 * floor, 8 * floor] {
        let free = 2 * whole + freed;
        windows.note_free(QUEUE, free + windows.queues[0].total / RESERVE_DIVISOR);
        while let Some(slot) = windows.next_starved(QUEUE) {
            visited.push(slot);
        }
    }
    assert_eq!(visited, [2, 0, 1, 3]);
}

#[test]
fn a_connection_is_considered_again_only_when_its_window_can_double() {
    let mut windows = Windows::new(1);
    let (whole, window) = (8 * MIB, MIB);
    let reserve = whole / RESERVE_DIVISOR;
    let mut one = Promise::default();
    windows.grant(0, &mut one, whole, ask(0, 0));
    // Everything but its window is in use.
    let free = reserve + window;
    assert_eq!(
        windows.grant(0, &mut one, free, ask(window, 1 << 40)),
        window
    );
    windows.note_free(QUEUE, free + WORTHWHILE_FACTOR * window - 1);
    assert!(!windows.any_to_visit());
    windows.note_free(QUEUE, free + WORTHWHILE_FACTOR * window);
    assert_eq!(windows.next_starved(QUEUE), Some(0));
    let free = free + WORTHWHILE_FACTOR * window;
    let granted = windows.grant(0, &mut one, free, ask(window, 1 << 40));
    assert_eq!(granted, 2 * window);
    assert_eq!(windows.next_starved(QUEUE), None, "it was served");
}

#[test]
fn a_visit_that_brings_nothing_is_not_repeated_before_there_is_more() {
    for seed in 0..200 {
        let mut random = SplitMix::new(seed);
        let mut windows = Windows::new(1);
        let mut promises: Vec<_> = (0..20).map(|_| Promise::default()).collect();
        let total = MIB * (1 + random.next() % 16);
        let mut granted = [0; 20];
        for _ in 0..200 {
            let slot = random.next() % 20;
            let promise = &mut promises[slot as usize];
            match random.next() % 4 {
                0 => promise.note_probe(),
                1 => windows.note_packet(promise, 1 + (random.next() % 1460) as usize),
                2 => windows.revoke(promise, random.next() % (1 << 24)),
                _ => {}
            }
            let free = random.next() % total;
            // The peer has used a part of its window.
            let outstanding = random.next() % (granted[slot as usize] + 1);
            let ask = ask(outstanding, random.next() % (1 << 24));
            granted[slot as usize] = windows.grant(slot as u32, promise, free, ask);
            let mut visits = 0;
            while let Some(slot) = windows.next_starved(QUEUE) {
                visits += 1;
                assert!(visits < 1000, "seed {seed}");
                let promise = &mut promises[slot as usize];
                let outstanding = granted[slot as usize];
                let ask = Ask { outstanding, ..ask };
                granted[slot as usize] = windows.grant(slot, promise, free, ask);
            }
        }
    }
}

#[test]
fn a_connection_that_moves_takes_its_promise_along() {
    let mut windows = Windows::new(2);
    let mut promise = Promise::default();
    windows.grant(0, &mut promise, MIB, ask(0, 1 << 20));
    let promised = windows.promised(QUEUE);
    windows.migrate(0, &mut promise, RxQueueId(1));
    assert_eq!(
        (windows.promised(QUEUE), windows.promised(RxQueueId(1))),
        (0, promised)
    );
}

#[test]
fn memory_of_idle_connections_is_available_to_others_until_they_receive_again() {
    let whole = 8 * MIB;
    let mut windows = Windows::new(1);
    let (mut idle, mut busy) = (Promise::default(), Promise::default());
    assert_eq!(windows.grant(0, &mut idle, whole, ask(whole, MIB)), whole);
    assert_eq!(windows.grant(1, &mut busy, whole, ask(0, MIB)), 0);
    windows.advance(Instant::from_millis(1000));
    assert_eq!(
        windows.promised(QUEUE),
        whole,
        "active in the period before"
    );
    windows.advance(Instant::from_millis(2000));
    assert_eq!(windows.promised(QUEUE), 0);
    assert!(windows.any_to_visit());
    // The window of the peer stays.
    assert_eq!(windows.grant(0, &mut idle, whole, ask(whole, MIB)), whole);
    windows.note_packet(&mut busy, 1460);
    let granted = windows.grant(1, &mut busy, whole, ask(0, MIB));
    assert_eq!(granted, INITIAL_PROMISE + 2 * MIB);
    windows.note_packet(&mut idle, 1460);
    assert_eq!(windows.promised(QUEUE), whole + granted);
    windows.release(0, &mut idle);
    windows.release(1, &mut busy);
    assert_eq!(windows.promised(QUEUE), 0);
}

#[test]
fn an_idle_connection_that_does_not_use_its_window_is_promised_nothing_new_before_its_peer_sends() {
    let mut windows = Windows::new(1);
    let mut promise = Promise::default();
    assert_eq!(windows.grant(0, &mut promise, 0, ask(0, 0)), 0);
    windows.advance(Instant::from_millis(10_000));
    assert_eq!(windows.grant(0, &mut promise, 8 * MIB, ask(0, 0)), 0);
    let mss = u64::from(MSS);
    let with_a_window = windows.grant(0, &mut promise, 8 * MIB, ask(mss, MIB));
    assert_eq!(with_a_window, mss);
    promise.note_probe();
    assert!(windows.grant(0, &mut promise, 8 * MIB, ask(0, 0)) > 0);
    assert!(windows.promised(QUEUE) > 0);
}

#[test]
fn a_connection_that_begins_after_a_long_pause_is_promised_a_window() {
    let mut windows = Windows::new(1);
    let mut promise = Promise::default();
    // The connection was created before the poll that advances the time.
    windows.advance(Instant::from_millis(3_600_000));
    let granted = windows.grant(0, &mut promise, 8 * MIB, ask(0, 0));
    assert_eq!(granted, INITIAL_PROMISE);
    assert_eq!(windows.queues[0].silent.set_aside(), INITIAL_PROMISE);
}

#[test]
fn an_idle_connection_that_has_used_up_its_window_gets_memory_that_is_given_back_without_asking() {
    let mut windows = Windows::new(1);
    let mut promise = Promise::default();
    // A few bytes are granted, too few to be advertised.
    windows.note_packet(&mut promise, 1460);
    assert_eq!(windows.grant(0, &mut promise, 100, ask(0, MIB)), 100);
    assert!(!promise.asked);
    windows.advance(Instant::from_millis(10_000));
    assert!(windows.grant(0, &mut promise, 8 * MIB, ask(0, MIB)) > MIB);
}

#[test]
fn bursts_on_one_connection_after_another_leave_a_full_window_to_the_next() {
    let mut windows = Windows::new(1);
    let whole = 192 * MIB;
    let mut promises: Vec<_> = (0..1000).map(|_| Promise::default()).collect();
    let mut least = u64::MAX;
    for (round, slot) in (0..8).flat_map(|round| (0..1000).map(move |slot| (round, slot))) {
        let promise = &mut promises[slot as usize];
        let mut window = 0;
        // A burst of a MiB, of which the peer always uses the whole window; the last one stays unused.
        for received in (0..MIB).step_by(64 << 10) {
            windows.note_packet(promise, 64 << 10);
            window = windows.grant(slot, promise, whole, ask(0, round * MIB + received));
        }
        // The first connections had more while they were few.
        if round == 7 {
            least = least.min(window);
        }
    }
    assert!(least >= 120 << 10, "{least}");
}

#[test]
fn an_equal_part_of_scarce_memory_is_enough_for_a_connection_not_to_wait_for_more() {
    let mut windows = Windows::new(1);
    let whole = 100 * MIB;
    let mut others: Vec<_> = (1..=100).map(|slot| (slot, Promise::default())).collect();
    for (slot, promise) in &mut others {
        // They use less than they have: what they were promised stays promised.
        windows.grant(*slot, promise, whole, ask(8 * whole / 1000, 0));
        windows.note_packet(promise, 1460);
        windows.grant(*slot, promise, whole, ask(8 * whole / 1000, 1));
    }
    let mut busy = Promise::default();
    let granted = windows.grant(0, &mut busy, whole, ask(0, 1 << 40));
    let equal = (whole - whole / RESERVE_DIVISOR) / 4 * 3 / 101;
    assert_eq!(granted, equal);
    windows.note_free(QUEUE, 2 * whole);
    let visited: Vec<_> = std::iter::from_fn(|| windows.next_starved(QUEUE)).collect();
    assert!(!visited.contains(&0), "{visited:?}");
}

#[test]
fn an_equal_part_of_scarce_memory_ends_with_a_packet_of_the_sender() {
    const PACKET: u64 = 65_160;
    let window = |packet: u64| {
        let mut windows = Windows::new(1);
        let whole = 192 * MIB;
        let mut others: Vec<_> = (1..=999).map(|slot| (slot, Promise::default())).collect();
        for (slot, promise) in &mut others {
            windows.note_packet(promise, 1460);
            windows.grant(*slot, promise, whole, ask(158 * MIB / 999, 1));
        }
        let mut busy = Promise::default();
        windows.note_packet(&mut busy, packet as usize);
        windows.note_packet(&mut busy, 1460);
        windows.grant(0, &mut busy, whole, ask(0, 1 << 40))
    };
    let equal = 192 * MIB / 8 * 7 / 4 * 3 / 1000;
    assert_eq!(window(40_000), 3 * 40_000 + 730);
    // The rest is too short for a segment.
    assert_eq!(window(PACKET), 2 * PACKET + 730);
    assert_eq!(window(equal / 2), equal, "nothing is left over");
    assert_eq!(
        window(equal / 2 + 1),
        equal,
        "one packet would be too little"
    );
}

#[test]
fn a_silent_connection_that_waits_and_begins_to_send_is_listed_once() {
    let mut windows = Windows::new(1);
    let whole = 8 * MIB;
    let mut used = Promise::default();
    windows.grant(0, &mut used, whole, ask(whole, MIB));
    let mut one = Promise::default();
    assert_eq!(windows.grant(1, &mut one, whole, ask(0, 0)), 0);
    windows.note_packet(&mut one, 1460);
    windows.grant(1, &mut one, whole, ask(0, 1460));
    windows.release(0, &mut used);
    windows.release(1, &mut one);
    assert!(!windows.has_starved(QUEUE));
}
