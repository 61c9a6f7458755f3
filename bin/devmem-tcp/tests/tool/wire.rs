//! `devmem-tcp wire` between two hosts: kernels in network namespaces, or one of our stacks on a UNIX socket.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::thread;

use crate::common::{LIMIT, Running, connect, repeating, run, start};
use devmem_linux::netif::Interface;
use devmem_linux::netns::{self, NetNs};
use devmem_linux::test_util::in_netns;
use rustix::process::{Signal, kill_process};

/// Creates a second network namespace.
fn another_host() -> NetNs {
    let made = thread::spawn(|| {
        netns::enter_new().expect("that of the test was created in the same way");
        NetNs::current().expect("a thread has a namespace")
    });
    made.join().expect("it does not panic")
}

/// Joins this namespace and `other`, and waits until they are joined.
fn join(other: &NetNs, options: &str) -> Running {
    let taps = "--a tap:left --a-addr 10.0.0.1/24 --b tap:right --b-addr 10.0.0.2/24";
    join_ends(taps, other, options)
}

/// As [`join`], with ends that exist.
fn join_ends(ends: &str, other: &NetNs, options: &str) -> Running {
    use std::os::fd::{AsFd, AsRawFd};
    // The tool opens the namespace through our descriptor of it.
    let path = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        other.as_fd().as_raw_fd()
    );
    let mut wire = start(&format!("wire --json {ends} --b-netns {path} {options}"));
    wire.until("are connected");
    wire
}

/// Makes a veth pair in the calling thread's namespace. The kernel has the address at one end; the other is `far`.
fn veth(address: [u8; 4]) -> Interface {
    let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
    near.set_up().unwrap();
    far.set_up().unwrap();
    near.add_address(address.into(), 24).unwrap();
    far
}

#[test]
fn a_cable_between_two_veth_pairs_cuts_super_packets_and_impairs_their_segments() {
    in_netns(
        "wire::a_cable_between_two_veth_pairs_cuts_super_packets_and_impairs_their_segments",
        || {
            const BYTES: usize = 2_000_000;
            let other = another_host();
            let far = veth([10, 0, 0, 1]);
            other.run(|| veth([10, 0, 0, 2])).unwrap();
            let ends = "--a packet:far --b packet:far";
            let impair = "--impair loss=1%,dup=1%,reorder=1%,delay=1ms,seed=5";
            let wire = join_ends(ends, &other, impair);
            transfer(&other, &repeating(251, 0, BYTES));
            kill_process(wire.pid(), Signal::TERM).unwrap();
            let json = wire.finish().json();
            for count in ["lost", "duplicated", "reordered"] {
                assert!(
                    json["a_to_b"][count].as_u64().is_some_and(|n| n > 0),
                    "{count}: {json}"
                );
            }
            // At least one frame for each 1,448 bytes: the sender's kernel has no offload here.
            let least = BYTES as u64 / 1448;
            assert!(
                json["a_to_b"]["offered"]
                    .as_u64()
                    .is_some_and(|f| f > least),
                "{json}"
            );
            assert_eq!(json["a_to_b"]["refused"], 0, "{json}");
            let wire = join_ends(ends, &other, "");
            far.delete().unwrap();
            wire.finish().failed_with(1, "the interface was deleted");
        },
    );
}

/// Sends `bytes` from this namespace to `other`, kernel to kernel, and asserts that they arrive.
fn transfer(other: &NetNs, bytes: &[u8]) {
    let listener = other
        .run(|| TcpListener::bind("10.0.0.2:5201").unwrap())
        .unwrap();
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = connect("10.0.0.2:5201".parse().unwrap());
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        receiver.join().unwrap()
    });
    assert!(
        received == bytes,
        "{} of {} bytes",
        received.len(),
        bytes.len()
    );
}

#[test]
fn a_perfect_cable_loses_nothing() {
    in_netns("wire::a_perfect_cable_loses_nothing", || {
        let other = another_host();
        let wire = join(&other, "--impair limit=100000");
        transfer(&other, &repeating(251, 0, 10_000_000));
        kill_process(wire.pid(), Signal::INT).unwrap();
        let json = wire.finish().json();
        for lane in ["a_to_b", "b_to_a"] {
            let lane = &json[lane];
            assert!(
                lane["offered"].as_u64().is_some_and(|frames| frames > 10),
                "{json}"
            );
            assert_eq!(lane["offered"], lane["delivered"], "{json}");
            assert_eq!(lane["lost"], 0);
        }
        // There are no super-packets on this cable: at least one frame for each 1,448 bytes.
        assert!(
            json["a_to_b"]["offered"].as_u64().is_some_and(|f| f > 6900),
            "{json}"
        );
    });
}

#[test]
fn kernel_tcp_works_over_an_impaired_cable_and_impairments_are_counted() {
    in_netns(
        "wire::kernel_tcp_works_over_an_impaired_cable_and_impairments_are_counted",
        || {
            let other = another_host();
            let wire = join(
                &other,
                "--impair loss=2%,dup=2%,corrupt=2%,reorder=2%,delay=1ms,seed=11",
            );
            transfer(&other, &repeating(251, 0, 2_000_000));
            kill_process(wire.pid(), Signal::TERM).unwrap();
            let json = wire.finish().json();
            for count in ["lost", "duplicated", "corrupted", "reordered"] {
                assert!(
                    json["a_to_b"][count].as_u64().is_some_and(|n| n > 0),
                    "{count}: {json}"
                );
            }
        },
    );
}

#[test]
fn it_ends_after_the_requested_time() {
    in_netns("wire::it_ends_after_the_requested_time", || {
        let other = another_host();
        let json = join(&other, "--seconds 1").finish().json();
        assert!(json["seconds"].as_f64().is_some_and(|s| s >= 1.0), "{json}");
    });
}

#[test]
fn our_stack_reaches_a_kernel_host_over_an_impaired_cable() {
    in_netns(
        "wire::our_stack_reaches_a_kernel_host_over_an_impaired_cable",
        || {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("wire");
            let socket = socket.display();
            let mut wire = start(&format!(
                "wire --json --a unix-listen:{socket} --b tap:right,10.0.0.2/24 --impair loss=2%,reorder=2%,seed=5"
            ));
            wire.until("are connected");
            let listener = TcpListener::bind("10.0.0.2:5201").unwrap();
            let receiver = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                received
            });
            let sent = run(&format!(
                "send --json --link unix:{socket} --addr 10.0.0.1/24 10.0.0.2 5201 --bytes 2000000 -v 251"
            ));
            assert_eq!(sent.json()["bytes"], 2_000_000);
            let received = receiver.join().unwrap();
            assert!(
                received == repeating(251, 0, 2_000_000),
                "{}",
                received.len()
            );
            kill_process(wire.pid(), Signal::INT).unwrap();
            let json = wire.finish().json();
            for count in ["lost", "reordered"] {
                let counted = json["a_to_b"][count].as_u64();
                assert!(counted.is_some_and(|n| n > 0), "{count}: {json}");
            }
            assert!(json["a_to_b"]["offered"].as_u64() > Some(1380), "{json}");
        },
    );
}
