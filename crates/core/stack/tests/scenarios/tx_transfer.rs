//! Whole transfers from device memory. Memory is overwritten as soon as its send completes, so that a completion that
//! comes too early shows as a wrong byte at the receiver. At the end all sends are complete, and all net_iovs are given
//! back.

use std::net::IpAddr;
use std::time::Duration;

use super::common::{PORT, assert_no_memory_drops, drops};
use super::{DeviceSource, DoorSocket, Pair, Sink};
use devmem_uapi::{DmabufId, Errno, MsgFlags};
use netmem::{Dmabuf, NiovSize};
use netsim::{Door as _, PairConfig, Pattern, Progress, Side};
use nic::Impairment;
use stack::{Readiness, SocketOption};

/// A transfer from device memory at one side to device memory at the other.
struct Flow {
    from: Side,
    source: DeviceSource,
    sink: Sink,
}

/// Sizes of a transfer.
#[derive(Clone, Copy)]
struct Sizes {
    total: u64,
    chunk: usize,
    ring: usize,
}

impl Flow {
    /// Returns a flow from `sender`, a socket of side `from`, to `receiver` with the memory `rx` of the other side.
    fn new(
        pair: &mut Pair,
        from: Side,
        sender: DoorSocket,
        receiver: DoorSocket,
        rx: DmabufId,
        sizes: Sizes,
        seed: u64,
    ) -> Self {
        let tx = pair.bind_tx(from, sizes.ring);
        let memory = pair.dmabuf(from, tx).clone();
        let pattern = Pattern::new(seed);
        let source = DeviceSource::new(pair.side(from), sender, tx, &memory, pattern, sizes.total);
        let sink = Sink::new(receiver, pattern).with_memory(rx, pair.dmabuf(from.other(), rx));
        Self {
            from,
            source: source.in_chunks_of(sizes.chunk),
            sink,
        }
    }

    fn run(&mut self, pair: &mut Pair) -> Progress {
        let sent = self.source.run(pair.side(self.from));
        sent.and(self.sink.run(pair.side(self.from.other())))
    }
}

fn run_all(pair: &mut Pair, flows: &mut [Flow]) {
    let ran = pair.run(|pair| {
        flows
            .iter_mut()
            .map(|flow| flow.run(pair))
            .fold(Progress::Done, Progress::and)
    });
    assert!(
        ran.is_ok(),
        "{ran:?}: {:?}, dropped {:?} {:?}",
        states(flows),
        drops(&pair.a),
        drops(&pair.b)
    );
}

fn states(flows: &[Flow]) -> Vec<String> {
    flows
        .iter()
        .map(|flow| format!("{:?} {:?}", flow.source, flow.sink.report()))
        .collect()
}

/// Closes every socket, and checks that all memory was given back.
fn finish(mut pair: Pair, flows: Vec<Flow>) {
    for Flow { from, source, sink } in flows {
        let (completions, sends) = source.completions();
        assert!(
            completions <= u64::from(sends),
            "{completions} entries for {sends} sends"
        );
        // Both directions of a connection are flows: closed twice.
        let _ = pair.side(from).close(source.id());
        let _ = pair.side(from.other()).close(sink.id());
    }
    pair.finish();
}

/// One flow from A to 4 MiB at B.
fn transfer(config: &PairConfig, ip: IpAddr, sizes: Sizes) {
    let mut pair = Pair::new(config);
    let rx = pair.bind(Side::B, 4 << 20, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = pair.connect(Side::B, ip, PORT);
    let mut flows = vec![Flow::new(
        &mut pair,
        Side::A,
        sender,
        receiver,
        rx,
        sizes,
        config.seed,
    )];
    run_all(&mut pair, &mut flows);
    assert_eq!(flows[0].sink.report().device_bytes, sizes.total);
    if config.impairment.is_none() {
        assert_no_memory_drops(&pair.b);
    }
    finish(pair, flows);
}

#[test]
fn chunks_of_every_size_arrive_over_both_families() {
    for ip in [Side::B.ipv4(), Side::B.ipv6()] {
        for chunk in [1, 3, 4095, 4096, 4097, 65_536, 1 << 20] {
            let total = (chunk as u64 * 2000).min(5_000_001);
            transfer(
                &PairConfig::default(),
                ip,
                Sizes {
                    total,
                    chunk,
                    ring: 2 << 20,
                },
            );
        }
    }
}

#[test]
fn net_iovs_of_one_page_and_rings_that_end_anywhere_do_as_well() {
    // A ring of 37 pages in net_iovs of one page: chunks wrap around at different offsets.
    for (chunk, mtu) in [(4097, 1500), (100_000, 1500), (100_000, 9000), (7777, 9000)] {
        let config = PairConfig {
            mtu,
            ..PairConfig::default()
        };
        transfer(
            &config,
            Side::B.ipv4(),
            Sizes {
                total: 2_000_000,
                chunk,
                ring: 37 * 4096,
            },
        );
    }
}

#[test]
fn a_nic_that_segments_and_sums_itself_sends_the_same() {
    let config = PairConfig {
        impairment: Some(Impairment::NONE),
        ..PairConfig::default()
    };
    transfer(
        &config,
        Side::B.ipv4(),
        Sizes {
            total: 2_000_000,
            chunk: 50_000,
            ring: 1 << 20,
        },
    );
}

#[test]
fn a_link_that_is_mostly_busy_gets_memory_back_late_and_right() {
    for wire_frames in [1, 2, 7] {
        let config = PairConfig {
            wire_frames,
            ..PairConfig::default()
        };
        transfer(
            &config,
            Side::B.ipv4(),
            Sizes {
                total: 2_000_000,
                chunk: 9000,
                ring: 1 << 18,
            },
        );
    }
}

/// Two flows in one connection, device memory to device memory in both directions at once, over a bad wire.
fn both_ways(seed: u64, impairment: &str, total: u64) {
    println!("seed {seed}, {impairment}");
    let impairment: Impairment = impairment.parse().unwrap();
    let tcp = tcp::Config {
        settings: tcp::Settings {
            snd_buf_max: 256 << 10,
            ..tcp::Settings::default()
        },
        ..tcp::Config::default()
    };
    let config = PairConfig {
        seed,
        impairment: Some(impairment),
        tcp,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    // Little memory at one end, so that windows close.
    let rx_a = pair.bind(Side::A, 4 << 20, NiovSize::DEFAULT, &[0]);
    let rx_b = pair.bind(Side::B, 512 << 10, NiovSize::MIN, &[0]);
    let (b, a) = pair.connect(
        Side::B,
        if seed.is_multiple_of(2) {
            Side::B.ipv4()
        } else {
            Side::B.ipv6()
        },
        PORT,
    );
    let chunk = [1000, 4097, 30_000, 65_536][(seed % 4) as usize];
    let sizes = Sizes {
        total,
        chunk,
        ring: 64 << 10,
    };
    let mut flows = vec![
        Flow::new(&mut pair, Side::A, a, b, rx_b, sizes, seed),
        Flow::new(
            &mut pair,
            Side::B,
            b,
            a,
            rx_a,
            Sizes {
                ring: 5 * 4096,
                chunk: chunk.min(5 * 4096),
                ..sizes
            },
            !seed,
        ),
    ];
    run_all(&mut pair, &mut flows);
    assert!(flows.iter().all(|flow| flow.sink.report().bytes() == total));
    finish(pair, flows);
}

#[test]
fn memory_is_never_reused_early_over_a_bad_wire_in_both_directions() {
    for seed in 0..24 {
        let impairment = match seed % 6 {
            0 => "loss=1%",
            1 => "loss=5%",
            2 => "reorder=5%,delay=1ms",
            3 => "dup=5%,loss=1%",
            4 => "corrupt=2%",
            _ => "loss=2%,reorder=2%,dup=2%,corrupt=1%,delay=2ms,jitter=1ms",
        };
        both_ways(seed, impairment, 150_000);
    }
}

#[test]
fn sixty_four_connections_send_both_ways_at_once() {
    let mut pair = Pair::new(&PairConfig::default());
    let rx_a = pair.bind(Side::A, 4 << 20, NiovSize::MIN, &[0]);
    let rx_b = pair.bind(Side::B, 4 << 20, NiovSize::MIN, &[0]);
    let local = std::net::SocketAddr::new(Side::B.ipv4(), PORT);
    let listener = pair.b.listen(local, 64).unwrap();
    let mut flows = Vec::new();
    for number in 0..64 {
        let (b, a) = pair.connect_to(Side::B, listener, local);
        let sizes = Sizes {
            total: 60_000,
            chunk: 7000,
            ring: 16 << 10,
        };
        flows.push(Flow::new(&mut pair, Side::A, a, b, rx_b, sizes, 2 * number));
        flows.push(Flow::new(
            &mut pair,
            Side::B,
            b,
            a,
            rx_a,
            sizes,
            2 * number + 1,
        ));
    }
    run_all(&mut pair, &mut flows);
    assert!(
        flows
            .iter()
            .all(|flow| flow.sink.report().device_bytes == 60_000)
    );
    assert_no_memory_drops(&pair.a);
    assert_no_memory_drops(&pair.b);
    pair.b.close(listener).unwrap();
    finish(pair, flows);
}

#[test]
fn the_stack_never_reads_the_payload_that_it_sends() {
    for impairment in [None, Some(Impairment::NONE)] {
        let mut pair = Pair::new(&PairConfig {
            impairment,
            ..PairConfig::default()
        });
        let opaque = Dmabuf::opaque(256 << 10).unwrap();
        let tx = pair.bind_tx_memory(Side::A, opaque.clone());
        let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
        let pattern = Pattern::new(8);
        let device = opaque.clone();
        let write = Box::new(move |offset: usize, bytes: &[u8]| device.device_write(offset, bytes));
        let mut source = DeviceSource::with_writer(
            &mut pair.a,
            sender,
            tx,
            256 << 10,
            write,
            pattern,
            2_000_000,
        );
        let mut sink = Sink::new(receiver, pattern);
        pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.b)))
            .unwrap();
        assert_eq!(sink.report().bytes(), 2_000_000);
        drop((source, sink, opaque));
        pair.a.close(sender).unwrap();
        pair.b.close(receiver).unwrap();
        pair.finish();
    }
}

/// A connection from A, 64 KiB bound there, `sends` sends of all of it queued.
fn queued(config: &PairConfig) -> (Pair, DoorSocket, DoorSocket, DeviceSource) {
    let mut pair = Pair::new(config);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let tx = pair.bind_tx(Side::A, 1 << 20);
    let memory = pair.dmabuf(Side::A, tx).clone();
    let source = DeviceSource::new(&mut pair.a, sender, tx, &memory, Pattern::new(4), 1 << 20);
    (pair, receiver, sender, source.without_shutdown())
}

/// Checks that every send is reported although not everything was delivered.
fn assert_all_reported(pair: &mut Pair, mut source: DeviceSource) {
    source.collect(&mut pair.a);
    assert_eq!(
        source.freed(),
        source.sent(),
        "what will not be sent is free, too"
    );
    assert_eq!(pair.a.sends_in_flight(source.dmabuf()), Some(0));
}

#[test]
fn after_a_half_close_queued_data_arrives_and_completes() {
    let (mut pair, receiver, sender, mut source) = queued(&PairConfig::default());
    while source.sent() < 1 << 20 {
        source.send_once(&mut pair.a).unwrap();
    }
    pair.a.shutdown(sender, std::net::Shutdown::Write).unwrap();
    let mut sink = Sink::new(receiver, Pattern::new(4));
    pair.run(|pair| sink.run(&mut pair.b)).unwrap();
    assert_eq!(sink.report().bytes(), 1 << 20);
    pair.run_for(Duration::from_millis(100));
    assert_all_reported(&mut pair, source);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn a_reset_in_mid_send_completes_everything() {
    let (mut pair, receiver, sender, mut source) = queued(&PairConfig::default());
    while source.sent() < 1 << 20 {
        source.send_once(&mut pair.a).unwrap();
    }
    for _ in 0..3 {
        pair.run_for(netsim::STEP);
    }
    pair.b.abort(receiver).unwrap();
    pair.run_for(Duration::from_millis(100));
    assert_eq!(pair.a.take_error(sender), Ok(Some(Errno::ECONNRESET)));
    assert!(pair.a.readiness(sender).unwrap().contains(Readiness::ERROR));
    assert_all_reported(&mut pair, source);
    pair.a.close(sender).unwrap();
    pair.finish();
}

#[test]
fn a_peer_that_never_reads_holds_the_memory_until_the_sender_gives_up() {
    let (mut pair, receiver, sender, mut source) = queued(&PairConfig {
        host_mem_bytes: 1 << 20,
        ..PairConfig::default()
    });
    while source.sent() < 1 << 20 {
        source.send_once(&mut pair.a).unwrap();
    }
    pair.run_for(Duration::from_secs(600));
    source.collect(&mut pair.a);
    assert!(
        source.freed() < source.sent(),
        "a closed window is probed, not given up"
    );
    assert!(pair.a.sends_in_flight(source.dmabuf()) > Some(0));
    pair.a.abort(sender).unwrap();
    pair.run_for(Duration::from_millis(100));
    assert_eq!(
        pair.a.sends_in_flight(source.dmabuf()),
        Some(0),
        "a closed socket reports nothing, the binding does"
    );
    drop(source);
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn a_peer_that_vanishes_ends_by_the_user_timeout_and_completes_everything() {
    let (mut pair, receiver, sender, mut source) = queued(&PairConfig::default());
    pair.a
        .set_option(
            sender,
            SocketOption::UserTimeout(Some(Duration::from_secs(10))),
        )
        .unwrap();
    while source.sent() < 1 << 20 {
        source.send_once(&mut pair.a).unwrap();
    }
    pair.cable().pull();
    pair.run_for(Duration::from_secs(60));
    assert!(matches!(
        pair.a.take_error(sender),
        Ok(Some(Errno::ETIMEDOUT | Errno::EHOSTUNREACH))
    ));
    assert_all_reported(&mut pair, source);
    pair.a.close(sender).unwrap();
    pair.b.abort(receiver).unwrap();
    pair.cable().plug();
    pair.finish();
}

#[test]
fn a_socket_closed_with_sends_outstanding_sends_them_and_the_binding_knows_when() {
    let (mut pair, receiver, sender, mut source) = queued(&PairConfig::default());
    while source.sent() < 1 << 20 {
        source.send_once(&mut pair.a).unwrap();
    }
    pair.a.close(sender).unwrap();
    let refused = pair.a.completion(sender).unwrap_err();
    assert_eq!(refused, Errno::EBADF);
    assert!(pair.a.sends_in_flight(source.dmabuf()) > Some(0));
    let mut sink = Sink::new(receiver, Pattern::new(4)).with_flags(MsgFlags::empty());
    pair.run(|pair| sink.run(&mut pair.b)).unwrap();
    assert_eq!(sink.report().bytes(), 1 << 20);
    pair.run_for(Duration::from_millis(100));
    assert_eq!(pair.a.sends_in_flight(source.dmabuf()), Some(0));
    drop(source);
    pair.b.close(receiver).unwrap();
    pair.finish();
}
