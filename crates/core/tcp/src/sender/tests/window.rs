//! What may be sent: the peer's window, the writer's options, sizes of segments.

use core::ops::RangeInclusive;
use core::time::Duration;

use netmem::Payload;
use wire::{Instant, SackBlocks};

use super::harness::{Bench, ISS, PEER, sent};
use crate::chrono::BusyTimes;
use crate::error::TcpError;
use crate::link::UnfitPayload;
use crate::sender::{AckKind, IncomingAck, Sender};
use crate::seqnum::SeqNum;
use crate::test_config::LONGEST_SUPER_PAYLOAD;
use crate::test_config::TestConfig;
use crate::test_payload::Bytes;

#[test]
fn nothing_leaves_before_the_handshake() {
    let config = TestConfig::default();
    let mut sender: Sender<Bytes> = Sender::new(&config, &config.settings, ISS);
    sender.queue.push(Bytes::pattern(ISS + 1, 10), false);
    assert!(sender.poll_data(&config.at(Instant::ZERO)).is_none());
    assert_eq!((sender.next_timer(), sender.queue.len()), (None, 10));
}

#[test]
fn the_initial_window_is_ten_segments() {
    let mut bench = Bench::with(|_| ());
    bench.write(20_000);
    assert_eq!(bench.drain(), [sent(0, 10_000, "")]);
    assert_eq!(bench.sender.in_flight(), 10_000);
}

#[test]
fn a_lost_syn_makes_it_one_segment() {
    let mut bench = Bench::with(|setup| {
        setup.handshake_rtt = None;
        setup.handshake_timed_out = true;
    });
    bench.write(20_000);
    assert_eq!(bench.drain(), [sent(0, 1000, "")]);
    assert_eq!(bench.info().rto, Duration::from_secs(3));
}

#[test]
fn a_super_segment_is_whole_packets() {
    let mut bench = Bench::with(|setup| {
        setup.config.shared_mut().initial_cwnd = 200;
        setup.config.link.super_payload.longest = 65_160;
    });
    bench.write(140_500);
    let segments = bench.drain_raw();
    let lens: Vec<_> = segments.iter().map(|s| s.payload.len()).collect();
    assert_eq!(lens, [65_000, 65_000, 10_500]);
    assert_eq!(
        segments.iter().map(|s| s.push).collect::<Vec<_>>(),
        [false, false, true]
    );
}

/// Lengths that a link refuses although it takes longer ones.
const UNFIT: RangeInclusive<u32> = 516_097..=520_192;

/// A bench in which no window limits the length of a segment.
fn of_longest_segments(mss: u16, corked: bool) -> Bench {
    Bench::with(|setup| {
        setup.mss = mss;
        setup.config.settings.nodelay = true;
        setup.config.settings.cork = corked;
        setup.config.shared_mut().initial_cwnd = u16::MAX;
        setup.config.link.super_payload.longest = LONGEST_SUPER_PAYLOAD;
        setup.config.link.super_payload.unfit = UnfitPayload::new(UNFIT);
        setup.window = u32::MAX >> 2;
    })
}

#[test]
fn no_super_segment_has_a_length_that_is_refused() {
    // The longest for Ethernet and for jumbo frames, the latter not all that fits; then what is left of a send, all of it
    // or whole packets.
    for (mss, longest) in [(1448, 362 * 1448), (8948, 57 * 8948), (8928, 57 * 8928)] {
        for (last, corked) in (515_000..522_000).step_by(500).zip([false, true].repeat(7)) {
            let mut bench = of_longest_segments(mss, corked);
            bench.write(2 * longest + last);
            let segments = bench.drain_raw();
            let lens: Vec<_> = segments.iter().map(|s| s.payload.len()).collect();
            assert_eq!(lens[..2], [longest; 2], "{last} bytes are left");
            let held = if corked { last % usize::from(mss) } else { 0 };
            assert_eq!(lens[2..].iter().sum::<usize>(), last - held);
            for len in lens {
                let len = u32::try_from(len).unwrap();
                assert!(!UNFIT.contains(&len), "{len}");
            }
        }
    }
}

#[test]
fn the_longest_super_segment_waits_for_no_ack_though_more_would_fit() {
    let mut bench = of_longest_segments(8948, false);
    // The first ACK is due soon, and something was sent just now: a super-segment that is not full would wait.
    bench.write(1000);
    assert_eq!(bench.drain_raw().len(), 1);
    bench.pass(60);
    bench.write(1000);
    assert_eq!(bench.drain_raw().len(), 1);
    bench.write(57 * 8948 + 8948);
    let segments = bench.drain_raw();
    let lens: Vec<_> = segments.iter().map(|s| s.payload.len()).collect();
    assert_eq!(lens, [57 * 8948, 8948]);
}

#[test]
fn what_waits_for_a_longer_super_segment_leaves_after_a_millisecond_without_an_ack() {
    let mut bench = Bench::with(|setup| setup.config.link.super_payload.longest = 65_160);
    bench.write(200_000);
    assert_eq!(bench.drain(), [sent(0, 10_000, "")]);
    assert_eq!(bench.ack_after(100, 1000), [sent(10_000, 12_000, "")]);
    // Room for two packets of twelve: the next ACK may let out more.
    assert_eq!(bench.ack_after(0, 2000), []);
    assert_eq!(bench.fire_and_drain(), (1, vec![sent(12_000, 14_000, "")]));
    // Without room nothing wakes the sender before a probe is due.
    let probe_at = bench.sender.next_timer().unwrap();
    assert!(
        probe_at > bench.now + Duration::from_millis(10),
        "{probe_at:?}"
    );
}

#[test]
fn the_window_bounds_the_data_in_flight() {
    let mut bench = Bench::with(|setup| setup.window = 5000);
    bench.write(20_000);
    assert_eq!(bench.drain(), [sent(0, 5000, "")]);
    bench.window = 5000;
    assert_eq!(bench.ack_after(10, 2000), [sent(5000, 7000, "")]);
}

#[test]
fn an_older_segment_does_not_change_the_window() {
    let mut bench = Bench::with(|_| ());
    let sack = SackBlocks::default();
    let mut ack = |seq: SeqNum, window: u32| {
        let ack = IncomingAck {
            ack: ISS + 1,
            seq,
            window,
            sack: &sack,
            ts_echo: None,
            has_data: true,
            ece: false,
            ace: None,
            accecn: None,
            ts_progress: false,
        };
        let _ = bench.sender.on_ack(&ack, &bench.config.at(bench.now));
        bench.sender.space.wnd()
    };
    assert_eq!(ack(PEER + 10, 3000), 3000);
    assert_eq!(ack(PEER + 5, 9000), 3000);
    assert_eq!(ack(PEER + 10, 2000), 2000);
}

#[test]
fn kinds_of_acknowledgements_are_distinguished() {
    let mut bench = Bench::with(|setup| setup.window = 4000);
    bench.write(4000);
    bench.drain();
    assert_eq!(bench.ack(4001), AckKind::Future);
    assert_eq!(bench.ack(3000), AckKind::New);
    assert_eq!(
        (bench.sender.acked_offset(), bench.sender.sent_offset()),
        (3000, 4000)
    );
    assert_eq!(bench.ack(3000), AckKind::Duplicate);
    assert_eq!(bench.ack(1000), AckKind::Duplicate);
    bench.write(4000);
    bench.drain();
    let _ = bench.ack(7000);
    assert_eq!(bench.ack(2999), AckKind::TooOld);
}

#[test]
fn a_refused_acknowledgement_changes_nothing() {
    let mut bench = Bench::with(|_| ());
    bench.write(4000);
    bench.drain();
    let before = format!("{:?}", bench.sender);
    let _ = bench.ack(5000);
    assert_eq!(format!("{:?}", bench.sender), before);
}

#[test]
fn room_comes_back_as_data_is_acknowledged() {
    let mut bench = Bench::with(|setup| setup.config.settings.snd_buf_max = 9000);
    bench.write(9000);
    assert_eq!(
        bench.sender.queue.room(bench.config.settings.snd_buf_max),
        0
    );
    bench.drain();
    let _ = bench.ack(1000);
    assert!(!bench.sender.queue.is_writable(9000));
    let _ = bench.ack(5000);
    assert!(bench.sender.queue.is_writable(9000), "a third is free");
    let _ = bench.ack(9000);
    assert_eq!(
        bench.sender.queue.room(bench.config.settings.snd_buf_max),
        9000
    );
    assert!(bench.sender.all_acked());
}

#[test]
fn busy_time_counts_for_what_limits_the_sender() {
    let mut bench = Bench::with(|setup| setup.config.settings.snd_buf_max = 10_000);
    let times = |bench: &Bench| bench.info().chrono.times(bench.now);
    let admit = |bench: &mut Bench, wanted| {
        let Bench { sender, config, .. } = bench;
        sender.admit(wanted, &config.settings, &config.shared)
    };
    let fill = |bench: &mut Bench| {
        assert_eq!(admit(bench, 20_000), 10_000);
        bench.write(10_000);
        bench.drain();
    };
    // The first congestion window is as long as the buffer.
    fill(&mut bench);
    bench.ack_after(100, 10_000);
    assert_eq!(times(&bench).send_buffer, Duration::ZERO);
    // The second one is longer.
    fill(&mut bench);
    bench.ack_after(50, 20_000);
    assert_eq!(times(&bench).send_buffer, Duration::from_millis(50));
    // A buffer that is full without a writer that waits is no limit.
    assert_eq!(admit(&mut bench, 10_000), 10_000);
    bench.write(10_000);
    bench.drain();
    bench.window = 5000;
    bench.ack_after(20, 30_000);
    fill(&mut bench);
    bench.ack_after(30, 35_000);
    let expected = BusyTimes {
        busy: Duration::from_millis(200),
        peer_window: Duration::from_millis(30),
        send_buffer: Duration::from_millis(50),
    };
    assert_eq!(times(&bench), expected);
}

#[test]
fn nagle_holds_a_second_small_segment_back() {
    let mut bench = Bench::with(|_| ());
    bench.write(100);
    assert_eq!(bench.drain(), [sent(0, 100, "P")]);
    bench.write(100);
    bench.write(100);
    assert_eq!(bench.drain(), []);
    assert_eq!(bench.ack_after(10, 100), [sent(100, 300, "P")]);
}

#[test]
fn full_segments_in_flight_hold_no_small_one_back() {
    // Minshall's variant.
    let mut bench = Bench::with(|_| ());
    bench.write(2500);
    assert_eq!(bench.drain(), [sent(0, 2500, "P")]);
    bench.write(500);
    assert_eq!(bench.drain(), []);
    bench.write(1000);
    assert_eq!(bench.drain(), [sent(2500, 3500, "")]);
    assert_eq!(bench.ack_after(10, 2500), [sent(3500, 4000, "P")]);
}

#[test]
fn nodelay_sends_small_segments_at_once() {
    let mut bench = Bench::with(|setup| setup.config.settings.nodelay = true);
    for start in [0, 100, 200] {
        bench.write(100);
        assert_eq!(bench.drain(), [sent(start, start + 100, "P")]);
    }
}

#[test]
fn more_to_come_holds_a_small_segment_back_for_a_timeout_at_most() {
    let mut bench = Bench::with(|setup| setup.config.settings.nodelay = true);
    bench.write_more(1500, true);
    assert_eq!(bench.drain(), [sent(0, 1000, "")]);
    bench.write(10);
    assert_eq!(bench.drain(), [sent(1000, 1510, "P")]);
    let _ = bench.ack(1510);
    bench.write_more(100, true);
    assert_eq!(bench.drain(), []);
    assert_eq!(bench.fire_and_drain(), (337, vec![sent(1510, 1610, "P")]));
}

#[test]
fn uncorking_without_bytes_lets_the_rest_out() {
    let mut bench = Bench::with(|_| ());
    bench.write_more(100, true);
    assert_eq!(bench.drain(), []);
    bench.sender.queue.push(Bytes::default(), false);
    assert_eq!(bench.drain(), [sent(0, 100, "P")]);
}

#[test]
fn a_boundary_cuts_segments_and_retransmissions() {
    let mut bench = Bench::with(|setup| setup.config.settings.nodelay = true);
    bench.write(1500);
    bench.sender.queue.push_boundary();
    bench.write(1500);
    assert_eq!(bench.drain(), [sent(0, 1500, "P"), sent(1500, 3000, "P")]);
    bench.fire_and_drain();
    let (_, repeated) = bench.fire_and_drain();
    assert_eq!(repeated, [sent(0, 1000, "")]);
    assert_eq!(
        bench.ack_after(10, 1000),
        [
            sent(1000, 1500, "P"),
            sent(1500, 2500, ""),
            sent(2500, 3000, "P")
        ]
    );
}

#[test]
fn small_packets_do_not_fill_a_small_window() {
    // Sender silly window avoidance: 500 bytes of window and more to send is not worth a packet.
    let mut bench = Bench::with(|setup| setup.window = 4500);
    bench.write(10_000);
    assert_eq!(bench.drain(), [sent(0, 4000, "")]);
    bench.window = 1500;
    assert_eq!(bench.ack_after(10, 4000), [sent(4000, 5000, "")]);
    bench.window = 700;
    assert_eq!(bench.ack_after(10, 5000), []);
    // Until the override timeout.
    assert_eq!(bench.fire_and_drain(), (337, vec![sent(5000, 5700, "P")]));
}

#[test]
fn a_tiny_largest_window_makes_packets_half_of_it() {
    let mut bench = Bench::with(|setup| setup.window = 1200);
    bench.write(5000);
    assert_eq!(bench.sender.mss(), 600);
    assert_eq!(bench.drain(), [sent(0, 1200, "")]);
}

#[test]
fn a_closed_window_is_probed_with_doubling_intervals() {
    let mut bench = Bench::with(|_| ());
    bench.write(1000);
    bench.drain();
    bench.write(1000);
    bench.window = 0;
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), []);
    let base = bench.sender.flight.rtt.base_rto();
    for times in 0..12 {
        let (waited, probe) = bench.fire_and_drain();
        let expected = (base * (1 << times)).as_millis().min(120_000);
        assert_eq!(u128::from(waited), expected, "probe {times}");
        assert_eq!(probe, [sent(999, 999, "p")]);
        // The peer answers and keeps its window closed: this may go on for ever.
        let _ = bench.ack(1000);
        assert_eq!(bench.info().probes, 0);
    }
    bench.window = 5000;
    assert_eq!(bench.ack_after(1, 1000), [sent(1000, 2000, "P")]);
}

#[test]
fn a_peer_that_answers_no_probe_is_given_up() {
    let mut bench = Bench::with(|setup| setup.window = 0);
    bench.write(1000);
    assert_eq!(bench.drain(), []);
    for _ in 0..15 {
        assert_eq!(bench.fire(), Ok(()));
        assert_eq!(bench.drain().len(), 1);
    }
    assert_eq!(bench.fire(), Err(TcpError::TimedOut));
}

#[test]
fn the_user_timeout_bounds_a_closed_window() {
    let mut bench = Bench::with(|setup| {
        setup.window = 0;
        setup.config.settings.user_timeout = Some(Duration::from_secs(5));
    });
    let start = bench.now;
    bench.write(1000);
    bench.drain();
    loop {
        match bench.fire() {
            Err(error) => break assert_eq!(error, TcpError::TimedOut),
            _ => drop(bench.drain()),
        }
        // Probes are answered.
        let _ = bench.ack(0);
    }
    assert_eq!(bench.now.saturating_since(start), Duration::from_secs(5));
}

#[test]
fn a_shrunk_window_is_probed_with_the_first_packet() {
    let mut bench = Bench::with(|setup| setup.sack = false);
    bench.write(3000);
    bench.drain();
    bench.window = 0;
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), []);
    for _ in 0..30 {
        // More often than the number of retries: the peer answers, and only refuses the data.
        let (_, repeated) = bench.fire_and_drain();
        assert_eq!(repeated, [sent(1000, 2000, "")]);
        let _ = bench.ack(1000);
    }
    bench.window = 9000;
    assert_eq!(bench.ack_after(1, 2000), [sent(2000, 3000, "P")]);
}

#[test]
fn a_window_that_opens_over_data_in_flight_repeats_it_at_once_and_ends_the_backoff() {
    for sack in [false, true] {
        let mut bench = Bench::with(|setup| setup.sack = sack);
        bench.write(3000);
        bench.drain();
        bench.window = 0;
        let _ = bench.ack(0);
        for _ in 0..8 {
            bench.fire_and_drain();
            let _ = bench.ack(0);
        }
        assert!(bench.info().rto >= Duration::from_secs(30));
        bench.window = 9000;
        assert_eq!(bench.ack_after(1, 0), [sent(0, 1000, "")], "SACK {sack}");
        // A retransmission that is lost is repeated after a timeout that was never doubled.
        assert_eq!(bench.fire_and_drain(), (300, vec![sent(0, 1000, "")]));
    }
}

#[test]
fn a_window_that_opens_before_a_timeout_repeats_nothing() {
    let mut bench = Bench::with(|setup| setup.sack = false);
    bench.write(3000);
    bench.drain();
    bench.window = 0;
    bench.pass(100);
    let _ = bench.ack(0);
    bench.window = 9000;
    assert_eq!(bench.ack_after(1, 0), []);
    assert_eq!(bench.fire_and_drain(), (199, vec![sent(0, 1000, "")]));
}

#[test]
fn a_window_that_grows_does_not_end_the_backoff_of_a_lossy_path() {
    let mut bench = Bench::with(|setup| setup.sack = false);
    bench.write(3000);
    bench.drain();
    for _ in 0..3 {
        bench.fire_and_drain();
    }
    bench.window *= 2;
    assert_eq!(bench.ack_after(1, 0), []);
    assert_eq!(bench.info().rto, Duration::from_millis(2400));
}

#[test]
fn the_fin_rides_on_the_last_data() {
    let mut bench = Bench::with(|_| ());
    bench.write(1500);
    bench.sender.queue.push_fin();
    assert!(!bench.sender.fin_sent());
    assert_eq!(bench.drain(), [sent(0, 1500, "FP")]);
    assert!(bench.sender.fin_sent() && !bench.sender.fin_acked());
    let _ = bench.ack(1500);
    assert!(!bench.sender.fin_acked() && !bench.sender.all_acked());
    assert_eq!(bench.ack(1501), AckKind::New);
    assert_eq!(bench.sender.acked_offset(), 1500);
    assert!(bench.sender.fin_acked() && bench.sender.all_acked());
    assert_eq!(bench.sender.next_timer(), None);
}

#[test]
fn a_fin_alone_leaves_and_is_repeated() {
    let mut bench = Bench::with(|_| ());
    bench.sender.queue.push_fin();
    assert_eq!(bench.drain(), [sent(0, 0, "F")]);
    assert_eq!(bench.fire_and_drain().1, [sent(0, 0, "Fp")]);
    assert_eq!(bench.fire_and_drain().1, [sent(0, 0, "F")]);
    let _ = bench.ack(1);
    assert!(bench.sender.fin_acked());
}

#[test]
fn a_fin_is_not_delayed_by_nagle_and_needs_window() {
    let mut bench = Bench::with(|setup| setup.window = 200);
    bench.write(100);
    bench.drain();
    bench.write(100);
    bench.sender.queue.push_fin();
    assert_eq!(
        bench.drain(),
        [],
        "the window has no room for the FIN, and the data is small"
    );
    bench.window = 201;
    let _ = bench.ack(0);
    assert_eq!(bench.drain(), [sent(100, 200, "FP")]);
}

#[test]
fn payload_behind_a_fin_is_dropped() {
    let mut bench = Bench::with(|_| ());
    bench.sender.queue.push_fin();
    bench.write(100);
    assert_eq!(bench.sender.queue.len(), 0);
}

#[test]
fn pacing_spaces_bursts_by_the_rate() {
    let mut bench = Bench::with(|setup| {
        setup.config.shared_mut().pacing = true;
        setup.config.shared_mut().initial_cwnd = 100;
    });
    bench.write(100_000);
    // 100 segments in 100 ms, doubled in slow start: two segments a millisecond.
    assert_eq!(bench.info().pacing_rate, 2_000_000);
    // The first ten segments are not held back.
    let first: Vec<_> = (0..5)
        .map(|n| sent(n * 2000, n * 2000 + 2000, ""))
        .collect();
    assert_eq!(bench.drain(), first);
    for step in 5..10 {
        assert_eq!(bench.fire(), Ok(()));
        assert_eq!(bench.drain(), [sent(step * 2000, step * 2000 + 2000, "")]);
        assert_eq!(bench.drain(), []);
    }
    assert_eq!(bench.now, Instant::from_nanos(10_004_500_000));
}

#[test]
fn pacing_does_not_keep_a_blocked_sender_awake() {
    let mut bench = Bench::with(|setup| {
        setup.config.shared_mut().pacing = true;
        setup.window = 2000;
    });
    bench.write(10_000);
    assert_eq!(bench.drain(), [sent(0, 2000, "")]);
    bench.pass(50);
    assert_eq!(bench.drain(), []);
    assert!(bench.sender.next_timer().unwrap() > bench.now);
}

#[test]
fn an_idle_sender_is_small() {
    assert!(
        size_of::<Sender<Bytes>>() <= 680,
        "{}",
        size_of::<Sender<Bytes>>()
    );
}
