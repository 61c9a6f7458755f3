//! Options with effects on connections: acknowledgement, windows, congestion control, timestamps.

use devmem_posix::abi::{IP_MTU_DISCOVER, IP_TTL, SOL_TCP, ioctl, so, sof, tcp_opt};
use devmem_uapi::{CmsgIter, Errno, MsgFlags, sockopt};

use super::{Loopback, RecvArgs, SOL_SOCKET, loopback};

impl Loopback {
    fn set(&self, fd: i32, name: (i32, i32), number: i32) -> Result<i32, Errno> {
        let value = number.to_ne_bytes();
        self.posix.call(|t| t.setsockopt(fd, name, &value))
    }

    fn get(&self, fd: i32, name: (i32, i32)) -> i32 {
        let bytes = self.posix.call(|t| t.getsockopt(fd, name)).unwrap();
        i32::from_ne_bytes(bytes[..4].try_into().unwrap())
    }
}

#[test]
fn options_return_the_value_that_was_set() {
    let it = loopback();
    for (name, set, got) in [
        ((SOL_SOCKET, so::RCVBUFFORCE), 1 << 29, 1 << 30),
        ((SOL_SOCKET, so::SNDBUFFORCE), 1 << 29, 1 << 30),
        ((SOL_SOCKET, so::RCVBUFFORCE), -1, 2304),
        ((SOL_SOCKET, so::MARK), 666, 666),
        ((sockopt::SOL_IP, IP_TTL), 255, 255),
        ((sockopt::SOL_IP, IP_TTL), -1, 64),
        ((SOL_SOCKET, so::PRIORITY), 6, 6),
        ((SOL_SOCKET, so::OOBINLINE), 5, 1),
        ((SOL_SOCKET, so::BROADCAST), 0, 0),
        ((SOL_SOCKET, so::BINDTOIFINDEX), 1, 0),
        ((sockopt::SOL_IP, IP_MTU_DISCOVER), 2, 2),
        ((sockopt::SOL_IP, IP_MTU_DISCOVER), 0, 0),
        ((SOL_TCP, tcp_opt::WINDOW_CLAMP), 100, 1152),
        ((SOL_TCP, tcp_opt::THIN_DUPACK), 1, 0),
    ] {
        let forced = matches!(name, (SOL_SOCKET, so::RCVBUFFORCE | so::SNDBUFFORCE));
        assert_eq!(it.set(it.client, name, set), Ok(0), "{name:?}");
        let name = match name {
            _ if !forced => name,
            (level, so::RCVBUFFORCE) => (level, so::RCVBUF),
            (level, _) => (level, so::SNDBUF),
        };
        assert_eq!(it.get(it.client, name), got, "{name:?}");
    }
    assert_eq!(it.get(it.client, (SOL_SOCKET, so::SNDLOWAT)), 1);
    assert_eq!(it.get(it.client, (SOL_TCP, tcp_opt::IS_MPTCP)), 0);
    for (name, number, errno) in [
        ((SOL_SOCKET, so::SNDLOWAT), 1, Errno::ENOPROTOOPT),
        ((SOL_SOCKET, so::BINDTOIFINDEX), 2, Errno::ENODEV),
        ((sockopt::SOL_IP, IP_MTU_DISCOVER), 3, Errno::EINVAL),
        ((sockopt::SOL_IP, IP_TTL), 0, Errno::EINVAL),
        ((sockopt::SOL_IP, IP_TTL), 256, Errno::EINVAL),
        ((SOL_TCP, tcp_opt::ULP), 1, Errno::ENOENT),
        ((SOL_TCP, tcp_opt::WINDOW_CLAMP), -1, Errno::EINVAL),
    ] {
        assert_eq!(it.set(it.client, name, number), Err(errno), "{name:?}");
    }
    let peer = it
        .posix
        .call(|t| t.getsockopt(it.server, (SOL_SOCKET, so::PEERNAME)));
    assert_eq!(peer, it.posix.call(|t| t.getpeername(it.server)));
    let cookie = |fd| {
        it.posix
            .call(|t| t.getsockopt(fd, (SOL_SOCKET, so::COOKIE)))
            .unwrap()
    };
    assert_eq!(cookie(it.client).len(), 8);
    assert_ne!(cookie(it.client), cookie(it.server));
}

#[test]
fn quickack_returns_the_current_state_of_the_connection() {
    let it = loopback();
    let quick = (SOL_TCP, tcp_opt::QUICKACK);
    assert_eq!(
        (it.get(it.listener, quick), it.get(it.client, quick)),
        (1, 1)
    );
    it.set(it.listener, quick, 0).unwrap();
    assert_eq!(it.get(it.listener, quick), 0);
}

#[test]
fn memory_info_has_the_buffer_sizes_and_the_queued_bytes() {
    let it = loopback();
    let info = |fd| {
        let bytes = it
            .posix
            .call(|t| t.getsockopt(fd, (SOL_SOCKET, so::MEMINFO)));
        let fields: Vec<u32> = bytes
            .unwrap()
            .chunks(4)
            .map(|field| u32::from_ne_bytes(field.try_into().unwrap()))
            .collect();
        fields
    };
    it.set(it.client, (SOL_SOCKET, so::SNDBUF), 50_000).unwrap();
    it.send(it.client, &[1; 3000]);
    assert_eq!(info(it.client), [0, 131_072, 0, 100_000, 0, 0, 0, 0, 0]);
    assert_eq!(info(it.server), [3000, 131_072, 0, 16_384, 0, 0, 0, 0, 0]);
    it.posix
        .send(it.client, super::SendArgs::new(&[1; 50_000]), 0)
        .unwrap();
    let queued = info(it.client)[5];
    assert!(queued > 0 && queued <= 50_000, "{queued}");
}

#[test]
fn a_clamp_bounds_the_window_of_an_open_connection() {
    let it = loopback();
    it.set(it.server, (SOL_TCP, tcp_opt::WINDOW_CLAMP), 5000)
        .unwrap();
    it.send(it.client, &[1; 2000]);
    it.recv(it.server, 2000, MsgFlags::empty()).unwrap();
    it.posix.run_now();
    // The window that was advertised before is not withdrawn; after it is used up, the window is at most the clamp.
    let mut received = 0;
    let bytes = vec![2; 1 << 20];
    let sent = it
        .posix
        .send(it.client, super::SendArgs::new(&bytes), 0)
        .unwrap();
    while received < sent {
        it.posix.sleep(std::time::Duration::from_secs(1));
        let got = it
            .recv(it.server, 1 << 20, MsgFlags::empty())
            .unwrap()
            .len();
        received += got;
        assert!(received < 200_000 || got <= 5000, "{got} of {received}");
    }
}

#[test]
fn the_congestion_control_can_change_during_a_connection() {
    let it = loopback();
    let congestion = (SOL_TCP, tcp_opt::CONGESTION);
    let name = |fd| it.posix.call(|t| t.getsockopt(fd, congestion)).unwrap();
    it.send(it.client, &[1; 50_000]);
    let set = |name: &[u8]| it.posix.call(|t| t.setsockopt(it.client, congestion, name));
    assert_eq!(set(b"reno"), Ok(0));
    assert_eq!(&name(it.client)[..5], b"reno\0");
    assert_eq!(&name(it.server)[..6], b"cubic\0");
    it.send(it.client, &[1; 50_000]);
    it.posix.sleep(std::time::Duration::from_secs(1));
    assert_eq!(
        it.recv(it.server, 1 << 20, MsgFlags::empty())
            .unwrap()
            .len(),
        100_000
    );
    for kind in [&b"bbr"[..], b"dctcp", b"cubic"] {
        assert_eq!(set(kind), Ok(0));
        assert_eq!(&name(it.client)[..kind.len()], kind);
        it.send(it.client, &[1; 50_000]);
        it.posix.sleep(std::time::Duration::from_secs(1));
        let received = it.recv(it.server, 1 << 20, MsgFlags::empty()).unwrap();
        assert_eq!(received.len(), 50_000);
    }
    assert_eq!(set(b"vegas"), Err(Errno::ENOENT));
}

#[test]
fn a_fin_is_counted_in_siocoutq_and_siocoutqnsd() {
    let it = loopback();
    let number = |request| it.posix.call(|t| t.ioctl(it.client, request)).unwrap();
    let bytes = vec![1; 4 << 20];
    let sent = it
        .posix
        .send(it.client, super::SendArgs::new(&bytes), 0)
        .unwrap();
    let sent = i32::try_from(sent).unwrap();
    assert_eq!(number(ioctl::SIOCOUTQ), sent);
    it.posix.call(|t| t.shutdown(it.client, 1)).unwrap();
    assert_eq!(number(ioctl::SIOCOUTQ), sent + 1);
    let unsent = number(ioctl::SIOCOUTQNSD);
    assert!(unsent > 1 && unsent <= sent + 1, "{unsent}");
    let mut left = sent;
    while left > 0 {
        it.posix.sleep(std::time::Duration::from_secs(1));
        let got = it.recv(it.server, 1 << 20, MsgFlags::empty()).unwrap();
        left -= i32::try_from(got.len()).unwrap();
    }
    it.posix.sleep(std::time::Duration::from_secs(1));
    assert_eq!(
        (number(ioctl::SIOCOUTQ), number(ioctl::SIOCOUTQNSD)),
        (0, 0)
    );
    assert_eq!(number(ioctl::SIOCATMARK), 0);
}

#[test]
fn options_of_times_exclude_each_other_as_in_linux() {
    let it = loopback();
    let fd = it.server;
    let all = [
        so::TIMESTAMP,
        so::TIMESTAMPNS,
        so::TIMESTAMP_NEW,
        so::TIMESTAMPNS_NEW,
    ];
    for name in all {
        it.set(fd, (SOL_SOCKET, name), 1).unwrap();
        let on = all.map(|other| it.get(fd, (SOL_SOCKET, other)));
        assert_eq!(on, all.map(|other| i32::from(other == name)), "{name}");
    }
    let flags = (sof::RX_SOFTWARE | sof::SOFTWARE | sof::RAW_HARDWARE).cast_signed();
    let (old, new) = (
        (SOL_SOCKET, so::TIMESTAMPING),
        (SOL_SOCKET, so::TIMESTAMPING_NEW),
    );
    it.set(fd, old, flags).unwrap();
    assert_eq!((it.get(fd, old), it.get(fd, new)), (flags, 0));
    it.set(fd, new, flags).unwrap();
    assert_eq!((it.get(fd, old), it.get(fd, new)), (flags, flags));
    // Statistics and hardware clocks are not supported.
    for refused in [1 << 12, 1 << 15, 1 << 18, 1 << 16] {
        assert_eq!(it.set(fd, new, refused), Err(Errno::EINVAL));
    }
}

#[test]
fn a_control_buffer_too_short_for_a_timestamp_is_reported() {
    let it = loopback();
    it.set(it.server, (SOL_SOCKET, so::TIMESTAMP), 1).unwrap();
    it.send(it.client, b"timely");
    let receive = |room: &mut [u8]| {
        let mut host = [0; 2];
        let args = RecvArgs {
            host: &mut host,
            len: 2,
            control: room,
        };
        let received = it.posix.recv(it.server, args, 0).unwrap();
        (received.bytes, received.control_bytes, received.flags)
    };
    assert_eq!(receive(&mut [0; 31]), (2, 0, MsgFlags::CTRUNC.bits()));
    assert_eq!(receive(&mut []), (2, 0, MsgFlags::CTRUNC.bits()));
    let mut room = [0; 64];
    assert_eq!(receive(&mut room), (2, 32, 0));
    let cmsg = CmsgIter::new(&room[..32]).next().unwrap();
    assert_eq!((cmsg.level, cmsg.ty, cmsg.data.len()), (1, 29, 16));
}
