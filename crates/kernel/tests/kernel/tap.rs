//! TAP interfaces and network namespaces of the real kernel.

use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;

use devmem_linux::macvtap::MacvtapOptions;
use devmem_linux::netif::{self, Interface, MacvtapMode, NewMacvtap};
use devmem_linux::netns::NetNs;
use devmem_linux::tap::{TapError, TapOffloads, TapOptions, VnetHeader};
use devmem_linux::test_util::{in_netns, skip};
use rustix::io::Errno;

/// `EtherType` of ARP.
const ARP: [u8; 2] = [0x08, 0x06];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_tap_is_created_set_up_and_removed_when_closed() {
    in_netns(
        "tap::a_tap_is_created_set_up_and_removed_when_closed",
        || {
            let tap = TapOptions::new("dm%d").open().unwrap();
            assert_eq!((tap.name(), tap.created()), ("dm0", true));
            let mut host = tap.interface().unwrap();
            host.set_mtu(9000).unwrap();
            host.set_mac([2, 0, 0, 0, 0, 1]).unwrap();
            host.set_tx_queue_len(2000).unwrap();
            host.add_address(ip("10.77.0.1"), 24).unwrap();
            host.add_address(ip("10.77.0.1"), 24)
                .expect("adding an address again succeeds");
            host.quiet_ipv6();
            host.set_up().unwrap();
            host.add_address(ip("fd77::1"), 64).unwrap();
            let facts = host.facts().unwrap();
            assert_eq!(
                (facts.mac, facts.mtu, facts.up),
                (Some([2, 0, 0, 0, 0, 1]), 9000, true)
            );
            // The address can be used at once: binding to an address in duplicate address detection would fail.
            TcpListener::bind("10.77.0.1:0").unwrap();
            TcpListener::bind("[fd77::1]:0").unwrap();
            host.set_down().unwrap();
            assert!(!host.facts().unwrap().up);
            drop(tap);
            assert!(
                Interface::by_name("dm0").is_err(),
                "a TAP that this process created is removed with its descriptor"
            );
        },
    );
}

#[test]
fn packets_of_the_kernel_have_the_requested_header_length() {
    in_netns(
        "tap::packets_of_the_kernel_have_the_requested_header_length",
        || {
            for vnet_header in [VnetHeader::Short, VnetHeader::Mergeable] {
                let options = TapOptions {
                    vnet_header,
                    ..TapOptions::new("dm0")
                };
                let tap = options.open().unwrap();
                let mut host = tap.interface().unwrap();
                host.add_address(ip("10.77.0.1"), 24).unwrap();
                host.set_up().unwrap();
                let socket = std::net::UdpSocket::bind("10.77.0.1:0").unwrap();
                socket.send_to(b"x", "10.77.0.2:9").unwrap();
                let header = usize::from(tap.vnet_header().len_bytes());
                let queue = tap.into_queues().remove(0);
                let mut frame = [0; 2048];
                // Other frames (IPv6 housekeeping) may come first; the ARP request must come.
                let found = (0..100).any(|_| match rustix::io::read(&queue, &mut frame[..]) {
                    Ok(len) => frame[..len].get(header + 12..header + 14) == Some(&ARP),
                    Err(errno) => panic!("no ARP request was sent: {errno}"),
                });
                assert!(found);
            }
        },
    );
}

#[test]
fn the_kernel_receives_written_packets_at_once_or_in_a_softirq() {
    in_netns(
        "tap::the_kernel_receives_written_packets_at_once_or_in_a_softirq",
        || {
            for napi in [false, true] {
                let options = TapOptions {
                    napi,
                    ..TapOptions::new("dm0")
                };
                let tap = options.open().unwrap();
                let mut host = tap.interface().unwrap();
                host.add_address(ip("10.77.0.1"), 24).unwrap();
                host.set_up().unwrap();
                let header = usize::from(tap.vnet_header().len_bytes());
                let queue = tap.into_queues().remove(0);
                // ARP request of 10.77.0.2 for 10.77.0.1 (RFC 826).
                let mut request = vec![0; header];
                request.extend([0xff; 6]);
                request.extend([2, 0, 0, 0, 0, 2]);
                request.extend(ARP);
                request.extend([0, 1, 8, 0, 6, 4, 0, 1]);
                request.extend([2, 0, 0, 0, 0, 2, 10, 77, 0, 2]);
                request.extend([0, 0, 0, 0, 0, 0, 10, 77, 0, 1]);
                assert_eq!(rustix::io::write(&queue, &request), Ok(request.len()));
                // Other frames (IPv6 housekeeping) may come first; a softirq may be left to another thread.
                let mut frame = [0; 2048];
                let found = (0..5000).any(|_| match rustix::io::read(&queue, &mut frame[..]) {
                    Ok(len) => {
                        frame[..len].get(header + 12..header + 14) == Some(&ARP)
                            && frame[header + 20..header + 22] == [0, 2]
                    }
                    Err(Errno::AGAIN) => {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        false
                    }
                    Err(errno) => panic!("napi {napi}: {errno}"),
                });
                assert!(found, "napi {napi}: no ARP reply was sent");
            }
        },
    );
}

#[test]
fn attaching_to_a_tap_in_use_is_busy_and_to_another_interface_a_mismatch() {
    in_netns(
        "tap::attaching_to_a_tap_in_use_is_busy_and_to_another_interface_a_mismatch",
        || {
            let tap = TapOptions::new("dm0").open().unwrap();
            let busy = TapOptions::new("dm0").open().unwrap_err();
            assert_eq!(busy, TapError::Busy { name: "dm0".into() });
            let other = TapOptions::new("lo").open().unwrap_err();
            assert_eq!(other, TapError::NotATap { name: "lo".into() });

            tap.set_persistent(true).unwrap();
            drop(tap);
            let again = TapOptions {
                offloads: TapOffloads::None,
                ..TapOptions::new("dm0")
            };
            let again = again.open().unwrap();
            assert!(
                !again.created(),
                "a persistent TAP is attached to, not created"
            );
            again.set_persistent(false).unwrap();
            drop(again);
            assert!(Interface::by_name("dm0").is_err());
        },
    );
}

#[test]
fn a_tap_with_several_queues_has_a_descriptor_for_each() {
    in_netns(
        "tap::a_tap_with_several_queues_has_a_descriptor_for_each",
        || {
            let tap = TapOptions {
                queues: 4,
                ..TapOptions::new("dm0")
            }
            .open()
            .unwrap();
            assert_eq!(tap.into_queues().len(), 4);
        },
    );
}

#[test]
fn a_refusal_has_the_kernels_message() {
    in_netns("tap::a_refusal_has_the_kernels_message", || {
        let tap = TapOptions::new("dm0").open().unwrap();
        let error = tap.interface().unwrap().set_mtu(1 << 30).unwrap_err();
        assert_eq!(error.errno, rustix::io::Errno::INVAL);
        assert!(error.text.is_some(), "{error}");
    });
}

#[test]
fn a_tap_can_be_created_in_another_namespace_or_moved_there() {
    in_netns(
        "tap::a_tap_can_be_created_in_another_namespace_or_moved_there",
        || {
            // A second namespace, which only a descriptor keeps alive.
            let other = std::thread::spawn(|| {
                devmem_linux::netns::enter_new().unwrap();
                NetNs::current().unwrap()
            })
            .join()
            .unwrap();
            let made = other
                .run(|| TapOptions::new("there0").open().unwrap())
                .unwrap();
            assert!(Interface::by_name("there0").is_err());
            let moved = TapOptions::new("here0").open().unwrap();
            moved.interface().unwrap().move_to(other.as_fd()).unwrap();
            assert!(Interface::by_name("here0").is_err());
            other
                .run(|| {
                    Interface::by_name("there0").unwrap().set_up().unwrap();
                    Interface::by_name("here0").unwrap().set_up().unwrap();
                })
                .unwrap();
            drop((made, moved));
        },
    );
}

#[test]
fn a_veth_pair_carries_tcp_between_two_namespaces() {
    in_netns(
        "tap::a_veth_pair_carries_tcp_between_two_namespaces",
        || {
            let (mut here, there) = Interface::create_veth_pair("left", "right").unwrap();
            let again = Interface::create_veth_pair("left", "other").unwrap_err();
            assert_eq!(again.errno, rustix::io::Errno::EXIST);
            here.add_address(ip("10.77.0.1"), 24).unwrap();
            here.set_up().unwrap();
            let listener = TcpListener::bind("10.77.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            let mut child = std::process::Command::new("sleep");
            child.arg("60");
            devmem_linux::netns::start_in_new(&mut child);
            let mut child = child.spawn().unwrap();
            let namespace = NetNs::open(&format!("pid:{}", child.id())).unwrap();
            there.move_to(namespace.as_fd()).unwrap();
            let connected = namespace.run(|| {
                let mut there = Interface::by_name("right").unwrap();
                there.add_address(ip("10.77.0.2"), 24).unwrap();
                there.set_up().unwrap();
                std::net::TcpStream::connect(to).is_ok()
            });
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(connected.unwrap());
        },
    );
}

#[test]
fn the_queue_of_a_macvtap_is_long_while_it_is_open_and_as_before_afterwards() {
    const TEST: &str =
        "tap::the_queue_of_a_macvtap_is_long_while_it_is_open_and_as_before_afterwards";
    in_netns(TEST, || {
        let (mut lower, mut other) = Interface::create_veth_pair("lower", "other").unwrap();
        lower.set_up().unwrap();
        other.set_up().unwrap();
        let here = NetNs::current().unwrap();
        let made = lower.create_macvtap(&NewMacvtap {
            name: "mv0",
            namespace: here.as_fd(),
            mode: MacvtapMode::Bridge,
            mac: None,
            mtu: None,
        });
        if let Err(error) = made {
            return skip(TEST, "macvtap", &error.to_string());
        }
        let mut interface = Interface::by_name("mv0").unwrap();
        interface.set_up().unwrap();
        let before = interface.tx_queue_len().unwrap();
        let opened = MacvtapOptions::new("mv0").open().unwrap();
        assert_eq!(interface.tx_queue_len(), Ok(10_000));
        drop(opened);
        assert_eq!(interface.tx_queue_len(), Ok(before));
        assert!(before < 10_000, "{before}");
    });
}

#[test]
fn a_tap_that_existed_has_its_settings_back_when_it_is_closed() {
    const TEST: &str = "tap::a_tap_that_existed_has_its_settings_back_when_it_is_closed";
    in_netns(TEST, || {
        let tap = TapOptions::new("dm0").open().expect("a TAP");
        tap.set_persistent(true).expect("our own");
        drop(tap);
        let mut interface = Interface::by_name("dm0").expect("it is persistent");
        let kept = IpAddr::from([10, 77, 0, 1]);
        interface.add_address(kept, 24).expect("our namespace");
        interface.set_mtu(1400).expect("our namespace");
        interface.set_tx_queue_len(77).expect("our namespace");
        let before = interface.facts().expect("it exists");
        assert!(!before.up);

        let added = IpAddr::from([10, 78, 0, 1]);
        let tap = TapOptions::new("dm0").open().expect("it exists");
        let set_up = tap.set_up_interface(9000, &[(kept, 24), (added, 24)]);
        let set_up = set_up.expect("our namespace");
        let facts = interface.facts().expect("it exists");
        assert_eq!((facts.mtu, facts.up), (9000, true));
        assert_eq!(interface.tx_queue_len(), Ok(10_000));
        let addresses = |interface: &Interface| {
            let all = netif::addresses(interface.index()).expect("it exists");
            all.into_iter().filter(IpAddr::is_ipv4).collect::<Vec<_>>()
        };
        assert_eq!(addresses(&interface), [kept, added]);

        drop(set_up);
        assert_eq!(interface.facts().expect("it exists"), before);
        assert_eq!(interface.tx_queue_len(), Ok(77));
        assert_eq!(addresses(&interface), [kept]);
    });
}
