//! Replays kept inputs of the fuzz target of socket calls, and runs random sequences.

#[path = "../../../../../fuzz/bodies/posix_calls.rs"]
mod posix_calls;
#[path = "../../../../../fuzz/replay.rs"]
mod replay;

use self::replay::replay;

#[test]
fn socket_calls() {
    replay("posix_calls", posix_calls::run);
}

/// Random sequences, the same in every run, as in a short fuzz run. Each begins with a connection, which a random sequence
/// would rarely make.
#[test]
fn calls_in_any_order_leak_nothing() {
    by_chance(7, 200);
}

fn by_chance(seed: u64, sequences: usize) {
    let kept = |name: &str| {
        let folder = replay::kept_inputs().join("posix_calls");
        std::fs::read(folder.join(name)).expect("it is kept")
    };
    let begin = kept("a_transfer_into_device_memory_closed_with_tokens_out");
    let opening = begin.get(..1 + 4 * 9).expect("nine calls and the set-up");
    let mut state = seed;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    for _ in 0..sequences {
        let mut calls = opening.to_vec();
        calls[0] = random();
        for _ in 0..200 {
            let (which, file, a, b) = (random(), random() % 5, random(), random());
            calls.extend([which, file, a, b]);
        }
        posix_calls::run(&calls);
    }
}
