//! Device memory calls on ordinary connections of this machine's kernel: readable data stays readable, frags that were not
//! lent are not freed, sends are completed.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use devmem_linux::errors::CauseKind;
use devmem_linux::socket::{
    Content, ErrorQueue, FragReturns, HostRoom, RecvBuffer, RecvError, SendError, TxSource,
    bind_to_device, enable_zerocopy, recv_into, send_dmabuf,
};
use devmem_linux::test_util::{GuestHas, skip_outside_guest};
use devmem_uapi::{DmabufId, Errno, FragToken, MsgFlags, ZerocopyId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};

const HOMES: [&str; 2] = ["127.0.0.1", "::1"];

/// A connection over the loopback: the accepted end, and the end that connected.
fn connection(home: &str) -> Option<(TcpStream, TcpStream)> {
    let home: IpAddr = home.parse().unwrap();
    // Some containers have no IPv6.
    let listener = TcpListener::bind((home, 0)).ok()?;
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    Some((server, client))
}

/// Returns whether this kernel's TCP supports device memory; if not, prints that `test` is skipped.
fn require_devmem(test: &str) -> bool {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut nobodys = FragReturns::new();
    nobodys.push(FragToken(1));
    match nobodys.flush(socket.as_fd()) {
        Err(error) if error.errno == Errno::ENOPROTOOPT => {
            skip_outside_guest(test, GuestHas::Kernel, &error.to_string());
            false
        }
        _ => true,
    }
}

fn wait_for(socket: BorrowedFd<'_>, events: PollFlags) {
    let limit = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&socket, events)];
    assert_ne!(poll(&mut fds, Some(&limit)).unwrap(), 0, "nothing came");
}

fn source(interface: &str) -> TxSource<'_> {
    TxSource {
        dmabuf: DmabufId(4_000_000),
        interface,
    }
}

#[test]
fn readable_data_comes_without_device_memory_until_the_stream_ends() {
    for home in HOMES {
        let Some((server, mut client)) = connection(home) else {
            continue;
        };
        let sent: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        let writer = std::thread::spawn(move || client.write_all(&sent).unwrap());
        let mut buffer = RecvBuffer::new(50_000, 16);
        let mut received = Vec::new();
        loop {
            let batch = buffer.recv(server.as_fd(), MsgFlags::empty()).unwrap();
            match batch.content {
                Content::Readable(bytes) => {
                    assert_eq!(bytes.len(), batch.bytes);
                    received.extend_from_slice(bytes);
                }
                Content::End => break,
                Content::Devmem(frags) => panic!("device memory on {home}: {frags:?}"),
            }
        }
        writer.join().unwrap();
        assert!(received == expected, "{home}: {} bytes", received.len());
    }
}

#[test]
fn a_peek_leaves_the_data_in_the_queue() {
    let (server, mut client) = connection(HOMES[0]).unwrap();
    client.write_all(b"hello").unwrap();
    let mut buffer = RecvBuffer::new(64, 4);
    for _ in 0..2 {
        let peeked = buffer.recv(server.as_fd(), MsgFlags::PEEK).unwrap();
        assert!(matches!(peeked.content, Content::Readable(b"hello")));
    }
    let read = buffer
        .recv_host_only(server.as_fd(), MsgFlags::empty())
        .unwrap();
    assert!(matches!(read.content, Content::Readable(b"hello")));
}

#[test]
fn bytes_in_host_memory_stay_queued_if_there_is_no_room_for_them() {
    let (server, mut client) = connection(HOMES[0]).unwrap();
    client.write_all(b"hello").unwrap();
    let mut control = [0; 400];
    for _ in 0..2 {
        let room = HostRoom::None { max_bytes: 1 << 20 };
        let error = recv_into(server.as_fd(), room, &mut control, MsgFlags::empty()).unwrap_err();
        assert_eq!(error.errno(), Errno::EFAULT);
    }
    let mut data = [0; 64];
    let room = HostRoom::Buffer(&mut data);
    let read = recv_into(server.as_fd(), room, &mut control, MsgFlags::empty()).unwrap();
    assert!(matches!(read.content, Content::Readable(b"hello")));
    drop(client);
    let room = HostRoom::None { max_bytes: 64 };
    let end = recv_into(server.as_fd(), room, &mut control, MsgFlags::empty()).unwrap();
    assert!(matches!(end.content, Content::End));
}

#[test]
fn an_empty_socket_would_block_and_a_reset_one_is_lost() {
    let (server, client) = connection(HOMES[0]).unwrap();
    let mut buffer = RecvBuffer::new(64, 4);
    let error = buffer.recv(server.as_fd(), MsgFlags::DONTWAIT).unwrap_err();
    assert_eq!(error, RecvError::WouldBlock);
    // Closing with data unread resets the connection.
    (&server).write_all(b"unread").unwrap();
    wait_for(client.as_fd(), PollFlags::IN);
    drop(client);
    wait_for(server.as_fd(), PollFlags::IN);
    let error = buffer.recv(server.as_fd(), MsgFlags::empty()).unwrap_err();
    let RecvError::Refused { errno, cause } = error else {
        panic!("{error}");
    };
    assert_eq!(
        (errno, cause.kind),
        (Errno::ECONNRESET, CauseKind::ConnectionLost)
    );
}

#[test]
fn flags_that_would_change_the_result_of_a_receive_are_refused() {
    let (server, mut client) = connection(HOMES[0]).unwrap();
    client.write_all(b"kept").unwrap();
    let mut buffer = RecvBuffer::new(64, 4);
    for flag in [MsgFlags::TRUNC, MsgFlags::ERRQUEUE, MsgFlags::CTRUNC] {
        let error = buffer.recv(server.as_fd(), flag).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{flag:?}");
    }
    let kept = buffer.recv(server.as_fd(), MsgFlags::empty()).unwrap();
    assert_eq!(kept.bytes, 4);
}

#[test]
fn tokens_that_were_not_lent_free_nothing_and_only_tcp_sockets_accept_them() {
    const TEST: &str =
        "socket::tokens_that_were_not_lent_free_nothing_and_only_tcp_sockets_accept_them";
    if !require_devmem(TEST) {
        return;
    }
    let (server, _client) = connection(HOMES[0]).unwrap();
    let mut returns = FragReturns::new();
    // More than 128 ranges and 1,024 frags: several calls, each within the kernel's limits.
    for i in 0..3000 {
        returns.push(FragToken(i + i / 7));
    }
    let freed = returns.flush(server.as_fd()).unwrap();
    assert_eq!((freed.asked, freed.freed, freed.missing()), (3000, 0, 3000));
    assert_eq!(freed.calls, 4);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    returns.push(FragToken(1));
    let error = returns.flush(udp.as_fd()).unwrap_err();
    assert_eq!(
        (error.errno, error.cause.kind),
        (Errno::EBADF, CauseKind::NotTcp)
    );
    assert!(
        !returns.is_empty(),
        "tokens that were not returned are kept"
    );
}

#[test]
fn a_send_from_an_unknown_binding_is_refused_and_sends_nothing() {
    const TEST: &str = "socket::a_send_from_an_unknown_binding_is_refused_and_sends_nothing";
    if !require_devmem(TEST) {
        return;
    }
    for home in HOMES {
        let Some((mut server, client)) = connection(home) else {
            continue;
        };
        for zerocopy in [false, true] {
            if zerocopy {
                enable_zerocopy(client.as_fd()).unwrap();
            }
            let ranges = [0..4096, 8192..8193];
            let error = send_dmabuf(client.as_fd(), source("lo"), &ranges, MsgFlags::empty());
            let SendError::Refused { errno, cause } = error.unwrap_err() else {
                panic!("not refused");
            };
            assert_eq!(
                (errno, cause.kind),
                (Errno::EINVAL, CauseKind::SendNotPrepared)
            );
        }
        drop(client);
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

#[test]
fn flags_that_would_change_the_meaning_of_a_send_are_refused() {
    let (_server, client) = connection(HOMES[0]).unwrap();
    for flag in [MsgFlags::PEEK, MsgFlags::ERRQUEUE] {
        let error = send_dmabuf(client.as_fd(), source("lo"), &[0..1, 2..3], flag).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{flag:?}");
    }
}

/// Sends host memory without copies: completions are the same as for device memory. Over the loopback the kernel copies
/// nevertheless, and reports that.
#[test]
fn completions_of_zero_copy_sends_are_read_in_order_and_merged() {
    /// Static, so that it exists until all sends are complete.
    static PAYLOAD: [u8; 30_000] = [7; 30_000];
    const SENDS: u32 = 5;
    for home in HOMES {
        let Some((mut server, client)) = connection(home) else {
            continue;
        };
        enable_zerocopy(client.as_fd()).unwrap();
        let flags = SendFlags::from_bits_retain(MsgFlags::ZEROCOPY.bits());
        for _ in 0..SENDS {
            let taken = send(&client, &PAYLOAD, flags | SendFlags::NOSIGNAL).unwrap();
            assert_eq!(taken, PAYLOAD.len());
        }
        let mut sink = vec![0; PAYLOAD.len() * SENDS as usize];
        server.read_exact(&mut sink).unwrap();
        let mut queue = ErrorQueue::default();
        let covers = |queue: &ErrorQueue, id| {
            queue
                .completions
                .iter()
                .any(|range| range.contains(ZerocopyId(id)))
        };
        while !(0..SENDS).all(|id| covers(&queue, id)) {
            wait_for(client.as_fd(), PollFlags::ERR);
            assert_ne!(queue.drain(client.as_fd()).unwrap(), 0);
        }
        let [range] = &queue.completions[..] else {
            panic!("{home}: not merged: {queue:?}");
        };
        assert_eq!((range.lo, range.hi), (ZerocopyId(0), ZerocopyId(SENDS - 1)));
        assert!(range.copied, "the loopback copies");
        assert_eq!(queue.others, []);
        assert_eq!(
            queue.drain(client.as_fd()),
            Ok(0),
            "no completion is reported twice"
        );
    }
}

#[test]
fn a_socket_can_be_bound_to_an_interface_that_exists() {
    let (server, _client) = connection(HOMES[0]).unwrap();
    match bind_to_device(server.as_fd(), "lo") {
        // Since Linux 5.7 this needs no privilege for the first interface.
        Ok(()) => {}
        Err(errno) => assert_eq!(errno, Errno::EPERM),
    }
    assert_eq!(
        bind_to_device(server.as_fd(), "nosuch0"),
        Err(Errno::ENODEV)
    );
    let long = "lo-and-a-name-that-is-too-long";
    assert_eq!(bind_to_device(server.as_fd(), long), Err(Errno::ENODEV));
}

#[test]
fn zerocopy_is_refused_for_a_socket_that_does_not_support_it() {
    let pair = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(enable_zerocopy(pair.0.as_fd()).is_err());
}
