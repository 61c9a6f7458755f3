//! Addresses of a DHCP server, one of the test at the kernel's end of a veth pair or dnsmasq, and of a router.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddrV6, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use devmem_linux::netif::Interface;
use devmem_linux::test_util::{in_netns, skip};
use devmem_tcp::{Errno, Netdev, NetdevBuilder, OpenError, RecvError, RxBatch};
use rustix::net::sockopt::set_ipv6_multicast_hops;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, sendto, socket_with,
};

use crate::macvtap::with_macvtap;
use crate::packet::{Receiver, both_directions, veth};
use crate::peer::{Addresses, PATIENCE, V4, V6};
use crate::sender::expected;

/// Kinds of messages (RFC 2132 9.6).
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RELEASE: u8 = 7;

/// The first address that the server lends; then the next ones.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);

/// A DHCP server, and the kinds of the messages that it got.
pub struct Server {
    heard: Arc<Mutex<Vec<u8>>>,
    /// Refuse the next renewal, and lend the next address.
    refuses: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server that lends an address for 20 s, to be renewed after one.
    pub fn start() -> Self {
        let socket = UdpSocket::bind(("0.0.0.0", 67)).expect("root of this namespace");
        socket.set_broadcast(true).expect("it is open");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let refuses = Arc::new(AtomicBool::new(false));
        let refused = Arc::clone(&refuses);
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            let mut address = FIRST;
            loop {
                let (len, _) = socket.recv_from(&mut buffer).expect("it is open");
                let request = &buffer[..len];
                let kind = option(request, 53).expect("every message has a kind")[0];
                log.lock().expect("nobody panics with it").push(kind);
                let is_renewal = request[12..16] != [0; 4];
                let answer = match kind {
                    DISCOVER => OFFER,
                    REQUEST if is_renewal && refused.swap(false, Ordering::Relaxed) => {
                        address = Ipv4Addr::from_bits(address.to_bits() + 1);
                        NAK
                    }
                    REQUEST => ACK,
                    _ => continue,
                };
                let reply = reply(request, answer, address);
                socket.send_to(&reply, ("10.77.0.255", 68)).expect("sent");
            }
        });
        Self { heard, refuses }
    }

    fn heard(&self) -> Vec<u8> {
        self.heard.lock().expect("nobody panics with it").clone()
    }

    /// Returns what the server got, without repetitions: a busy machine loses packets, and the client asks again.
    fn heard_in_turn(&self) -> Vec<u8> {
        let mut kinds = self.heard();
        kinds.dedup();
        kinds
    }

    /// Waits until the server got so many messages of a kind.
    fn await_messages(&self, kind: u8, count: usize) {
        let start = Instant::now();
        while self.heard().iter().filter(|heard| **heard == kind).count() < count {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.heard());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the value of an option.
fn option(message: &[u8], code: u8) -> Option<&[u8]> {
    let mut rest = message.get(240..)?;
    while let [found, len, tail @ ..] = rest {
        let value = tail.get(..usize::from(*len))?;
        if *found == code {
            return Some(value);
        }
        rest = &tail[value.len()..];
    }
    None
}

fn reply(request: &[u8], kind: u8, address: Ipv4Addr) -> Vec<u8> {
    let mut reply = request[..240].to_vec();
    reply[0] = 2;
    reply[16..20].copy_from_slice(&address.octets());
    for (code, value) in [
        (53, &[kind][..]),
        (54, &[10, 77, 0, 1]),
        (1, &[255, 255, 255, 0]),
        (3, &[10, 77, 0, 1]),
        (51, &[0, 0, 0, 20]),
        (58, &[0, 0, 0, 1]),
        (59, &[0, 0, 0, 15]),
    ] {
        reply.extend_from_slice(&[code, value.len() as u8]);
        reply.extend_from_slice(value);
    }
    reply.push(255);
    reply
}

/// Opens our NIC on `link` with an address of the server.
fn open(
    link: &str,
    change: impl FnOnce(NetdevBuilder) -> NetdevBuilder,
) -> Result<Netdev, OpenError> {
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
    // A default router for half an hour; the prefix is on the link and for addresses.
    let mut message = [0; 48];
    message[0] = 134;
    (message[6], message[7]) = (0x07, 0x08);
    (message[16], message[17], message[18], message[19]) = (3, 4, 64, 0xc0);
    message[22..24].copy_from_slice(&seconds.to_be_bytes());
    message[26..28].copy_from_slice(&seconds.to_be_bytes());
    (message[32], message[33]) = (0xfd, 0x77);
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
                    Err(RecvError::Refused(error)) => break error,
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
            let (mut near, _far) = veth(V4, 1500);
            near.add_address(FIRST.into(), 24).expect("our namespace");
            let server = Server::start();
            // It waits for ten seconds before it asks again; the test does not.
            std::thread::spawn(|| open("packet:far", |builder| builder));
            server.await_messages(DECLINE, 1);
            assert_eq!(server.heard_in_turn(), [DISCOVER, REQUEST, DECLINE]);
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
