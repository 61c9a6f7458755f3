//! Addresses that other stations or this machine have: asked about before use, defended afterwards; and routers outside of the network.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use devmem_linux::netif::Interface;
use devmem_linux::netns::{self, NetNs};
use devmem_linux::packet::{PacketOptions, Station};
use devmem_linux::test_util::{in_netns, skip};
use devmem_tcp::{ConnectOptions, Errno, Error, ErrorKind, Netdev, NetdevBuilder};

use crate::macvtap::with_macvtap;
use crate::packet::{netdev, veth};
use crate::peer::{PATIENCE, V4, V6};

/// The address that another station has.
const TAKEN: [(&str, u8); 2] = [("10.77.0.9", 24), ("fd77::9", 64)];

/// Another machine: its namespace, with the interface `near` in it, whose other end is `far` here.
struct Machine(NetNs);

impl Machine {
    fn beside(near: Interface, far: &mut Interface) -> Self {
        let namespace = thread::spawn(|| {
            netns::enter_new().expect("root of this namespace");
            NetNs::current().expect("it exists")
        });
        let namespace = namespace.join().expect("a namespace");
        near.move_to(namespace.as_fd()).expect("our namespace");
        let machine = Self(namespace);
        machine.run(|| {
            let mut near = Interface::by_name("near").expect("it was moved");
            near.quiet_ipv6();
            near.set_up().expect("our namespace");
        });
        far.set_up().expect("our namespace");
        machine
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.run(work).expect("the namespace exists")
    }

    fn add(&self, address: &str, prefix: u8) {
        let address = address.parse().expect("an address");
        self.run(|| {
            let mut near = Interface::by_name("near").expect("it was moved");
            near.add_address(address, prefix).expect("our namespace");
        });
    }
}

/// A veth pair with its near end, and these addresses, in another namespace.
fn pair_with_machine(addresses: &[(&str, u8)]) -> (Machine, Interface) {
    let (near, mut far) = Interface::create_veth_pair("near", "far").expect("our namespace");
    far.quiet_ipv6();
    let machine = Machine::beside(near, &mut far);
    for (address, prefix) in addresses {
        machine.add(address, *prefix);
    }
    (machine, far)
}

fn open(
    link: &str,
    address: &str,
    change: impl FnOnce(NetdevBuilder) -> NetdevBuilder,
) -> Result<Netdev, Error> {
    change(Netdev::builder(link)?.address(address)?).open()
}

fn refused(link: &str, address: &str) -> Error {
    open(link, address, |builder| builder).expect_err("it is taken")
}

fn refuses_what_the_kernel_of_another_machine_has(link: &str) {
    let (machine, _far) = pair_with_machine(&TAKEN);
    for (address, prefix) in TAKEN {
        let error = refused(link, &format!("{address}/{prefix}"));
        assert_eq!(
            (error.errno(), error.kind()),
            (Errno::EADDRINUSE, ErrorKind::AddrInUse)
        );
        let text = format!("{error:?}");
        let start = format!("another station of {link} has the address {address}: ");
        assert!(text.starts_with(&start) && text.contains("auto"), "{text}");
    }
    // One beside it is free, also for shards.
    let free = open(link, "10.77.0.8/24", |builder| builder.shards(2));
    let free = free.expect("nobody has it");
    let listener = free.listen("10.77.0.8:5201").expect("it is ours");
    machine.run(|| TcpStream::connect("10.77.0.8:5201").expect("it listens"));
    listener.accept().expect("a connection");
    // Several shards refuse, too, wherever the answer arrives.
    let error = open(link, "10.77.0.9/24", |builder| builder.shards(3)).expect_err("taken");
    assert_eq!(error.errno(), Errno::EADDRINUSE);
}

#[test]
fn an_address_of_the_kernel_of_another_machine_is_refused_on_a_packet_link() {
    in_netns(
        "address::an_address_of_the_kernel_of_another_machine_is_refused_on_a_packet_link",
        || refuses_what_the_kernel_of_another_machine_has("packet:far"),
    );
}

#[test]
fn an_address_of_the_kernel_of_another_machine_is_refused_on_a_macvtap_link() {
    with_macvtap(
        "address::an_address_of_the_kernel_of_another_machine_is_refused_on_a_macvtap_link",
        || refuses_what_the_kernel_of_another_machine_has("macvtap:far"),
    );
}

/// Runs `ip` with these words; returns whether it could.
fn ip(words: &str) -> bool {
    let status = Command::new("ip").args(words.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

/// Makes a bridge with the kernel's address 10.77.0.1 and `ports` veth pairs, whose ends `a0`, `a1` and so on are for us; returns
/// whether the kernel can.
fn bridge(ports: usize) -> bool {
    let made = ip("link add br0 type bridge stp_state 0 forward_delay 0");
    let joined = |n| {
        ip(&format!("link add a{n} type veth peer name p{n}"))
            && ip(&format!("link set p{n} master br0 up"))
            && ip(&format!("link set a{n} up"))
    };
    made && (0..ports).all(joined) && ip("link set br0 up") && ip("addr add 10.77.0.1/24 dev br0")
}

/// Returns the hardware address of the kernel's entry of a neighbour.
fn neighbour(address: &str) -> String {
    let shown = Command::new("ip").args(["neigh", "show", address]).output();
    let text = String::from_utf8(shown.expect("ip runs").stdout).expect("text");
    let mut words = text.split_whitespace();
    words.find(|word| *word == "lladdr");
    words.next().unwrap_or_default().to_owned()
}

#[test]
fn the_kernels_entry_of_a_station_stays_when_another_one_wants_its_address() {
    const TEST: &str =
        "address::the_kernels_entry_of_a_station_stays_when_another_one_wants_its_address";
    in_netns(TEST, || {
        if !bridge(2) {
            return skip(TEST, "bridge", "no bridge can be made with ip");
        }
        let mac = [2, 0, 0, 0, 0, 0x99];
        let owner = open("packet:a0", "10.77.0.9/24", |builder| builder.mac(mac));
        let owner = owner.expect("nobody has it");
        let listener = owner.listen("10.77.0.9:5201").expect("it is ours");
        let connect = || {
            TcpStream::connect("10.77.0.9:5201").expect("the owner listens");
            listener.accept().expect("a connection");
        };
        connect();
        assert_eq!(neighbour("10.77.0.9"), "02:00:00:00:00:99");
        for _ in 0..2 {
            let error = refused("packet:a1", "10.77.0.9/24");
            assert!(error.to_string().contains("02:00:00:00:00:99"), "{error}");
            assert_eq!(neighbour("10.77.0.9"), "02:00:00:00:00:99");
            connect();
        }
        assert!(
            owner
                .drops()
                .iter()
                .all(|(reason, _)| *reason != "address_conflict")
        );
    });
}

#[test]
fn a_tap_that_exists_may_lead_to_a_network_whose_stations_are_asked() {
    const TEST: &str = "address::a_tap_that_exists_may_lead_to_a_network_whose_stations_are_asked";
    in_netns(TEST, || {
        if !bridge(1) || !ip("tuntap add name dm7 mode tap") || !ip("link set dm7 master br0 up") {
            return skip(TEST, "bridge", "no bridge can be made with ip");
        }
        let owner = open("packet:a0", "10.77.0.9/24", |builder| builder);
        let _owner = owner.expect("nobody has it");
        let text = refused("tap:dm7", "10.77.0.9/24").to_string();
        assert!(text.starts_with("another station of tap:dm7"), "{text}");
        open("tap:dm7", "10.77.0.10/24", |builder| builder).expect("nobody has it");
        // That of the kernel, on the bridge.
        let text = refused("tap:dm7", "10.77.0.1/24").to_string();
        assert!(
            text.starts_with("10.77.0.1 is an address of this machine, on br0"),
            "{text}"
        );
    });
}

#[test]
fn an_address_of_this_machine_is_refused_on_every_link_to_its_networks() {
    with_macvtap(
        "address::an_address_of_this_machine_is_refused_on_every_link_to_its_networks",
        || {
            // The other end is that of another machine, which has none of the addresses.
            let (_machine, mut far) = pair_with_machine(&[]);
            let mut lo = Interface::by_name("lo").expect("it exists");
            for (address, prefix) in [("10.77.0.1", 24), ("fd77::1", 64)] {
                lo.add_address(address.parse().expect("an address"), prefix)
                    .expect("our namespace");
            }
            far.add_address([10, 78, 0, 1].into(), 24)
                .expect("our namespace");
            for link in ["packet:far", "macvtap:far", "tap:dm9"] {
                for (address, interface) in [
                    ("10.77.0.1/24", "lo"),
                    ("10.77.0.1/32", "lo"),
                    ("fd77::1/64", "lo"),
                    ("10.78.0.1/24", "far"),
                ] {
                    let error = refused(link, address);
                    assert_eq!(error.errno(), Errno::EADDRINUSE);
                    let text = format!("{error:?}");
                    let ip = address.split('/').next().expect("an address");
                    let start = format!("{ip} is an address of this machine, on {interface}");
                    assert!(text.starts_with(&start), "{text}");
                    let remedy = match link {
                        "packet:far" => "packet:far,ports=5201-5210",
                        "macvtap:far" => "macvtap:far,mode=passthru",
                        _ => "give another address",
                    };
                    assert!(text.contains(remedy), "{text}");
                }
            }
            // At its interface, the NIC may take the place of the machine, with its address.
            let passthru = |address| open("macvtap:far,mode=passthru", address, |builder| builder);
            passthru("10.78.0.1/24").expect("it is the machine's");
            assert!(
                passthru("10.77.0.1/24").is_err(),
                "that of another interface"
            );
            // Ports of the address can be shared.
            open("packet:far,ports=5201", "10.78.0.1/24", |builder| builder).expect("its own");
            let both =
                Netdev::builder("tap:dm9,10.79.0.1/24").and_then(|it| it.address("10.79.0.1/24"));
            let text = both
                .and_then(NetdevBuilder::open)
                .expect_err("one address")
                .to_string();
            assert!(
                text.starts_with("both ends of tap:dm9 would have the address"),
                "{text}"
            );
        },
    );
}

#[test]
fn addresses_that_no_host_can_have_are_refused_on_every_link() {
    for link in [
        "packet:lo",
        "macvtap:lo",
        "tap:dm9",
        "unix:/x",
        "unix-listen:/x",
        "mem:no-host",
    ] {
        for (address, kind) in [
            ("10.77.0.0/24", "10.77.0.0 is the address of the network"),
            (
                "10.77.0.255/24",
                "10.77.0.255 is the broadcast address of its network",
            ),
            ("255.255.255.255/0", "is the broadcast address"),
            ("224.0.0.5/24", "224.0.0.5 is a multicast address"),
            ("127.0.0.1/8", "127.0.0.1 is a loopback address"),
            ("0.0.0.0/0", "0.0.0.0 is the unspecified address"),
            ("ff02::1/64", "ff02::1 is a multicast address"),
            ("::1/128", "::1 is a loopback address"),
            ("::/0", ":: is the unspecified address"),
            ("fd77::/64", "fd77:: is the address of the network"),
        ] {
            let error = Netdev::builder(link).and_then(|builder| builder.address(address));
            let error = error.expect_err(address);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let text = format!("{error:?}");
            assert!(
                text.contains(kind) && text.contains("give"),
                "{link} {address}: {text}"
            );
        }
    }
}

/// Sends a frame to all stations of the link from the end `near`.
fn claim(ip: Ipv4Addr) {
    let options = PacketOptions {
        interface: "near".to_owned(),
        station: Station::Cable,
    };
    let (fd, _no_ports) = options.open().expect("root of this namespace").into_parts();
    let other = [2, 0, 0, 0, 0, 0x77];
    // An announcement (RFC 5227 3), behind a virtio-net header.
    let arp = [
        &[0; 10][..],
        &[0xff; 6],
        &other,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &other,
        &ip.octets(),
        &[0; 6],
        &ip.octets(),
    ]
    .concat();
    rustix::io::write(fd, &arp).expect("the interface is up");
}

#[test]
fn an_address_in_use_that_another_station_takes_is_defended_and_then_lost_with_an_error() {
    in_netns(
        "address::an_address_in_use_that_another_station_takes_is_defended_and_then_lost_with_an_error",
        || {
            let _pair = veth(V4, 1500);
            let netdev = netdev(V4);
            let listener = netdev.listen("10.77.0.2:5201").expect("it is ours");
            let mut theirs = TcpStream::connect("10.77.0.2:5201").expect("it listens");
            let (mut ours, _) = listener.accept().expect("a connection");
            ours.set_timeout(Some(PATIENCE));
            let conflicts = || {
                let drops = netdev.drops();
                let conflict = drops
                    .iter()
                    .find(|(reason, _)| *reason == "address_conflict");
                conflict.map_or(0, |(_, count)| *count)
            };
            let claimed = |count| {
                claim([10, 77, 0, 2].into());
                let start = Instant::now();
                while conflicts() < count {
                    assert!(start.elapsed() < PATIENCE);
                    thread::sleep(Duration::from_millis(2));
                }
            };
            claimed(1);
            theirs.write_all(b"still here").expect("open");
            let mut bytes = [0; 10];
            ours.read_exact(&mut bytes).expect("it is defended");
            claimed(2);
            let error = listener.accept().expect_err("nobody can connect");
            assert_eq!(error.errno(), Errno::EADDRNOTAVAIL);
            assert!(error.to_string().contains("another station"), "{error}");
            let error = ours.read(&mut bytes).expect_err("it was given up");
            assert!(error.to_string().contains("another station"), "{error}");
            assert!(netdev.addresses().is_empty());
            let lines: Vec<_> = netdev
                .address_conflicts()
                .iter()
                .map(ToString::to_string)
                .collect();
            let station = "the station 02:00:00:00:00:77 uses our address 10.77.0.2";
            let expected = [", which was announced again", ", which is given up"];
            assert_eq!(lines, expected.map(|end| format!("{station}{end}")));
        },
    );
}

#[test]
fn of_two_nics_with_one_address_on_a_wire_the_second_one_loses_it() {
    let mem = || open("mem:one-address", "10.77.0.9/24", |builder| builder);
    let (_first, second) = (mem().expect("a wire"), mem().expect("its other end"));
    let errno = match second.listen("10.77.0.9:5201") {
        Ok(listener) => listener.accept().expect_err("nobody connects").errno(),
        // It was lost already.
        Err(error) => error.errno(),
    };
    assert_eq!(errno, Errno::EADDRNOTAVAIL);
    assert!(second.addresses().is_empty());
}

#[test]
fn a_router_outside_of_the_network_leads_to_other_networks() {
    in_netns(
        "address::a_router_outside_of_the_network_leads_to_other_networks",
        || {
            let (mut near, _far) = veth(("10.156.0.1", "", 32), 1500);
            near.add_address("2001:db8:1::1".parse().expect("an address"), 128)
                .expect("our namespace");
            near.add_address("fe80::1".parse().expect("an address"), 64)
                .expect("our namespace");
            let mut lo = Interface::by_name("lo").expect("it exists");
            for (address, len) in [("192.0.2.9", 32), ("2001:db8:9::9", 128)] {
                lo.add_address(address.parse().expect("an address"), len)
                    .expect("our namespace");
            }
            for (ours, router, server, route) in [
                (
                    "10.156.0.18/32",
                    "10.156.0.1",
                    "192.0.2.9",
                    "route add 10.156.0.18/32 dev near",
                ),
                (
                    "2001:db8:1::18/128",
                    "fe80::1",
                    "2001:db8:9::9",
                    "-6 route add 2001:db8:1::18/128 dev near",
                ),
                (
                    "2001:db8:1::19/128",
                    "2001:db8:1::1",
                    "2001:db8:9::9",
                    "-6 route add 2001:db8:1::19/128 dev near",
                ),
            ] {
                if !ip(route) {
                    return skip(
                        "a_router_outside_of_the_network",
                        "ip",
                        "ip cannot add a route",
                    );
                }
                let router = router.parse().expect("an address");
                let netdev = open("packet:far", ours, |builder| builder.gateway(router));
                let netdev = netdev.expect("a router on the link");
                let server: IpAddr = server.parse().expect("an address");
                let listener = TcpListener::bind((server, 0)).expect("a free port");
                let to = listener.local_addr().expect("it listens");
                let _ours = netdev.connect(to).expect("there is a route");
                let (_, from) = listener.accept().expect("a connection");
                assert_eq!(ours.split('/').next(), Some(from.ip().to_string().as_str()));
            }
        },
    );
}

#[test]
fn a_silent_host_and_a_silent_router_are_named() {
    in_netns(
        "address::a_silent_host_and_a_silent_router_are_named",
        || {
            let (mut near, _far) = veth(V4, 1500);
            near.add_address(V6.0.parse().expect("an address"), 64)
                .expect("our namespace");
            let router = "10.77.0.254".parse().expect("an address");
            let builder = Netdev::builder("packet:far").expect("a link");
            let builder = builder.address("10.77.0.2/24").expect("valid");
            let builder = builder.address("fd77::2/64").expect("valid");
            let netdev = builder.gateway(router).open().expect("it is up");
            let texts = thread::scope(|scope| {
                let connect = |to: &'static str| {
                    let options = ConnectOptions::new();
                    let netdev = &netdev;
                    scope.spawn(move || {
                        let to: std::net::SocketAddr = to.parse().expect("an address");
                        netdev
                            .connect_with(to, &options)
                            .expect_err("nobody answers")
                    })
                };
                let tries = ["10.77.0.200:1", "192.0.2.1:1", "[fd77::200]:1"].map(connect);
                tries.map(|thread| thread.join().expect("no panic"))
            });
            for (error, text) in texts.iter().zip([
                "the host 10.77.0.200 does not answer ARP",
                "the router 10.77.0.254 does not answer ARP",
                "the host fd77::200 does not answer neighbour discovery",
            ]) {
                assert_eq!(error.errno(), Errno::EHOSTUNREACH, "{error}");
                assert!(error.to_string().starts_with(text), "{error}");
            }
        },
    );
}

#[test]
fn a_nic_whose_link_is_down_is_open_at_once_and_asks_when_it_is_up() {
    with_macvtap(
        "address::a_nic_whose_link_is_down_is_open_at_once_and_asks_when_it_is_up",
        || {
            let (machine, _far) = pair_with_machine(&[]);
            let near = |change: fn(&mut Interface)| {
                machine.run(|| change(&mut Interface::by_name("near").expect("it is there")));
            };
            near(|near| near.set_down().expect("our namespace"));
            let netdev = open("macvtap:far", "10.77.0.9/24", |builder| builder);
            let netdev = netdev.expect("there is nobody to ask");
            let listener = netdev.listen("10.77.0.9:5201").expect("it is ours");
            near(|near| {
                near.add_address([10, 77, 0, 9].into(), 24)
                    .expect("our namespace");
                near.set_up().expect("our namespace");
            });
            let error = listener.accept().expect_err("the machine has the address");
            assert_eq!(error.errno(), Errno::EADDRNOTAVAIL, "{error}");
        },
    );
}
