//! Addresses of a DHCP server, one of the test at the kernel's end of a veth pair or dnsmasq, and of a router.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddrV6, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use devmem_linux::netif::Interface;
use devmem_linux::test_util::{in_netns, skip};
use devmem_tcp::{Errno, Error, Netdev, NetdevBuilder, RecvError, RxBatch};
use rustix::net::sockopt::set_ipv6_multicast_hops;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, sendto, socket_with,
};

use crate::macvtap::with_macvtap;
use crate::packet::{Receiver, both_directions, veth};
use crate::peer::{Addresses, PATIENCE, V4, V6};
use crate::sender::expected;

#[path = "lease/dhcp_server.rs"]
mod dhcp_server;

pub use dhcp_server::Server;
use dhcp_server::{DECLINE, DISCOVER, FIRST, RELEASE, REQUEST};

/// Opens our NIC on `link` with an address of the server.
fn open(link: &str, change: impl FnOnce(NetdevBuilder) -> NetdevBuilder) -> Result<Netdev, Error> {
    change(Netdev::builder(link)?.address("auto")?).open()
}

/// Acquires an address on `link`, uses it, renews it and returns it.
fn lend(link: &str) {
    let (near, _far) = veth(V4, 1500);
    let server = Server::start();
    let netdev = open(link, |builder| builder).expect("a server answers");
    assert_eq!(netdev.addresses(), [IpAddr::V4(FIRST)]);
    assert_eq!(server.heard_in_turn()[..2], [DISCOVER, REQUEST]);
    let lent: Addresses = (V4.0, "10.77.0.50", V4.2);
    both_directions(netdev.clone(), lent);
    server.await_messages(REQUEST, 2);
    // The router that the server named.
    let far = "203.0.113.5:9".parse().expect("an address");
    let beyond = netdev.begin_connect(far, &devmem_tcp::ConnectOptions::new());
    drop(beyond.expect("there is a route"));
    drop(netdev);
    server.await_messages(RELEASE, 1);
    assert_eq!(server.heard().last(), Some(&RELEASE));
    near.delete().expect("our namespace");
}

#[test]
fn an_address_is_lent_renewed_and_returned_on_a_packet_link() {
    in_netns(
        "lease::an_address_is_lent_renewed_and_returned_on_a_packet_link",
        || lend("packet:far"),
    );
}

#[test]
fn an_address_is_lent_renewed_and_returned_on_a_macvtap_link() {
    with_macvtap(
        "lease::an_address_is_lent_renewed_and_returned_on_a_macvtap_link",
        || lend("macvtap:far"),
    );
}

/// Advertises the prefix fd77::/64, valid for `seconds`, from the kernel's end, ten times a second, until the returned value is
/// set or the test ends.
fn advertise(near: &mut Interface, seconds: u16) -> Arc<AtomicBool> {
    advertise_all(near, &[(0x77, seconds, seconds)])
}

/// As [`advertise`], for the prefixes fdNN::/64, each valid and preferred for so many seconds.
fn advertise_all(near: &mut Interface, prefixes: &[(u8, u16, u16)]) -> Arc<AtomicBool> {
    // A default router for half an hour; the prefixes are on the link and for addresses.
    let mut message = vec![134, 0, 0, 0, 0, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    for (number, valid, preferred) in prefixes {
        let mut option = [0; 32];
        option[..4].copy_from_slice(&[3, 4, 64, 0xc0]);
        option[6..8].copy_from_slice(&valid.to_be_bytes());
        option[10..12].copy_from_slice(&preferred.to_be_bytes());
        option[16..18].copy_from_slice(&[0xfd, *number]);
        message.extend_from_slice(&option);
    }
    let router = "fe80::1".parse().expect("an address");
    near.add_address(router, 64).expect("our namespace");
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(
        AddressFamily::INET6,
        SocketType::RAW,
        flags,
        Some(ipproto::ICMPV6),
    );
    let socket = socket.expect("root of this namespace");
    set_ipv6_multicast_hops(&socket, 255).expect("it is open");
    let from = SocketAddrV6::new(
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
        0,
        0,
        near.index(),
    );
    bind(&socket, &from).expect("our address");
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let to = SocketAddrV6::new(all_nodes, 0, 0, near.index());
    let ended = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&ended);
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            sendto(&socket, &message, SendFlags::empty(), &to).expect("sent");
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    ended
}

/// MAC address of our NIC, and the address of SLAAC that belongs to it.
const MAC: [u8; 6] = [2, 0, 0, 0xaa, 0xbb, 0xcc];
const OF_ROUTER: &str = "fd77::ff:feaa:bbcc";

/// Makes the pair with a DHCP server at the kernel's end.
fn veth_with_server() -> (Interface, Interface, Server) {
    let (mut near, far) = veth(V6, 1500);
    near.add_address(V4.0.parse().expect("an address"), V4.2)
        .expect("our namespace");
    (near, far, Server::start())
}

#[test]
fn an_address_whose_router_is_silent_expires_and_its_connections_end() {
    in_netns(
        "lease::an_address_whose_router_is_silent_expires_and_its_connections_end",
        || {
            let (mut near, _far, _server) = veth_with_server();
            let ended = advertise(&mut near, 3);
            let netdev = open("packet:far", |builder| builder.mac(MAC)).expect("both answer");
            let receiver = Receiver::new(netdev.clone(), (V6.0, OF_ROUTER, V6.2));
            let local = receiver.listener().local_addr().expect("it listens");
            let _theirs = TcpStream::connect(local).expect("it listens");
            let (mut ours, _) = receiver.listener().accept().expect("a connection");
            ours.set_timeout(Some(PATIENCE));
            ended.store(true, Ordering::Relaxed);
            let gone = ours.recv(&mut RxBatch::with_capacity(1)).unwrap_err();
            assert_eq!(gone.errno(), Errno::ECONNABORTED, "{gone}");
            let (left, of_router) = (netdev.addresses(), OF_ROUTER.parse().expect("an address"));
            assert!(
                left.contains(&FIRST.into()) && !left.contains(&of_router),
                "{left:?}"
            );
        },
    );
}

#[test]
fn an_address_of_a_router_that_another_station_has_is_not_used() {
    in_netns(
        "lease::an_address_of_a_router_that_another_station_has_is_not_used",
        || {
            let (mut near, _far, _server) = veth_with_server();
            near.add_address(OF_ROUTER.parse().expect("an address"), 64)
                .expect("our namespace");
            advertise(&mut near, 3600);
            let netdev = open("packet:far", |builder| builder.mac(MAC)).expect("a server answers");
            assert_eq!(netdev.addresses(), [IpAddr::V4(FIRST)]);
        },
    );
}

#[test]
fn a_router_gives_an_ipv6_address_beside_that_of_the_server() {
    in_netns(
        "lease::a_router_gives_an_ipv6_address_beside_that_of_the_server",
        || {
            let (mut near, _far, _server) = veth_with_server();
            advertise(&mut near, 3600);
            let netdev = open("packet:far", |builder| builder.mac(MAC)).expect("both answer");
            let ours = OF_ROUTER;
            let addresses = netdev.addresses();
            assert!(addresses.contains(&FIRST.into()), "{addresses:?}");
            assert!(
                addresses.contains(&ours.parse().expect("an address")),
                "{addresses:?}"
            );
            let far = "[2001:db8::5]:9".parse().expect("an address");
            let beyond = netdev.begin_connect(far, &devmem_tcp::ConnectOptions::new());
            drop(beyond.expect("the router is there"));
            both_directions(netdev, (V6.0, ours, V6.2));
        },
    );
}

#[test]
fn when_a_server_takes_an_address_back_its_connections_end_and_the_next_one_is_used() {
    in_netns(
        "lease::when_a_server_takes_an_address_back_its_connections_end_and_the_next_one_is_used",
        || {
            let _pair = veth(V4, 1500);
            let server = Server::start();
            let netdev = open("packet:far", |builder| builder).expect("a server answers");
            let lent: Addresses = (V4.0, "0.0.0.0", V4.2);
            let receiver = Receiver::new(netdev, lent);
            let mut theirs = TcpStream::connect((FIRST, 5201)).expect("it listens");
            theirs.write_all(&expected(0, 1000)).expect("open");
            let (mut ours, _) = receiver.listener().accept().expect("a connection");
            ours.set_timeout(Some(PATIENCE));
            server.refuses.store(true, Ordering::Relaxed);
            let mut batch = RxBatch::with_capacity(16);
            let ended = loop {
                match ours.recv(&mut batch) {
                    Ok(0) => panic!("the stream has no end"),
                    Ok(_) => {}
                    Err(RecvError::Failed(error)) => break error,
                    Err(error) => panic!("{error}"),
                }
            };
            assert_eq!(ended.errno(), Errno::ECONNABORTED);
            drop((batch, ours));
            let second = Ipv4Addr::from_bits(FIRST.to_bits() + 1);
            let start = Instant::now();
            while receiver.netdev.addresses() != [IpAddr::V4(second)] {
                assert!(start.elapsed() < PATIENCE, "{:?}", server.heard());
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut theirs = TcpStream::connect((second, 5201)).expect("it listens");
            theirs.write_all(&expected(0, 1000)).expect("open");
            theirs.shutdown(Shutdown::Write).expect("open");
            receiver.listener().accept().expect("a connection");
        },
    );
}

#[test]
fn an_address_that_another_station_has_is_declined() {
    in_netns(
        "lease::an_address_that_another_station_has_is_declined",
        || {
            let _pair = veth(V4, 1500);
            // Another station at the end of the server.
            let other = Netdev::user("packet:near", &format!("{FIRST}/24"));
            let _other = other.expect("nobody has it");
            let server = Server::start();
            // It waits for ten seconds before it asks again; the test does not.
            std::thread::spawn(|| open("packet:far", |builder| builder));
            server.await_messages(DECLINE, 1);
            assert_eq!(server.heard_in_turn(), [DISCOVER, REQUEST, DECLINE]);
        },
    );
}

#[test]
fn an_address_of_this_machine_is_not_taken_from_a_server() {
    in_netns(
        "lease::an_address_of_this_machine_is_not_taken_from_a_server",
        || {
            let (_near, mut far) = veth(V4, 1500);
            far.add_address(FIRST.into(), 32).expect("our namespace");
            let server = Server::start();
            // It goes on asking for 30 seconds; the test does not wait for the end.
            std::thread::spawn(|| open("packet:far", |builder| builder));
            server.await_messages(DISCOVER, 2);
            assert_eq!(server.heard_in_turn(), [DISCOVER]);
        },
    );
}

/// Connects from an address of the server to one behind its router; the kernel has the routes.
fn reaches_through_router(options: &'static [(u8, &'static [u8])]) {
    let (_near, _far) = veth(("10.156.0.1", "", 32), 1500);
    let mut lo = Interface::by_name("lo").expect("it exists");
    lo.add_address([192, 0, 2, 9].into(), 32)
        .expect("our namespace");
    let lent = Ipv4Addr::new(10, 156, 0, 18);
    // The server has no route to broadcast by without one.
    for route in [
        "route add 10.156.0.18/32 dev near",
        "route add default dev near",
    ] {
        let status = Command::new("ip").args(route.split(' ')).status();
        assert!(status.expect("ip runs").success(), "{route}");
    }
    let _server = Server::lending(lent, "255.255.255.255", options);
    let netdev = open("packet:far", |builder| builder).expect("a server answers");
    assert_eq!(netdev.addresses(), [IpAddr::V4(lent)]);
    let listener = std::net::TcpListener::bind("192.0.2.9:0").expect("a free port");
    let to = listener.local_addr().expect("it listens");
    let _ours = netdev.connect(to).expect("there is a route");
    let (_, from) = listener.accept().expect("a connection");
    assert_eq!(from.ip(), lent);
}

#[test]
fn an_address_without_a_network_comes_with_a_router_beside_it() {
    in_netns(
        "lease::an_address_without_a_network_comes_with_a_router_beside_it",
        || reaches_through_router(&[(1, &[255; 4]), (3, &[10, 156, 0, 1])]),
    );
}

#[test]
fn routes_of_option_121_replace_the_router_of_option_3() {
    in_netns(
        "lease::routes_of_option_121_replace_the_router_of_option_3",
        || {
            // Nobody answers at the router of option 3.
            reaches_through_router(&[
                (1, &[255, 255, 255, 0]),
                (3, &[10, 156, 0, 99]),
                (121, &[24, 192, 0, 2, 10, 156, 0, 1]),
            ]);
        },
    );
}

#[test]
fn a_live_prefix_gives_an_address_behind_one_that_is_dead_and_one_that_is_deprecated() {
    in_netns(
        "lease::a_live_prefix_gives_an_address_behind_one_that_is_dead_and_one_that_is_deprecated",
        || {
            let (mut near, _far, _server) = veth_with_server();
            for prefix in ["fd88::1", "fd89::1"] {
                near.add_address(prefix.parse().expect("an address"), 64)
                    .expect("our namespace");
            }
            advertise_all(
                &mut near,
                &[(0x77, 0, 0), (0x88, 1800, 0), (0x89, 1800, 900)],
            );
            let netdev = open("packet:far", |builder| builder.mac(MAC)).expect("both answer");
            let of = |prefix: &str| -> IpAddr {
                let address = OF_ROUTER.replace("fd77", prefix);
                address.parse().expect("an address")
            };
            let addresses = netdev.addresses();
            assert!(addresses.contains(&of("fd88")) && addresses.contains(&of("fd89")));
            assert!(!addresses.contains(&of("fd77")), "{addresses:?}");
            // New connections come from the one that is not deprecated, also to the network of the other.
            for host in ["fd88::1", "fd89::1"] {
                let host: IpAddr = host.parse().expect("an address");
                let listener = std::net::TcpListener::bind((host, 0)).expect("a free port");
                let to = listener.local_addr().expect("it listens");
                let _ours = netdev.connect(to).expect("there is a route");
                let (_, from) = listener.accept().expect("a connection");
                assert_eq!(from.ip(), of("fd89"));
            }
        },
    );
}

#[test]
fn only_a_nic_of_a_lan_with_its_own_address_gets_one_from_the_network() {
    for (link, reason) in [
        ("mem:lease", "gets its addresses from the network"),
        ("packet:lo,ports=5201", "has addresses of the interface"),
    ] {
        let error = open(link, |builder| builder).expect_err(link).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// Ends the program when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn dnsmasq_lends_an_address() {
    const TEST: &str = "lease::dnsmasq_lends_an_address";
    in_netns(TEST, || {
        let _pair = veth(V4, 1500);
        let started = Command::new("dnsmasq")
            .args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0"])
            .args(["--interface=near", "--bind-interfaces", "--user=root"])
            .args(["--dhcp-authoritative", "--no-ping", "--leasefile-ro"])
            .args([
                "--dhcp-range=10.77.0.60,10.77.0.69,255.255.255.0,2m",
                "--pid-file=",
            ])
            .args([
                "--dhcp-option=option:router,10.77.0.1",
                "--log-facility=/dev/null",
            ])
            .stderr(Stdio::null())
            .spawn();
        let _server = match started {
            Ok(child) => Running(child),
            Err(error) => return skip(TEST, "dnsmasq", &format!("dnsmasq: {error}")),
        };
        let netdev = open("packet:far", |builder| builder).expect("dnsmasq answers");
        let [IpAddr::V4(address)] = netdev.addresses()[..] else {
            panic!("{:?}", netdev.addresses());
        };
        assert!((60..70).contains(&address.octets()[3]), "{address}");
        let lent = address.to_string();
        both_directions(netdev, (V4.0, lent.leak(), V4.2));
    });
}
