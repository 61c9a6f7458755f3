//! Descriptors that the peer of a UNIX wire sends, and whose close(2) waits: no call of a link waits for it.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ::wire::{Instant, MacAddr, VnetHeader};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

use super::*;
use crate::{Nic, NicConfig};

/// How long the close of a descriptor would wait; the test fails long before.
const LINGER: Duration = Duration::from_secs(3600);
/// How long a call may take on a very busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn hello(shares_memory: bool) -> WireHello {
    WireHello {
        offloads: true,
        mtu: 1500,
        shares_memory,
        needs_offloads: false,
    }
}

/// A TCP socket with unsent bytes, whose last close waits for them. The other end, which never reads, is returned, too.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 1 << 16]).is_ok() {}
    set_socket_linger(&sender, Some(LINGER)).unwrap();
    (sender.into(), reader)
}

/// Sends a packet with as many descriptors of the same file; false if the kernel refuses them.
fn send_with(socket: impl AsFd, packet: &[u8], file: &OwnedFd, count: usize) -> bool {
    let files = vec![file.as_fd(); count];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    match sendmsg(
        socket,
        &[IoSlice::new(packet)],
        &mut control,
        SendFlags::NOSIGNAL,
    ) {
        Ok(_) => true,
        Err(rustix::io::Errno::PERM) => false,
        Err(error) => panic!("{error}"),
    }
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Runs `call` in a thread, and fails if it waits.
fn does_not_wait(what: &str, call: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        call();
        done.send(()).unwrap();
    });
    assert!(wait.recv_timeout(LIMIT).is_ok(), "{what}: the call waits");
}

fn nic_on(link: impl Link + 'static) -> Nic {
    let config = NicConfig {
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        ..NicConfig::default()
    };
    Nic::new(Box::new(link), config).unwrap()
}

fn poll(nic: &mut Nic) {
    for _ in 0..4 {
        let _ = nic.poll_rx(Instant::from_millis(1));
    }
}

/// A packet of each kind, and one of none.
fn packets() -> Vec<Vec<u8>> {
    let mut frame = vec![0; VnetHeader::LEN];
    frame.extend_from_slice(&[0xff; 60]);
    let record = |kind| {
        let mut record = vec![0; 16];
        record[..2].copy_from_slice(&[0x40, kind]);
        record[9] = 0x10;
        record
    };
    vec![
        frame,
        vec![0xc0; 40],
        vec![1],
        record(1),
        record(2),
        record(3),
    ]
}

#[test]
fn descriptors_that_come_with_packets_are_not_closed_by_the_call_that_receives() {
    for shares_memory in [true, false] {
        for packet in packets() {
            for count in [1, 253] {
                let (ours, peer) = sockets();
                let link = UnixLink::new(ours, hello(shares_memory), hello(shares_memory)).unwrap();
                let mut nic = nic_on(link);
                let (file, _reader) = lingering();
                assert!(send_with(&peer, &packet, &file, count));
                drop(file);
                let what = format!("shares {shares_memory}, {count} with {packet:02x?}");
                does_not_wait(&what, move || poll(&mut nic));
            }
        }
    }
}

#[test]
fn descriptors_in_the_queue_of_a_wire_are_not_closed_by_the_call_that_ends_it() {
    for shares_memory in [true, false] {
        let (ours, peer) = sockets();
        let link = UnixLink::new(ours, hello(shares_memory), hello(shares_memory)).unwrap();
        let nic = nic_on(link);
        let (file, _reader) = lingering();
        assert!(send_with(&peer, b"a packet that is not read", &file, 1));
        drop(file);
        does_not_wait("dropping the NIC", move || drop(nic));
    }
}

#[test]
fn a_listening_port_does_not_wait_for_descriptors_of_those_that_connect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wire");
    let (mut port, _file) = UnixPort::listen_at(&path, hello(false)).unwrap();
    let serve = |port: &mut UnixPort| {
        for ms in [1, 10_000] {
            port.serve(Instant::from_millis(ms), &mut |_| {});
            let _ = port.read(&mut [0; 2000]);
        }
    };
    let connect = || hello::connect_to(&path, hello(false), HELLO_LIMIT).unwrap();
    let mut readers = Vec::new();
    let mut send = |socket: &peer_socket::PeerSocket, packet: &[u8]| {
        let (file, reader) = lingering();
        let is_taken = send_with(socket, packet, &file, 2);
        if !is_taken {
            // Closed here.
            set_socket_linger(&file, None).unwrap();
        }
        readers.push(reader);
        is_taken
    };
    // With the hello, instead of one, and before one.
    let [greeting, other, silent] = [connect(), connect(), connect()];
    let mut taken = vec![send(&other, b"no hello"), send(&silent, &[0; 3])];
    taken.push(send(&greeting, &hello(false).emit()));
    if !taken[2] {
        rustix::net::send(&greeting, &hello(false).emit(), SendFlags::NOSIGNAL).unwrap();
    }
    taken.push(send(&greeting, &packets()[0]));
    let second = connect();
    taken.push(send(&second, &hello(false).emit()));
    does_not_wait("the port", move || {
        serve(&mut port);
        assert!(port.is_up());
        serve(&mut port);
        drop(port);
    });
    // All or none: by the kernel's version.
    assert!(taken.iter().all(|it| *it == taken[0]), "{taken:?}");
}
