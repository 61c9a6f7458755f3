//! The program's side: asks a broker for a binding.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use devmem_uapi::DmabufId;
use peer_socket::PeerSocket;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::error::BrokerError;
use super::message::{Answer, MAX_QUEUES, Refusal, Request};
use super::packet::{self, Descriptors, Packet};
use crate::netdev::{BoundRx, KernelRxQueueId};

/// Longest wait for a place in the queue of the broker, and then for its first message.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for the answer: the kernel restarts each queue, and may wait for other changes of the NIC.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Asks the broker that listens at `path` to bind a dma-buf to RX queues of `interface`, an interface of this network namespace. Needs no
/// privilege. `niov_bytes` is the size of a net_iov, if it is not a page.
///
/// The binding is this process' as any other: it ends when the returned value is dropped, and does not need the broker any more.
///
/// # Errors
///
/// See [`BrokerError`]; no queue is bound then. Waits for the broker at most 80 seconds.
pub fn bind_rx(
    path: &Path,
    interface: &str,
    dmabuf: BorrowedFd<'_>,
    queues: &[KernelRxQueueId],
    niov_bytes: Option<u32>,
) -> Result<BoundRx, BrokerError> {
    let asking = Asking { path };
    let request = Request {
        interface: interface.to_owned(),
        queues: queues.to_vec(),
        niov_bytes,
    };
    let request = request.emit().ok_or_else(|| {
        let reason = format!("1 to {MAX_QUEUES} queues of one interface, each once");
        asking.refused(Refusal::new(devmem_uapi::Errno::EINVAL, reason))
    })?;
    let socket = asking.connect()?;
    match asking.next(&socket, HELLO_LIMIT)? {
        (Answer::Hello, Descriptors::None) => {}
        (Answer::Refused(refusal), _) => return Err(asking.refused(refusal)),
        _ => return Err(asking.broken("it did not begin with its greeting")),
    }
    match packet::send(&socket, &request, Some(dmabuf)) {
        // After an end of the connection, the reason may be there to read.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(asking.broken(format!("send a request: {errno}"))),
    }
    let (id, netlink) = match asking.next(&socket, ANSWER_LIMIT)? {
        (Answer::Bound(id), Descriptors::One(netlink)) => (id, netlink),
        (Answer::Refused(refusal), _) => return Err(asking.refused(refusal)),
        _ => return Err(asking.broken("its answer is not a binding with its socket")),
    };
    asking.accept(id, netlink, queues)
}

/// A request to the broker at a path.
struct Asking<'a> {
    path: &'a Path,
}

impl Asking<'_> {
    fn connect(&self) -> Result<PeerSocket, BrokerError> {
        let connected = peer_socket::connect(self.path, SocketType::SEQPACKET, HELLO_LIMIT)
            .and_then(|mut socket| {
                // It sends one only after the request.
                socket.take_descriptors()?;
                Ok(socket)
            });
        connected.map_err(|error| BrokerError::Connect {
            path: self.path.to_owned(),
            error,
        })
    }

    /// Receives the next answer.
    fn next(
        &self,
        socket: &PeerSocket,
        limit: Duration,
    ) -> Result<(Answer, Descriptors), BrokerError> {
        let received = packet::receive(socket, limit);
        let received = received.map_err(|errno| match errno {
            Errno::TIMEDOUT => self.broken(format!("no answer within {limit:?}")),
            errno => self.broken(format!("receive its answer: {errno}")),
        })?;
        let Packet { bytes, descriptors } =
            received.ok_or_else(|| self.broken("it has closed the connection"))?;
        let answer = Answer::parse(&bytes).map_err(|bad| self.broken(format!("it sent {bad}")))?;
        Ok((answer, descriptors))
    }

    /// Checks that the descriptor can be that of a binding: a netlink socket.
    fn accept(
        &self,
        id: DmabufId,
        netlink: OwnedFd,
        queues: &[KernelRxQueueId],
    ) -> Result<BoundRx, BrokerError> {
        match sockopt::socket_domain(&netlink) {
            Ok(AddressFamily::NETLINK) => Ok(BoundRx::from_netlink(id, netlink, queues)),
            _ => Err(self.broken("what it passed is not a netlink socket")),
        }
    }

    fn refused(&self, refusal: Refusal) -> BrokerError {
        BrokerError::Refused {
            path: self.path.to_owned(),
            refusal,
        }
    }

    fn broken(&self, what: impl Into<String>) -> BrokerError {
        BrokerError::Broken {
            path: self.path.to_owned(),
            what: what.into(),
        }
    }
}
