//! Queues are added, removed and given other memory while others run.

use std::sync::Arc;

use netmem::{Dmabuf, DmabufId, MemoryProvider, NiovSize, PagePool};
use steer::RxQueueId;

use super::harness::*;
use crate::*;

fn choice(provider: &Arc<MemoryProvider>) -> ProviderChoice {
    ProviderChoice::Provider(Arc::clone(provider))
}

#[test]
fn memory_is_freed_when_its_last_frag_is_dropped() {
    let mut bench = Bench::with_device(NicConfig::default());
    let dmabuf = Dmabuf::anonymous(1 << 20).unwrap();
    let observer = dmabuf.observer();
    let provider =
        Arc::new(MemoryProvider::of_dmabuf(&dmabuf, DmabufId(9), NiovSize::DEFAULT).unwrap());
    bench.nic.restart_queue(Q1, choice(&provider)).unwrap();
    let segment = tcp(&pattern(3, 1000));
    bench.link.scatter(segment.frame(), PARTIAL);
    let packet = bench.receive().unwrap();
    bench.nic.restart_queue(Q1, ProviderChoice::Host).unwrap();
    drop((provider, dmabuf));
    let frag = packet.payload.frags().unwrap().first().unwrap();
    assert_eq!((frag.dmabuf_id(), frag.len()), (Some(DmabufId(9)), 1000));
    assert!(!observer.is_freed());
    // The queue already runs on host memory.
    let host = bench.pass(&tcp(&pattern(4, 1000)));
    assert!(!host.payload.frags().unwrap().is_unreadable());
    bench.nic.recycle(packet.payload.into_frags());
    assert!(observer.is_freed());
    drop(host);
    bench.finish();
}

#[test]
fn a_restart_does_not_affect_other_queues() {
    let devices = vec![opaque(1 << 20, 1, 65_536), opaque(1 << 20, 2, 65_536)];
    let mut bench = Bench::new(OFFLOADED, NicConfig::default(), devices);
    let first = bench.pass(&Tcp {
        dst_port: 5202,
        ..tcp(&pattern(0, 100))
    });
    let info = bench.nic.queue_info(Q2).unwrap();
    bench.nic.restart_queue(Q1, ProviderChoice::Host).unwrap();
    let second = bench.pass(&Tcp {
        dst_port: 5202,
        ..tcp(&pattern(1, 100))
    });
    assert_eq!(bench.nic.queue_info(Q2).unwrap(), info);
    let [one, two] =
        [&first, &second].map(|packet| packet.payload.frags().unwrap().first().unwrap());
    assert!(
        one.netmem().is_same(two.netmem()),
        "it goes on filling the same net_iov"
    );
    drop((first, second));
    bench.finish();
}

#[test]
fn a_failed_restart_leaves_the_queue_with_the_memory_it_had() {
    let mut bench = Bench::with_device(NicConfig::default());
    let held = bench.pass(&tcp(&pattern(0, 100)));
    let info = bench.nic.queue_info(Q1).unwrap();
    let used_up = opaque(65_536, 77, 65_536);
    let taken = PagePool::new(Arc::clone(&used_up)).alloc().unwrap();
    let error = bench.nic.restart_queue(Q1, choice(&used_up)).unwrap_err();
    assert!(matches!(error, RestartError::Empty), "{error}");
    let error = bench
        .nic
        .restart_queue(Q2, ProviderChoice::Host)
        .unwrap_err();
    assert_eq!(error.to_string(), "rx queue 2 of 2 does not exist");
    assert_eq!(bench.nic.queue_info(Q1).unwrap(), info);
    let packet = bench.pass(&tcp(&pattern(1, 65_160)));
    assert!(all_in(packet.payload.frags().unwrap(), 1));
    drop((held, packet, taken));
    bench.finish();
}

#[test]
fn a_queue_out_of_memory_can_be_restarted_and_recovers() {
    let mut bench = Bench::new(
        OFFLOADED,
        NicConfig::default(),
        vec![opaque(131_072, 1, 65_536)],
    );
    let held: Vec<_> = (0..2)
        .map(|i| bench.pass(&tcp(&pattern(i, 65_160))))
        .collect();
    bench.link.scatter(tcp(&pattern(9, 100)).frame(), PARTIAL);
    assert!(bench.receive().is_none());
    bench.nic.restart_queue(Q1, ProviderChoice::Host).unwrap();
    let packet = bench.pass(&tcp(&pattern(3, 65_160)));
    assert!(!packet.payload.frags().unwrap().is_unreadable());
    drop((held, packet));
    bench.finish();
}

#[test]
fn two_queues_of_one_binding_have_half_of_its_space_each() {
    let device = opaque(8 << 20, 1, 65_536);
    let devices = vec![Arc::clone(&device), Arc::clone(&device)];
    let mut bench = Bench::new(OFFLOADED, NicConfig::default(), devices);
    let [one, two] = [Q1, Q2].map(|queue| bench.nic.rx_space(queue).bytes);
    assert_eq!(one, two);
    assert!(one + two <= 8 << 20);
    assert!(one + two > (8 << 20) * 70 / 100, "{one} + {two}");
    // Alone, the queue has all of it.
    bench.nic.restart_queue(Q2, ProviderChoice::Host).unwrap();
    let alone = bench.nic.rx_space(Q1).bytes;
    assert!(alone > one + one * 9 / 10, "{alone} {one}");
    let packet = bench.pass(&tcp(&pattern(0, 100)));
    drop(packet);
    bench.finish();
}

#[test]
fn steering_uses_rules_then_the_table_then_queue_0() {
    let devices = vec![opaque(1 << 20, 1, 65_536), opaque(1 << 20, 2, 65_536)];
    let mut bench = Bench::new(OFFLOADED, NicConfig::default(), devices);
    let to = |port| Tcp {
        dst_port: port,
        ..tcp(b"payload")
    };
    assert_eq!(bench.pass(&to(5202)).queue, Q2);
    assert_eq!(bench.pass(&to(80)).queue, Q0);
    let table = steer::IndirectionTable::new(&[Q1, Q1], 3).unwrap();
    let rss = steer::Rss::new(steer::ToeplitzKey::MICROSOFT, table);
    bench.nic.set_rss(rss).unwrap();
    assert_eq!(bench.pass(&to(80)).queue, Q1);
    assert_eq!(bench.pass(&to(5202)).queue, Q2, "the rule wins");
    let drop_it = steer::NtupleRule {
        dst_port: steer::PortMatch::exact(666),
        ..steer::NtupleRule::any(steer::FlowType::Tcp4, steer::RuleAction::Drop)
    };
    let location = bench.nic.insert_rule(None, drop_it).unwrap();
    bench.link.scatter(to(666).frame(), PARTIAL);
    assert!(bench.receive().is_none());
    assert_eq!(bench.dropped(DropReason::RxRuleDrop), 1);
    assert_eq!(bench.nic.remove_rule(location), Ok(drop_it));
    bench.pass(&to(666));
    bench.finish();
}

#[test]
fn new_queues_have_host_memory_and_are_in_the_table() {
    let (link, handle) = ScriptedLink::new(OFFLOADED);
    let config = NicConfig {
        mac: OUR_MAC,
        rx_queues: 4,
        ..NicConfig::default()
    };
    let mut nic = Nic::new(Box::new(link), config).unwrap();
    let mut seen = [false; 4];
    for port in 1..200 {
        handle.scatter(
            Tcp {
                src_port: port,
                ..tcp(b"x")
            }
            .frame(),
            PARTIAL,
        );
        let packet = nic.poll_rx(NOW).unwrap();
        seen[packet.queue.index()] = true;
        nic.recycle(packet.payload.into_frags());
    }
    assert_eq!(seen, [true; 4]);
    assert!((0..4).all(|queue| nic.queue_info(RxQueueId(queue)).unwrap().dmabuf.is_none()));
}

#[test]
fn ring_settings_that_a_binding_needs_cannot_be_changed() {
    let mut bench = Bench::with_device(NicConfig::default());
    let rings = bench.nic.rings();
    let refused = |bench: &mut Bench, rings| bench.nic.set_rings(rings).unwrap_err();
    for tcp_data_split in [TcpDataSplit::Auto, TcpDataSplit::Disabled] {
        let error = refused(
            &mut bench,
            Rings {
                tcp_data_split,
                ..rings
            },
        );
        assert_eq!(error, SetRingsError::SplitNeeded(Q1));
    }
    for tx_packets in [0, MAX_TX_PACKETS + 1] {
        let error = refused(
            &mut bench,
            Rings {
                tx_packets,
                ..rings
            },
        );
        assert_eq!(error, SetRingsError::TxPackets(tx_packets));
    }
    assert_eq!(bench.nic.rings(), rings);
    bench.nic.restart_queue(Q1, ProviderChoice::Host).unwrap();
    let off = Rings {
        tcp_data_split: TcpDataSplit::Disabled,
        tx_packets: 1,
    };
    bench.nic.set_rings(off).unwrap();
    assert_eq!(bench.nic.rings(), off);
    bench.finish();
}

#[test]
fn a_rule_to_a_queue_that_does_not_exist_is_refused() {
    let mut bench = Bench::with_device(NicConfig::default());
    for rule in rule(1, RxQueueId(2)) {
        assert!(matches!(
            bench.nic.insert_rule(None, rule),
            Err(steer::RuleError::NoSuchQueue { .. })
        ));
    }
    assert_eq!(bench.nic.rules().len(), 2);
    bench.finish();
}

#[test]
fn settings_out_of_range_are_refused() {
    let make = |config: NicConfig| {
        let (link, _) = ScriptedLink::new(PLAIN);
        Nic::new(Box::new(link), config).unwrap_err().to_string()
    };
    let default = NicConfig::default;
    assert_eq!(
        make(NicConfig {
            mtu: 9001,
            ..default()
        }),
        "an MTU of 9001 bytes: the script link carries at most 9000"
    );
    assert_eq!(
        make(NicConfig {
            rx_queues: 0,
            ..default()
        }),
        "0 rx queues: take 1 to 64"
    );
    assert_eq!(
        make(NicConfig {
            linear_bytes: 4097,
            ..default()
        }),
        "4097 linear bytes: take at most 4096"
    );
    let rings = Rings {
        tx_packets: 0,
        ..default().rings
    };
    assert_eq!(
        make(NicConfig { rings, ..default() }),
        "a transmit queue of 0 packets: take 1 to 4096"
    );
    assert!(
        make(NicConfig {
            host_mem_bytes: 1000,
            ..default()
        })
        .contains("no host memory")
    );
}
