//! bind-rx and bind-tx: binding a dma-buf to RX queues, and for sending.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use devmem_uapi::{DmabufId, Errno, netdev as uapi};
use serde::Serialize;

use super::KernelRxQueueId;
use super::requests::{DMABUF_NAMES, Netdev};
use crate::errors::{Cause, Facts, Operation, cause};
use crate::ethtool::Ethtool;
use crate::netif;
use crate::netlink::{GenericSocket, NetlinkError, Request};
use crate::socket::TxSource;

/// Why a binding was refused: the kernel's answer, the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindError {
    /// The kind of binding.
    pub operation: Operation,
    /// The interface.
    pub interface: String,
    /// The requested queues; empty for bind-tx.
    pub queues: Vec<KernelRxQueueId>,
    /// The errno that the kernel returned.
    pub errno: Errno,
    /// The kernel's extended-ack message, if there was one.
    pub kernel: Option<String>,
    /// The attribute of the request that the extended ack names, if any: `queues.id`.
    pub attribute: Option<String>,
    /// The cause and the remedy.
    pub cause: Box<Cause>,
}

/// Prints one line; the hint is in [`BindError::cause`].
impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.operation, self.interface)?;
        match &self.queues[..] {
            [] => {}
            [queue] => write!(f, " queue {queue}")?,
            [first, rest @ ..] => {
                write!(f, " queues {first}")?;
                rest.iter().try_for_each(|queue| write!(f, ", {queue}"))?;
            }
        }
        write!(f, " refused: {}: {}", self.errno, self.cause)?;
        match &self.kernel {
            Some(words) if !self.cause.message.contains(words.as_str()) => {
                write!(f, " (kernel: {words})")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for BindError {}

/// An attachment of a dma-buf to a NIC. It lasts as long as this value: the netlink socket that created it
/// *is* the binding, and the kernel unbinds when the socket is closed, also by a crash.
#[derive(Debug)]
pub(super) struct NetlinkBinding {
    id: DmabufId,
    /// Not used again, only kept open.
    netlink: OwnedFd,
}

/// Device memory bound to RX queues.
#[derive(Debug)]
pub struct BoundRx {
    binding: NetlinkBinding,
    queues: Vec<KernelRxQueueId>,
}

impl BoundRx {
    /// Returns the id of the binding, which is also in each received frag.
    pub fn id(&self) -> DmabufId {
        self.binding.id
    }

    /// Returns the queues.
    pub fn queues(&self) -> &[KernelRxQueueId] {
        &self.queues
    }

    /// Returns the netlink socket, which now is the binding, for another process.
    pub(crate) fn into_netlink(self) -> OwnedFd {
        self.binding.netlink
    }

    /// A binding that another process has made, with its netlink socket.
    pub(crate) fn from_netlink(id: DmabufId, netlink: OwnedFd, queues: &[KernelRxQueueId]) -> Self {
        Self {
            binding: NetlinkBinding { id, netlink },
            queues: queues.to_vec(),
        }
    }
}

/// Device memory bound for sending.
#[derive(Debug)]
pub struct BoundTx {
    binding: NetlinkBinding,
    interface: String,
}

impl BoundTx {
    /// Returns the id of the binding, which the control message of a send contains.
    pub fn id(&self) -> DmabufId {
        self.binding.id
    }

    /// Returns the source for [`send_dmabuf`](crate::socket::send_dmabuf).
    pub fn source(&self) -> TxSource<'_> {
        TxSource {
            dmabuf: self.id(),
            interface: &self.interface,
        }
    }
}

/// Result of probing a driver with a request that cannot succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverSupport {
    /// The driver supports the operation; settings may still prevent it.
    Yes,
    /// The driver does not support it.
    No {
        /// The reason, in one line.
        reason: String,
    },
    /// It cannot be determined: the privilege is missing, or the kernel checks something else first.
    Unknown {
        /// The reason, in one line.
        reason: String,
    },
}

impl Netdev {
    /// Binds a dma-buf to RX queues: payload that the NIC receives on them lands in it.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, with its cause. No queue is bound then.
    pub fn bind_rx(
        &mut self,
        dmabuf: BorrowedFd<'_>,
        queues: &[KernelRxQueueId],
    ) -> Result<BoundRx, BindError> {
        self.bind_rx_sized(dmabuf, queues, None)
    }

    /// Binds as [`bind_rx`](Self::bind_rx) does, with net_iovs of `rx_page_size` bytes instead of a page: a power of two, of
    /// which each piece of the dma-buf must be a multiple (as with huge pages: [`DmabufFd::udmabuf_huge`]).
    ///
    /// # Errors
    ///
    /// As [`bind_rx`](Self::bind_rx); `EINVAL` for the attribute `rx-page-size` before Linux 7.3, `EOPNOTSUPP` if the driver
    /// does not support this size.
    ///
    /// [`DmabufFd::udmabuf_huge`]: crate::dmabuf::DmabufFd::udmabuf_huge
    pub fn bind_rx_sized(
        &mut self,
        dmabuf: BorrowedFd<'_>,
        queues: &[KernelRxQueueId],
        rx_page_size: Option<u32>,
    ) -> Result<BoundRx, BindError> {
        let request = |socket: &GenericSocket, index: u32| {
            rx_request(socket, index, dmabuf.as_raw_fd(), queues, rx_page_size)
        };
        match self.bind("bind-rx", request) {
            Ok(binding) => Ok(BoundRx {
                binding,
                queues: queues.to_vec(),
            }),
            Err(error) => Err(self.explain(Operation::BindRx, queues, error)),
        }
    }

    /// Binds a dma-buf for sending through this NIC. Needs no privilege.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, with its cause.
    pub fn bind_tx(&mut self, dmabuf: BorrowedFd<'_>) -> Result<BoundTx, BindError> {
        let request = |socket: &GenericSocket, index: u32| {
            bind_request(socket, uapi::CMD_BIND_TX, index, dmabuf.as_raw_fd())
        };
        match self.bind("bind-tx", request) {
            Ok(binding) => Ok(BoundTx {
                binding,
                interface: self.name.clone(),
            }),
            Err(error) => Err(self.explain(Operation::BindTx, &[], error)),
        }
    }

    /// Sends a bind request over a new socket.
    pub(super) fn bind(
        &self,
        what: &str,
        request: impl FnOnce(&GenericSocket, u32) -> Request,
    ) -> Result<NetlinkBinding, NetlinkError> {
        let what = format!("{what} on {}", self.name);
        let mut socket = GenericSocket::open(uapi::FAMILY_NAME)?;
        let request = request(&socket, self.index.0);
        let id = socket.get(&what, request, |reply| reply.u32(uapi::A_DMABUF_ID))?;
        Ok(NetlinkBinding {
            id: DmabufId(id),
            netlink: socket.into(),
        })
    }

    /// Finds the cause of a refused binding from the current state of the interface.
    pub(super) fn explain(
        &mut self,
        operation: Operation,
        queues: &[KernelRxQueueId],
        error: NetlinkError,
    ) -> BindError {
        let errno = Errno(error.errno.raw_os_error());
        let facts = self.facts(queues, &error);
        BindError {
            operation,
            interface: self.name.clone(),
            queues: queues.to_vec(),
            errno,
            cause: Box::new(cause(operation, errno, &facts)),
            kernel: error.text,
            attribute: facts.attribute,
        }
    }

    pub(super) fn facts(&mut self, queues: &[KernelRxQueueId], error: &NetlinkError) -> Facts {
        let ethtool = Ethtool::with_index(&self.name, self.index);
        let (driver, rings) = match ethtool {
            Ok(mut ethtool) => (ethtool.driver().ok(), ethtool.rings().ok()),
            Err(_) => (None, None),
        };
        let rx_queues = self.rx_queues().ok();
        let taken = rx_queues.iter().flatten().filter_map(|(id, user)| {
            let asked_for = queues.contains(id);
            user.filter(|_| asked_for).map(|user| (*id, user))
        });
        Facts {
            kernel: error.text.clone(),
            attribute: error.attribute.as_ref().map(|a| a.path.clone()),
            interface: Some(self.name.clone()),
            driver: driver.map(|info| info.driver),
            queues: queues.to_vec(),
            taken: taken.collect(),
            // An interface that is down lists no queues, whatever their number.
            rx_queues: rx_queues
                .as_ref()
                .and_then(|queues| u32::try_from(queues.len()).ok())
                .filter(|&count| count != 0),
            data_split: rings.and_then(|r| r.data_split),
            hds_thresh: rings.and_then(|r| r.hds_thresh),
            xdp: netif::has_xdp_program(self.index.0).ok(),
            ..Facts::default()
        }
    }

    /// Probes whether the driver supports bind-rx, with a request that cannot succeed: its queue has no type.
    pub fn probe_bind_rx(&mut self) -> DriverSupport {
        let request = |socket: &GenericSocket, index: u32| {
            bind_request(socket, uapi::CMD_BIND_RX, index, NEVER_OPEN)
                .nested(uapi::A_DMABUF_QUEUES, |entry| {
                    entry.u32(uapi::A_QUEUE_ID, 0)
                })
        };
        let tried = self.bind("try bind-rx", request);
        judge(&tried.err(), |error| {
            // The kernel checks the queue after the driver, so the driver supports it.
            let queue = error.attribute.as_ref();
            queue.is_some_and(|bad| bad.path.starts_with("queues"))
        })
    }

    /// Probes whether the driver supports bind-tx, with a request that cannot succeed: it has no dma-buf.
    pub fn probe_bind_tx(&mut self) -> DriverSupport {
        let request = |socket: &GenericSocket, index: u32| {
            bind_request(socket, uapi::CMD_BIND_TX, index, NEVER_OPEN)
        };
        let tried = self.bind("try bind-tx", request);
        judge(&tried.err(), |error| error.errno == rustix::io::Errno::BADF)
    }
}

impl Netdev {
    /// Probes whether this kernel knows net_iovs of another size than a page (Linux 7.3), with a request that cannot succeed: for
    /// net_iovs of one byte. Whether the driver supports such net_iovs is known only when memory is bound.
    pub fn probe_niov_size(&mut self) -> DriverSupport {
        let request = |socket: &GenericSocket, index: u32| {
            bind_request(socket, uapi::CMD_BIND_RX, index, NEVER_OPEN)
                .u32(uapi::A_DMABUF_RX_PAGE_SIZE, 1)
        };
        let tried = self.bind("try bind-rx", request).err();
        match &tried {
            Some(error) if error.errno == rustix::io::Errno::INVAL => DriverSupport::No {
                reason: "only net_iovs of one page: other sizes need Linux 7.3".to_owned(),
            },
            // The policy of the attribute, so the kernel has it.
            _ => judge(&tried, |error| error.errno == rustix::io::Errno::RANGE),
        }
    }
}

/// Derives the driver's support from the answer to a request that cannot succeed.
fn judge(
    refused: &Option<NetlinkError>,
    got_past_the_driver: impl FnOnce(&NetlinkError) -> bool,
) -> DriverSupport {
    let unknown = |reason: &str| DriverSupport::Unknown {
        reason: reason.to_owned(),
    };
    match refused {
        None => unknown("a request that should fail did not"),
        Some(error) if got_past_the_driver(error) => DriverSupport::Yes,
        Some(error) => match error.errno {
            rustix::io::Errno::OPNOTSUPP => DriverSupport::No {
                reason: error
                    .text
                    .clone()
                    .unwrap_or_else(|| "the driver does not support it".to_owned()),
            },
            rustix::io::Errno::PERM => unknown("needs CAP_NET_ADMIN to find out"),
            rustix::io::Errno::NOENT => unknown("this kernel has no netdev family"),
            _ => unknown(&error.to_string()),
        },
    }
}

/// A descriptor that is never open.
pub(super) const NEVER_OPEN: RawFd = -1;

/// Encodes a request of bind-rx.
pub(super) fn rx_request(
    socket: &GenericSocket,
    index: u32,
    dmabuf: RawFd,
    queues: &[KernelRxQueueId],
    rx_page_size: Option<u32>,
) -> Request {
    let request = bind_request(socket, uapi::CMD_BIND_RX, index, dmabuf)
        .with(rx_page_size, |request, bytes| {
            request.u32(uapi::A_DMABUF_RX_PAGE_SIZE, bytes)
        });
    queues.iter().fold(request, |request, queue| {
        request.nested(uapi::A_DMABUF_QUEUES, |entry| {
            entry
                .u32(uapi::A_QUEUE_ID, queue.0)
                .u32(uapi::A_QUEUE_TYPE, uapi::QUEUE_TYPE_RX)
        })
    })
}

fn bind_request(socket: &GenericSocket, command: u8, index: u32, dmabuf: RawFd) -> Request {
    socket
        .command(command, DMABUF_NAMES)
        .u32(uapi::A_DMABUF_IFINDEX, index)
        .attribute(uapi::A_DMABUF_FD, &dmabuf.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_net_iovs_is_sent_only_if_it_is_asked_for() {
        let socket = GenericSocket::open(uapi::FAMILY_NAME).expect("Linux 6.3 and later have it");
        for size in [None, Some(16 << 10), Some(64 << 10)] {
            let request = rx_request(&socket, 8, 5, &[KernelRxQueueId(15)], size);
            let attributes = request.reply();
            assert_eq!(attributes.u32(uapi::A_DMABUF_IFINDEX), Some(8));
            assert_eq!(attributes.u32(uapi::A_DMABUF_FD), Some(5));
            assert_eq!(attributes.u32(uapi::A_DMABUF_RX_PAGE_SIZE), size);
            let queue = attributes.nested(uapi::A_DMABUF_QUEUES).expect("a queue");
            assert_eq!(queue.u32(uapi::A_QUEUE_ID), Some(15));
            assert_eq!(queue.u32(uapi::A_QUEUE_TYPE), Some(uapi::QUEUE_TYPE_RX));
        }
    }
}
