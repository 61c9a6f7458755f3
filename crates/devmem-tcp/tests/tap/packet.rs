//! The packet link: our NIC on one end of a veth pair, the kernel at the other.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use devmem_linux::netif::{GSO_MAX_SIZE, Interface};
use devmem_linux::packet::{PacketOptions, Station};
use devmem_linux::test_util::{in_netns, skip};
use devmem_tcp::{
    BoundRx, Dmabuf, Errno, ErrorKind, LinkState, Listener, Netdev, NetdevBuilder, RxBatch, Setup,
    capture::{Direction, FrameSink},
};

use crate::peer::{Addresses, Host, PATIENCE, V4, V6};
use crate::sender::{self, Nic, expected};

/// The kernel's end of the pair, and ours.
const NEAR: &str = "near";
const FAR: &str = "far";
/// Our link.
const LINK: &str = "packet:far";

/// Makes the pair. The kernel has an address on one end only; packets to ours pass the pair.
pub fn veth((host, _, len): Addresses, mtu: u16) -> (Interface, Interface) {
    let (mut near, mut far) = Interface::create_veth_pair(NEAR, FAR).expect("our namespace");
    for end in [&mut near, &mut far] {
        end.set_mtu(mtu.into()).expect("veth has any MTU");
        end.quiet_ipv6();
    }
    near.set_up().expect("our namespace");
    far.set_up().expect("our namespace");
    near.add_address(host.parse().expect("an address"), len)
        .expect("our namespace");
    (near, far)
}

pub fn netdev((_, ours, len): Addresses) -> Netdev {
    let address = format!("{ours}/{len}");
    Netdev::user(LINK, &address).expect("the interface is up")
}

/// Our end with device memory bound and a listening socket.
pub struct Receiver {
    listener: Listener,
    rx: BoundRx,
    _setup: Setup,
    memory: Dmabuf,
    pub netdev: Netdev,
}

impl Receiver {
    pub fn new(netdev: Netdev, (_, ours, _): Addresses) -> Self {
        let memory = Dmabuf::anonymous(16 << 20).expect("memory");
        let local = (ours, 5201);
        let listener = netdev.listen(local).expect("a free port");
        let local = listener.local_addr().expect("it listens");
        let setup = netdev.plan_receive(local).apply().expect("set up");
        let rx = netdev.bind_rx(&memory, setup.queues()).expect("bound");
        Self {
            listener,
            rx,
            _setup: setup,
            memory,
            netdev,
        }
    }

    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    pub fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    /// Receives `bytes` from a socket of the kernel on each of `connections` connections at once.
    pub fn receive(&self, connections: usize, bytes: usize) {
        let local = self.listener.local_addr().expect("it listens");
        std::thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(move || {
                    let mut theirs = TcpStream::connect(local).expect("it listens");
                    theirs.write_all(&expected(0, bytes)).expect("it is read");
                    theirs.shutdown(Shutdown::Write).expect("open");
                });
            }
            for _ in 0..connections {
                let (mut ours, _) = self.listener.accept().expect("a connection");
                ours.set_timeout(Some(PATIENCE));
                scope.spawn(move || {
                    assert_eq!(sender::receive_all(&mut ours, &self.memory), bytes);
                });
            }
        });
    }

    /// Ends: every net_iov is home.
    pub fn finish(self) {
        let net_iovs = self.rx.unbind().net_iovs();
        assert_eq!(net_iovs.home, net_iovs.total);
    }
}

/// Sends a stream each way between the NIC, into and from its device memory, and the kernel; drops the NIC.
pub fn both_directions(netdev: Netdev, addresses: Addresses) {
    pass_both_ways(netdev, addresses, (8 << 20) + 1);
}

fn pass_both_ways(netdev: Netdev, addresses: Addresses, bytes: usize) {
    let receiver = Receiver::new(netdev, addresses);
    receiver.receive(1, bytes);
    let queues = receiver.netdev.queue_stats();
    let split: u64 = queues.iter().filter_map(|queue| queue.split_packets).sum();
    assert!(split > 0, "no packet was received into device memory");
    let host = Host::listening(addresses);
    let nic = Nic::new(receiver.netdev.clone());
    let receiving = host.receive();
    nic.send_all(host.connect(&nic), bytes, 1 << 20);
    assert_eq!(receiving.join().expect("the receiver"), bytes);
    drop(nic);
    // Not those of the stack: the kernel's multicast reports, and probes of a slow machine.
    let mut drops = receiver.netdev.drops();
    drops.retain(|(name, _)| name.starts_with("rx_") || name.starts_with("tx_"));
    assert_eq!(drops, []);
    receiver.finish();
}

#[test]
fn a_veth_carries_streams_in_both_directions() {
    in_netns("packet::a_veth_carries_streams_in_both_directions", || {
        for addresses in [V4, V6] {
            for mtu in [1500, 9000] {
                let (near, _far) = veth(addresses, mtu);
                both_directions(netdev(addresses), addresses);
                near.delete().expect("our namespace");
            }
        }
    });
}

#[test]
fn packets_are_super_packets_in_both_directions() {
    in_netns(
        "packet::packets_are_super_packets_in_both_directions",
        || {
            let _pair = veth(V4, 1500);
            let longest = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let seen = Arc::clone(&longest);
            let sink = move |_, way, frame: &[u8]| {
                let at = usize::from(way == Direction::Tx);
                seen[at].fetch_max(frame.len(), Ordering::Relaxed);
            };
            let builder = Netdev::builder(LINK).expect("a link");
            let builder = builder.address("10.77.0.2/24").expect("an address");
            let netdev = builder.capture(Box::new(sink)).open().expect("it is up");
            let receiver = Receiver::new(netdev, V4);
            receiver.receive(1, 16 << 20);
            let host = Host::listening(V4);
            let nic = Nic::new(receiver.netdev.clone());
            let receiving = host.receive();
            nic.send_all(host.connect(&nic), 16 << 20, 1 << 20);
            assert_eq!(receiving.join().expect("the receiver"), 16 << 20);
            for (way, longest) in ["rx", "tx"].iter().zip(longest.iter()) {
                let longest = longest.load(Ordering::Relaxed);
                assert!(longest > 60_000, "{way}: {longest} bytes");
            }
        },
    );
}

/// Sets the length from which on the kernel cuts super-packets to each of the interfaces. Returns whether this kernel can have
/// longer ones than the length field of IP; if not, the test is skipped.
fn set_big_tcp(test: &str, ends: [(&mut Interface, u32); 2]) -> bool {
    let is_big = Interface::kernel_has_big_tcp().expect("a loopback interface");
    if !is_big {
        skip(test, "BIG TCP", "Linux before 6.3");
        return false;
    }
    for (end, bytes) in ends {
        end.set_gso_max_size(bytes).expect("veth has any");
    }
    // A sender with BBR has as long packets as it sends in a millisecond; and the window of a receiver that compares each byte
    // does not grow.
    for (setting, value) in [
        ("tcp_congestion_control", "reno"),
        ("tcp_rmem", "4096 8388608 16777216"),
    ] {
        let path = format!("/proc/sys/net/ipv4/{setting}");
        std::fs::write(path, value).expect("a namespace of the test");
    }
    true
}

/// Sends a stream of `bytes` each way; returns the bytes of the longest received frame, and of the longest sent one.
fn longest_frames(
    addresses: Addresses,
    bytes: usize,
    open: impl FnOnce(Box<dyn FrameSink>) -> Netdev,
) -> [usize; 2] {
    let longest = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&longest);
    let sink = move |_, way, frame: &[u8]| {
        let at = usize::from(way == Direction::Tx);
        seen[at].fetch_max(frame.len(), Ordering::Relaxed);
    };
    pass_both_ways(open(Box::new(sink)), addresses, bytes);
    [&longest[0], &longest[1]].map(|longest| longest.load(Ordering::Relaxed))
}

/// Checks that packets are as long as the interfaces are set to, in both directions and of both families.
pub fn check_lengths(test: &str, open: impl Fn(Addresses, Box<dyn FrameSink>) -> Netdev) {
    for addresses in [V4, V6] {
        let (mut near, mut far) = veth(addresses, 1500);
        if !set_big_tcp(test, [(&mut near, GSO_MAX_SIZE), (&mut far, 300_000)]) {
            return;
        }
        let [received, sent] = longest_frames(addresses, 32 << 20, |sink| open(addresses, sink));
        // As long as the windows permit.
        assert!(
            (100_000..GSO_MAX_SIZE as usize).contains(&received),
            "{received} bytes"
        );
        assert!((100_000..300_000).contains(&sent), "{sent} bytes");
        near.delete().expect("our namespace");
    }
}

/// Returns a builder of our end that shows its frames.
fn builder((_, ours, len): Addresses, sink: Box<dyn FrameSink>) -> NetdevBuilder {
    let builder = Netdev::builder(LINK).expect("a link");
    let builder = builder.address(&format!("{ours}/{len}"));
    builder.expect("an address").capture(sink)
}

#[test]
fn packets_are_as_long_as_the_interfaces_are_set_to() {
    const TEST: &str = "packet::packets_are_as_long_as_the_interfaces_are_set_to";
    in_netns(TEST, || {
        check_lengths(TEST, |addresses, sink| {
            builder(addresses, sink).open().expect("it is up")
        });
    });
}

#[test]
fn an_impaired_link_cuts_packets_of_any_length() {
    const TEST: &str = "packet::an_impaired_link_cuts_packets_of_any_length";
    in_netns(TEST, || {
        for addresses in [V4, V6] {
            let (mut near, mut far) = veth(addresses, 1500);
            if !set_big_tcp(TEST, [(&mut near, GSO_MAX_SIZE), (&mut far, GSO_MAX_SIZE)]) {
                return;
            }
            let longest = longest_frames(addresses, 2 << 20, |sink| {
                let impairment = "delay=1ms".parse().expect("an impairment");
                let builder = builder(addresses, sink).impair(impairment);
                builder.open().expect("it is up")
            });
            assert_eq!(longest, [14 + 1500; 2]);
            near.delete().expect("our namespace");
        }
    });
}

#[test]
fn an_impaired_link_has_single_frames_and_changes_no_byte() {
    in_netns(
        "packet::an_impaired_link_has_single_frames_and_changes_no_byte",
        || {
            const BYTES: usize = 1 << 20;
            for (addresses, impairment) in [
                (V4, "loss=1%,reorder=1%,delay=1ms,seed=3"),
                (V6, "dup=1%,corrupt=1%,delay=2ms,jitter=1ms,seed=4"),
            ] {
                let (near, _far) = veth(addresses, 1500);
                let longest = Arc::new(AtomicUsize::new(0));
                let seen = Arc::clone(&longest);
                let sink = move |_, _, frame: &[u8]| {
                    seen.fetch_max(frame.len(), Ordering::Relaxed);
                };
                let (_, ours, len) = addresses;
                let builder = Netdev::builder(LINK).expect("a link");
                let builder = builder.address(&format!("{ours}/{len}"));
                let builder = builder.expect("an address").capture(Box::new(sink));
                let impairment = impairment.parse().expect("an impairment");
                let netdev = builder.impair(impairment).open().expect("it is up");
                let receiver = Receiver::new(netdev, addresses);
                receiver.receive(1, BYTES);
                let host = Host::listening(addresses);
                let nic = Nic::new(receiver.netdev.clone());
                let receiving = host.receive();
                nic.send_all(host.connect(&nic), BYTES, 30_000);
                assert_eq!(receiving.join().expect("the receiver"), BYTES);
                drop(nic);
                receiver.finish();
                // Headers and payload of one packet with the MTU.
                assert_eq!(longest.load(Ordering::Relaxed), 14 + 1500);
                near.delete().expect("our namespace");
            }
        },
    );
}

#[test]
fn sixty_four_connections_are_received_at_once() {
    in_netns(
        "packet::sixty_four_connections_are_received_at_once",
        || {
            let _pair = veth(V6, 1500);
            let receiver = Receiver::new(netdev(V6), V6);
            receiver.receive(64, 300_000);
            receiver.finish();
        },
    );
}

/// Returns the multicast addresses that the kernel has told the driver of our interface (linux net/core/net-procfs.c).
fn groups_of_far() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev_mcast").expect("Linux has it");
    let fields = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let far = fields.filter(|fields| fields.get(1) == Some(&FAR));
    far.map(|fields| fields[4].to_owned()).collect()
}

#[test]
fn the_interface_receives_our_multicast_groups_while_the_nic_is_open() {
    in_netns(
        "packet::the_interface_receives_our_multicast_groups_while_the_nic_is_open",
        || {
            let _pair = veth(V6, 1500);
            // The solicited-node address of fd77::2 (RFC 4291 2.7.1), by RFC 2464 7.
            let ours = "3333ff000002".to_owned();
            assert!(!groups_of_far().contains(&ours));
            let netdev = netdev(V6);
            assert!(groups_of_far().contains(&ours), "{:?}", groups_of_far());
            drop(netdev);
            assert!(!groups_of_far().contains(&ours));
        },
    );
}

/// Waits until the link is in the state.
pub fn await_state(netdev: &Netdev, state: LinkState) {
    let start = Instant::now();
    while netdev.link_state() != state {
        assert!(start.elapsed() < PATIENCE, "{:?}", netdev.link_state());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_stream_goes_on_after_the_interface_was_down_and_renamed() {
    in_netns(
        "packet::a_stream_goes_on_after_the_interface_was_down_and_renamed",
        || {
            let (_near, mut far) = veth(V4, 1500);
            let receiver = Receiver::new(netdev(V4), V4);
            let local = receiver.listener.local_addr().expect("it listens");
            let mut theirs = TcpStream::connect(local).expect("it listens");
            let (mut ours, _) = receiver.listener.accept().expect("a connection");
            ours.set_timeout(Some(PATIENCE));
            assert_eq!(receiver.netdev.link_state(), LinkState::Up);
            far.set_down().expect("our namespace");
            await_state(&receiver.netdev, LinkState::Down);
            // Sent while the interface is down: the kernel repeats it until it arrives.
            let bytes = expected(0, 1 << 20);
            let sending = std::thread::spawn(move || {
                theirs.write_all(&bytes).expect("it is read in the end");
            });
            far.rename("other").expect("it is down");
            far.set_up().expect("our namespace");
            await_state(&receiver.netdev, LinkState::Up);
            assert_eq!(sender::receive_all(&mut ours, &receiver.memory), 1 << 20);
            sending.join().expect("the sender");
            let down = |(name, _): &&(&str, u64)| *name == "rx_link_error";
            let drops = receiver.netdev.drops();
            assert_eq!(drops.iter().find(down), Some(&("rx_link_error", 1)));
        },
    );
}

#[test]
fn a_link_whose_interface_was_removed_is_gone() {
    in_netns("packet::a_link_whose_interface_was_removed_is_gone", || {
        let (near, _far) = veth(V4, 1500);
        let receiver = Receiver::new(netdev(V4), V4);
        let local = receiver.listener.local_addr().expect("it listens");
        let _theirs = TcpStream::connect(local).expect("it listens");
        let (mut ours, _) = receiver.listener.accept().expect("a connection");
        ours.set_timeout(Some(PATIENCE));
        near.delete().expect("our namespace");
        await_state(&receiver.netdev, LinkState::Gone);
        // A connection ends with its link.
        let ended = ours.recv(&mut RxBatch::with_capacity(1)).unwrap_err();
        assert_eq!(ended.errno(), Errno::ENETDOWN, "{ended}");
        drop(ours);
        // New ones fail at once, with the same error.
        let refused = receiver.listener.accept().unwrap_err();
        assert_eq!(
            (refused.errno(), refused.to_string()),
            (Errno::ENETDOWN, ended.to_string())
        );
        let refused = receiver.netdev.connect((V4.0, 5201)).unwrap_err();
        assert_eq!(
            (refused.errno(), refused.to_string()),
            (Errno::ENETDOWN, ended.to_string())
        );
        let refused = receiver.netdev.listen((V4.1, 5202)).unwrap_err();
        assert_eq!(
            (refused.errno(), refused.to_string()),
            (Errno::ENETDOWN, ended.to_string())
        );
        // Another interface of the same name is another interface.
        let _pair = veth(V4, 1500);
        std::thread::sleep(Duration::from_millis(250));
        assert_eq!(receiver.netdev.link_state(), LinkState::Gone);
        receiver.finish();
    });
}

#[test]
fn packets_that_the_socket_has_no_room_for_are_counted() {
    in_netns(
        "packet::packets_that_the_socket_has_no_room_for_are_counted",
        || {
            let _pair = veth(V4, 1500);
            // The capture runs inside of the poll: while it waits for the gate, nothing is read from the socket.
            let gate = Arc::new(Mutex::new(()));
            let pass = Arc::clone(&gate);
            let sink = move |_, _, _: &[u8]| drop(pass.lock());
            let builder = Netdev::builder(LINK).expect("a link");
            let builder = builder.address("10.77.0.2/24").expect("an address");
            let netdev = builder.capture(Box::new(sink)).open().expect("it is up");
            let from = std::net::UdpSocket::bind(("10.77.0.1", 0)).expect("the kernel's end");
            // Our answer, a reset, means that the kernel knows our MAC address.
            TcpStream::connect(("10.77.0.2", 9)).expect_err("nothing listens");
            let closed = gate.lock().expect("nobody panics with it");
            // More than the buffer of 32 MiB can hold.
            for _ in 0..60_000 {
                from.send_to(&[0; 1400], ("10.77.0.2", 9)).expect("sent");
            }
            drop(closed);
            let start = Instant::now();
            loop {
                let drops = netdev.drops();
                if drops
                    .iter()
                    .any(|(name, count)| *name == "rx_link_full" && *count > 1000)
                {
                    break;
                }
                assert!(start.elapsed() < PATIENCE, "{drops:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        },
    );
}

#[test]
fn a_link_that_cannot_be_opened_says_what_to_do() {
    in_netns(
        "packet::a_link_that_cannot_be_opened_says_what_to_do",
        || {
            let (_near, mut far) = veth(V4, 1500);
            far.set_down().expect("our namespace");
            for (link, kind, reason, remedy) in [
                (
                    LINK,
                    ErrorKind::NetworkUnreachable,
                    "far is down",
                    "ip link set far up",
                ),
                (
                    "packet:lo",
                    ErrorKind::InvalidInput,
                    "lo is not an Ethernet interface",
                    "choose an Ethernet interface",
                ),
                (
                    "packet:nosuch0",
                    ErrorKind::NotFound,
                    "there is no interface nosuch0",
                    "`ip link` lists",
                ),
            ] {
                let error = Netdev::user(link, "10.77.0.2/24").expect_err(link);
                let text = format!("{error:?}");
                assert!(text.starts_with(reason) && text.contains(remedy), "{text}");
                assert_eq!(error.kind(), kind, "{text}");
            }
        },
    );
}

/// An ARP request of `station`, with the IP address `from`, for our address, after a virtio-net header; in a VLAN, if one is
/// given.
fn who_has_ours(station: [u8; 6], from: [u8; 4], vlan: Option<u8>) -> Vec<u8> {
    let tag: &[u8] = match vlan {
        Some(id) => &[0x81, 0x00, 0x00, id],
        None => &[],
    };
    [
        &[0; 10][..],
        &[0xff; 6],
        &station,
        tag,
        &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1],
        &station,
        &from,
        &[0; 6],
        &[10, 77, 0, 2],
    ]
    .concat()
}

#[test]
fn frames_of_a_vlan_are_not_received() {
    in_netns("packet::frames_of_a_vlan_are_not_received", || {
        const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];
        let _pair = veth(V4, 1500);
        let netdev = netdev(V4);
        let options = PacketOptions {
            interface: NEAR.to_owned(),
            station: Station::Own {
                mac: STATION,
                multicast: Vec::new(),
            },
        };
        let (socket, _) = options.open().expect("it is up").into_parts();
        for (from, vlan) in [([10, 77, 0, 8], Some(5)), ([10, 77, 0, 9], None)] {
            let request = who_has_ours(STATION, from, vlan);
            let written = rustix::io::write(&socket, &request);
            assert_eq!(written, Ok(request.len()));
        }
        let start = Instant::now();
        let mut reply = [0; 2048];
        loop {
            match rustix::io::read(&socket, &mut reply[..]) {
                // A reply to our station: the target's IP address is its last field.
                Ok(len) if reply[10..16] == STATION && reply[22..24] == [8, 6] => {
                    assert!(len >= 52);
                    assert_eq!(
                        reply[48..52],
                        [10, 77, 0, 9],
                        "the answer to the tagged request"
                    );
                    break;
                }
                Ok(_other) => {}
                Err(_nothing_yet) => std::thread::sleep(Duration::from_millis(2)),
            }
            assert!(start.elapsed() < PATIENCE, "no reply");
        }
        assert_eq!(netdev.link_state(), LinkState::Up);
        let mut drops = netdev.drops();
        drops.retain(|(name, _)| *name == "rx_vlan");
        assert_eq!(drops, [("rx_vlan", 1)]);
    });
}
