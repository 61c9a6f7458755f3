// UNSAFETY: makes the calls as C does, with memory that ends exactly where it is said to, so that Miri and
// AddressSanitizer see every byte too many.

//! C's side of the calls, in virtual time, over a stack that talks to itself.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use devmem_posix::abi::{SOCK_NONBLOCK, ctl, ev, so};
use devmem_posix::sockaddr::{Family, emit};
use devmem_posix::{Posix, Settings, VirtualTime};
use devmem_uapi::{Errno, MsgFlags, sockopt::SOL_SOCKET};
use libc::{epoll_event, iovec, msghdr, pollfd, sockaddr};
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{Secret, Stack, StackConfig};
use wire::Instant;

use super::call;

/// Makes a call.
macro_rules! c {
    ($call:expr) => {
        // SAFETY: each pointer that a test gives is null, or that of memory which it owns, as long as it says.
        unsafe { $call }
    };
}

struct World {
    posix: Posix<VirtualTime>,
    _other: WireLink,
    client: i32,
    server: i32,
}

fn world() -> World {
    let (end, other) = WireLink::pair(WireOptions::default()).unwrap();
    let small = NicConfig {
        host_mem_bytes: 256 << 10,
        ..NicConfig::default()
    };
    let nic = Nic::new(Box::new(end), small).unwrap();
    let ours = "10.77.0.1".parse().unwrap();
    let stack = Stack::new(nic, StackConfig::new(ours, 24, Secret::from_seed(2))).unwrap();
    let time = VirtualTime::new(stack, Settings::default(), Instant::from_millis(1));
    let posix = Posix::new(time);
    let [listener, client] =
        [(); 2].map(|()| posix.call(|t| t.socket(2, 1 | SOCK_NONBLOCK, 0)).unwrap());
    let address = address();
    let (at, len) = (address.as_ptr().cast::<sockaddr>(), 16);
    assert_eq!(c!(call::bind(&posix, listener, at, len)), Ok(()));
    assert_eq!(posix.call(|t| t.listen(listener, 1)), Ok(()));
    let begun = c!(call::connect(&posix, client, at, len));
    assert_eq!(begun, Err(Errno::EINPROGRESS));
    posix.run_now();
    let (mut peer, mut room) = (exactly(16), 16);
    let to = peer.as_mut_ptr().cast::<sockaddr>();
    let server = c!(call::accept(
        &posix,
        listener,
        to,
        &raw mut room,
        SOCK_NONBLOCK
    ))
    .unwrap();
    assert_eq!((room, &peer[4..8]), (16, &[10, 77, 0, 1][..]));
    World {
        posix,
        _other: other,
        client,
        server,
    }
}

fn address() -> Box<[u8]> {
    emit("10.77.0.1:80".parse().unwrap(), Family::V4).into()
}

/// Memory of so many bytes and not one more.
fn exactly(bytes: usize) -> Box<[u8]> {
    vec![0xee; bytes].into()
}

fn entry(bytes: &mut [u8]) -> iovec {
    iovec {
        iov_base: bytes.as_mut_ptr().cast::<c_void>(),
        iov_len: bytes.len(),
    }
}

fn message(entries: &mut [iovec]) -> msghdr {
    msghdr {
        msg_name: null_mut(),
        msg_namelen: 7,
        msg_iov: entries.as_mut_ptr(),
        msg_iovlen: entries.len(),
        msg_control: null_mut(),
        msg_controllen: 0,
        msg_flags: -1,
    }
}

#[test]
fn messages_move_bytes_through_vectors_that_end_anywhere() {
    let it = world();
    let mut pieces: Vec<Box<[u8]>> = vec![(*b"a").into(), Box::new([]), (*b"bcdefgh").into()];
    let mut entries: Vec<iovec> = pieces.iter_mut().map(|piece| entry(piece)).collect();
    let msg = message(&mut entries);
    assert_eq!(
        c!(call::sendmsg(&it.posix, it.client, &raw const msg, 0)),
        Ok(8)
    );
    it.posix.run_now();

    let (mut first, mut second) = (exactly(3), exactly(2));
    let mut entries = [entry(&mut first), entry(&mut second)];
    let mut msg = message(&mut entries);
    assert_eq!(
        c!(call::recvmsg(&it.posix, it.server, &raw mut msg, 0)),
        Ok(5)
    );
    assert_eq!((msg.msg_namelen, msg.msg_flags), (0, 0));
    assert_eq!((&first[..], &second[..]), (&b"abc"[..], &b"de"[..]));
    let mut rest = exactly(3);
    let entries = [entry(&mut rest)];
    assert_eq!(
        c!(call::readv(&it.posix, it.server, entries.as_ptr(), 1)),
        Ok(3)
    );
    assert_eq!(rest[..], b"fgh"[..]);
    // What is discarded needs no memory.
    assert_eq!(
        c!(call::send(
            &it.posix,
            it.client,
            b"gone".as_ptr().cast(),
            4,
            0
        )),
        Ok(4)
    );
    it.posix.run_now();
    let trunc = MsgFlags::TRUNC.bits().cast_signed();
    assert_eq!(
        c!(call::recv(&it.posix, it.server, null_mut(), 4, trunc)),
        Ok(4)
    );
}

#[test]
fn short_buffers_get_what_fits() {
    let it = world();
    let (posix, fd) = (&it.posix, it.client);
    for room in 0..=17 {
        let (mut name, mut len) = (exactly(room), u32::try_from(room).unwrap());
        let to = name.as_mut_ptr().cast::<sockaddr>();
        let end = call::SocketEnd::Peer;
        assert_eq!(c!(call::name(posix, fd, end, to, &raw mut len)), Ok(()));
        let told = room.min(16);
        assert_eq!((len, &name[..told]), (16, &address()[..told]));
        let (mut value, mut len) = (exactly(room), u32::try_from(room).unwrap());
        let to = value.as_mut_ptr().cast::<c_void>();
        assert_eq!(
            c!(call::getsockopt(
                posix,
                fd,
                SOL_SOCKET,
                so::TYPE,
                to,
                &raw mut len
            )),
            Ok(())
        );
        assert_eq!(len, u32::try_from(room.min(4)).unwrap());
        assert!(value.iter().skip(4).all(|byte| *byte == 0xee));
    }
}

#[test]
fn the_length_of_an_option_is_not_negative_and_its_address_not_null() {
    let it = world();
    let (posix, fd) = (&it.posix, it.client);
    let (level, name) = (SOL_SOCKET, so::TYPE);
    let (mut byte, mut negative) = (exactly(1), u32::MAX);
    let to = byte.as_mut_ptr().cast::<c_void>();
    assert_eq!(
        c!(call::getsockopt(
            posix,
            fd,
            level,
            name,
            to,
            &raw mut negative
        )),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        c!(call::getsockopt(
            posix,
            fd,
            level,
            name,
            null_mut(),
            null_mut()
        )),
        Err(Errno::EFAULT)
    );
    let huge = byte.as_ptr().cast::<c_void>();
    assert_eq!(
        c!(call::setsockopt(posix, fd, level, name, huge, u32::MAX)),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        c!(call::setsockopt(posix, fd, level, name, null(), 4)),
        Err(Errno::EFAULT)
    );
}

#[test]
fn null_buffers_are_efault() {
    let it = world();
    let (posix, fd) = (&it.posix, it.client);
    assert_eq!(c!(call::bind(posix, fd, null(), 16)), Err(Errno::EFAULT));
    assert_eq!(
        c!(call::recv(posix, fd, null_mut(), 1, 0)),
        Err(Errno::EFAULT)
    );
    assert_eq!(c!(call::send(posix, fd, null(), 1, 0)), Err(Errno::EFAULT));
    assert_eq!(
        c!(call::recvmsg(posix, fd, null_mut(), 0)),
        Err(Errno::EFAULT)
    );
    assert_eq!(c!(call::sendmsg(posix, fd, null(), 0)), Err(Errno::EFAULT));
    assert_eq!(c!(call::readv(posix, fd, null(), 1)), Err(Errno::EFAULT));
    assert_eq!(
        c!(call::ioctl(posix, fd, 0x541b, null_mut())),
        Err(Errno::EFAULT)
    );
}

#[test]
fn a_read_of_nothing_asks_the_socket_nothing() {
    let it = world();
    let posix = &it.posix;
    let fresh = posix.call(|t| t.socket(2, 1, 0)).unwrap();
    let epoll = posix.call(|t| t.epoll_create(0)).unwrap();
    for (fd, read) in [
        (fresh, Ok(0)),
        (it.client, Ok(0)),
        (epoll, Err(Errno::EINVAL)),
        (99, Err(Errno::EBADF)),
    ] {
        assert_eq!(c!(call::read_file(posix, fd, null_mut(), 0)), read, "{fd}");
        assert_eq!(c!(call::readv(posix, fd, null(), 0)), read, "{fd}");
    }
    let received = c!(call::recv(posix, fresh, null_mut(), 0, 0));
    assert_eq!(received, Err(Errno::ENOTCONN));
}

#[test]
fn a_stream_returns_no_address_and_says_so() {
    let it = world();
    let posix = &it.posix;
    assert_eq!(
        c!(call::send(posix, it.client, b"ab".as_ptr().cast(), 2, 0)),
        Ok(2)
    );
    posix.run_now();
    let (mut bytes, mut peer, mut room) = (exactly(1), exactly(16), 16);
    let buf = bytes.as_mut_ptr().cast::<c_void>();
    let to = peer.as_mut_ptr().cast::<sockaddr>();
    let from = c!(call::recvfrom(
        posix,
        it.server,
        buf,
        1,
        0,
        to,
        &raw mut room
    ));
    assert_eq!((from, room), (Ok(1), 0));
    assert!(peer.iter().all(|byte| *byte == 0xee));
    let from = c!(call::recvfrom(posix, it.server, buf, 1, 0, to, null_mut()));
    assert_eq!(from, Err(Errno::EFAULT));
}

#[test]
fn the_name_of_a_message_has_a_length_as_in_linux() {
    let it = world();
    let posix = &it.posix;
    let mut long = exactly(200);
    let at = long.as_mut_ptr();
    let byte = b"x".as_ptr().cast::<c_void>();
    for (len, sent) in [
        (0, Ok(1)),
        (3, Ok(1)),
        (128, Ok(1)),
        (129, Err(Errno::EINVAL)),
        (u32::MAX, Err(Errno::EINVAL)),
    ] {
        let to = c!(call::sendto(posix, it.client, byte, 1, 0, at.cast(), len));
        assert_eq!(to, sent, "{len}");
    }
    let mut bytes = exactly(1);
    let mut entries = [entry(&mut bytes)];
    let mut msg = message(&mut entries);
    msg.msg_name = at.cast();
    for (len, moved) in [(200, Ok(1)), (u32::MAX, Err(Errno::EINVAL))] {
        msg.msg_namelen = len;
        let sent = c!(call::sendmsg(posix, it.client, &raw const msg, 0));
        assert_eq!(sent, moved, "{len}");
        posix.run_now();
        let received = c!(call::recvmsg(posix, it.server, &raw mut msg, 0));
        assert_eq!(received, moved, "{len}");
    }
}

#[test]
fn control_messages_that_no_send_has_are_refused() {
    let it = world();
    let mut bytes = exactly(1);
    let mut entries = [entry(&mut bytes)];
    let mut control = exactly(24);
    let mut msg = message(&mut entries);
    msg.msg_controllen = control.len();
    let send = |msg: &msghdr| c!(call::sendmsg(&it.posix, it.client, msg, 0));
    assert_eq!(send(&msg), Err(Errno::EFAULT), "no memory for the messages");
    for (level, kind, sent) in [
        (SOL_SOCKET, 999, Err(Errno::EINVAL)),
        (SOL_SOCKET, libc::SCM_RIGHTS, Ok(1)),
        (77, 999, Ok(1)),
    ] {
        let words = [20, 0, level, kind, 0, 0].map(i32::to_ne_bytes);
        control.copy_from_slice(&words.concat());
        msg.msg_control = control.as_mut_ptr().cast();
        assert_eq!(send(&msg), sent, "{level} {kind}");
    }
}

#[test]
fn half_of_a_cookie_is_none() {
    let it = world();
    for (room, told) in [(4, Err(Errno::EINVAL)), (8, Ok(()))] {
        let (mut value, mut len) = (exactly(8), room);
        let to = value.as_mut_ptr().cast::<c_void>();
        let asked = call::getsockopt;
        let cookie = c!(asked(
            &it.posix,
            it.client,
            SOL_SOCKET,
            so::COOKIE,
            to,
            &raw mut len
        ));
        assert_eq!((cookie, len), (told, room));
    }
}

#[test]
fn a_connection_is_told_before_an_address_is_looked_at() {
    let it = world();
    let (posix, fd) = (&it.posix, it.server);
    let v6 = emit("[fd77::1]:80".parse().unwrap(), Family::V6);
    for (len, errno) in [
        (28, Errno::EISCONN),
        (3, Errno::EISCONN),
        (1, Errno::EINVAL),
    ] {
        let connected = c!(call::connect(posix, fd, v6.as_ptr().cast(), len));
        assert_eq!(connected, Err(errno), "{len}");
    }
    let fresh = posix.call(|t| t.socket(2, 1, 0)).unwrap();
    let connected = c!(call::connect(posix, fresh, v6.as_ptr().cast(), 28));
    assert_eq!(connected, Err(Errno::EAFNOSUPPORT));
}

#[test]
fn a_vector_of_any_length_is_sent_and_gathered_in_parts() {
    let it = world();
    let posix = &it.posix;
    let mut parts: Vec<Vec<u8>> = (0..5).map(|part| vec![part; 500_000]).collect();
    let entries: Vec<iovec> = parts.iter_mut().map(|part| entry(part)).collect();
    for (skip, most, len) in [
        (0, 1 << 20, 1 << 20),
        (1, 7, 7),
        (2_400_000, 1 << 20, 100_000),
    ] {
        // SAFETY: the entries are those of `parts`.
        let gathered = unsafe { super::message::gather(&entries, skip, most) }.unwrap();
        let expected = parts.concat();
        assert!(gathered == expected[skip..skip + len], "{skip}");
    }
    let sent = c!(call::writev(posix, it.client, entries.as_ptr(), 5)).unwrap();
    let mut received = Vec::new();
    while received.len() < sent {
        posix.run_now();
        let mut bytes = exactly(1 << 20);
        let buf = bytes.as_mut_ptr().cast::<c_void>();
        let more = c!(call::recv(posix, it.server, buf, bytes.len(), 0));
        received.extend_from_slice(&bytes[..more.unwrap()]);
    }
    assert!(received == parts.concat()[..sent]);
    assert!(sent > 1 << 20, "{sent}");
}

#[test]
fn an_address_longer_than_any_is_einval_and_nothing_behind_it_is_read() {
    let it = world();
    let (posix, fd) = (&it.posix, it.client);
    // 128 bytes is the longest (sockaddr_storage); what is behind the address does not count.
    let mut long: Vec<u8> = address().into();
    long.resize(200, 0);
    let at = long.as_ptr().cast::<sockaddr>();
    let connected = c!(call::connect(posix, fd, at, 128));
    assert_eq!(connected, Ok(()), "the outcome of the connection");
    for len in [129, 200, u32::MAX] {
        assert_eq!(c!(call::connect(posix, fd, at, len)), Err(Errno::EINVAL));
        assert_eq!(c!(call::bind(posix, fd, at, len)), Err(Errno::EINVAL));
    }
}

#[test]
fn a_control_buffer_longer_than_an_int_is_enobufs() {
    let it = world();
    let mut byte = exactly(1);
    let mut entries = [entry(&mut byte)];
    for len in [1 << 31, usize::MAX] {
        let mut msg = message(&mut entries);
        msg.msg_controllen = len;
        let sent = c!(call::sendmsg(&it.posix, it.client, &raw const msg, 0));
        assert_eq!(sent, Err(Errno::ENOBUFS));
    }
}

#[test]
fn poll_and_epoll_write_what_they_were_given_room_for_and_lose_no_edge() {
    let it = world();
    let posix = &it.posix;
    let entry = |fd| pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    let mut fds: Box<[pollfd]> = [entry(it.client), entry(-1), entry(3)].into();
    assert_eq!(c!(call::poll(posix, fds.as_mut_ptr(), 3, 0)), Ok(2));
    let told: Vec<i16> = fds.iter().map(|entry| entry.revents).collect();
    assert_eq!(told, [libc::POLLOUT, 0, libc::POLLNVAL]);
    assert_eq!(c!(call::poll(posix, null_mut(), 1, 0)), Err(Errno::EFAULT));
    assert_eq!(
        c!(call::poll(posix, fds.as_mut_ptr(), u64::MAX, 0)),
        Err(Errno::EINVAL)
    );

    let epfd = posix.call(|t| t.epoll_create(0)).unwrap();
    let watch = epoll_event {
        events: ev::OUT | ev::ET,
        u64: 9,
    };
    for fd in [it.client, it.server] {
        let added = c!(call::epoll_ctl(posix, epfd, ctl::ADD, fd, &raw const watch));
        assert_eq!(added, Ok(()));
    }
    let none = c!(call::epoll_wait(posix, epfd, null_mut(), 2, 0));
    assert_eq!(none, Err(Errno::EFAULT));
    let mut events: Box<[epoll_event]> = [watch].into();
    for _ in 0..2 {
        let taken = c!(call::epoll_wait(posix, epfd, events.as_mut_ptr(), 1, 0));
        let data = events[0].u64;
        assert_eq!((taken, data), (Ok(1), 9));
    }
    let taken = c!(call::epoll_wait(posix, epfd, events.as_mut_ptr(), 1, 0));
    assert_eq!(taken, Ok(0));
}

/// libc only reads what is sent, so that threads may share it: here, a reference that lives on. Miri judges.
#[test]
fn a_control_buffer_is_only_read_by_sendmsg() {
    let it = world();
    let control: Box<[u64]> = [20, 0, 0].into();
    let held = &control;
    let mut entries: [iovec; 0] = [];
    let mut msg = message(&mut entries);
    msg.msg_control = held.as_ptr().cast_mut().cast::<c_void>();
    msg.msg_controllen = size_of_val(&**held);
    let sent = c!(call::sendmsg(&it.posix, it.client, &raw const msg, 0));
    assert!(sent.is_err() || sent == Ok(0), "{sent:?}");
    assert_eq!(held[..], [20, 0, 0]);
}

/// poll(2) writes what happened; threads may share which files are watched and for what. Miri judges.
#[test]
fn poll_writes_nothing_but_what_happened() {
    let it = world();
    let mut entry = pollfd {
        fd: it.client,
        events: libc::POLLOUT,
        revents: 0,
    };
    let at = &raw mut entry;
    // SAFETY: `entry` is here to the end, and `call::poll` is the only one to write to it: to another field.
    let fd = unsafe { &(*at).fd };
    // SAFETY: as above.
    let events = unsafe { &(*at).events };
    assert_eq!(c!(call::poll(&it.posix, at, 1, 0)), Ok(1));
    assert_eq!((fd, events), (&it.client, &libc::POLLOUT));
    assert_eq!(entry.revents, libc::POLLOUT);
}
