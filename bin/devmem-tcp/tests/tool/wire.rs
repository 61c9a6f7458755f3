//! `devmem-tcp wire` between two hosts: kernels in network namespaces, or one of our stacks on a UNIX socket.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener};
use std::thread;

use crate::common::{LIMIT, Running, connect, repeating, run, start};
use devmem_linux::netif::Interface;
use devmem_linux::netns::{self, NetNs};
use devmem_linux::packet::{PacketOptions, Station};
use devmem_linux::test_util::{in_netns, skip};
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
    let [_, far] = veth_pair(&[address.into()]);
    far
}

/// As [`veth`], with several addresses; returns both ends.
fn veth_pair(addresses: &[IpAddr]) -> [Interface; 2] {
    let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
    far.quiet_ipv6();
    near.set_up().unwrap();
    far.set_up().unwrap();
    for &address in addresses {
        let prefix = if address.is_ipv4() { 24 } else { 64 };
        near.add_address(address, prefix).unwrap();
    }
    [near, far]
}

/// The addresses of host 1 or 2.
fn addresses(host: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into());
    [Ipv4Addr::new(10, 0, 0, host).into(), v6.into()]
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

/// A cable without impairments between two pairs whose kernels make super-packets of up to 300,000 bytes; the interface behind
/// the far end of the second one takes super-packets of less than `limit` bytes. Returns the report after a transfer over IPv4 and one over
/// IPv6; `None` where the kernel has no such packets.
fn pass_big_tcp(test: &str, limit: u32) -> Option<serde_json::Value> {
    const BYTES: usize = 16_000_000;
    if !Interface::kernel_has_big_tcp().unwrap() {
        skip(test, "BIG TCP", "Linux before 6.3");
        return None;
    }
    // A sender with BBR has as long packets as it sends in a millisecond.
    std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno").unwrap();
    let other = another_host();
    let [mut near, _far] = veth_pair(&addresses(1));
    near.set_gso_max_size(300_000).unwrap();
    let set_up = || veth_pair(&addresses(2))[1].set_gso_max_size(limit);
    other.run(set_up).unwrap().unwrap();
    let wire = join_ends("--a packet:far --b packet:far", &other, "");
    for address in addresses(2) {
        transfer_to((address, 5201).into(), &other, &repeating(251, 0, BYTES));
    }
    kill_process(wire.pid(), Signal::TERM).unwrap();
    let json = wire.finish().json();
    for way in ["a_to_b", "b_to_a"] {
        assert_eq!(json[way]["refused"], 0, "{json}");
    }
    Some(json)
}

#[test]
fn super_packets_of_any_length_pass_whole_where_the_other_interface_takes_them() {
    let test = "wire::super_packets_of_any_length_pass_whole_where_the_other_interface_takes_them";
    in_netns(test, || {
        let Some(json) = pass_big_tcp(test, 300_000) else {
            return;
        };
        let longest = json["a_to_b"]["longest_super"].as_u64().unwrap();
        assert!((100_000..300_000).contains(&longest), "{json}");
    });
}

#[test]
fn super_packets_are_cut_where_they_are_longer_than_the_other_interface_takes() {
    let test = "wire::super_packets_are_cut_where_they_are_longer_than_the_other_interface_takes";
    in_netns(test, || {
        let Some(json) = pass_big_tcp(test, 30_000) else {
            return;
        };
        let way = &json["a_to_b"];
        let longest = way["longest_super"].as_u64().unwrap();
        assert!(longest < 30_000, "{json}");
        let count = |name: &str| way[name].as_u64().unwrap();
        // Both transfers, in segments of at most 1,448 bytes after the first packets.
        assert!(count("offered") - count("super_packets") > 10_000, "{json}");
    });
}

#[test]
fn super_packets_to_and_from_a_unix_socket_pass_whole_up_to_64_kib() {
    let test = "wire::super_packets_to_and_from_a_unix_socket_pass_whole_up_to_64_kib";
    in_netns(test, || {
        const BYTES: usize = 4_000_000;
        let [mut near, _far] = veth_pair(&addresses(1));
        if Interface::kernel_has_big_tcp().unwrap() {
            near.set_gso_max_size(300_000).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("wire");
        let socket = socket.display();
        let ends = format!("--a unix-listen:{socket} --b packet:far");
        let mut wire = start(&format!("wire --json {ends}"));
        wire.until("are connected");
        let link = format!("--link unix:{socket} --addr 10.0.0.2/24");
        let listener = TcpListener::bind("10.0.0.1:5201").unwrap();
        let receiver = thread::spawn(move || received_by(&listener));
        run(&format!(
            "send --json {link} 10.0.0.1 5201 --bytes {BYTES} -v 251"
        ))
        .json();
        assert!(receiver.join().unwrap() == repeating(251, 0, BYTES));
        let mut recv = start(&format!(
            "recv --mem-size 32M --json {link} -l -p 5201 -v 251"
        ));
        recv.until("listening on");
        let mut stream = connect(SocketAddr::from(([10, 0, 0, 2], 5201)));
        stream.write_all(&repeating(251, 0, BYTES)).unwrap();
        drop(stream);
        let received = recv.finish().json();
        assert_eq!(received["bytes"], BYTES, "{received}");
        kill_process(wire.pid(), Signal::TERM).unwrap();
        let json = wire.finish().json();
        for way in ["a_to_b", "b_to_a"] {
            let longest = json[way]["longest_super"].as_u64().unwrap();
            assert!((10_000..65_550).contains(&longest), "{json}");
        }
    });
}

#[test]
fn a_cable_counts_frames_of_a_vlan_and_does_not_pass_them_on() {
    in_netns(
        "wire::a_cable_counts_frames_of_a_vlan_and_does_not_pass_them_on",
        || {
            let other = another_host();
            let [near, _far] = veth_pair(&addresses(1));
            other.run(|| veth_pair(&addresses(2))).unwrap();
            let wire = join_ends("--a packet:far --b packet:far", &other, "");
            let options = PacketOptions {
                interface: near.name().to_owned(),
                station: Station::Cable,
            };
            let (socket, _) = options.open().unwrap().into_parts();
            let vlan_5 = [0x81, 0, 0, 5];
            let frame = [&[0; 10][..], &[0xff; 6], &[2; 6], &vlan_5, &[0x88; 48]].concat();
            rustix::io::write(&socket, &frame).unwrap();
            // Behind it.
            transfer(&other, b"untagged");
            kill_process(wire.pid(), Signal::TERM).unwrap();
            let json = wire.finish().json();
            assert_eq!(json["a_to_b"]["refused"], 1, "{json}");
        },
    );
}

/// Sends `bytes` from this namespace to `other`, kernel to kernel, and asserts that they arrive.
fn transfer(other: &NetNs, bytes: &[u8]) {
    transfer_to(SocketAddr::from(([10, 0, 0, 2], 5201)), other, bytes);
}

fn transfer_to(address: SocketAddr, other: &NetNs, bytes: &[u8]) {
    let listener = other.run(|| TcpListener::bind(address).unwrap()).unwrap();
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| received_by(&listener));
        let mut stream = connect(address);
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

/// Returns what the next connection sends.
fn received_by(listener: &TcpListener) -> Vec<u8> {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    received
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
            let receiver = thread::spawn(move || received_by(&listener));
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
