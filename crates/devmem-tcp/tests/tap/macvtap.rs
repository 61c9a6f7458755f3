//! The macvtap link: our NIC beside an Ethernet interface, a kernel at the other end of its cable.

use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use devmem_linux::netif::{Interface, MacvtapMode as Mode, NewMacvtap};
use devmem_linux::netns::{self, NetNs};
use devmem_linux::test_util::{in_netns, skip};
use devmem_tcp::{Error, ErrorKind, LinkState, Netdev, NetdevBuilder, capture::Direction};

use crate::packet::{Receiver, await_state, both_directions, check_lengths, veth};
use crate::peer::{Addresses, Host, PATIENCE, V4, V6};
use crate::sender::Nic;

/// Our link: over the end of the pair without addresses of the kernel.
const LINK: &str = "macvtap:far";

/// Opens our NIC.
fn open(
    (_, ours, len): Addresses,
    link: &str,
    change: impl FnOnce(NetdevBuilder) -> NetdevBuilder,
) -> Result<Netdev, Error> {
    change(Netdev::builder(link)?.address(&format!("{ours}/{len}"))?).open()
}

/// As [`in_netns`], if this machine has macvtap and its user may make device files.
pub fn with_macvtap(test: &str, body: impl FnOnce()) {
    in_netns(test, || {
        let (near, _far) = veth(V4, 1500);
        match open(V4, LINK, |builder| builder) {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Unsupported | ErrorKind::PermissionDenied
                ) =>
            {
                skip(test, "macvtap", &error.to_string());
            }
            // Any other error is one of the test's.
            _ => {
                near.delete().expect("our namespace");
                body();
            }
        }
    });
}

/// Makes a network namespace.
fn another() -> NetNs {
    let entered = std::thread::spawn(|| {
        netns::enter_new().expect("root of this namespace");
        NetNs::current().expect("it exists")
    });
    entered.join().expect("it does not panic")
}

#[test]
fn streams_pass_to_a_kernel_in_another_namespace_in_both_directions() {
    with_macvtap(
        "macvtap::streams_pass_to_a_kernel_in_another_namespace_in_both_directions",
        || {
            for addresses in [V4, V6] {
                for mtu in [1500, 9000] {
                    let (near, far) = veth(addresses, mtu);
                    let other = another();
                    far.move_to(other.as_fd()).expect("root of both");
                    let opened = other.run(|| {
                        let mut far = Interface::by_name("far").expect("it was moved");
                        far.quiet_ipv6();
                        far.set_up().expect("our namespace");
                        open(addresses, LINK, |builder| builder)
                    });
                    let netdev = opened.expect("root of both").expect("it is up");
                    assert_eq!(netdev.mtu(), mtu);
                    both_directions(netdev, addresses);
                    near.delete().expect("our namespace");
                }
            }
        },
    );
}

#[test]
fn packets_are_super_packets_in_both_directions_over_four_queues() {
    with_macvtap(
        "macvtap::packets_are_super_packets_in_both_directions_over_four_queues",
        || {
            let _pair = veth(V6, 1500);
            let longest = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let seen = Arc::clone(&longest);
            let sink = move |_, way, frame: &[u8]| {
                let at = usize::from(way == Direction::Tx);
                seen[at].fetch_max(frame.len(), Ordering::Relaxed);
            };
            let netdev = open(V6, LINK, |builder| {
                builder.tap_queues(4).capture(Box::new(sink))
            });
            let receiver = Receiver::new(netdev.expect("it is up"), V6);
            receiver.receive(16, 2 << 20);
            let host = Host::listening(V6);
            let nic = Nic::new(receiver.netdev.clone());
            let receiving = host.receive();
            nic.send_all(host.connect(&nic), 16 << 20, 1 << 20);
            assert_eq!(receiving.join().expect("the receiver"), 16 << 20);
            drop(nic);
            receiver.finish();
            for (way, longest) in ["rx", "tx"].iter().zip(longest.iter()) {
                let longest = longest.load(Ordering::Relaxed);
                assert!(longest > 60_000, "{way}: {longest} bytes");
            }
        },
    );
}

#[test]
fn packets_are_as_long_as_the_interfaces_are_set_to() {
    const TEST: &str = "macvtap::packets_are_as_long_as_the_interfaces_are_set_to";
    with_macvtap(TEST, || {
        check_lengths(TEST, |addresses, sink| {
            open(addresses, LINK, |builder| builder.capture(sink)).expect("it is up")
        });
    });
}

#[test]
fn an_impaired_link_has_single_frames_and_changes_no_byte() {
    with_macvtap(
        "macvtap::an_impaired_link_has_single_frames_and_changes_no_byte",
        || {
            let _pair = veth(V4, 1500);
            let impairment = "loss=1%,reorder=1%,delay=1ms,seed=3".parse();
            let netdev = open(V4, LINK, |builder| {
                builder.impair(impairment.expect("an impairment"))
            });
            let receiver = Receiver::new(netdev.expect("it is up"), V4);
            receiver.receive(1, 1 << 20);
            receiver.finish();
        },
    );
}

#[test]
fn the_interface_ends_with_the_nic() {
    with_macvtap("macvtap::the_interface_ends_with_the_nic", || {
        let _pair = veth(V4, 1500);
        let mac = [2, 0, 0, 0, 0, 0x77];
        let first = open(V4, LINK, |builder| builder.mac(mac)).expect("it is up");
        // In mode passthru it would have to be the only one.
        let second = open(V4, "macvtap:far,mode=passthru", |builder| builder);
        let text = format!("{:?}", second.expect_err("there is one"));
        assert!(text.contains("ip -d link"), "{text}");
        drop(first);
        let alone = open(V4, "macvtap:far,mode=passthru", |builder| builder);
        let receiver = Receiver::new(alone.expect("the first has gone"), V4);
        receiver.receive(1, 1 << 20);
        receiver.finish();
        let other = open(V4, "macvtap:far,mode=private", |builder| builder);
        other.expect("the second has gone");
    });
}

#[test]
fn an_interface_that_exists_is_used_and_stays() {
    with_macvtap(
        "macvtap::an_interface_that_exists_is_used_and_stays",
        || {
            let (_near, mut far) = veth(V6, 1500);
            let here = NetNs::current().expect("it exists");
            let new = NewMacvtap {
                name: "mvt0",
                namespace: here.as_fd(),
                mode: Mode::Bridge,
                mac: Some([2, 0, 0, 0, 0, 0x78]),
                mtu: None,
            };
            far.create_macvtap(&new).expect("our namespace");
            let mut made = Interface::by_name("mvt0").expect("it was made");
            made.quiet_ipv6();
            let down = open(V6, "macvtap:mvt0", |builder| builder).expect_err("it is down");
            assert!(
                format!("{down:?}").contains("ip link set mvt0 up"),
                "{down}"
            );
            made.set_up().expect("our namespace");
            for option in ["mode=bridge", "mac=02:00:00:00:00:79"] {
                let link = format!("macvtap:mvt0,{option}");
                let refused = open(V6, &link, |builder| builder).expect_err("it exists");
                assert!(refused.to_string().contains("is not changed"), "{refused}");
            }
            let netdev = open(V6, "macvtap:mvt0", |builder| builder).expect("it is up");
            let receiver = Receiver::new(netdev, V6);
            receiver.receive(1, 1 << 20);
            receiver.finish();
            assert_eq!(made.facts().expect("it stays").mac, new.mac);
        },
    );
}

#[test]
fn a_stream_goes_on_when_the_cable_was_pulled_and_ends_with_the_lower_interface() {
    with_macvtap(
        "macvtap::a_stream_goes_on_when_the_cable_was_pulled_and_ends_with_the_lower_interface",
        || {
            let (mut near, far) = veth(V4, 1500);
            let netdev = open(V4, LINK, |builder| builder).expect("it is up");
            let receiver = Receiver::new(netdev, V4);
            await_state(&receiver.netdev, LinkState::Up);
            // Without its other end, the lower interface has no carrier.
            near.set_down().expect("our namespace");
            await_state(&receiver.netdev, LinkState::Down);
            near.set_up().expect("our namespace");
            await_state(&receiver.netdev, LinkState::Up);
            near.add_address(V4.0.parse().expect("an address"), V4.2)
                .expect("our namespace");
            receiver.receive(1, 1 << 20);
            far.delete().expect("our namespace");
            await_state(&receiver.netdev, LinkState::Gone);
            receiver.finish();
        },
    );
}

#[test]
fn frames_that_a_queue_has_no_room_for_are_counted() {
    with_macvtap(
        "macvtap::frames_that_a_queue_has_no_room_for_are_counted",
        || {
            let _pair = veth(V4, 1500);
            // The capture runs inside of the poll: while it waits for the gate, nothing is read from the queue.
            let gate = Arc::new(std::sync::Mutex::new(()));
            let pass = Arc::clone(&gate);
            let sink = move |_, _, _: &[u8]| drop(pass.lock());
            let netdev = open(V4, LINK, |builder| builder.capture(Box::new(sink)));
            let netdev = netdev.expect("it is up");
            // Our answer, a reset, means that the kernel knows our MAC address.
            TcpStream::connect(("10.77.0.2", 9)).expect_err("nothing listens");
            let closed = gate.lock().expect("nobody panics with it");
            // The queue has room for 10,000. What is in it counts against the buffer of its sender, too.
            for _ in 0..130 {
                let from = UdpSocket::bind(("10.77.0.1", 0)).expect("the kernel's end");
                from.set_nonblocking(true).expect("it is open");
                for _ in 0..100 {
                    // An error means that the sender's buffer is full.
                    let _ = from.send_to(&[0; 100], ("10.77.0.2", 9));
                }
            }
            drop(closed);
            let start = Instant::now();
            let full = |(name, count): &(&str, u64)| *name == "rx_link_full" && *count > 1000;
            while !netdev.drops().iter().any(full) {
                assert!(start.elapsed() < PATIENCE, "{:?}", netdev.drops());
                std::thread::sleep(Duration::from_millis(5));
            }
        },
    );
}

#[test]
fn a_link_that_cannot_be_opened_says_what_to_do() {
    with_macvtap(
        "macvtap::a_link_that_cannot_be_opened_says_what_to_do",
        || {
            let _pair = veth(V4, 1500);
            let error = open(V4, LINK, |builder| builder.mtu(9000)).expect_err("too large");
            let text = format!("{error:?}");
            assert!(text.contains("ip link set far mtu 9000"), "{text}");
            for (link, reason, remedy) in [
                (
                    "macvtap:nosuch0",
                    "there is no interface nosuch0",
                    "`ip link` lists",
                ),
                (
                    "macvtap:lo",
                    "lo is not an Ethernet interface",
                    "choose an Ethernet interface",
                ),
                (
                    "macvtap:far,mode=star",
                    "'star' is not a mode",
                    "write mode=bridge",
                ),
                (
                    "macvtap:far,mode=passthru,mac=02:00:00:00:00:02",
                    "in mode passthru the MAC address is that of far",
                    "leave the MAC address out",
                ),
                (
                    "packet:far,mode=bridge",
                    "only a macvtap link has a mode",
                    "open macvtap:NAME",
                ),
            ] {
                let error = open(V4, link, |builder| builder).expect_err(link);
                let text = format!("{error:?}");
                assert!(text.starts_with(reason) && text.contains(remedy), "{text}");
            }
        },
    );
}
