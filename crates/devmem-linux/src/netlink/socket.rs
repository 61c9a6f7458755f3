//! A netlink socket: one request, its replies, its acknowledgement.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto,
    socket_with,
};

use super::error::NetlinkError;
use super::message::{Message, Messages, Request};
use crate::sys;

/// Replies are at most a page or two; an interface with many virtual functions has the longest.
const RECEIVE_BYTES: usize = 64 * 1024;

/// A socket of one netlink protocol. It belongs to the network namespace of the thread that opened it
/// and stays there.
#[derive(Debug)]
pub struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
}

impl NetlinkSocket {
    /// Opens a socket for interface and address set-up (`NETLINK_ROUTE`).
    ///
    /// # Errors
    ///
    /// Whatever socket(2), bind(2) or setsockopt(2) said.
    pub fn route() -> Result<Self, NetlinkError> {
        // NETLINK_ROUTE is protocol 0, which rustix writes as None.
        Self::open(None)
    }

    fn open(protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        let failed = |errno| NetlinkError::new("open a netlink socket", errno);
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .map_err(failed)?;
        sys::netlink::enable_extended_ack(fd.as_fd()).map_err(failed)?;
        bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(failed)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Sends `request` and hands each reply to `on_reply` until the kernel acknowledges it. `what` names
    /// the request in errors.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, with its text; or what send(2) or recv(2) said.
    pub fn request(
        &mut self,
        what: &str,
        request: Request,
        mut on_reply: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        let failed = |errno| NetlinkError::new(what, errno);
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &bytes, SendFlags::empty(), &kernel).map_err(failed)?;

        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let len = match recv(&self.fd, &mut buffer[..], RecvFlags::TRUNC) {
                Err(Errno::INTR) => continue,
                other => other.map_err(failed)?.1,
            };
            let datagram = buffer.get(..len).ok_or_else(|| failed(Errno::MSGSIZE))?;
            let ours = Messages::new(datagram).filter(|m| m.sequence == self.sequence);
            for message in ours {
                match message.outcome(what) {
                    Some(outcome) => return outcome,
                    None => on_reply(message),
                }
            }
        }
    }
}
