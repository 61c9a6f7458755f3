//! Reading a packet, and taking what came with it.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::closing::PeerFds;

/// Maximum number of descriptors of one recvmsg (linux include/net/scm.h). The buffer has room for all of them: the kernel
/// would close those without room in the call, on this thread, which may wait.
pub const SCM_MAX_FD: usize = 253;

/// What [`receive`] has read.
#[derive(Debug)]
pub struct ReceivedPacket {
    /// Bytes of the packet, 0 at the end.
    pub bytes: usize,
    /// The descriptors that came with it.
    pub fds: PeerFds,
    /// Some of them are lost: this process has no numbers left for them.
    pub lacks_fds: bool,
}

/// Reads once into `parts`, without waiting. All descriptors are taken.
///
/// # Errors
/// As recvmsg(2), but for `EINTR`, after which it is repeated.
pub fn receive(socket: impl AsFd, parts: &mut [IoSliceMut<'_>]) -> Result<ReceivedPacket, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match recvmsg(&socket, parts, &mut control, flags) {
            Err(Errno::INTR) => {}
            got => break got?,
        }
    };
    let mut fds = PeerFds::default();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(ReceivedPacket {
        bytes: got.bytes,
        fds,
        lacks_fds: got.flags.contains(ReturnFlags::CTRUNC),
    })
}
