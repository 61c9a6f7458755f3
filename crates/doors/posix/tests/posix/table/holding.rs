//! Calls that wait for a file while another thread closes it: as in Linux, the file exists until the last call returns.

use std::sync::Arc;

use devmem_posix::abi::{SOL_TCP, so, tcp_opt};
use devmem_posix::{Engine, PollFd, Posix, RealTime, RecvArgs, SendArgs};
use devmem_uapi::{CmsgIter, CmsgWriter, Errno, MsgFlags, SockExtendedErr, cmsg_space};
use netmem::Dmabuf;

use super::{SOL_SOCKET, at, stack};

/// A listener, a client and the server's end, in real time.
fn engine() -> (Arc<Engine>, impl Drop, [i32; 3]) {
    let (stack, other) = stack();
    let engine = Arc::new(crate::start(stack));
    let posix = engine.posix();
    let listener = posix.call(|t| t.socket(2, 1, 0)).unwrap();
    posix
        .call(|t| t.bind(listener, &at("10.77.0.1:80")))
        .unwrap();
    posix.call(|t| t.listen(listener, 1)).unwrap();
    let client = posix.call(|t| t.socket(2, 1, 0)).unwrap();
    posix.connect(client, &at("10.77.0.1:80")).unwrap();
    let (server, _) = posix.accept(listener, 0).unwrap();
    (engine, Keeps(other), [listener, client, server])
}

/// The other end of the wire.
struct Keeps(#[allow(dead_code, reason = "it is kept, not used")] nic::WireLink);

impl Drop for Keeps {
    fn drop(&mut self) {}
}

fn recv(posix: &Posix<RealTime>, fd: i32, len: usize) -> Result<usize, Errno> {
    let mut host = vec![0; len];
    let args = RecvArgs {
        host: &mut host,
        len,
        control: &mut [],
    };
    let received = posix.recv(fd, args, MsgFlags::WAITALL.bits());
    received.map(|received| received.bytes)
}

/// Waits until a call of another thread holds `count` files.
fn await_holders(posix: &Posix<RealTime>, count: usize) {
    while posix.lock().held_files() != count {
        std::thread::yield_now();
    }
}

#[test]
fn a_blocking_receive_ends_at_its_timeout_or_with_data() {
    let (engine, _other, [_, client, server]) = engine();
    let posix = engine.posix();
    let ten_ms = [0i64.to_ne_bytes(), 10_000i64.to_ne_bytes()].concat();
    let timeout = |value: &[u8]| {
        let name = (SOL_SOCKET, so::RCVTIMEO);
        posix.call(|t| t.setsockopt(server, name, value)).unwrap();
    };
    timeout(&ten_ms);
    assert_eq!(recv(posix, server, 8), Err(Errno::EAGAIN));
    timeout(&[0; 16]);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(posix, server, 8));
        for piece in [&b"half"[..], b"done"] {
            assert_eq!(posix.send(client, SendArgs::new(piece), 0), Ok(4));
        }
        assert_eq!(reader.join().unwrap(), Ok(8));
    });
}

#[test]
fn a_receive_continues_when_another_thread_closes_its_file() {
    let (engine, _other, [_, client, server]) = engine();
    let posix = engine.posix();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(posix, server, 8));
        await_holders(posix, 1);
        posix.close(server).unwrap();
        assert_eq!(
            recv(posix, server, 8),
            Err(Errno::EBADF),
            "to others it is gone"
        );
        assert_eq!(posix.close(server), Err(Errno::EBADF));
        assert_eq!(posix.send(client, SendArgs::new(b"all well"), 0), Ok(8));
        assert_eq!(reader.join().unwrap(), Ok(8));
    });
    // Now the file is destroyed, and the peer receives the FIN.
    assert_eq!(recv(posix, client, 1), Ok(0));
    assert_eq!(posix.lock().held_files(), 0);
}

#[test]
fn a_poll_continues_when_another_thread_closes_a_file() {
    let (engine, _other, [_, client, server]) = engine();
    let posix = engine.posix();
    std::thread::scope(|scope| {
        let poll = scope.spawn(|| {
            let entry = |fd| PollFd {
                fd,
                events: 1,
                revents: 0,
            };
            let mut fds = [entry(client), entry(server)];
            let ready = posix.poll(&mut fds, -1);
            (ready, fds.map(|entry| entry.revents))
        });
        await_holders(posix, 2);
        posix.close(server).unwrap();
        posix.send(client, SendArgs::new(b"x"), 0).unwrap();
        assert_eq!(poll.join().unwrap(), (Ok(1), [0, 1]));
    });
}

#[test]
fn calls_end_when_the_whole_table_is_closed() {
    let (engine, _other, [listener, _, server]) = engine();
    let posix = engine.posix();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(posix, server, 8));
        let accept = scope.spawn(|| posix.accept(listener, 0).map(|_| ()));
        await_holders(posix, 2);
        posix.call(|t| t.close(server)).unwrap();
        posix.call(devmem_posix::Table::close_all);
        assert_eq!(reader.join().unwrap(), Err(Errno::EBADF));
        assert_eq!(accept.join().unwrap(), Err(Errno::EBADF));
    });
}

#[test]
fn shutdown_ends_a_receive_and_an_accept() {
    let (engine, _other, [listener, _, server]) = engine();
    let posix = engine.posix();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(posix, server, 8));
        let accept = scope.spawn(|| posix.accept(listener, 0).map(|_| ()));
        await_holders(posix, 2);
        posix.call(|t| t.shutdown(server, 0)).unwrap();
        posix.call(|t| t.shutdown(listener, 0)).unwrap();
        assert_eq!(reader.join().unwrap(), Ok(0));
        assert_eq!(accept.join().unwrap(), Err(Errno::EINVAL));
    });
}

#[test]
fn a_send_from_device_memory_that_waits_for_room_has_one_completion() {
    const SIZE: usize = 8 << 20;
    let (engine, _other, [_, client, server]) = engine();
    let posix = engine.posix();
    let memory = Dmabuf::anonymous(SIZE).unwrap();
    let id = posix.call(|t| t.bind_tx(&memory)).unwrap();
    let set = |name, number: i32| {
        let value = number.to_ne_bytes();
        posix.call(|t| t.setsockopt(client, name, &value)).unwrap();
    };
    set((SOL_SOCKET, so::ZEROCOPY), 1);
    set((SOL_SOCKET, so::SNDBUF), 100_000);
    set((SOL_TCP, tcp_opt::NODELAY), 1);
    let mut control = vec![0; cmsg_space(4)];
    CmsgWriter::new(&mut control).push_tx_dmabuf(id).unwrap();
    let args = SendArgs {
        address: &[],
        host: &[],
        ranges: &[0..SIZE / 2, SIZE / 2..SIZE],
        control: &control,
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(posix, server, 2 * SIZE));
        for _ in 0..2 {
            let sent = posix.send(client, args, MsgFlags::ZEROCOPY.bits());
            assert_eq!(sent, Ok(SIZE));
        }
        assert_eq!(reader.join().unwrap(), Ok(2 * SIZE));
    });
    let mut last = None;
    while last != Some(1) {
        let mut room = [0; 64];
        let args = RecvArgs {
            host: &mut [],
            len: 0,
            control: &mut room,
        };
        match posix.recv(client, args, MsgFlags::ERRQUEUE.bits()) {
            Err(errno) => {
                assert_eq!(errno, Errno::EAGAIN);
                std::thread::yield_now();
            }
            Ok(_) => {
                let mut messages = CmsgIter::new(&room);
                let entry = messages
                    .find_map(|cmsg| SockExtendedErr::parse(&cmsg))
                    .unwrap();
                assert_eq!((entry.origin, entry.code), (5, 0));
                last = Some(entry.data);
            }
        }
    }
}
