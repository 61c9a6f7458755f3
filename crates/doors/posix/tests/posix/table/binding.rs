//! bind and listen: conflicts of addresses.

use devmem_posix::abi::{IP_BIND_ADDRESS_NO_PORT, IPV6_V6ONLY, SOCK_NONBLOCK, so};
use devmem_posix::{Posix, VirtualTime};
use devmem_uapi::{Errno, sockopt};

use super::{SOL_SOCKET, at, connected, table};

const ON: [u8; 4] = 1i32.to_ne_bytes();
const V6_ONLY: (i32, i32) = (sockopt::SOL_IPV6, IPV6_V6ONLY);
const REUSE: (i32, i32) = (SOL_SOCKET, so::REUSEADDR);
const REUSE_PORT: (i32, i32) = (SOL_SOCKET, so::REUSEPORT);

/// Creates a socket and switches options on.
fn socket(posix: &Posix<VirtualTime>, domain: i32, options: &[(i32, i32)]) -> i32 {
    let fd = posix
        .call(|t| t.socket(domain, 1 | SOCK_NONBLOCK, 0))
        .unwrap();
    for name in options {
        posix.call(|t| t.setsockopt(fd, *name, &ON)).unwrap();
    }
    fd
}

fn domain(address: &str) -> i32 {
    if address.starts_with('[') { 10 } else { 2 }
}

fn bind(posix: &Posix<VirtualTime>, fd: i32, address: &str) -> Result<(), Errno> {
    posix.call(|t| t.bind(fd, &at(address)))
}

fn port(posix: &Posix<VirtualTime>, fd: i32) -> u16 {
    let name = posix.call(|t| t.getsockname(fd)).unwrap();
    u16::from_be_bytes([name[2], name[3]])
}

#[test]
fn two_families_share_a_port_if_neither_receives_packets_of_the_other() {
    for (first, second, options, expected) in [
        ("0.0.0.0:80", "[::]:80", &[][..], Err(Errno::EADDRINUSE)),
        ("0.0.0.0:80", "[::]:80", &[V6_ONLY], Ok(())),
        ("0.0.0.0:80", "[fd77::1]:80", &[], Ok(())),
        ("10.77.0.1:80", "[::]:80", &[], Err(Errno::EADDRINUSE)),
        ("10.77.0.1:80", "[::]:80", &[V6_ONLY], Ok(())),
        ("10.77.0.1:80", "[fd77::1]:80", &[], Ok(())),
        (
            "[fd77::1]:80",
            "[::]:80",
            &[V6_ONLY],
            Err(Errno::EADDRINUSE),
        ),
    ] {
        let (posix, _other) = table();
        let a = socket(&posix, domain(first), &[]);
        let b = socket(&posix, domain(second), options);
        assert_eq!(bind(&posix, a, first), Ok(()));
        assert_eq!(bind(&posix, b, second), expected, "{first} {second}");
        if expected.is_ok() {
            assert_eq!(posix.call(|t| t.listen(a, 1)), Ok(()));
            assert_eq!(posix.call(|t| t.listen(b, 1)), Ok(()), "{first} {second}");
        }
    }
}

#[test]
fn a_listener_on_the_ipv4_wildcard_does_not_answer_ipv6() {
    let (posix, _other) = table();
    let listener = socket(&posix, 2, &[]);
    bind(&posix, listener, "0.0.0.0:80").unwrap();
    posix.call(|t| t.listen(listener, 4)).unwrap();
    for (remote, answer) in [("10.77.0.1:80", 0), ("[fd77::1]:80", Errno::ECONNREFUSED.0)] {
        let client = socket(&posix, domain(remote), &[]);
        assert_eq!(posix.connect(client, &at(remote)), Err(Errno::EINPROGRESS));
        posix.run_now();
        let error = posix.call(|t| t.getsockopt(client, (SOL_SOCKET, so::ERROR)));
        assert_eq!(error, Ok(answer.to_ne_bytes().to_vec()), "{remote}");
    }
}

#[test]
fn a_second_listen_changes_the_length_of_the_accept_queue() {
    let (posix, _other) = table();
    let listener = socket(&posix, 2, &[]);
    bind(&posix, listener, "10.77.0.1:80").unwrap();
    let waiting = |backlog: i32| {
        posix.call(|t| t.listen(listener, backlog)).unwrap();
        for _ in 0..6 {
            let client = socket(&posix, 2, &[]);
            let begun = posix.connect(client, &at("10.77.0.1:80"));
            assert_eq!(begun, Err(Errno::EINPROGRESS));
            posix.run_now();
        }
        let mut count = 0;
        while posix.accept(listener, 0).is_ok() {
            count += 1;
        }
        count
    };
    assert_eq!((waiting(1), waiting(3)), (2, 4));
}

#[test]
fn what_takes_ipv6_alone_is_said_before_the_address() {
    let (posix, _other) = table();
    let fd = socket(&posix, 10, &[]);
    let set = |value: &[u8]| posix.call(|t| t.setsockopt(fd, V6_ONLY, value));
    assert_eq!(set(&ON), Ok(0));
    assert_eq!(set(&[0; 4]), Ok(0));
    bind(&posix, fd, "[::]:80").unwrap();
    assert_eq!(set(&ON), Err(Errno::EINVAL));
}

#[test]
fn a_listener_prevents_reuse_of_its_address_but_not_of_its_port() {
    let (posix, _other) = table();
    let (a, b) = (socket(&posix, 2, &[REUSE]), socket(&posix, 2, &[REUSE]));
    bind(&posix, a, "0.0.0.0:80").unwrap();
    bind(&posix, b, "10.77.0.1:80").unwrap();
    posix.call(|t| t.listen(a, 1)).unwrap();
    assert_eq!(posix.call(|t| t.listen(b, 1)), Err(Errno::EADDRINUSE));
    let late = socket(&posix, 2, &[REUSE]);
    assert_eq!(bind(&posix, late, "10.77.0.1:80"), Err(Errno::EADDRINUSE));

    let listeners: Vec<i32> = (0..3).map(|_| socket(&posix, 2, &[REUSE_PORT])).collect();
    for fd in &listeners {
        assert_eq!(bind(&posix, *fd, "10.77.0.1:90"), Ok(()));
        assert_eq!(posix.call(|t| t.listen(*fd, 64)), Ok(()));
    }
    let alone = socket(&posix, 2, &[REUSE]);
    assert_eq!(bind(&posix, alone, "10.77.0.1:90"), Err(Errno::EADDRINUSE));
    for _ in 0..60 {
        let client = socket(&posix, 2, &[]);
        let begun = posix.connect(client, &at("10.77.0.1:90"));
        assert_eq!(begun, Err(Errno::EINPROGRESS));
    }
    posix.run_now();
    let accepted = listeners.iter().map(|fd| {
        let mut count = 0;
        while posix.accept(*fd, 0).is_ok() {
            count += 1;
        }
        count
    });
    let accepted: Vec<i32> = accepted.collect();
    assert_eq!(accepted.iter().sum::<i32>(), 60);
    assert!(accepted.iter().all(|count| *count > 5), "{accepted:?}");
}

#[test]
fn a_port_that_the_table_chooses_is_unused_even_if_sharing_is_allowed() {
    let (posix, other) = table();
    let it = connected(posix, other);
    let posix = &it.posix;
    let mut seen = std::collections::BTreeSet::from([port(posix, it.client)]);
    for _ in 0..500 {
        let fd = socket(posix, 2, &[REUSE, REUSE_PORT]);
        bind(posix, fd, "0.0.0.0:0").unwrap();
        assert!(seen.insert(port(posix, fd)));
    }
    let unbound = socket(posix, 2, &[]);
    posix.call(|t| t.listen(unbound, 1)).unwrap();
    assert!(seen.insert(port(posix, unbound)));
    // After the close the port is free again.
    let fd = socket(posix, 2, &[]);
    bind(posix, fd, "10.77.0.1:99").unwrap();
    posix.close(fd).unwrap();
    let again = socket(posix, 2, &[]);
    assert_eq!(bind(posix, again, "0.0.0.0:99"), Ok(()));
}

#[test]
fn connect_may_choose_the_port() {
    let (posix, other) = table();
    let it = connected(posix, other);
    let posix = &it.posix;
    let fd = socket(posix, 2, &[(sockopt::SOL_IP, IP_BIND_ADDRESS_NO_PORT)]);
    bind(posix, fd, "10.77.0.1:0").unwrap();
    assert_eq!(port(posix, fd), 0);
    assert_eq!(
        posix.connect(fd, &at("10.77.0.1:80")),
        Err(Errno::EINPROGRESS)
    );
    assert_ne!(port(posix, fd), 0);
}
