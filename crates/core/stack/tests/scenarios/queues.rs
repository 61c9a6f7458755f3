//! Bindings and queues with open connections: binding, unbinding, steering.

use devmem_uapi::{DmabufId, Errno, MsgFlags};
use netmem::{Dmabuf, NiovSize};
use netsim::{Door as _, PairConfig, Pattern, Progress, Side};
use steer::{IndirectionTable, RxQueueId};

use super::common::{Bound, PORT, assert_no_memory_drops};
use super::{Pair, Sink, Source};

const ALL: &[RxQueueId] = &[RxQueueId(0)];

fn pair(rx_queues: u16) -> Pair {
    Pair::new(&PairConfig {
        rx_queues,
        ..PairConfig::default()
    })
}

#[test]
fn ids_of_bindings_count_from_one_and_a_refused_bind_uses_none_up() {
    let mut pair = pair(1);
    pair.split_on(Side::B);
    let (memory, odd) = (Dmabuf::anonymous(1 << 20), Dmabuf::anonymous(4096));
    let (memory, odd) = (memory.unwrap(), odd.unwrap());
    for expected in 1..4 {
        let refused = pair.b.bind_rx(&odd, NiovSize::DEFAULT, ALL);
        assert_eq!(refused, Err(Errno::EINVAL), "no whole net_iov");
        let id = pair.b.bind_rx(&memory, NiovSize::DEFAULT, ALL);
        assert_eq!(id, Ok(DmabufId(expected)));
        let again = pair.b.bind_rx(&memory, NiovSize::DEFAULT, ALL);
        assert_eq!(again, Err(Errno::EEXIST));
        assert_eq!(pair.b.unbind(DmabufId(expected)), Ok(()));
        assert_eq!(pair.b.unbind(DmabufId(expected)), Err(Errno::EINVAL));
    }
    let observers = [memory.observer(), odd.observer()];
    drop((memory, odd));
    assert!(observers.iter().all(|memory| memory.is_freed()));
    pair.finish();
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
                pair.b.unbind(id).unwrap();
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
            pair.b.unbind(first).unwrap();
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
    pair.b
        .stack_mut()
        .nic_mut()
        .insert_rule(None, rule)
        .unwrap();
}

/// Makes RSS choose queue 0 for all packets.
fn rss_to_queue_0(pair: &mut Pair) {
    let nic = pair.b.stack_mut().nic_mut();
    let mut rss = nic.rss().clone();
    rss.table = IndirectionTable::new(&[RxQueueId(0)], nic.rx_queue_count()).unwrap();
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
    // Each sink can read the memory of one binding only, and panics on a frag of the other.
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
        turns.fold(Progress::Done, Progress::and)
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
