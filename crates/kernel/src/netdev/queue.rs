//! queue-get: the queues of a NIC and the users of their memory.

use devmem_uapi::{DmabufId, netdev as uapi};
use serde::Serialize;

use super::requests::{Netdev, QUEUE_NAMES};
use super::{KernelRxQueueId, lease};
use crate::netlink::NetlinkError;
use crate::netlink::attr::Attributes;
use crate::queue_id::QueueUser;

/// Direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueKind {
    /// Receive queue.
    Rx,
    /// Transmit queue.
    Tx,
}

impl QueueKind {
    /// Reads `NETDEV_QUEUE_TYPE_*`.
    pub(super) fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            uapi::QUEUE_TYPE_RX => Some(Self::Rx),
            uapi::QUEUE_TYPE_TX => Some(Self::Tx),
            _ => None,
        }
    }

    fn raw(self) -> u32 {
        match self {
            Self::Rx => uapi::QUEUE_TYPE_RX,
            Self::Tx => uapi::QUEUE_TYPE_TX,
        }
    }
}

/// One queue of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueInfo {
    /// Its number among the queues of its direction.
    pub id: u32,
    /// Its direction.
    pub kind: QueueKind,
    /// The NAPI instance that serves it.
    pub napi: Option<u32>,
    /// The user of its memory, if there is one.
    pub user: Option<QueueUser>,
}

impl QueueInfo {
    /// Reads a reply; `None` if it is not about a queue.
    pub(crate) fn parse(reply: Attributes<'_>) -> Option<Self> {
        let user = if let Some(lease) = reply.nested(uapi::A_QUEUE_LEASE) {
            // First, because what is bound to a leased queue was bound through the other netdev.
            Some(QueueUser::Lease(lease::parse_end(lease)))
        } else if let Some(dmabuf) = reply.find(uapi::A_QUEUE_DMABUF) {
            // A u32 (linux net/core/devmem.c mp_dmabuf_devmem_nl_fill). Should a later kernel encode it differently, the
            // queue is bound nevertheless.
            Some(QueueUser::Dmabuf(DmabufId(dmabuf.u32().unwrap_or(0))))
        } else if reply.has(uapi::A_QUEUE_IO_URING) {
            Some(QueueUser::IoUring)
        } else if reply.has(uapi::A_QUEUE_XSK) {
            Some(QueueUser::Xsk)
        } else {
            None
        };
        Some(Self {
            id: reply.u32(uapi::A_QUEUE_ID)?,
            kind: QueueKind::from_raw(reply.u32(uapi::A_QUEUE_TYPE)?)?,
            napi: reply.u32(uapi::A_QUEUE_NAPI_ID),
            user,
        })
    }
}

impl Netdev {
    /// Lists the queues. An interface that is down has none.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the interface went away; `EOPNOTSUPP` before Linux 6.9.
    pub fn queues(&mut self) -> Result<Vec<QueueInfo>, NetlinkError> {
        let what = format!("list the queues of {}", self.name);
        let request = self.socket.list(uapi::CMD_QUEUE_GET, QUEUE_NAMES);
        let request = request.u32(uapi::A_QUEUE_IFINDEX, self.index.0);
        self.socket.dump(&what, &request, QueueInfo::parse)
    }

    /// Reads one queue.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such queue, `ENOENT` if the interface is down, `ENODEV` if it went away.
    pub fn queue(&mut self, kind: QueueKind, id: u32) -> Result<QueueInfo, NetlinkError> {
        let name = match kind {
            QueueKind::Rx => "rx",
            QueueKind::Tx => "tx",
        };
        let what = format!("read {name} queue {id} of {}", self.name);
        let request = self.socket.command(uapi::CMD_QUEUE_GET, QUEUE_NAMES);
        let request = request
            .u32(uapi::A_QUEUE_IFINDEX, self.index.0)
            .u32(uapi::A_QUEUE_TYPE, kind.raw())
            .u32(uapi::A_QUEUE_ID, id);
        self.socket.get(&what, request, QueueInfo::parse)
    }

    /// Lists the RX queues and their users.
    ///
    /// # Errors
    ///
    /// As [`queues`](Self::queues).
    pub fn rx_queues(&mut self) -> Result<Vec<(KernelRxQueueId, Option<QueueUser>)>, NetlinkError> {
        let queues = self.queues()?.into_iter();
        let rx = queues.filter(|q| q.kind == QueueKind::Rx);
        Ok(rx.map(|q| (KernelRxQueueId(q.id), q.user)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Request;
    use crate::queue_id::LeaseEnd;

    fn queue() -> Request {
        Request::new(0, 0, &[])
            .u32(uapi::A_QUEUE_ID, 15)
            .u32(uapi::A_QUEUE_TYPE, uapi::QUEUE_TYPE_RX)
            .u32(uapi::A_QUEUE_IFINDEX, 2)
            .u32(uapi::A_QUEUE_NAPI_ID, 8207)
    }

    #[test]
    fn a_queue_reports_the_user_of_its_memory() {
        let end = |r: Request| {
            r.u32(uapi::A_LEASE_IFINDEX, 8)
                .nested(uapi::A_LEASE_QUEUE, |queue| {
                    queue
                        .u32(uapi::A_QUEUE_ID, 1)
                        .u32(uapi::A_QUEUE_TYPE, uapi::QUEUE_TYPE_RX)
                })
        };
        let leased_to = |netns| LeaseEnd {
            ifindex: 8,
            queue: KernelRxQueueId(1),
            netns,
        };
        let cases: [(Request, Option<QueueUser>); 8] = [
            (queue(), None),
            (
                queue().u32(uapi::A_QUEUE_DMABUF, 3),
                Some(QueueUser::Dmabuf(DmabufId(3))),
            ),
            (
                queue().nested(uapi::A_QUEUE_IO_URING, |r| r),
                Some(QueueUser::IoUring),
            ),
            (
                queue().nested(uapi::A_QUEUE_XSK, |r| r),
                Some(QueueUser::Xsk),
            ),
            (
                queue().nested(uapi::A_QUEUE_LEASE, |r| r.u32(1, 9)),
                Some(QueueUser::Lease(None)),
            ),
            (
                queue().nested(uapi::A_QUEUE_LEASE, end),
                Some(QueueUser::Lease(Some(leased_to(None)))),
            ),
            (
                queue().nested(uapi::A_QUEUE_LEASE, |r| {
                    let other = 3_i32.to_ne_bytes();
                    end(r).attribute(uapi::A_LEASE_NETNS_ID, &other)
                }),
                Some(QueueUser::Lease(Some(leased_to(Some(3))))),
            ),
            // Memory that the lessee has bound.
            (
                queue()
                    .u32(uapi::A_QUEUE_DMABUF, 3)
                    .nested(uapi::A_QUEUE_LEASE, end),
                Some(QueueUser::Lease(Some(leased_to(None)))),
            ),
        ];
        for (reply, user) in cases {
            let info = QueueInfo::parse(reply.reply());
            let expected = QueueInfo {
                id: 15,
                kind: QueueKind::Rx,
                napi: Some(8207),
                user,
            };
            assert_eq!(info, Some(expected));
        }
    }

    #[test]
    fn a_reply_without_id_or_with_an_unknown_type_is_no_queue() {
        let no_id = Request::new(0, 0, &[]).u32(uapi::A_QUEUE_TYPE, 0);
        assert_eq!(QueueInfo::parse(no_id.reply()), None);
        let unknown = Request::new(0, 0, &[])
            .u32(uapi::A_QUEUE_ID, 0)
            .u32(uapi::A_QUEUE_TYPE, 7);
        assert_eq!(QueueInfo::parse(unknown.reply()), None);
    }
}
