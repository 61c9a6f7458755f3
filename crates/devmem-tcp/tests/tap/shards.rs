//! A NIC with several shards on a TAP with as many queues: the kernel decides on which queue it delivers a packet.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use devmem_linux::test_util::in_netns;
use devmem_tcp::{Dmabuf, Placement};

use crate::peer::{Host, PATIENCE, V4, V6};
use crate::sender::{Nic, expected, receive_all};

#[test]
fn connections_of_four_shards_send_both_ways_at_once() {
    in_netns(
        "shards::connections_of_four_shards_send_both_ways_at_once",
        || {
            let nic = crate::send_both_ways(16, |builder| builder.shards(4));
            assert_nothing_lost(&nic);
        },
    );
}

#[test]
fn connections_of_the_kernel_are_accepted_on_the_shard_of_their_addresses_and_ports() {
    in_netns(
        "shards::connections_of_the_kernel_are_accepted_on_the_shard_of_their_addresses_and_ports",
        || {
            for addresses in [V4, V6] {
                receive_on_shards(addresses);
            }
        },
    );
}

/// Asserts that the NIC dropped no frame. (The stack ignores some ICMP, and TCP drops segments that were sent twice because
/// others overtook them when they crossed.)
fn assert_nothing_lost(nic: &Nic) {
    let mut drops = nic.netdev.drops();
    drops.retain(|(reason, _)| reason.starts_with("rx_"));
    assert_eq!(drops, []);
}

/// Receives from the kernel on many connections, in device memory only.
fn receive_on_shards(addresses: crate::peer::Addresses) {
    const CONNECTIONS: usize = 16;
    const BYTES: usize = 400_000;
    let (_host, nic) = Host::with_nic(addresses, |builder| builder.shards(2));
    let memory = Dmabuf::anonymous(16 << 20).expect("memory");
    let mut listener = nic.netdev.listen((addresses.1, 5201)).expect("a free port");
    listener.set_timeout(Some(PATIENCE));
    let local = listener.local_addr().expect("it listens");
    let setup = nic.netdev.plan_receive(local).apply().expect("set up");
    let rx = nic.netdev.bind_rx(&memory, setup.queues()).expect("bound");
    let mut on_shards = [0; 2];
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
    // The kernel chooses the queue of a first packet by a secret hash: half of them arrive at the other shard.
    assert!(nic.netdev.crossed_frames() > 0);
    assert_nothing_lost(&nic);
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}
