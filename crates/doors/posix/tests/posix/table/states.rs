//! What a program sees of the states and the peer of a connection.

use devmem_posix::abi::{SOCK_NONBLOCK, SOL_TCP, tcp_opt};
use devmem_posix::sockaddr::{Family, emit};
use devmem_uapi::{Errno, MsgFlags};

use super::{at, loopback};

#[test]
fn time_wait_belongs_to_no_socket() {
    let it = loopback();
    let shut = |fd, how| {
        let outcome = it.posix.call(|t| t.shutdown(fd, how));
        it.posix.run_now();
        outcome
    };
    let state = |fd| {
        it.posix
            .call(|t| t.getsockopt(fd, (SOL_TCP, tcp_opt::INFO)))
            .unwrap()[0]
    };
    assert_eq!(shut(it.client, 1), Ok(()));
    assert_eq!(state(it.client), 5, "FIN-WAIT-2");
    assert!(it.posix.call(|t| t.getpeername(it.client)).is_ok());
    assert_eq!(shut(it.server, 1), Ok(()));
    for fd in [it.client, it.server] {
        assert_eq!(state(fd), 7, "closed");
        assert_eq!(it.posix.call(|t| t.getpeername(fd)), Err(Errno::ENOTCONN));
        assert_eq!(shut(fd, 1), Err(Errno::ENOTCONN));
        assert!(it.posix.call(|t| t.getsockname(fd)).is_ok());
        assert_eq!(it.recv(fd, 1, MsgFlags::empty()), Ok(Vec::new()));
    }
}

#[test]
fn payload_after_a_shutdown_of_both_directions_is_answered_with_a_reset() {
    let it = loopback();
    assert_eq!(it.posix.call(|t| t.shutdown(it.client, 2)), Ok(()));
    it.posix.run_now();
    it.send(it.server, b"late");
    for fd in [it.client, it.server] {
        let received = it.recv(fd, 4, MsgFlags::empty());
        let errno = if fd == it.client {
            Errno::ECONNRESET
        } else {
            Errno::EPIPE
        };
        assert!(
            received == Err(errno) || received == Ok(Vec::new()),
            "{received:?}"
        );
    }
    let reset = it.recv(it.client, 4, MsgFlags::empty());
    assert_eq!(reset, Ok(Vec::new()));
    assert_eq!(
        it.posix.call(|t| t.shutdown(it.server, 1)),
        Err(Errno::ENOTCONN)
    );
}

#[test]
fn the_unspecified_address_is_this_host_and_a_group_is_unreachable() {
    let it = loopback();
    let nonblocking = 1 | SOCK_NONBLOCK;
    // 0.0.0.0, and ::ffff:0.0.0.0
    for (family, ip) in [(Family::V4, 4..8), (Family::V6, 20..24)] {
        let domain = i32::from(family.domain());
        let fd = it.posix.call(|t| t.socket(domain, nonblocking, 0)).unwrap();
        let mut address = emit("10.77.0.9:80".parse().unwrap(), family);
        address[ip].fill(0);
        assert_eq!(it.posix.connect(fd, &address), Err(Errno::EINPROGRESS));
        it.posix.run_now();
        assert_eq!(it.posix.connect(fd, &address), Ok(()));
        let peer = it.posix.call(|t| t.getpeername(fd));
        assert_eq!(peer, Ok(emit("10.77.0.1:80".parse().unwrap(), family)));
    }
    let fd = it.posix.call(|t| t.socket(2, nonblocking, 0)).unwrap();
    for group in ["224.0.0.1:80", "255.255.255.255:80", "10.77.0.255:80"] {
        assert_eq!(
            it.posix.connect(fd, &at(group)),
            Err(Errno::ENETUNREACH),
            "{group}"
        );
    }
}
