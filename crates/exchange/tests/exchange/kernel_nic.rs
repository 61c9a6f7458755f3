//! Over the kernel's device memory, on a NIC that can: `DEVMEM_TEST_NIC` names it (the lab does). The other process is one in the
//! namespace of the NIC's other end, with ordinary sockets.

#[path = "../../../devmem-tcp/tests/kernel_nic/bench.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod bench;

use devmem_exchange::{
    Access, Endpoint, Engine, Event, Fabric, INLINE_BYTES, Memory, Options, Pool,
};
use devmem_linux::netif;
use devmem_linux::test_util::{is_victim, kill_victim, wait_to_be_killed};
use devmem_tcp::Netdev;

use crate::world::{host, part, pattern};
use bench::{Bench, PATIENCE, memory};

/// The fabric of the NIC, which receives into device memory.
fn with_pool(bench: &Bench) -> Fabric {
    let memory = memory();
    let options = Options {
        pool: Some(Pool { memory, queues: 1 }),
        address: Some(bench.ip),
        engine: Engine::Thread,
        ..Options::default()
    };
    Fabric::open(bench.nic.clone(), options).unwrap()
}

/// A fabric at the other end, with ordinary sockets.
fn at_peer(bench: &Bench) -> Fabric {
    let address = bench.peer_ip();
    bench.at_peer(|| {
        let all = netif::interfaces().unwrap().into_iter();
        let mut named = all.filter(|(index, ..)| {
            let addresses = netif::addresses(*index).unwrap();
            addresses.into_iter().any(|ip| ip == address)
        });
        let (_, name, _) = named.next().expect("an interface has the address");
        let options = Options {
            address: Some(address),
            engine: Engine::Thread,
            ..Options::default()
        };
        Fabric::open(Netdev::kernel(&name).unwrap(), options).unwrap()
    })
}

/// An endpoint of the peer, and one of the NIC, which accepts.
fn connect(bench: &Bench, peer: &Fabric, ours: &Fabric) -> (Endpoint, Endpoint) {
    let listener = ours.listen().unwrap();
    let mut dial = bench.at_peer(|| peer.dial(&listener.ticket()).unwrap());
    let (mut there, mut here) = (None, None);
    loop {
        there = there.or(dial.poll().unwrap());
        here = here.or(listener.poll().unwrap());
        match (there, here) {
            (Some(there), Some(here)) => return (there, here),
            not_yet => (there, here) = not_yet,
        }
        std::thread::yield_now();
    }
}

fn wait(endpoint: &Endpoint) -> Event {
    let event = endpoint.wait_event(PATIENCE);
    event.unwrap_or_else(|| panic!("no event in {PATIENCE:?}; {:?}", endpoint.cause()))
}

#[test]
fn messages_into_and_from_device_memory_arrive_and_the_settings_come_back() {
    const TEST: &str =
        "kernel_nic::messages_into_and_from_device_memory_arrive_and_the_settings_come_back";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let before = bench.settings();
    let (peer, ours) = (at_peer(&bench), with_pool(&bench));
    assert_ne!(bench.settings(), before, "a queue is set up");
    let (there, here) = connect(&bench, &peer, &ours);
    let device = memory();
    let in_device = ours.register(Memory::Device(&device), Access::PRIVATE);
    let in_device = in_device.unwrap();
    for len in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 100_000, (8 << 20) + 3] {
        let bytes = pattern(len as u64, len);
        let place = 10..10 + len;
        let (_, source) = host(&peer, bytes.clone());
        let (returned, target) = host(&peer, vec![0; len]);
        here.receive(&[part(&in_device, place.clone(), 1)], 1)
            .unwrap();
        there.send(&source, 0..len, 1, 2).unwrap();
        assert!(matches!(wait(&there), Event::Sent { user: 2 }));
        assert!(matches!(wait(&here), Event::Received { user: 1, .. }));
        assert!(device.slice(place.clone()).to_vec() == bytes, "{len} bytes");
        there.receive(&[part(&target, 0..len, 2)], 3).unwrap();
        here.send(&in_device, place, 2, 4).unwrap();
        assert!(matches!(wait(&there), Event::Received { user: 3, .. }));
        assert!(matches!(wait(&here), Event::Sent { user: 4 }));
        returned.with(|got| assert!(*got == bytes, "{len} bytes returned"));
    }
    // Messages that follow their record are received by the CPU.
    let inline = 1 + INLINE_BYTES as u64;
    let stats = here.stats();
    assert_eq!(stats.received_by_device, stats.received_bytes - inline);
    drop((there, here, peer, in_device, ours));
    assert_eq!(bench.settings(), before);
}

#[test]
fn a_killed_process_leaves_a_state_file_from_which_the_settings_are_restored() {
    const TEST: &str =
        "kernel_nic::a_killed_process_leaves_a_state_file_from_which_the_settings_are_restored";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    if is_victim() {
        let (peer, ours) = (at_peer(&bench), with_pool(&bench));
        let _ends = connect(&bench, &peer, &ours);
        return wait_to_be_killed("connected");
    }
    let before = bench.settings();
    kill_victim(TEST, "connected");
    assert_ne!(bench.settings(), before, "killed, it restored nothing");
    bench.restore();
    assert_eq!(bench.settings(), before);
    // And the queue is free.
    drop(with_pool(&bench));
    assert_eq!(bench.settings(), before);
}
