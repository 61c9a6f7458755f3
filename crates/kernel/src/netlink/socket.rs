//! A netlink socket, which sends a request and waits for its replies and its acknowledgement.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, bind,
    netlink, recvfrom, sendto, socket_with,
};

use super::error::NetlinkError;
use super::exchange::{BatchAnswers, Exchange};
use super::message::{NetlinkMessage, messages};
use super::request::Request;
use crate::sys;

/// Size of the receive buffer. Replies have at most a page or two; those about an interface with many virtual functions are
/// the longest.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Maximum time to wait for a reply. The kernel replies during send(2), and continues a dump during recv(2), so that a
/// reply that takes longer will not come.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of datagrams that are taken in one call, so that a flood of changes cannot keep the caller busy.
const ARRIVED_DATAGRAMS: usize = 64;
/// Maximum number of attempts to read a dump that is interrupted by changes.
const DUMP_ATTEMPTS: usize = 8;

/// A socket of one netlink protocol. It belongs to the network namespace of the thread that opened it,
/// even if that thread moves to another.
#[derive(Debug)]
pub struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
    /// Receive buffer, allocated by the first request.
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket for interface and address set-up (`NETLINK_ROUTE`).
    ///
    /// # Errors
    ///
    /// The error of socket(2), bind(2) or setsockopt(2).
    pub fn route() -> Result<Self, NetlinkError> {
        // NETLINK_ROUTE is protocol 0, which rustix writes as None.
        Self::open(None, 0)
    }

    /// As [`route`](Self::route); the socket also gets a message for each change of an interface (`RTNLGRP_LINK`).
    ///
    /// # Errors
    ///
    /// As [`route`](Self::route).
    pub(crate) fn route_with_link_changes() -> Result<Self, NetlinkError> {
        /// `RTMGRP_LINK` (linux include/uapi/linux/rtnetlink.h).
        const LINK_CHANGES: u32 = 1;
        Self::open(None, LINK_CHANGES)
    }

    /// Opens a socket for the families of generic netlink (`NETLINK_GENERIC`).
    ///
    /// # Errors
    ///
    /// The error of socket(2), bind(2) or setsockopt(2).
    pub fn generic() -> Result<Self, NetlinkError> {
        Self::open(Some(netlink::GENERIC), 0)
    }

    /// Opens a socket for netfilter (`NETLINK_NETFILTER`).
    ///
    /// # Errors
    ///
    /// The error of socket(2), bind(2) or setsockopt(2); `EPROTONOSUPPORT` if the kernel has no netfilter.
    pub fn netfilter() -> Result<Self, NetlinkError> {
        Self::open(Some(netlink::NETFILTER), 0)
    }

    /// Sends several requests as one message: the kernel does all of them or, if it refuses one, none. For protocols with
    /// such batches, with the `first` and `last` message that begin and end one. These are not acknowledged.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request).
    pub(crate) fn batch(
        &mut self,
        what: &str,
        first: Request,
        requests: Vec<Request>,
        last: Request,
    ) -> Result<(), NetlinkError> {
        let failed = |errno| NetlinkError::new(what, errno);
        let mut bytes = Vec::new();
        let mut sent = Vec::new();
        let silent = [first.without_ack()].into_iter();
        for request in silent.chain(requests).chain([last.without_ack()]) {
            self.sequence = self.sequence.wrapping_add(1);
            let request = request.finish(self.sequence);
            let request = request.ok_or_else(|| failed(Errno::MSGSIZE))?;
            bytes.extend_from_slice(&request.bytes);
            sent.push(request);
        }
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &bytes, SendFlags::empty(), &kernel).map_err(failed)?;
        self.buffer.resize(RECEIVE_BYTES, 0);
        let mut answers = BatchAnswers::new(what, sent);
        loop {
            let received = recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC);
            let (_, len, sender) = match received {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(failed(Errno::TIMEDOUT)),
                other => other.map_err(failed)?,
            };
            if !is_kernel(sender) {
                continue;
            }
            let datagram = self.buffer.get(..len);
            let datagram = datagram.ok_or_else(|| failed(Errno::MSGSIZE))?;
            if let Some(outcome) = answers.on_datagram(datagram) {
                return outcome;
            }
        }
    }

    fn open(protocol: Option<Protocol>, groups: u32) -> Result<Self, NetlinkError> {
        let failed = |errno| NetlinkError::new("open a netlink socket", errno);
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .map_err(failed)?;
        sys::netlink::set_options(fd.as_fd()).map_err(failed)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIMEOUT)).map_err(failed)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups)).map_err(failed)?;
        Ok(Self {
            fd,
            sequence: 0,
            buffer: Vec::new(),
        })
    }

    /// Sends `request` and passes each reply to `on_reply` until the kernel acknowledges the request. `what` names
    /// the request in errors.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, with its message; `EMSGSIZE` for a request that is too long; `ETIMEDOUT` if there is no reply
    /// within ten seconds; or the error of send(2) or recv(2).
    pub fn request(
        &mut self,
        what: &str,
        request: Request,
        on_reply: impl FnMut(NetlinkMessage<'_>),
    ) -> Result<(), NetlinkError> {
        self.exchange(what, request, on_reply).map(|_complete| ())
    }

    /// As [`request`](Self::request). Returns the result of `parse` for the first reply that it can parse, or `None` if it
    /// can parse none.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request).
    pub fn get<T>(
        &mut self,
        what: &str,
        request: Request,
        mut parse: impl FnMut(NetlinkMessage<'_>) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        let mut found = None;
        self.request(what, request, |reply| {
            found = found.take().or_else(|| parse(reply));
        })?;
        Ok(found)
    }

    /// Sends a dump request and returns the parsed entries. A dump that was interrupted by changes is
    /// repeated.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request); `EINTR` if all attempts were interrupted.
    pub fn dump<T>(
        &mut self,
        what: &str,
        request: &Request,
        mut parse: impl FnMut(NetlinkMessage<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut entries = Vec::new();
            let complete = self.exchange(what, request.clone(), |reply| {
                entries.extend(parse(reply));
            })?;
            if complete {
                return Ok(entries);
            }
        }
        Err(NetlinkError::new(what, Errno::INTR))
    }

    /// Sends a request, and does not wait for its reply: [`take_arrived`](Self::take_arrived) returns that.
    pub(crate) fn ask(&mut self, request: Request) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request.without_ack().finish(self.sequence);
        let request = request.ok_or(Errno::MSGSIZE)?;
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &request.bytes, SendFlags::DONTWAIT, &kernel).map(|_sent| ())
    }

    /// Passes each message that has arrived to `on_message`, and does not wait. At most [`ARRIVED_DATAGRAMS`] datagrams.
    ///
    /// # Errors
    ///
    /// The error of recv(2): `ENOBUFS` if messages were lost because too many came.
    pub(crate) fn take_arrived(
        &mut self,
        mut on_message: impl FnMut(NetlinkMessage<'_>),
    ) -> Result<(), Errno> {
        self.buffer.resize(RECEIVE_BYTES, 0);
        for _ in 0..ARRIVED_DATAGRAMS {
            let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
            let (_, len, sender) = match recvfrom(&self.fd, &mut self.buffer[..], flags) {
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if is_kernel(sender) {
                let datagram = self.buffer.get(..len).unwrap_or_default();
                messages(datagram).for_each(&mut on_message);
            }
        }
        Ok(())
    }

    /// Sends a request and receives its replies; returns false if the dump was interrupted by changes.
    fn exchange(
        &mut self,
        what: &str,
        request: Request,
        mut on_reply: impl FnMut(NetlinkMessage<'_>),
    ) -> Result<bool, NetlinkError> {
        let failed = |errno| NetlinkError::new(what, errno);
        self.sequence = self.sequence.wrapping_add(1);
        let sent = request.finish(self.sequence);
        let sent = sent.ok_or_else(|| failed(Errno::MSGSIZE))?;
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &sent.bytes, SendFlags::empty(), &kernel).map_err(failed)?;

        self.buffer.resize(RECEIVE_BYTES, 0);
        let mut exchange = Exchange::new(what, &sent);
        loop {
            let received = recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC);
            let (_, len, sender) = match received {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(failed(Errno::TIMEDOUT)),
                other => other.map_err(failed)?,
            };
            if !is_kernel(sender) {
                continue;
            }
            if let Some(outcome) = exchange.on_received(&self.buffer, len, &mut on_reply) {
                return outcome.map(|()| !exchange.was_interrupted());
            }
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<NetlinkSocket> for OwnedFd {
    fn from(socket: NetlinkSocket) -> Self {
        socket.fd
    }
}

/// Returns whether the kernel sent a datagram. Any process may send to our port; only the kernel sends from port 0
/// (netlink(7)).
fn is_kernel(sender: Option<SocketAddrAny>) -> bool {
    sender
        .and_then(|address| SocketAddrNetlink::try_from(address).ok())
        .is_some_and(|address| address.pid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_the_kernel_does_not_answer_times_out() {
        let mut socket = NetlinkSocket::route().unwrap();
        let soon = Duration::from_millis(20);
        set_socket_timeout(&socket.fd, Timeout::Recv, Some(soon)).unwrap();
        // Without NLM_F_REQUEST and NLM_F_ACK the kernel does not reply.
        let mut silent = Request::new(18, 0, &[0; 16]);
        silent.bytes[6..8].copy_from_slice(&[0; 2]);
        let error = socket.request("ask", silent, |_| {}).unwrap_err();
        assert_eq!(error.errno, Errno::TIMEDOUT);
        // The socket can still be used.
        let mut links = 0;
        let list = Request::new(18, crate::netlink::F_DUMP, &[0; 16]);
        socket.request("list", list, |_| links += 1).unwrap();
        assert!(links >= 1);
    }

    #[test]
    fn an_attribute_that_the_kernel_would_ignore_is_refused() {
        // A dump of interfaces (`RTM_GETLINK`) of one hardware type, which the kernel cannot select by.
        let mut body = [0; 16];
        body[2] = 1;
        let list = Request::new(18, crate::netlink::F_DUMP, &body);
        let refused = NetlinkSocket::route()
            .unwrap()
            .request("list", list, |_| {});
        assert_eq!(refused.unwrap_err().errno, Errno::INVAL);
    }
}
