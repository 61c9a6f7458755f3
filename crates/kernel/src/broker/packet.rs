//! One packet over the socket between a broker and a client, with at most one descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::message::MAX_BYTES;

/// Room for descriptors in a receive: one more than any message has, so that a message with more is seen. The kernel closes the others
/// during the call, which may take as long as their files want: each client has its own thread.
const ROOM: usize = 2;

/// A packet.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Descriptors,
}

/// What came with a packet.
#[derive(Debug)]
pub(super) enum Descriptors {
    None,
    One(OwnedFd),
    /// More than any message has, or some were lost.
    Several,
}

/// Sends a packet, without waiting: the receive buffer of a connection holds all messages of this protocol.
pub(super) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptor) = &descriptor
        && !control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(
            descriptor,
        )))
    {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives a packet within `limit`; `None` if the other end has closed the connection.
///
/// # Errors
///
/// `ETIMEDOUT` after the limit; `EMSGSIZE` for a packet that is longer than any message; otherwise the error of recvmsg(2).
pub(super) fn receive(socket: impl AsFd, limit: Duration) -> Result<Option<Packet>, Errno> {
    let started = Instant::now();
    let mut bytes = vec![0; MAX_BYTES + 1];
    let mut was_reset = false;
    loop {
        let left = limit
            .checked_sub(started.elapsed())
            .ok_or(Errno::TIMEDOUT)?;
        if !is_readable(socket.as_fd(), left)? {
            return Err(Errno::TIMEDOUT);
        }
        match receive_now(&socket, &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The other end has closed without reading what we sent, and this error comes before its last packet.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::CONNRESET) | Ok((0, _)) => return Ok(None),
            Err(errno) => return Err(errno),
            Ok((received, _)) if received > MAX_BYTES => return Err(Errno::MSGSIZE),
            Ok((received, descriptors)) => {
                bytes.truncate(received);
                return Ok(Some(Packet { bytes, descriptors }));
            }
        }
    }
}

/// Waits until the socket can be read, or `limit` has passed.
fn is_readable(socket: BorrowedFd<'_>, limit: Duration) -> Result<bool, Errno> {
    let limit = Timespec::try_from(limit).map_err(|_too_long| Errno::INVAL)?;
    let mut polled = [PollFd::new(&socket, PollFlags::IN)];
    match poll(&mut polled, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

fn receive_now(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Descriptors), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ROOM))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut descriptors = Descriptors::None;
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(received) = message else {
            continue;
        };
        for descriptor in received {
            descriptors = match descriptors {
                Descriptors::None => Descriptors::One(descriptor),
                Descriptors::One(_) | Descriptors::Several => Descriptors::Several,
            };
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        descriptors = Descriptors::Several;
    }
    Ok((got.bytes, descriptors))
}
