//! Tests of the stack's Rust interface, repeated through files: IPv4 and IPv6, non-blocking, in virtual time.

use std::time::Duration;

use devmem_posix::abi::{SOCK_NONBLOCK, SOL_TCP, ev, so, tcp_opt};
use devmem_posix::sockaddr::{Family, emit};
use devmem_posix::{PollFd, Posix, RecvArgs, SendArgs, Settings, VirtualTime};
use devmem_uapi::{CmsgIter, DevmemCmsg, Errno, MsgFlags, sockopt, space_for};
use netmem::{Dmabuf, NiovSize};
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{Secret, Stack, StackConfig};
use wire::Instant;

const SOL_SOCKET: i32 = sockopt::SOL_SOCKET;
const DONTNEED: (i32, i32) = (SOL_SOCKET, sockopt::SO_DEVMEM_DONTNEED);

/// A stack with a connection to itself, and both ends of that connection.
struct World {
    posix: Posix<VirtualTime>,
    _wire: WireLink,
    client: i32,
    server: i32,
}

fn address(v6: bool, port: u16) -> Vec<u8> {
    let (ip, family) = match v6 {
        true => ("fd77::1", Family::V6),
        false => ("10.77.0.1", Family::V4),
    };
    emit(
        (ip.parse::<std::net::IpAddr>().unwrap(), port).into(),
        family,
    )
}

fn world(v6: bool) -> World {
    let (end, wire) = WireLink::pair(WireOptions::default()).unwrap();
    let nic = Nic::new(Box::new(end), NicConfig::default()).unwrap();
    let ip = |text: &str| text.parse().unwrap();
    let config = StackConfig {
        addresses: vec![(ip("10.77.0.1"), 24), (ip("fd77::1"), 64)],
        ..StackConfig::new(ip("10.77.0.1"), 24, Secret::from_seed(3))
    };
    let stack = Stack::new(nic, config).unwrap();
    let time = VirtualTime::new(stack, Settings::default(), Instant::from_millis(1));
    let posix = Posix::new(time);
    let socket = || {
        let domain = if v6 { 10 } else { 2 };
        posix
            .call(|t| t.socket(domain, 1 | SOCK_NONBLOCK, 0))
            .unwrap()
    };
    let (listener, client) = (socket(), socket());
    posix.call(|t| t.bind(listener, &address(v6, 80))).unwrap();
    posix.call(|t| t.listen(listener, 8)).unwrap();
    let begun = posix.connect(client, &address(v6, 80));
    assert_eq!(begun, Err(Errno::EINPROGRESS));
    posix.run_now();
    assert_eq!(posix.connect(client, &address(v6, 80)), Ok(()));
    let (server, _) = posix.accept(listener, SOCK_NONBLOCK).unwrap();
    World {
        posix,
        _wire: wire,
        client,
        server,
    }
}

impl World {
    fn send(&self, fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let sent = self.posix.send(fd, SendArgs::new(bytes), 0);
        self.posix.run_now();
        sent
    }

    fn recv(&self, fd: i32, len: usize) -> Result<Vec<u8>, Errno> {
        let mut host = vec![0; len];
        let args = RecvArgs {
            host: &mut host,
            len,
            control: &mut [],
        };
        let n = self.posix.recv(fd, args, 0)?.bytes;
        self.posix.run_now();
        host.truncate(n);
        Ok(host)
    }

    /// Returns all bits that poll(2) reports.
    fn ready(&self, fd: i32) -> u32 {
        let mut fds = [PollFd {
            fd,
            events: u16::MAX,
            revents: 0,
        }];
        self.posix.poll(&mut fds, 0).unwrap();
        fds[0].revents.into()
    }

    fn set(&self, fd: i32, name: (i32, i32), value: &[u8]) -> Result<i32, Errno> {
        self.posix.call(|t| t.setsockopt(fd, name, value))
    }
}

/// Bytes that count to 250 again and again, copied: a closure for each byte takes seconds without optimisation.
fn pattern(len: usize) -> Vec<u8> {
    let count: Vec<u8> = (0..251).collect();
    let mut bytes = count.repeat(len.div_ceil(count.len()));
    bytes.truncate(len);
    bytes
}

#[test]
fn bytes_go_both_ways_and_a_full_queue_is_eagain_until_the_peer_reads() {
    for v6 in [false, true] {
        let it = world(v6);
        for (from, to) in [(it.client, it.server), (it.server, it.client)] {
            assert_eq!(it.recv(to, 1), Err(Errno::EAGAIN));
            let bytes = pattern(32 << 20);
            let (mut sent, mut seen) = (0, Vec::new());
            let mut was_full = false;
            while seen.len() < bytes.len() {
                while sent < bytes.len() {
                    match it.send(from, &bytes[sent..]) {
                        Ok(n) => sent += n,
                        Err(errno) => {
                            assert_eq!(errno, Errno::EAGAIN);
                            assert_eq!(it.ready(from) & ev::OUT, 0);
                            was_full = true;
                            break;
                        }
                    }
                }
                match it.recv(to, 1 << 20) {
                    Ok(more) => seen.extend(more),
                    Err(errno) => {
                        assert_eq!(errno, Errno::EAGAIN);
                        it.posix.sleep(Duration::from_millis(1));
                    }
                }
            }
            assert!(was_full, "more was sent than the queue can hold");
            assert!(seen == bytes, "the bytes differ from those sent");
            it.posix.sleep(Duration::from_secs(1));
            assert_eq!(it.ready(from) & ev::OUT, ev::OUT);
        }
    }
}

#[test]
fn one_direction_of_a_connection_works_after_the_other_was_shut_down() {
    for v6 in [false, true] {
        let it = world(v6);
        it.send(it.client, b"question").unwrap();
        it.posix.call(|t| t.shutdown(it.client, 1)).unwrap();
        it.posix.run_now();
        assert_eq!(it.send(it.client, b"more"), Err(Errno::EPIPE));
        let bits = ev::IN | ev::RDNORM | ev::RDHUP | ev::OUT | ev::WRNORM;
        assert_eq!(it.ready(it.server), bits);
        assert_eq!(it.recv(it.server, 100).unwrap(), b"question");
        assert_eq!(it.recv(it.server, 100).unwrap(), b"");
        it.send(it.server, b"answer").unwrap();
        assert_eq!(it.recv(it.client, 100).unwrap(), b"answer");
        it.posix.close(it.server).unwrap();
        it.posix.run_now();
        assert_eq!(it.recv(it.client, 100).unwrap(), b"");
        assert_eq!(it.ready(it.client) & (ev::HUP | ev::ERR), ev::HUP);
    }
}

#[test]
fn a_reset_is_reported_once_and_then_the_stream_has_ended() {
    for v6 in [false, true] {
        let it = world(v6);
        let linger = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
        it.set(it.client, (SOL_SOCKET, so::LINGER), &linger)
            .unwrap();
        it.posix.close(it.client).unwrap();
        it.posix.run_now();
        let bits = ev::IN | ev::ERR | ev::HUP;
        assert_eq!(it.ready(it.server) & bits, bits);
        assert_eq!(it.recv(it.server, 10), Err(Errno::ECONNRESET));
        assert_eq!(it.recv(it.server, 10).unwrap(), b"");
        assert_eq!(it.send(it.server, b"x"), Err(Errno::EPIPE));
    }
}

#[test]
fn a_port_without_a_listener_refuses_connections() {
    for v6 in [false, true] {
        let it = world(v6);
        let domain = if v6 { 10 } else { 2 };
        let posix = &it.posix;
        let fd = posix
            .call(|t| t.socket(domain, 1 | SOCK_NONBLOCK, 0))
            .unwrap();
        let begun = posix.connect(fd, &address(v6, 81));
        assert_eq!(begun, Err(Errno::EINPROGRESS));
        posix.run_now();
        let error = posix.call(|t| t.getsockopt(fd, (SOL_SOCKET, so::ERROR)));
        assert_eq!(error.unwrap(), Errno::ECONNREFUSED.0.to_ne_bytes());
    }
}

#[test]
fn a_connection_to_a_silent_peer_ends_after_tcp_user_timeout() {
    let it = world(false);
    let fd = it.client;
    it.set(fd, (SOL_TCP, tcp_opt::USER_TIMEOUT), &3000i32.to_ne_bytes())
        .unwrap();
    // The window is zero: the server's queue is full, and it never reads.
    while it.send(fd, &pattern(1 << 20)).is_ok() {}
    it.posix.sleep(Duration::from_secs(2));
    assert_eq!(it.ready(fd) & ev::ERR, 0);
    it.posix.sleep(Duration::from_secs(600));
    assert_eq!(it.recv(fd, 1), Err(Errno::ETIMEDOUT));
}

#[test]
fn data_from_before_a_binding_is_in_host_memory_and_data_from_after_it_in_device_memory() {
    for v6 in [false, true] {
        let it = world(v6);
        it.send(it.client, &[1; 100]).unwrap();
        let memory = Dmabuf::anonymous(1 << 20).unwrap();
        it.posix
            .call(|t| t.bind_rx(&memory, NiovSize::MIN))
            .unwrap();
        it.send(it.client, &[2; 200]).unwrap();
        // Nagle: it is sent after the delayed ACK of the first.
        it.posix.sleep(Duration::from_secs(1));
        let (mut plain, mut device) = (Vec::new(), Vec::new());
        let mut tokens = Vec::new();
        while plain.len() + device.len() < 300 {
            let (mut host, mut room) = ([0; 300], vec![0; space_for(4)]);
            let args = RecvArgs {
                host: &mut host,
                len: 300,
                control: &mut room,
            };
            let flags = MsgFlags::SOCK_DEVMEM.bits();
            let received = it.posix.recv(it.server, args, flags).unwrap();
            // Readable packets are received separately and without a control message.
            plain.extend_from_slice(&host[..received.host_bytes]);
            for cmsg in CmsgIter::new(&room[..received.control_bytes]) {
                match DevmemCmsg::parse(&cmsg).unwrap() {
                    DevmemCmsg::Linear(_) => panic!("no packet of both kinds was sent"),
                    DevmemCmsg::Dmabuf(frag) => {
                        assert_eq!((cmsg.level, cmsg.ty, cmsg.data.len()), (1, 79, 24));
                        let mut bytes = vec![0; frag.frag_size as usize];
                        let at = frag.frag_offset as usize;
                        memory.copy_out(at, &mut bytes).unwrap();
                        device.extend(bytes);
                        tokens.extend([frag.frag_token.0, 1].map(u32::to_ne_bytes).concat());
                    }
                }
            }
        }
        assert_eq!((plain, device), (vec![1; 100], vec![2; 200]));
        let freed = i32::try_from(tokens.len() / 8).unwrap();
        assert_eq!(it.set(it.server, DONTNEED, &tokens), Ok(freed));
    }
}

#[test]
fn a_plain_receive_of_device_memory_is_efault_and_leaves_the_data_queued() {
    let it = world(false);
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    it.posix
        .call(|t| t.bind_rx(&memory, NiovSize::MIN))
        .unwrap();
    it.send(it.client, &[9; 50]).unwrap();
    assert_eq!(it.recv(it.server, 50), Err(Errno::EFAULT));
    let recv = |room: &mut [u8]| {
        let args = RecvArgs {
            host: &mut [],
            len: 50,
            control: room,
        };
        let received = it.posix.recv(it.server, args, MsgFlags::SOCK_DEVMEM.bits());
        received.map(|received| (received.bytes, received.control_bytes))
    };
    assert_eq!(recv(&mut []), Err(stack::ETOOSMALL));
    assert_eq!(recv(&mut vec![0; space_for(1)]), Ok((50, space_for(1))));
}

#[test]
fn dontneed_accepts_complete_tokens_and_at_most_128_ranges_and_1024_frags() {
    let it = world(false);
    let ranges = |ranges: usize, count: u32| {
        let one = [0x7000_0000u32.to_ne_bytes(), count.to_ne_bytes()].concat();
        one.repeat(ranges)
    };
    let set = |value: &[u8]| it.set(it.server, DONTNEED, value);
    assert_eq!(set(&ranges(1, 1)[..7]), Err(Errno::EINVAL));
    assert_eq!(set(&ranges(129, 1)), Err(Errno::EINVAL));
    assert_eq!(set(&ranges(128, 1)), Ok(0));
    assert_eq!(set(&ranges(1, u32::MAX)), Ok(0));
}
