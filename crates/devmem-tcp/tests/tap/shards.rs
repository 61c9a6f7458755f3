//! A NIC with several shards. On a TAP and a macvtap interface with as many queues the kernel decides on which queue it delivers
//! a packet; on a packet link a program of ours does.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use devmem_linux::netif::Interface;
use devmem_linux::test_util::{in_netns, is_victim, kill_victim, wait_to_be_killed};
use devmem_tcp::{Dmabuf, LinkState, Netdev, Placement};

use crate::macvtap::with_macvtap;
use crate::packet::{Receiver, await_state, veth};
use crate::peer::{Addresses, Host, PATIENCE, V4, V6};
use crate::sender::{Nic, expected, receive_all};
use crate::shared::{Watch, pair, reaches_the_kernel};

#[test]
fn connections_of_four_shards_send_both_ways_at_once() {
    in_netns(
        "shards::connections_of_four_shards_send_both_ways_at_once",
        || {
            let nic = crate::send_both_ways(16, |builder| builder.shards(4));
            assert_nothing_lost(&nic.netdev);
        },
    );
}

#[test]
fn connections_of_the_kernel_are_accepted_on_the_shard_of_their_addresses_and_ports() {
    in_netns(
        "shards::connections_of_the_kernel_are_accepted_on_the_shard_of_their_addresses_and_ports",
        || {
            for addresses in [V4, V6] {
                let (_host, nic) = Host::with_nic(addresses, |builder| builder.shards(2));
                receive_on_shards(&nic.netdev, addresses);
                // The kernel chooses the queue of a first packet by a secret hash: half of them arrive at the other shard.
                assert!(nic.netdev.crossed_frames() > 0);
                assert_nothing_lost(&nic.netdev);
            }
        },
    );
}

#[test]
fn the_kernel_delivers_connections_of_a_packet_link_to_the_sockets_of_their_shards() {
    in_netns(
        "shards::the_kernel_delivers_connections_of_a_packet_link_to_the_sockets_of_their_shards",
        || {
            for addresses in [V4, V6] {
                let (near, _far) = veth(addresses, 1500);
                let netdev = open("packet:far", addresses, 2);
                receive_on_shards(&netdev, addresses);
                let nic = Nic::new(netdev);
                crate::both_ways_at_once(16, &Host::listening(addresses), &nic);
                assert_eq!(nic.netdev.crossed_frames(), 0);
                assert_nothing_lost(&nic.netdev);
                drop(nic);
                near.delete().expect("our namespace");
            }
        },
    );
}

#[test]
fn shards_share_the_addresses_of_an_interface_without_a_reset() {
    in_netns(
        "shards::shards_share_the_addresses_of_an_interface_without_a_reset",
        || {
            for addresses in [V4, V6] {
                let far_side = pair(addresses);
                let watch = Watch::new();
                let opened = far_side.run(|| open("packet:far,ports=5201-5240", addresses, 2));
                let nic = Nic::new(opened.expect("root of both"));
                receive_on_shards(&nic.netdev, addresses);
                crate::both_ways_at_once(16, &Host::listening(addresses), &nic);
                reaches_the_kernel(&far_side, addresses, 5200);
                assert_eq!(nic.netdev.crossed_frames(), 0);
                assert_nothing_lost(&nic.netdev);
                let (segments, resets) = watch.segments_and_resets(addresses.1);
                assert!(segments > 50, "{segments}");
                assert_eq!(resets, 0);
                Interface::by_name("near")
                    .and_then(Interface::delete)
                    .expect("our namespace");
            }
        },
    );
}

#[test]
fn a_killed_nic_with_shards_leaves_its_ports_to_the_kernel() {
    const TEST: &str = "shards::a_killed_nic_with_shards_leaves_its_ports_to_the_kernel";
    in_netns(TEST, || {
        let open = || open("packet:far,ports=5201-5240", V4, 2);
        if is_victim() {
            // In the namespace that `kill_victim` was called in.
            let _nic = open();
            return wait_to_be_killed("opened");
        }
        let far_side = pair(V4);
        far_side
            .run(|| kill_victim(TEST, "opened"))
            .expect("root of both");
        reaches_the_kernel(&far_side, V4, 5201);
        far_side.run(|| drop(open())).expect("root of both");
    });
}

#[test]
fn macvtap_queues_receive_connections_of_both_shards_and_each_is_told_of_the_interface() {
    with_macvtap(
        "shards::macvtap_queues_receive_connections_of_both_shards_and_each_is_told_of_the_interface",
        || {
            for addresses in [V4, V6] {
                let (mut near, _far) = veth(addresses, 1500);
                let netdev = open("macvtap:far", addresses, 2);
                receive_on_shards(&netdev, addresses);
                let nic = Nic::new(netdev);
                crate::both_ways_at_once(16, &Host::listening(addresses), &nic);
                // The kernel divides connections by a secret hash.
                assert!(nic.netdev.crossed_frames() > 0);
                // Without its other end, the lower interface has no carrier: every shard is told.
                let await_all = |state| {
                    let shards = nic.netdev.shards();
                    shards.iter().for_each(|shard| await_state(shard, state));
                };
                near.set_down().expect("our namespace");
                await_all(LinkState::Down);
                near.set_up().expect("our namespace");
                await_all(LinkState::Up);
                near.delete().expect("our namespace");
                await_all(LinkState::Gone);
            }
        },
    );
}

#[test]
fn streams_of_all_shards_go_on_after_the_interface_was_down() {
    in_netns(
        "shards::streams_of_all_shards_go_on_after_the_interface_was_down",
        || {
            const BYTES: usize = 1 << 20;
            const CONNECTIONS: usize = 16;
            let (near, mut far) = veth(V4, 1500);
            let netdev = open("packet:far", V4, 2);
            let receiver = Receiver::new(netdev, V4);
            let local = receiver.listener().local_addr().expect("it listens");
            let connect = |_| {
                let theirs = TcpStream::connect(local).expect("it listens");
                let (ours, _) = receiver.listener().accept().expect("a connection");
                ours.set_timeout(Some(PATIENCE));
                (ours, theirs)
            };
            let connections: Vec<_> = (0..CONNECTIONS).map(connect).collect();
            let on_first = connections.iter().filter(|(ours, _)| ours.shard() == 0);
            assert!((1..CONNECTIONS).contains(&on_first.count()));
            far.set_down().expect("our namespace");
            for shard in receiver.netdev.shards() {
                await_state(&shard, LinkState::Down);
            }
            std::thread::scope(|scope| {
                let (receiver, mut far) = (&receiver, far);
                for (mut ours, mut theirs) in connections {
                    // Sent while the interface is down: the kernel repeats it until it arrives.
                    scope.spawn(move || {
                        theirs.write_all(&expected(0, BYTES)).expect("it is read");
                        theirs.shutdown(Shutdown::Write).expect("open");
                    });
                    scope.spawn(move || {
                        assert_eq!(receive_all(&mut ours, receiver.memory()), BYTES);
                    });
                }
                far.set_up().expect("our namespace");
                for shard in receiver.netdev.shards() {
                    await_state(&shard, LinkState::Up);
                }
            });
            // The sockets are in the group in their old order.
            assert_eq!(receiver.netdev.crossed_frames(), 0);
            // Each socket reported once that the interface was down.
            let drops = receiver.netdev.drops();
            let down = drops.iter().find(|(name, _)| *name == "rx_link_error");
            assert_eq!(down, Some(&("rx_link_error", 2)));
            near.delete().expect("our namespace");
            for shard in receiver.netdev.shards() {
                await_state(&shard, LinkState::Gone);
            }
            receiver.finish();
        },
    );
}

#[test]
fn a_lent_address_is_one_of_all_shards() {
    in_netns("shards::a_lent_address_is_one_of_all_shards", || {
        let (_near, _far) = veth(V4, 1500);
        let _server = crate::lease::Server::start();
        let builder = Netdev::builder("packet:far").and_then(|builder| builder.address("auto"));
        let netdev = builder.and_then(|builder| builder.shards(2).open());
        let netdev = netdev.expect("a server answers");
        receive_on_shards(&netdev, (V4.0, "10.77.0.50", V4.2));
    });
}

/// Opens a NIC with several shards.
fn open(link: &str, (_, ours, len): Addresses, shards: u16) -> Netdev {
    let builder = Netdev::builder(link).and_then(|it| it.address(&format!("{ours}/{len}")));
    let netdev = builder.and_then(|builder| builder.shards(shards).open());
    netdev.expect("the interface is up")
}

/// Asserts that the NIC dropped no frame, apart from those for which a queue had no room: on a busy machine its reader waits for a processor.
/// (The stack ignores some ICMP, and TCP drops segments that were sent twice because others overtook them when they crossed.)
fn assert_nothing_lost(netdev: &Netdev) {
    let mut drops = netdev.drops();
    let is_queue = |reason| ["rx_link_full", "rx_crossing_full"].contains(&reason);
    drops.retain(|(reason, _)| reason.starts_with("rx_") && !is_queue(reason));
    assert_eq!(drops, []);
}

/// Receives from the kernel on many connections, in device memory only.
fn receive_on_shards(netdev: &Netdev, addresses: Addresses) {
    const CONNECTIONS: usize = 16;
    const BYTES: usize = 400_000;
    let memory = Dmabuf::anonymous(16 << 20).expect("memory");
    let listener = netdev.listen((addresses.1, 5201)).expect("a free port");
    listener.set_timeout(Some(PATIENCE));
    let local = listener.local_addr().expect("it listens");
    let setup = netdev.plan_receive(local).apply().expect("set up");
    let rx = netdev.bind_rx(&memory, setup.queues()).expect("bound");
    let mut on_shards = vec![0; netdev.shards().len()];
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            let mut theirs = TcpStream::connect(local).expect("it listens");
            let (mut ours, peer) = listener.accept().expect("a connection");
            assert_eq!(theirs.local_addr().expect("connected"), peer);
            on_shards[ours.shard()] += 1;
            ours.set_timeout(Some(PATIENCE));
            ours.set_placement(Placement::Strict);
            scope.spawn(move || {
                theirs.write_all(&expected(0, BYTES)).expect("all is read");
                theirs.shutdown(Shutdown::Write).expect("open");
            });
            let memory = &memory;
            scope.spawn(move || assert_eq!(receive_all(&mut ours, memory), BYTES));
        }
    });
    assert!(on_shards.iter().all(|count| *count > 0), "{on_shards:?}");
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}
