//! Replays kept inputs of the fuzz target over socket calls, and plays sequences by chance.

#[path = "../../../fuzz/bodies/posix_calls.rs"]
mod posix_calls;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn socket_calls() {
    replay("posix_calls", posix_calls::run);
}

/// Sequences by chance, the same ones each time: what a short fuzz run would do.
#[test]
fn calls_in_any_order_leak_nothing() {
    let mut state = 7u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    for _ in 0..150 {
        let calls: Vec<u8> = (0..1 + 4 * 200).map(|_| random()).collect();
        posix_calls::run(&calls);
    }
}
