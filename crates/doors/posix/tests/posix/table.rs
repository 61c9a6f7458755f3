//! The socket table over one stack with connections to itself, in virtual time.

#[path = "table/binding.rs"]
mod binding;
#[path = "table/early.rs"]
mod early;
#[path = "table/epolls.rs"]
mod epolls;
#[path = "table/holding.rs"]
mod holding;
#[path = "table/options.rs"]
mod options;
#[path = "table/states.rs"]
mod states;

use std::time::Duration;

use devmem_posix::abi::{IP_TOS, SOL_TCP, ctl, ev, fcntl, ioctl, so, tcp_opt};
use devmem_posix::sockaddr::{Family, emit};
use devmem_posix::{
    EpollEvent, PollFd, Posix, RecvArgs, SendArgs, Settings, Table, VirtualTime, Waiter,
};
use devmem_uapi::{
    CmsgIter, CmsgWriter, DevmemCmsg, DmabufCmsg, Errno, MsgFlags, SockExtendedErr, cmsg_space,
    sockopt, space_for,
};
use netmem::{Dmabuf, NiovSize};
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{Secret, Stack, StackConfig};
use wire::Instant;

const SOL_SOCKET: i32 = sockopt::SOL_SOCKET;

fn stack() -> (Stack, WireLink) {
    let (end, other) = WireLink::pair(WireOptions::default()).unwrap();
    let nic = Nic::new(Box::new(end), NicConfig::default()).unwrap();
    let config = StackConfig {
        addresses: vec![(ip("10.77.0.1"), 24), (ip("fd77::1"), 64)],
        ..StackConfig::new(ip("10.77.0.1"), 24, Secret::from_seed(1))
    };
    (Stack::new(nic, config).unwrap(), other)
}

fn ip(text: &str) -> std::net::IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> Vec<u8> {
    let address: std::net::SocketAddr = text.parse().unwrap();
    let family = if address.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    emit(address, family)
}

/// A table, and a connection between two of its files.
struct Loopback {
    posix: Posix<VirtualTime>,
    _other: WireLink,
    listener: i32,
    client: i32,
    server: i32,
}

fn table() -> (Posix<VirtualTime>, WireLink) {
    let (stack, other) = stack();
    let time = VirtualTime::new(stack, Settings::default(), Instant::from_millis(1));
    (Posix::new(time), other)
}

fn loopback() -> Loopback {
    let (posix, other) = table();
    connected(posix, other)
}

fn connected(posix: Posix<VirtualTime>, _other: WireLink) -> Loopback {
    let nonblocking = 1 | devmem_posix::abi::SOCK_NONBLOCK;
    let listener = posix.call(|t| t.socket(2, nonblocking, 0)).unwrap();
    posix
        .call(|t| t.bind(listener, &at("10.77.0.1:80")))
        .unwrap();
    posix.call(|t| t.listen(listener, 8)).unwrap();
    let client = posix.call(|t| t.socket(2, nonblocking, 0)).unwrap();
    assert_eq!(
        posix.connect(client, &at("10.77.0.1:80")),
        Err(Errno::EINPROGRESS)
    );
    posix.run_now();
    assert_eq!(posix.connect(client, &at("10.77.0.1:80")), Ok(()));
    let (server, peer) = posix
        .accept(listener, devmem_posix::abi::SOCK_NONBLOCK)
        .unwrap();
    assert_eq!(posix.call(|t| t.getsockname(client)), Ok(peer));
    Loopback {
        posix,
        _other,
        listener,
        client,
        server,
    }
}

impl Loopback {
    fn recv(&self, fd: i32, len: usize, flags: MsgFlags) -> Result<Vec<u8>, Errno> {
        let mut host = vec![0; len];
        let args = RecvArgs {
            host: &mut host,
            len,
            control: &mut [],
        };
        let received = self.posix.recv(fd, args, flags.bits())?;
        host.truncate(received.bytes);
        Ok(host)
    }

    fn send(&self, fd: i32, bytes: &[u8]) {
        let sent = self.posix.send(fd, SendArgs::new(bytes), 0);
        assert_eq!(sent, Ok(bytes.len()));
        self.posix.run_now();
    }
}

#[test]
fn files_that_are_not_open_are_ebadf_and_epolls_are_enotsock() {
    let (posix, _other) = table();
    let epoll = posix.call(|t| t.epoll_create(0)).unwrap();
    let closed = posix.call(|t| t.socket(2, 1, 0)).unwrap();
    posix.close(closed).unwrap();
    for (fd, errno) in [
        (closed, Errno::EBADF),
        (3, Errno::EBADF),
        (-1, Errno::EBADF),
        (i32::MIN, Errno::EBADF),
        (i32::MAX, Errno::EBADF),
        (epoll, Errno::ENOTSOCK),
    ] {
        let call = |outcome: Result<(), Errno>| assert_eq!(outcome, Err(errno), "{fd}");
        call(posix.call(|t| t.bind(fd, &at("0.0.0.0:1"))));
        call(posix.call(|t| t.listen(fd, 1)));
        call(posix.accept(fd, 0).map(drop));
        call(posix.connect(fd, &at("10.77.0.1:1")));
        call(posix.call(|t| t.shutdown(fd, 1)));
        call(
            posix
                .call(|t| t.getsockopt(fd, (SOL_SOCKET, so::ERROR)))
                .map(drop),
        );
        call(
            posix
                .call(|t| t.setsockopt(fd, (SOL_SOCKET, so::LINGER), &[0; 8]))
                .map(drop),
        );
        call(posix.call(|t| t.getsockname(fd)).map(drop));
        call(posix.send(fd, SendArgs::new(b"x"), 0).map(drop));
        let args = RecvArgs {
            host: &mut [0; 4],
            len: 4,
            control: &mut [],
        };
        call(posix.recv(fd, args, 0).map(drop));
    }
    assert_eq!(posix.close(closed), Err(Errno::EBADF));
    let mut nval = [
        PollFd {
            fd: closed,
            events: 1,
            revents: 0,
        },
        PollFd {
            fd: -1,
            events: 1,
            revents: 9,
        },
    ];
    assert_eq!(posix.poll(&mut nval, 0), Ok(1));
    assert_eq!((nval[0].revents, nval[1].revents), (0x20, 0));
}

#[test]
fn unsupported_socket_types_are_refused_as_in_linux() {
    let (posix, _other) = table();
    for (domain, kind, protocol, errno) in [
        (1, 1, 0, Errno::EAFNOSUPPORT),
        (2, 2, 0, Errno::EOPNOTSUPP),
        (2, 1, 17, Errno::EPROTONOSUPPORT),
        (2, 1, 262, Errno::EPROTONOSUPPORT),
        (2, 1, 263, Errno::EINVAL),
        (2, 1, -1, Errno::EINVAL),
        (2, 1 | 1 << 20, 0, Errno::EINVAL),
    ] {
        assert_eq!(posix.call(|t| t.socket(domain, kind, protocol)), Err(errno));
    }
    assert!(posix.call(|t| t.socket(10, 1, 6)).is_ok());
}

#[test]
fn an_address_is_bound_once_unless_both_sockets_allow_sharing() {
    let (posix, _other) = table();
    let socket = || posix.call(|t| t.socket(2, 1, 0)).unwrap();
    let bind = |fd, text: &str| posix.call(|t| t.bind(fd, &at(text)));
    let (a, b, c) = (socket(), socket(), socket());
    assert_eq!(bind(a, "10.77.0.9:80"), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(bind(a, "0.0.0.0:80"), Ok(()));
    assert_eq!(bind(a, "0.0.0.0:81"), Err(Errno::EINVAL), "bound already");
    assert_eq!(bind(b, "10.77.0.1:80"), Err(Errno::EADDRINUSE));
    let reuse =
        |fd| posix.call(|t| t.setsockopt(fd, (SOL_SOCKET, so::REUSEADDR), &1i32.to_ne_bytes()));
    reuse(a).unwrap();
    reuse(b).unwrap();
    assert_eq!(bind(b, "10.77.0.1:80"), Ok(()));
    assert_eq!(bind(c, "10.77.0.1:0"), Ok(()));
    let name = posix.call(|t| t.getsockname(c)).unwrap();
    assert!(u16::from_be_bytes([name[2], name[3]]) >= stack::EPHEMERAL_FIRST);
}

#[expect(
    clippy::too_many_lines,
    reason = "one scenario, read from top to bottom"
)]
#[test]
fn sends_and_receives_of_device_memory_have_the_kernels_control_messages() {
    let (posix, other) = table();
    let (sending, receiving) = (
        Dmabuf::anonymous(1 << 20).unwrap(),
        Dmabuf::anonymous(1 << 20).unwrap(),
    );
    let pattern: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
    sending.copy_in(4000, &pattern).unwrap();
    let tx = posix.call(|t| t.bind_tx(&sending)).unwrap();
    let rx = posix
        .call(|t| t.bind_rx(&receiving, NiovSize::MIN))
        .unwrap();
    let provider = posix.lock().stack().provider(rx).unwrap();
    let it = connected(posix, other);

    let mut control = vec![0; cmsg_space(4)];
    CmsgWriter::new(&mut control).push_tx_dmabuf(tx).unwrap();
    let ranges = [4000..9000, 9000..14_000];
    let args = SendArgs {
        address: &[],
        host: &[],
        ranges: &ranges,
        control: &control,
    };
    let send = || it.posix.send(it.client, args, MsgFlags::ZEROCOPY.bits());
    assert_eq!(send(), Err(Errno::EINVAL), "without SO_ZEROCOPY");
    let on = 1i32.to_ne_bytes();
    it.posix
        .call(|t| t.setsockopt(it.client, (SOL_SOCKET, so::ZEROCOPY), &on))
        .unwrap();
    assert_eq!(send(), Ok(10_000));
    it.posix.run_now();

    assert_eq!(
        it.recv(it.server, 100, MsgFlags::empty()),
        Err(Errno::EFAULT)
    );
    let mut seen = Vec::new();
    let mut tokens = Vec::new();
    while seen.len() < pattern.len() {
        let mut room = vec![0; space_for(2)];
        let args = RecvArgs {
            host: &mut [],
            len: 1 << 20,
            control: &mut room,
        };
        let received = it
            .posix
            .recv(it.server, args, MsgFlags::SOCK_DEVMEM.bits())
            .unwrap();
        for cmsg in CmsgIter::new(&room[..received.control_bytes]) {
            assert_eq!(
                (cmsg.level, cmsg.ty, cmsg.data.len()),
                (1, 79, size_of::<DmabufCmsg>())
            );
            let Some(DevmemCmsg::Dmabuf(frag)) = DevmemCmsg::parse(&cmsg) else {
                panic!("{cmsg:?}")
            };
            let mut bytes = vec![0; frag.frag_size as usize];
            receiving
                .copy_out(frag.frag_offset as usize, &mut bytes)
                .unwrap();
            seen.extend(bytes);
            tokens.extend([frag.frag_token.0.to_ne_bytes(), 1u32.to_ne_bytes()].concat());
        }
    }
    assert_eq!(seen, pattern);
    let dontneed = (SOL_SOCKET, sockopt::SO_DEVMEM_DONTNEED);
    let give = |value: &[u8]| it.posix.call(|t| t.setsockopt(it.server, dontneed, value));
    assert_eq!(give(&tokens[..7]), Err(Errno::EINVAL));
    assert_eq!(give(&tokens), Ok((tokens.len() / 8) as i32));
    assert_eq!(give(&tokens), Ok(0), "they are home");

    it.posix.sleep(Duration::from_secs(1));
    let mut room = [0; 64];
    let args = RecvArgs {
        host: &mut [],
        len: 0,
        control: &mut room,
    };
    let received = it
        .posix
        .recv(it.client, args, MsgFlags::ERRQUEUE.bits())
        .unwrap();
    assert_eq!(received.flags, MsgFlags::ERRQUEUE.bits());
    let entry = CmsgIter::new(&room)
        .find_map(|cmsg| SockExtendedErr::parse(&cmsg))
        .unwrap();
    assert_eq!(
        (entry.origin, entry.code, entry.info, entry.data),
        (5, 0, 0, 0)
    );

    it.posix.call(Table::close_all);
    it.posix.sleep(Duration::from_secs(100));
    it.posix.call(|t| t.unbind(rx)).unwrap();
    assert_eq!(provider.free_niovs(), provider.area().count());
}

#[expect(
    clippy::too_many_lines,
    reason = "one scenario, read from top to bottom"
)]
#[test]
fn options_return_the_value_that_was_set_and_unsupported_ones_are_refused() {
    let it = loopback();
    let int = |number: i32| number.to_ne_bytes().to_vec();
    for (name, set, got) in [
        ((SOL_TCP, tcp_opt::NODELAY), 1, 1),
        ((SOL_TCP, tcp_opt::CORK), 1, 1),
        ((SOL_TCP, tcp_opt::KEEPIDLE), 100, 100),
        ((SOL_TCP, tcp_opt::KEEPINTVL), 7, 7),
        ((SOL_TCP, tcp_opt::KEEPCNT), 3, 3),
        ((SOL_TCP, tcp_opt::USER_TIMEOUT), 5000, 5000),
        ((SOL_TCP, tcp_opt::LINGER2), 30, 30),
        ((SOL_TCP, tcp_opt::SYNCNT), 3, 3),
        ((SOL_TCP, tcp_opt::NOTSENT_LOWAT), 4096, 4096),
        ((SOL_TCP, tcp_opt::INQ), 1, 1),
        ((SOL_SOCKET, so::KEEPALIVE), 1, 1),
        ((SOL_SOCKET, so::RCVBUF), 50_000, 100_000),
        ((SOL_SOCKET, so::SNDBUF), 50_000, 100_000),
        ((SOL_SOCKET, so::RCVBUF), 1, 2304),
        ((SOL_SOCKET, so::RCVLOWAT), 10, 10),
        ((SOL_SOCKET, so::ZEROCOPY), 1, 1),
        ((SOL_SOCKET, so::REUSEADDR), 1, 1),
        ((sockopt::SOL_IP, IP_TOS), 0x10, 0x10),
    ] {
        let fd = it.client;
        assert_eq!(
            it.posix.call(|t| t.setsockopt(fd, name, &int(set))),
            Ok(0),
            "{name:?}"
        );
        assert_eq!(
            it.posix.call(|t| t.getsockopt(fd, name)),
            Ok(int(got)),
            "{name:?}"
        );
        assert_eq!(
            it.posix.call(|t| t.setsockopt(fd, name, &[])),
            Err(Errno::EINVAL),
            "{name:?}"
        );
    }
    for level in [SOL_SOCKET, SOL_TCP, sockopt::SOL_IP, sockopt::SOL_IPV6, 7] {
        let name = (level, 9999);
        assert_eq!(
            it.posix.call(|t| t.setsockopt(it.client, name, &int(1))),
            Err(Errno::ENOPROTOOPT)
        );
        assert_eq!(
            it.posix.call(|t| t.getsockopt(it.client, name)),
            Err(Errno::ENOPROTOOPT)
        );
    }
    let congestion = (SOL_TCP, tcp_opt::CONGESTION);
    let fresh = it.posix.call(|t| t.socket(2, 1, 0)).unwrap();
    let set = |fd, name: &[u8]| it.posix.call(|t| t.setsockopt(fd, congestion, name));
    assert_eq!(set(fresh, b"vegas"), Err(Errno::ENOENT));
    assert_eq!(set(fresh, b"reno\0"), Ok(0));
    assert_eq!(set(it.client, b"reno"), Ok(0));
    let name = it.posix.call(|t| t.getsockopt(fresh, congestion)).unwrap();
    assert_eq!(&name[..5], b"reno\0");
    assert_eq!(
        it.posix
            .call(|t| t.getsockopt(it.server, (SOL_TCP, tcp_opt::INFO)))
            .unwrap()[0],
        1
    );
    assert_eq!(
        it.posix
            .call(|t| t.getsockopt(it.listener, (SOL_TCP, tcp_opt::INFO)))
            .unwrap()[0],
        10
    );
    assert_eq!(
        it.posix
            .call(|t| t.getsockopt(it.listener, (SOL_SOCKET, so::ACCEPTCONN))),
        Ok(int(1))
    );
    assert_eq!(
        it.posix.call(|t| t.fcntl(it.client, fcntl::GETFL, 0)),
        Ok(0o4002)
    );
    assert_eq!(
        it.posix.call(|t| t.fcntl(it.client, 9999, 0)),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        it.posix.call(|t| t.ioctl(it.client, 9999)),
        Err(Errno::ENOTTY)
    );
    assert_eq!(
        it.posix.call(|t| t.ioctl(it.listener, ioctl::SIOCINQ)),
        Err(Errno::EINVAL)
    );
}

#[test]
fn a_peek_leaves_the_bytes_and_inq_says_how_many_are_left() {
    let it = loopback();
    it.send(it.client, b"hello world");
    assert_eq!(it.recv(it.server, 5, MsgFlags::PEEK), Ok(b"hello".to_vec()));
    it.posix
        .call(|t| t.setsockopt(it.server, (SOL_TCP, tcp_opt::INQ), &1i32.to_ne_bytes()))
        .unwrap();
    let (mut host, mut control) = ([0; 5], [0; 64]);
    let args = RecvArgs {
        host: &mut host,
        len: 5,
        control: &mut control,
    };
    let received = it.posix.recv(it.server, args, 0).unwrap();
    assert_eq!((received.bytes, &host), (5, b"hello"));
    let cmsg = CmsgIter::new(&control[..received.control_bytes])
        .next()
        .unwrap();
    assert_eq!(
        (cmsg.level, cmsg.ty, cmsg.data),
        (6, 36, &6i32.to_ne_bytes()[..])
    );
    assert_eq!(it.posix.call(|t| t.ioctl(it.server, ioctl::SIOCINQ)), Ok(6));
    assert_eq!(
        it.recv(it.server, 6, MsgFlags::TRUNC),
        Ok(vec![0; 6]),
        "discarded"
    );
    assert_eq!(it.recv(it.server, 6, MsgFlags::empty()), Err(Errno::EAGAIN));
    // The end of the stream counts as one byte.
    it.send(it.client, b"bye");
    it.posix.call(|t| t.shutdown(it.client, 1)).unwrap();
    it.posix.run_now();
    let (mut host, mut control) = ([0; 3], [0; 64]);
    let args = RecvArgs {
        host: &mut host,
        len: 3,
        control: &mut control,
    };
    let received = it.posix.recv(it.server, args, 0).unwrap();
    let cmsg = CmsgIter::new(&control[..received.control_bytes]).next();
    assert_eq!(cmsg.unwrap().data, &1i32.to_ne_bytes()[..]);
}

#[test]
fn an_exclusive_watch_without_a_waiting_thread_is_like_any_other() {
    let it = loopback();
    let epolls: Vec<i32> = (0..4)
        .map(|_| it.posix.call(|t| t.epoll_create(0)).unwrap())
        .collect();
    for (at, epoll) in epolls.iter().enumerate() {
        let exclusive = if at < 2 { ev::EXCLUSIVE } else { 0 };
        let event = EpollEvent {
            events: ev::IN | ev::ET | exclusive,
            data: 7,
        };
        it.posix
            .call(|t| t.epoll_ctl(*epoll, ctl::ADD, it.server, event))
            .unwrap();
        assert_eq!(it.posix.epoll_wait(*epoll, 8, 0), Ok(vec![]));
    }
    it.send(it.client, b"x");
    let woken = |epoll: &i32| it.posix.epoll_wait(*epoll, 8, 0).unwrap().len();
    let woken: Vec<usize> = epolls.iter().map(woken).collect();
    // No thread waits, so no thread can be woken needlessly, and every epoll has the event.
    assert_eq!(woken, [1, 1, 1, 1]);
    let event = EpollEvent {
        events: ev::IN,
        data: 0,
    };
    let change = |operation, fd| {
        it.posix
            .call(|t| t.epoll_ctl(epolls[0], operation, fd, event))
    };
    assert_eq!(
        change(ctl::MOD, it.server),
        Err(Errno::EINVAL),
        "it is exclusive"
    );
    assert_eq!(change(ctl::ADD, it.server), Err(Errno::EEXIST));
    assert_eq!(change(ctl::DEL, it.client), Err(Errno::ENOENT));
    assert_eq!(change(ctl::ADD, epolls[0]), Err(Errno::EINVAL), "itself");
    // A closed file has no watchers.
    it.posix.close(it.server).unwrap();
    assert_eq!(woken_after_close(&it, epolls[2]), 0);
}

fn woken_after_close(it: &Loopback, epoll: i32) -> usize {
    it.posix.epoll_wait(epoll, 8, 0).unwrap().len()
}

#[test]
fn an_ipv6_socket_speaks_ipv4_unless_told_not_to() {
    let (posix, _other) = table();
    let nonblocking = 1 | devmem_posix::abi::SOCK_NONBLOCK;
    let listener = posix.call(|t| t.socket(10, nonblocking, 0)).unwrap();
    posix.call(|t| t.bind(listener, &at("[::]:80"))).unwrap();
    posix.call(|t| t.listen(listener, 1)).unwrap();
    for remote in ["10.77.0.1:80", "[fd77::1]:80"] {
        let domain = if remote.starts_with('[') { 10 } else { 2 };
        let client = posix.call(|t| t.socket(domain, nonblocking, 0)).unwrap();
        assert_eq!(posix.connect(client, &at(remote)), Err(Errno::EINPROGRESS));
        posix.run_now();
        let (_, peer) = posix.accept(listener, 0).unwrap();
        assert_eq!(peer.len(), 28, "{remote}: an IPv4 address is mapped");
    }
    let only = posix.call(|t| t.socket(10, nonblocking, 0)).unwrap();
    let v6_only = (sockopt::SOL_IPV6, devmem_posix::abi::IPV6_V6ONLY);
    posix
        .call(|t| t.setsockopt(only, v6_only, &1i32.to_ne_bytes()))
        .unwrap();
    let mapped = emit("10.77.0.1:80".parse().unwrap(), Family::V6);
    assert_eq!(posix.connect(only, &mapped), Err(Errno::ENETUNREACH));
}

#[test]
fn virtual_time_advances_only_when_the_driver_advances_it() {
    let it = loopback();
    let before = it.posix.waiter().now();
    it.send(it.client, b"x");
    assert_eq!(it.posix.waiter().now(), before);
    it.posix.sleep(Duration::from_secs(5));
    assert_eq!(it.posix.waiter().now(), before + Duration::from_secs(5));
}

/// A program that polls never asks connect for its outcome.
#[test]
fn a_connection_is_usable_without_a_second_connect_call() {
    let it = loopback();
    let (posix, fd) = (&it.posix, posix_socket(&it.posix));
    let to = at("10.77.0.1:80");
    assert_eq!(posix.connect(fd, &to), Err(Errno::EINPROGRESS));
    assert_eq!(
        posix.call(|t| t.getpeername(fd)),
        Err(Errno::ENOTCONN),
        "not yet"
    );
    posix.run_now();
    assert_eq!(posix.call(|t| t.getpeername(fd)), Ok(to.clone()));
    let (server, _) = posix.accept(it.listener, 0).unwrap();
    let linger = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
    let set = posix.call(|t| t.setsockopt(server, (SOL_SOCKET, so::LINGER), &linger));
    assert_eq!(set, Ok(0));
    posix.close(server).unwrap();
    posix.run_now();
    // The error is reported once. The socket was connected, so it is not the outcome of a connect call.
    let error = |expected: Errno| {
        let bytes = posix.call(|t| t.getsockopt(fd, (SOL_SOCKET, so::ERROR)));
        assert_eq!(bytes.unwrap(), expected.0.to_ne_bytes());
    };
    error(Errno::ECONNRESET);
    error(Errno(0));
    assert_eq!(it.recv(fd, 1, MsgFlags::empty()), Ok(Vec::new()));
}

#[test]
fn after_so_error_returned_the_error_of_connect_the_next_connect_is_econnaborted_and_a_third_begins()
 {
    let (posix, _other) = table();
    let fd = posix_socket(&posix);
    let to = at("10.77.0.1:81");
    assert_eq!(posix.connect(fd, &to), Err(Errno::EINPROGRESS));
    posix.run_now();
    let error = posix.call(|t| t.getsockopt(fd, (SOL_SOCKET, so::ERROR)));
    assert_eq!(error.unwrap(), Errno::ECONNREFUSED.0.to_ne_bytes());
    assert_eq!(posix.connect(fd, &to), Err(Errno::ECONNABORTED));
    assert_eq!(posix.connect(fd, &to), Err(Errno::EINPROGRESS));
    posix.run_now();
    assert_eq!(posix.connect(fd, &to), Err(Errno::ECONNREFUSED));
}

/// A non-blocking socket.
fn posix_socket(posix: &Posix<VirtualTime>) -> i32 {
    let kind = 1 | devmem_posix::abi::SOCK_NONBLOCK;
    posix.call(|t| t.socket(2, kind, 0)).unwrap()
}

#[test]
fn a_disconnected_socket_keeps_what_it_was_bound_to_and_no_other_port() {
    let it = loopback();
    let unspec = [0; 16];
    let port_of = |fd| {
        let name = it.posix.call(|t| t.getsockname(fd)).unwrap();
        u16::from_be_bytes([name[2], name[3]])
    };
    assert_ne!(port_of(it.client), 0);
    it.posix.connect(it.client, &unspec).unwrap();
    assert_eq!(port_of(it.client), 0, "the stack had chosen it");
    assert_eq!(port_of(it.server), 80, "the listener's");
    it.posix.connect(it.server, &unspec).unwrap();
    assert_eq!(port_of(it.server), 0);
    let bound = it.posix.call(|t| t.socket(2, 1, 0)).unwrap();
    it.posix
        .call(|t| t.bind(bound, &at("10.77.0.1:4000")))
        .unwrap();
    it.posix.connect(bound, &unspec).unwrap();
    assert_eq!(port_of(bound), 4000, "the program's");
}

#[test]
fn tcp_syncnt_counts_for_a_syn_that_was_sent() {
    let (posix, _other) = table();
    let nonblocking = 1 | devmem_posix::abi::SOCK_NONBLOCK;
    let fd = posix.call(|t| t.socket(2, nonblocking, 0)).unwrap();
    let peer = at("10.77.0.2:80");
    assert_eq!(posix.connect(fd, &peer), Err(Errno::EINPROGRESS));
    let one = 1i32.to_ne_bytes();
    posix
        .call(|t| t.setsockopt(fd, (SOL_TCP, tcp_opt::SYNCNT), &one))
        .unwrap();
    posix.sleep(Duration::from_secs(60));
    let outcome = posix.connect(fd, &peer);
    assert!(
        outcome.is_err() && outcome != Err(Errno::EALREADY),
        "{outcome:?}"
    );
}
