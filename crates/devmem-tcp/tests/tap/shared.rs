//! The packet link that shares the addresses of an interface: our NIC and a kernel are one station, another kernel is the
//! peer.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use devmem_linux::netif::Interface;
use devmem_linux::netns::{self, NetNs};
use devmem_linux::test_util::in_netns;
use devmem_tcp::{Dmabuf, Error, ErrorKind as Kind, LinkState, Netdev};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, SocketFlags, SocketType, eth, ipproto, socket_with};

use crate::packet::{Receiver, await_state};
use crate::peer::{Addresses, Host, PATIENCE, V4, V6};
use crate::sender::{self, Nic, expected};

/// Ports of our NIC.
const PORTS: &str = "packet:far,ports=5201-5203";
/// A port of the kernel beside it.
const KERNELS_PORT: u16 = 80;

/// Makes a veth pair from the test's namespace to a new one. Each kernel has an address at its end.
pub fn pair((host, ours, len): Addresses) -> NetNs {
    let entered = std::thread::spawn(|| {
        netns::enter_new().expect("root of this namespace");
        NetNs::current().expect("it exists")
    });
    let far_side = entered.join().expect("it does not panic");
    let (near, far) = Interface::create_veth_pair("near", "far").expect("our namespace");
    far.move_to(far_side.as_fd()).expect("root of both");
    let set_up = |mut end: Interface, address: &str| {
        end.quiet_ipv6();
        end.set_up().expect("our namespace");
        end.add_address(address.parse().expect("an address"), len)
            .expect("our namespace");
    };
    set_up(near, host);
    far_side
        .run(|| set_up(Interface::by_name("far").expect("it was moved"), ours))
        .expect("root of both");
    far_side
}

/// Opens our NIC in the far namespace.
fn open(far_side: &NetNs, (_, ours, len): Addresses) -> Result<Netdev, Error> {
    let opened = far_side.run(|| Netdev::user(PORTS, &format!("{ours}/{len}")));
    opened.expect("root of both")
}

/// Sees all packets of the test's namespace.
pub struct Watch(OwnedFd);

impl Watch {
    pub fn new() -> Self {
        let flags = SocketFlags::NONBLOCK;
        let socket = socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            flags,
            Some(eth::ALL),
        );
        let socket = socket.expect("root of this namespace");
        set_socket_recv_buffer_size_force(&socket, 256 << 20).expect("root");
        Self(socket)
    }

    /// Returns how many TCP segments were seen since the last call, and how many resets from the address `ours`.
    ///
    /// The other end may send one: its socket is closed by the ACK of its FIN, and if it had repeated the FIN before, the ACK
    /// of that finds no socket.
    pub fn segments_and_resets(&self, ours: &str) -> (usize, usize) {
        const RST: u8 = 4;
        let ours: IpAddr = ours.parse().expect("an address");
        let mut frame = vec![0; 128 << 10];
        let (mut segments, mut resets) = (0, 0);
        loop {
            let len = match rustix::io::read(&self.0, &mut frame[..]) {
                Ok(len) => len,
                Err(Errno::AGAIN) => {
                    let unseen = devmem_linux::packet::take_drops(self.0.as_fd());
                    assert_eq!(unseen, Ok(0));
                    return (segments, resets);
                }
                Err(errno) => panic!("{errno}"),
            };
            if let Some((from, flags)) = tcp_source_and_flags(&frame[..len]) {
                segments += 1;
                resets += usize::from(from == ours && flags & RST != 0);
            }
        }
    }
}

/// Returns the source address and the flags of a TCP segment.
fn tcp_source_and_flags(frame: &[u8]) -> Option<(IpAddr, u8)> {
    const TCP: u8 = 6;
    let (ethernet, packet) = frame.split_at_checked(14)?;
    let (protocol, from, header): (_, IpAddr, _) = match ethernet[12..] {
        [0x08, 0x00] => {
            let from: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            (packet[9], from.into(), usize::from(packet[0] & 15) * 4)
        }
        [0x86, 0xdd] => {
            let from: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            (packet[6], from.into(), 40)
        }
        _ => return None,
    };
    let flags = *packet.get(header + 13)?;
    (protocol == TCP).then_some((from, flags))
}

/// Pings an address; returns the number of answers until a moment after the first one.
fn pings(to: IpAddr) -> usize {
    use rustix::net::{SendFlags, sendto};
    // Where the message begins in what is read, and the types of request and answer (RFC 792, RFC 4443 4).
    let (family, protocol, at, request, answer) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 20, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 0, 128, 129),
    };
    let socket = socket_with(
        family,
        SocketType::RAW,
        SocketFlags::NONBLOCK,
        Some(protocol),
    );
    let socket = socket.expect("root of this namespace");
    // With the checksum of ICMP; that of ICMPv6 is the kernel's task.
    let request = [request, 0, 0xf7, 0xff, 0, 0, 0, 0];
    let to = SocketAddr::new(to, 0);
    sendto(&socket, &request, SendFlags::empty(), &to).expect("sent");
    let mut packet = [0; 256];
    let mut answers = 0;
    loop {
        // Other messages come to the socket, too.
        let patience = match answers {
            0 => PATIENCE,
            _ => Duration::from_millis(300),
        };
        let patience = Timespec::try_from(patience).expect("a time");
        let mut readable = [PollFd::new(&socket, PollFlags::IN)];
        if poll(&mut readable, Some(&patience)).expect("it is open") == 0 {
            return answers;
        }
        while let Ok(len) = rustix::io::read(&socket, &mut packet[..]) {
            answers += usize::from(packet[..len].get(at) == Some(&answer));
        }
    }
}

/// A stream from the peer's kernel to our port.
fn receive(netdev: &Netdev, (_, ours, _): Addresses) {
    const BYTES: usize = 4 << 20;
    let local = SocketAddr::new(ours.parse().expect("an address"), 5201);
    let memory = Dmabuf::anonymous(16 << 20).expect("memory");
    let listener = netdev.listen(local).expect("one of our ports");
    let setup = netdev.plan_receive(local).apply().expect("set up");
    let rx = netdev.bind_rx(&memory, setup.queues()).expect("bound");
    let sending = std::thread::spawn(move || {
        let mut theirs = TcpStream::connect(local).expect("it listens");
        theirs.write_all(&expected(0, BYTES)).expect("it is read");
        theirs.shutdown(Shutdown::Write).expect("open");
        theirs.read_to_end(&mut Vec::new()).expect("our end");
    });
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_timeout(Some(PATIENCE));
    assert_eq!(sender::receive_all(&mut stream, &memory), BYTES);
    drop(stream);
    sending.join().expect("the peer");
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}

/// A connection from the peer to a port of the kernel beside our NIC.
pub fn reaches_the_kernel(far_side: &NetNs, (_, ours, _): Addresses, port: u16) {
    let address = SocketAddr::new(ours.parse().expect("an address"), port);
    let listening = far_side.run(|| TcpListener::bind(address));
    let listener = listening.expect("root of both").expect("a free port");
    let mut theirs = TcpStream::connect_timeout(&address, PATIENCE).expect("the kernel answers");
    theirs.write_all(b"hello").expect("open");
    drop(theirs);
    let mut got = String::new();
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.read_to_string(&mut got).expect("open");
    assert_eq!(got, "hello");
}

#[test]
fn our_ports_and_the_kernels_work_at_one_address_without_a_reset() {
    in_netns(
        "shared::our_ports_and_the_kernels_work_at_one_address_without_a_reset",
        || {
            for addresses in [V4, V6] {
                let far_side = pair(addresses);
                let watch = Watch::new();
                let netdev = open(&far_side, addresses).expect("the ports are free");
                receive(&netdev, addresses);
                reaches_the_kernel(&far_side, addresses, KERNELS_PORT);
                // And from us to the peer's kernel, from a port of ours.
                let host = Host::listening(addresses);
                let nic = Nic::new(netdev.clone());
                let stream = host.connect(&nic);
                let port = stream.local_addr().expect("it is open").port();
                assert!((5201..=5203).contains(&port), "port {port}");
                let receiving = host.receive();
                nic.send_all(stream, 1 << 20, 1 << 20);
                assert_eq!(receiving.join().expect("the receiver"), 1 << 20);
                let ours = addresses.1.parse().expect("an address");
                assert_eq!(pings(ours), 1, "only the kernel answers");
                let (segments, resets) = watch.segments_and_resets(addresses.1);
                assert!(segments > 50, "{segments}");
                assert_eq!(resets, 0);
                let unwanted = ["rx_link_full", "rx_link_error", "rx_not_for_us"];
                let drops = netdev.drops();
                assert!(
                    !drops.iter().any(|(name, _)| unwanted.contains(name)),
                    "{drops:?}"
                );
                Interface::by_name("near")
                    .and_then(Interface::delete)
                    .expect("our namespace");
            }
        },
    );
}

#[test]
fn a_stream_goes_on_without_a_reset_after_the_shared_interface_was_down() {
    in_netns(
        "shared::a_stream_goes_on_without_a_reset_after_the_shared_interface_was_down",
        || flap(V4),
    );
}

#[test]
fn over_ipv6_it_goes_on_when_the_shared_interface_has_its_address_again() {
    in_netns(
        "shared::over_ipv6_it_goes_on_when_the_shared_interface_has_its_address_again",
        || flap(V6),
    );
}

/// Sets the interface of our NIC down while a stream is open, and up again.
fn flap(addresses: Addresses) {
    const BYTES: usize = 1 << 20;
    let (_, address, len) = addresses;
    let address: IpAddr = address.parse().expect("an address");
    let far_side = pair(addresses);
    let watch = Watch::new();
    let netdev = open(&far_side, addresses).expect("the ports are free");
    let receiver = Receiver::new(netdev.clone(), addresses);
    let local = receiver.listener().local_addr().expect("it listens");
    let mut theirs = TcpStream::connect(local).expect("it listens");
    let (mut ours, _) = receiver.listener().accept().expect("a connection");
    ours.set_timeout(Some(PATIENCE));
    let far = |change: &(dyn Fn(&mut Interface) + Sync)| {
        let changed = far_side.run(|| change(&mut Interface::by_name("far").expect("there")));
        changed.expect("root of both");
    };
    far(&|far| far.set_down().expect("our namespace"));
    await_state(&netdev, LinkState::Down);
    // Sent while the interface is down: the kernel repeats it until it arrives.
    let sending = std::thread::spawn(move || {
        theirs.write_all(&expected(0, BYTES)).expect("it is read");
        theirs.shutdown(Shutdown::Write).expect("open");
        theirs.read_to_end(&mut Vec::new()).expect("our end");
    });
    far(&|far| {
        far.set_up().expect("our namespace");
        // An interface that goes down loses its addresses of IPv6 (linux Documentation/networking/ip-sysctl.rst
        // `keep_addr_on_down`). The program that configured it adds them again, and with them the kernel would answer our segments
        // with resets, were the ports not hidden from it.
        far.add_address(address, len).expect("our namespace");
    });
    await_state(&netdev, LinkState::Up);
    assert_eq!(sender::receive_all(&mut ours, receiver.memory()), BYTES);
    drop(ours);
    sending.join().expect("the sender");
    // The rule that hides the ports is there, too.
    receiver.receive(4, BYTES);
    let (segments, resets) = watch.segments_and_resets(addresses.1);
    assert!(segments > 50, "{segments}");
    assert_eq!(resets, 0);
    receiver.finish();
}

#[test]
fn the_ports_are_held_while_the_nic_is_open_and_free_afterwards() {
    in_netns(
        "shared::the_ports_are_held_while_the_nic_is_open_and_free_afterwards",
        || {
            for addresses in [V4, V6] {
                let far_side = pair(addresses);
                let ours: IpAddr = addresses.1.parse().expect("an address");
                let bind = |port| {
                    let bound = far_side.run(|| TcpListener::bind((ours, port)));
                    bound.expect("root of both")
                };
                let netdev = open(&far_side, addresses).expect("the ports are free");
                for port in 5201..=5203 {
                    let refused = bind(port).expect_err("it is held");
                    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
                }
                let refused = netdev.listen((ours, 5204)).expect_err("the kernel's");
                assert_eq!(refused.kind(), Kind::AddrNotAvailable);
                assert!(
                    refused
                        .to_string()
                        .contains("port 5204 belongs to another stack")
                );
                let watch = Watch::new();
                drop(netdev);
                let refused = TcpStream::connect((ours, 5202)).expect_err("the kernel's again");
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
                let (_segments, resets) = watch.segments_and_resets(addresses.1);
                assert_eq!(resets, 1, "the kernel's");
                reaches_the_kernel(&far_side, addresses, 5201);

                let kernels = bind(5202).expect("it is free again");
                let refused = open(&far_side, addresses).expect_err("a port is in use");
                let text = refused.to_string();
                assert!(
                    text.starts_with(&format!("port 5202 of {ours} is in use")),
                    "{text}"
                );
                assert_eq!(refused.kind(), Kind::AddrInUse);
                drop(kernels);
                Interface::by_name("near")
                    .and_then(Interface::delete)
                    .expect("our namespace");
            }
        },
    );
}

#[test]
fn ports_that_cannot_be_shared_are_refused() {
    in_netns("shared::ports_that_cannot_be_shared_are_refused", || {
        let far_side = pair(V4);
        for (link, address, reason) in [
            (
                PORTS,
                "10.77.0.3/24",
                "far does not have the address 10.77.0.3",
            ),
            (
                "packet:far,ports=1-257",
                "10.77.0.2/24",
                "ports 1-257: a range has 1 to 256",
            ),
            (
                "packet:far,ports=0",
                "10.77.0.2/24",
                "'0': port 0 is no port",
            ),
            (
                "packet:far,ports=9-3",
                "10.77.0.2/24",
                "'9-3' is not a range of ports: its first port is above its last",
            ),
            (
                "packet:far,ports=x",
                "10.77.0.2/24",
                "'x' is not a range of ports",
            ),
            (
                "packet:far,port=5",
                "10.77.0.2/24",
                "'port=5' is not an option",
            ),
            (
                "tap:dm0,ports=5",
                "10.77.0.2/24",
                "only a NIC on a packet link",
            ),
        ] {
            let opened = far_side.run(|| Netdev::user(link, address));
            let error = opened.expect("root of both").expect_err(link);
            let text = error.to_string();
            assert!(text.starts_with(reason), "{text}");
        }
    });
}
