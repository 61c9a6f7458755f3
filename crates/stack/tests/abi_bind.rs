//! Binding, refusal by refusal (ABI.md 2), and unbinding.

mod common;

use common::{Bound, PORT, assert_no_memory_drops};
use devmem_uapi::{DmabufId, Errno, IfIndex, MsgFlags};
use netmem::{Dmabuf, NiovSize};
use netsim::{Pair, PairConfig, Pattern, Side, Sink, Source};
use nic::{Rings, TcpDataSplit};
use stack::{BindRx, BindRxError, Stack, UnbindRxError};
use steer::{IndirectionTable, RxQueueId};

fn pair(rx_queues: u16) -> Pair {
    Pair::new(&PairConfig {
        rx_queues,
        ..PairConfig::default()
    })
}

/// A request that passes once header split is on.
fn request(queues: &[u16]) -> BindRx {
    BindRx {
        ifindex: IfIndex(1),
        dmabuf: Dmabuf::anonymous(1 << 20).unwrap(),
        niov_size: NiovSize::DEFAULT,
        queues: queues.iter().copied().map(RxQueueId).collect(),
    }
}

fn set_rings(stack: &mut Stack, tcp_data_split: TcpDataSplit, hds_thresh: u16) {
    let rings = Rings {
        tcp_data_split,
        hds_thresh,
        ..stack.nic().rings()
    };
    stack.nic_mut().set_rings(rings).unwrap();
}

fn bound_queues(stack: &Stack) -> Vec<Option<DmabufId>> {
    let queues = 0..stack.nic().channels().rx;
    queues
        .map(|queue| stack.nic().queue_info(RxQueueId(queue)).unwrap().dmabuf)
        .collect()
}

/// Checks that a request is refused with this errno, in words that name what to do, and changes
/// nothing.
fn refused(stack: &mut Stack, request: BindRx, errno: Errno, words: &[&str]) -> BindRxError {
    let before = bound_queues(stack);
    let observer = request.dmabuf.observer();
    let error = stack.bind_rx(request).unwrap_err();
    assert_eq!(error.errno(), errno, "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    assert_eq!(bound_queues(stack), before);
    assert!(observer.is_freed(), "a refused bind keeps no memory");
    error
}

#[test]
fn no_queue_at_all_is_einval_before_anything_else() {
    let mut pair = pair(1);
    let mut wrong = request(&[]);
    wrong.ifindex = IfIndex(9);
    refused(
        &mut pair.b,
        wrong,
        Errno::EINVAL,
        &["at least one rx queue"],
    );
}

#[test]
fn another_interface_is_enodev_before_its_queues_are_looked_at() {
    let mut pair = pair(1);
    let mut wrong = request(&[77]);
    wrong.ifindex = IfIndex(9);
    refused(
        &mut pair.b,
        wrong,
        Errno::ENODEV,
        &["no interface 9", "is 1"],
    );
}

#[test]
fn a_queue_past_the_last_is_einval_before_the_memory_is_looked_at() {
    let mut pair = pair(2);
    let mut wrong = request(&[0, 2]);
    wrong.dmabuf = Dmabuf::anonymous(4096).unwrap();
    refused(
        &mut pair.b,
        wrong,
        Errno::EINVAL,
        &["rx queue 2", "there are 2"],
    );
}

#[test]
fn memory_that_is_not_whole_net_iovs_is_einval_before_header_split_is_looked_at() {
    let mut pair = pair(1);
    for bytes in [4096, 65_536 + 4096, 3 * 65_536 - 4096] {
        let mut wrong = request(&[0]);
        wrong.dmabuf = Dmabuf::anonymous(bytes).unwrap();
        let error = refused(
            &mut pair.b,
            wrong,
            Errno::EINVAL,
            &["net_iov", "multiple", "take"],
        );
        assert!(matches!(error, BindRxError::Geometry(_)));
    }
}

#[test]
fn header_split_off_or_never_set_is_einval_with_the_kernels_words() {
    let mut pair = pair(1);
    for setting in [TcpDataSplit::Auto, TcpDataSplit::Disabled] {
        set_rings(&mut pair.b, setting, 0);
        let words = [
            "tcp-data-split is disabled",
            "rx queue 0",
            "set tcp-data-split on",
        ];
        refused(&mut pair.b, request(&[0]), Errno::EINVAL, &words);
    }
}

#[test]
fn a_threshold_is_einval() {
    let mut pair = pair(1);
    set_rings(&mut pair.b, TcpDataSplit::Enabled, 256);
    refused(
        &mut pair.b,
        request(&[0]),
        Errno::EINVAL,
        &["hds-thresh is 256", "set hds-thresh 0"],
    );
}

#[test]
fn a_bound_queue_is_eexist_and_the_holder_is_named() {
    let mut pair = pair(2);
    set_rings(&mut pair.b, TcpDataSplit::Enabled, 0);
    let id = pair.b.bind_rx(request(&[1])).unwrap();
    let error = refused(
        &mut pair.b,
        request(&[0, 1]),
        Errno::EEXIST,
        &["rx queue 1", "dma-buf 1", "unbind"],
    );
    assert!(
        matches!(error, BindRxError::QueueTaken { queue: RxQueueId(1), by } if by.0 == Some(id))
    );
}

#[test]
fn a_queue_named_twice_is_eexist_and_the_first_restart_is_undone() {
    let mut pair = pair(2);
    set_rings(&mut pair.b, TcpDataSplit::Enabled, 0);
    refused(
        &mut pair.b,
        request(&[0, 1, 0]),
        Errno::EEXIST,
        &["rx queue 0"],
    );
    assert_eq!(bound_queues(&pair.b), [None, None]);
}

#[test]
fn a_queue_that_cannot_be_restarted_undoes_the_ones_before() {
    let mut pair = pair(3);
    set_rings(&mut pair.b, TcpDataSplit::Enabled, 0);
    // Sixteen net_iovs: the first two queues post runs of them, nothing is left to post for the
    // third.
    let mut small = request(&[0, 1, 2]);
    small.dmabuf = Dmabuf::anonymous(2 * 65_536).unwrap();
    let error = refused(
        &mut pair.b,
        small,
        Errno::ENOMEM,
        &["could not be restarted"],
    );
    assert!(matches!(error, BindRxError::Restart { .. }), "{error}");
    assert_eq!(bound_queues(&pair.b), [None, None, None]);
}

#[test]
fn ids_are_cyclic_from_one_and_a_refused_bind_uses_none_up() {
    let mut pair = pair(1);
    set_rings(&mut pair.b, TcpDataSplit::Enabled, 0);
    for expected in 1..4 {
        assert!(pair.b.bind_rx(request(&[9])).is_err());
        let id = pair.b.bind_rx(request(&[0])).unwrap();
        assert_eq!(id, DmabufId(expected));
        pair.b.unbind_rx(id).unwrap();
    }
}

#[test]
fn unbinding_what_is_not_bound_is_einval() {
    let mut pair = pair(1);
    let error = pair.b.unbind_rx(DmabufId(1)).unwrap_err();
    assert!(matches!(error, UnbindRxError::Unknown(_)));
    assert_eq!(error.errno(), Errno::EINVAL);
}

#[test]
fn what_a_binding_depends_on_cannot_be_changed_under_it() {
    let mut pair = pair(2);
    set_rings(&mut pair.b, TcpDataSplit::Enabled, 0);
    let id = pair.b.bind_rx(request(&[1])).unwrap();
    let nic = pair.b.nic_mut();
    let rings = nic.rings();
    assert!(nic.set_channels(1).is_err());
    assert!(
        nic.set_rings(Rings {
            tcp_data_split: TcpDataSplit::Auto,
            ..rings
        })
        .is_err()
    );
    assert!(
        nic.set_rings(Rings {
            hds_thresh: 1,
            ..rings
        })
        .is_err()
    );
    pair.b.unbind_rx(id).unwrap();
    assert!(pair.b.nic_mut().set_channels(1).is_ok());
}

#[test]
fn unbinding_frees_the_memory_when_nothing_is_out() {
    let mut pair = pair(1);
    set_rings(&mut pair.b, TcpDataSplit::Enabled, 0);
    let request = request(&[0]);
    let observer = request.dmabuf.observer();
    let id = pair.b.bind_rx(request).unwrap();
    assert_eq!(
        pair.b
            .bindings()
            .map(|info| (info.id, info.size))
            .collect::<Vec<_>>(),
        [(id, 1 << 20)]
    );
    assert!(!observer.is_freed());
    pair.b.unbind_rx(id).unwrap();
    assert!(observer.is_freed());
    assert_eq!(pair.b.bindings().count(), 0);
}

#[test]
fn unbinding_in_flight_loses_no_byte() {
    for unbind_after in [0, 1, 100_000, 700_000] {
        let mut pair = Pair::new(&PairConfig::default());
        let id = pair.bind(Side::B, 1 << 20, NiovSize::DEFAULT, &[0]);
        let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
        let pattern = Pattern::new(3);
        let mut source = Source::new(sender, pattern, 2_000_000, 30_000);
        let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
        let mut is_bound = true;
        pair.run(|pair| {
            let sent = source.run(&mut pair.a);
            if is_bound && source.sent() > unbind_after {
                pair.b.unbind_rx(id).unwrap();
                is_bound = false;
            }
            sent.and(sink.run(&mut pair.b))
        })
        .unwrap();
        let report = sink.report();
        assert_eq!(report.bytes(), 2_000_000);
        assert!(report.readable_bytes > 0, "{report:?}");
        drop(sink);
        pair.a.close(sender).unwrap();
        pair.b.close(receiver).unwrap();
        pair.finish();
    }
}

#[test]
fn rebinding_in_flight_moves_the_stream_to_the_new_memory() {
    let mut pair = Pair::new(&PairConfig::default());
    let first = pair.bind(Side::B, 1 << 20, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let pattern = Pattern::new(3);
    let mut source = Source::new(sender, pattern, 2_000_000, 30_000);
    let mut sink = Sink::new(receiver, pattern).with_memory(first, pair.dmabuf(Side::B, first));
    let mut second = None;
    pair.run(|pair| {
        let sent = source.run(&mut pair.a);
        let received = sink.run(&mut pair.b);
        if second.is_none() && source.sent() > 500_000 {
            pair.b.unbind_rx(first).unwrap();
            let id = pair.bind(Side::B, 2 << 20, NiovSize::MIN, &[0]);
            let fresh = Sink::new(receiver, pattern);
            let old = std::mem::replace(&mut sink, fresh);
            sink = old.with_memory(id, pair.dmabuf(Side::B, id));
            second = Some(id);
        }
        sent.and(received)
    })
    .unwrap();
    assert_eq!(sink.report().device_bytes, 2_000_000);
    drop(sink);
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}

/// Steers everything at B that goes to `port` to `queue`.
fn steer(pair: &mut Pair, port: u16, queue: u16) {
    use steer::{FlowType, NtupleRule, RuleAction};
    let mut rule = NtupleRule::any(FlowType::Tcp4, RuleAction::Queue(RxQueueId(queue)));
    rule.dst_port = steer::PortMatch::exact(port);
    pair.b.nic_mut().insert_rule(None, rule).unwrap();
}

/// Makes RSS choose queue 0 for everything.
fn rss_to_queue_0(pair: &mut Pair) {
    let nic = pair.b.nic_mut();
    let mut rss = nic.rss().clone();
    rss.table = IndirectionTable::new(&[RxQueueId(0)], nic.channels().rx).unwrap();
    nic.set_rss(rss).unwrap();
}

#[test]
fn a_connection_that_is_not_steered_arrives_as_plain_bytes() {
    let mut pair = pair(2);
    rss_to_queue_0(&mut pair);
    let id = pair.bind(Side::B, 1 << 20, NiovSize::DEFAULT, &[1]);
    steer(&mut pair, PORT, 1);
    let (steered, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let (astray, other) = pair.connect(Side::B, Side::B.ipv4(), PORT + 1);
    let (one, two) = (Pattern::new(1), Pattern::new(2));
    let mut sources = [
        Source::new(sender, one, 400_000, 9000),
        Source::new(other, two, 400_000, 9000),
    ];
    let mut sink = Sink::new(steered, one).with_memory(id, pair.dmabuf(Side::B, id));
    let mut plain = Sink::new(astray, two);
    pair.run(|pair| {
        let [first, second] = &mut sources;
        let sent = first.run(&mut pair.a).and(second.run(&mut pair.a));
        sent.and(sink.run(&mut pair.b)).and(plain.run(&mut pair.b))
    })
    .unwrap();
    assert_eq!(
        (sink.report().device_bytes, plain.report().readable_bytes),
        (400_000, 400_000)
    );
    assert_no_memory_drops(&pair.b);
    drop((sink, plain));
    for (ours, theirs) in [(steered, sender), (astray, other)] {
        pair.a.close(theirs).unwrap();
        pair.b.close(ours).unwrap();
    }
    pair.finish();
}

#[test]
fn two_bindings_on_two_queues_keep_to_their_own_memory() {
    let mut pair = pair(2);
    let first = pair.bind(Side::B, 1 << 20, NiovSize::DEFAULT, &[0]);
    let second = pair.bind(Side::B, 512 << 10, NiovSize::MIN, &[1]);
    for (port, queue) in [(PORT, 0), (PORT + 1, 1)] {
        steer(&mut pair, port, queue);
    }
    let (zero, to_zero) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let (one, to_one) = pair.connect(Side::B, Side::B.ipv4(), PORT + 1);
    let (pattern_0, pattern_1) = (Pattern::new(10), Pattern::new(11));
    let mut sources = [
        Source::new(to_zero, pattern_0, 900_000, 9000),
        Source::new(to_one, pattern_1, 900_000, 9000),
    ];
    // Each may look at its own memory only: a frag of the other binding would be a panic.
    let mut sink_0 = Sink::new(zero, pattern_0).with_memory(first, pair.dmabuf(Side::B, first));
    let mut sink_1 = Sink::new(one, pattern_1).with_memory(second, pair.dmabuf(Side::B, second));
    pair.run(|pair| {
        let [to_0, to_1] = &mut sources;
        let sent = to_0.run(&mut pair.a).and(to_1.run(&mut pair.a));
        sent.and(sink_0.run(&mut pair.b))
            .and(sink_1.run(&mut pair.b))
    })
    .unwrap();
    assert_eq!(
        (sink_0.report().device_bytes, sink_1.report().device_bytes),
        (900_000, 900_000)
    );
    assert_no_memory_drops(&pair.b);
    drop((sink_0, sink_1));
    for (ours, theirs) in [(zero, to_zero), (one, to_one)] {
        pair.a.close(theirs).unwrap();
        pair.b.close(ours).unwrap();
    }
    pair.finish();
}

#[test]
fn one_binding_feeds_two_queues() {
    let mut pair = pair(2);
    let id = pair.bind(Side::B, 2 << 20, NiovSize::DEFAULT, &[0, 1]);
    for (port, queue) in [(PORT, 0), (PORT + 1, 1)] {
        steer(&mut pair, port, queue);
    }
    let mut ends = Vec::new();
    for port in [PORT, PORT + 1] {
        let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), port);
        let pattern = Pattern::new(port.into());
        let source = Source::new(sender, pattern, 900_000, 9000);
        let sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
        ends.push((sender, source, sink));
    }
    pair.run(|pair| {
        let turns = ends
            .iter_mut()
            .map(|(_, source, sink)| source.run(&mut pair.a).and(sink.run(&mut pair.b)));
        turns.fold(netsim::Progress::Done, netsim::Progress::and)
    })
    .unwrap();
    assert_no_memory_drops(&pair.b);
    for (sender, _, sink) in ends {
        assert_eq!(sink.report().device_bytes, 900_000);
        pair.a.close(sender).unwrap();
        pair.b.close(sink.id()).unwrap();
    }
    pair.finish();
}

#[test]
fn a_stack_that_is_dropped_in_mid_transfer_leaves_nothing_behind() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(10_000);
    let received = bound.recv(5000, 8, MsgFlags::SOCK_DEVMEM).unwrap();
    assert_eq!(received.outcome.bytes, 5000);
    let observer = bound.pair.dmabuf(Side::B, bound.id).observer();
    drop(bound);
    assert!(observer.is_freed());
}
