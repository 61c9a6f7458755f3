//! Paths that drop large packets silently.

use super::harness::{Bench, MSS, sent};

/// Ten packets in flight without SACK (so that no probe comes first), and a timeout of the first, five times. The first
/// step down, to 1,024 bytes, is no step for packets of these tests.
fn suspected() -> Bench {
    let mut bench = Bench::with(|setup| setup.sack = false);
    bench.write(20_000);
    assert_eq!(bench.drain(), [sent(0, 10_000, "")]);
    for _ in 0..5 {
        assert_eq!(bench.fire_and_drain().1, [sent(0, 1000, "")]);
    }
    bench
}

/// As [`suspected`], with the sixth timeout, and then everything sent and acknowledged.
fn reduced() -> Bench {
    let mut bench = suspected();
    bench.fire_and_drain();
    deliver_all(&mut bench);
    assert_eq!(bench.sender.mss(), 512);
    bench
}

/// Acknowledges whatever leaves until nothing does.
fn deliver_all(bench: &mut Bench) {
    while !bench.sender.all_acked() {
        bench.pass(50);
        let _ = bench.ack(bench.sender.sent_offset());
        bench.drain();
    }
}

#[test]
fn repeated_timeouts_of_a_large_packet_make_packets_smaller() {
    let mut bench = suspected();
    assert_eq!(bench.sender.mss(), MSS);
    assert_eq!(bench.fire_and_drain().1, [sent(0, 512, "")]);
    assert_eq!(bench.sender.mss(), 512);
    assert_eq!(bench.info().mtu_black_holes, 1);
    for _ in 0..6 {
        assert_eq!(
            bench.fire_and_drain().1,
            [sent(0, 512, "")],
            "and no smaller"
        );
    }
    deliver_all(&mut bench);
    assert_eq!(bench.info().mtu_black_holes, 1);
}

#[test]
fn timeouts_of_small_packets_say_nothing_about_the_path() {
    let mut bench = Bench::with(|setup| setup.sack = false);
    bench.write(500);
    bench.drain();
    for _ in 0..7 {
        bench.fire_and_drain();
    }
    assert_eq!((bench.sender.mss(), bench.info().mtu_black_holes), (MSS, 0));
}

#[test]
fn timeouts_between_which_something_arrives_are_no_black_hole() {
    let mut bench = suspected();
    bench.pass(100);
    let _ = bench.ack(1000);
    bench.drain();
    for _ in 0..5 {
        bench.fire_and_drain();
    }
    assert_eq!(bench.sender.mss(), MSS);
}

#[test]
fn without_probing_packets_stay_as_they_are() {
    let mut bench = Bench::with(|setup| {
        setup.sack = false;
        setup.config.shared_mut().mtu_probing = false;
    });
    bench.write(20_000);
    bench.drain();
    for _ in 0..7 {
        assert_eq!(bench.fire_and_drain().1, [sent(0, 1000, "")]);
    }
}

#[test]
fn larger_packets_are_tried_again_and_kept_if_they_arrive() {
    let mut bench = reduced();
    // Too early.
    bench.write(1000);
    bench.drain();
    deliver_all(&mut bench);
    assert_eq!(bench.sender.mss(), 512);
    bench.pass(10_000);
    bench.write(100);
    bench.drain();
    deliver_all(&mut bench);
    assert_eq!(bench.sender.mss(), MSS, "a trial");
    bench.write(3000);
    bench.drain();
    deliver_all(&mut bench);
    assert!(!bench.sender.packets.path.is_reduced());
    // One timeout has no effect any more.
    bench.write(3000);
    bench.drain();
    bench.fire_and_drain();
    assert_eq!(bench.sender.mss(), MSS);
}

#[test]
fn one_timeout_ends_a_trial_and_the_next_waits_twice_as_long() {
    let mut bench = reduced();
    for patience in [10_000, 20_000, 40_000] {
        bench.pass(patience - 5000);
        bench.write(100);
        bench.drain();
        deliver_all(&mut bench);
        assert_eq!(bench.sender.mss(), 512, "before {patience} ms");
        bench.pass(5000);
        bench.write(100);
        bench.drain();
        deliver_all(&mut bench);
        assert_eq!(bench.sender.mss(), MSS, "after {patience} ms");
        bench.write(3000);
        bench.drain();
        assert_eq!(bench.fire(), Ok(()));
        bench.drain();
        assert_eq!(bench.sender.mss(), 512);
        deliver_all(&mut bench);
    }
    assert_eq!(bench.info().mtu_black_holes, 4);
}

#[test]
fn an_icmp_message_ends_mtu_probing() {
    let mut bench = reduced();
    bench.sender.on_mtu(800, &bench.config.at(bench.now));
    assert_eq!(bench.sender.mss(), 512, "what was found is smaller");
    bench.pass(10_000);
    bench.write(100);
    bench.drain();
    deliver_all(&mut bench);
    assert_eq!(bench.sender.mss(), 800, "nothing larger is tried");
    bench.sender.on_mtu(400, &bench.config.at(bench.now));
    assert_eq!(bench.sender.mss(), 400);
}

#[test]
fn small_packets_that_are_repeated_in_a_large_one_are_suspect() {
    // Found by seeds of crates/core/stack/tests/seeds: lost small packets were sent again in one large packet, which was
    // lost every time, but the size of the small packets was checked.
    let mut bench = Bench::with(|setup| {
        setup.sack = false;
        setup.config.settings.nodelay = true;
    });
    for _ in 0..4 {
        bench.write(400);
        bench.drain();
    }
    for _ in 0..5 {
        assert_eq!(bench.fire_and_drain().1, [sent(0, 1000, "")]);
    }
    assert_eq!(bench.fire_and_drain().1, [sent(0, 512, "")]);
}
