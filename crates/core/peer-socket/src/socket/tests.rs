use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, sendmsg, socket_with, socketpair,
};

use super::*;
use crate::{Descriptors, ListenOptions, SocketFile, receive};

const OPTIONS: ListenOptions = ListenOptions {
    kind: SocketType::SEQPACKET,
    backlog: 4,
    descriptors: Descriptors::Refused,
};

/// Sends a packet with a descriptor.
fn send_with(socket: &OwnedFd, file: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(b"packet")], &mut control, flags)
}

/// A connection of a peer that may send anything.
fn connected(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Returns whether the kernel can refuse descriptors; says so if not.
fn kernel_refuses() -> bool {
    let probe = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let can = !PeerSocket::refusing(probe.unwrap()).may_have_descriptors();
    if !can {
        eprintln!("SKIP: this kernel has no SO_PASSRIGHTS (Linux 6.16)");
    }
    can
}

#[test]
fn a_peer_cannot_send_descriptors_until_they_are_taken() {
    if !kernel_refuses() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let (listener, _file) = SocketFile::listen(&path, OPTIONS).unwrap();
    let peer = connected(&path);
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    // Before it is accepted, and after.
    assert_eq!(send_with(&peer, pipe.as_fd()), Err(Errno::PERM));
    let mut ours = listener.accept(SocketFlags::NONBLOCK).unwrap();
    assert_eq!(send_with(&peer, pipe.as_fd()), Err(Errno::PERM));
    ours.take_descriptors().unwrap();
    assert_eq!(send_with(&peer, pipe.as_fd()), Ok(6));
    let mut bytes = [0; 10];
    let received = receive(&ours, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    assert_eq!((received.bytes, received.fds.len()), (6, 1));
}

#[test]
fn what_is_in_the_queue_of_a_closed_socket_is_closed_in_another_thread() {
    let kind = SocketType::SEQPACKET;
    let (peer, ours) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let (mut witness, sent) = UnixStream::pair().unwrap();
    send_with(&peer, sent.as_fd()).unwrap();
    drop(sent);
    let ours = PeerSocket::from(ours);
    assert!(ours.may_have_descriptors());
    drop(ours);
    // Waits for the other thread.
    witness
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    assert_eq!(witness.read(&mut [0]).unwrap(), 0);
}

#[test]
fn what_is_in_the_queue_of_a_socket_that_is_closed_here_is_closed_before_the_call_returns() {
    let kind = SocketType::SEQPACKET;
    let (peer, ours) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let (mut witness, sent) = UnixStream::pair().unwrap();
    send_with(&peer, sent.as_fd()).unwrap();
    drop(sent);
    PeerSocket::from(ours).close_here();
    witness.set_nonblocking(true).unwrap();
    assert_eq!(witness.read(&mut [0]).unwrap(), 0);
    let sent = send_with(&peer, witness.as_fd());
    assert!(
        matches!(sent, Err(Errno::PIPE | Errno::CONNRESET)),
        "{sent:?}"
    );
}

#[test]
fn a_read_without_an_end_takes_all_descriptors() {
    let kind = SocketType::SEQPACKET;
    let (peer, ours) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let files = [pipe.as_fd(); crate::SCM_MAX_FD];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(crate::SCM_MAX_FD))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(
        &peer,
        &[IoSlice::new(b"many")],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
    let mut bytes = [0; 2];
    let received = receive(&ours, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    assert_eq!((received.bytes, received.fds.len()), (2, crate::SCM_MAX_FD));
}

#[test]
fn the_other_end_learns_of_a_dropped_socket_while_there_is_a_copy_of_its_descriptor() {
    for refuses in [false, true] {
        let kind = SocketType::SEQPACKET;
        let (peer, ours) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        // As in a process that another thread has just started.
        let _copy = ours.try_clone().unwrap();
        let ours = match refuses {
            true => PeerSocket::refusing(ours),
            false => PeerSocket::from(ours),
        };
        drop(ours);
        let read = rustix::net::recv(&peer, &mut [0_u8], rustix::net::RecvFlags::DONTWAIT);
        assert_eq!(read.map(|(bytes, _)| bytes), Ok(0));
    }
}
