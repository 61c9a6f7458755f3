//! Statistics: page pools and queues.

use std::collections::BTreeMap;

use devmem_uapi::netdev as uapi;
use serde::Serialize;

use super::requests::{IFINDEX_NAMES, Netdev};
use crate::netlink::attr::Attributes;
use crate::netlink::{Names, NetlinkError};

use super::QueueKind;

/// A page pool of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PagePool {
    /// Its number, unique on this machine.
    pub id: u64,
    /// Its netdev; `None` if that was removed while pages are still in use.
    pub ifindex: Option<u32>,
    /// The NAPI instance that allocates from it.
    pub napi: Option<u64>,
    /// Pages or net_iovs in use.
    pub inflight: Option<u64>,
    /// The same in bytes.
    pub inflight_bytes: Option<u64>,
    /// When its queue was detached, in seconds since boot; the pool remains until its last page is returned.
    pub detached_at_s: Option<u64>,
    /// The binding of its memory.
    pub dmabuf: Option<u32>,
    /// Whether its memory comes from an io_uring.
    pub io_uring: bool,
}

impl PagePool {
    /// Reads a reply; `None` if it is not about a page pool.
    pub(crate) fn parse(reply: Attributes<'_>) -> Option<Self> {
        Some(Self {
            id: reply.uint(uapi::A_PAGE_POOL_ID)?,
            ifindex: reply.u32(uapi::A_PAGE_POOL_IFINDEX),
            napi: reply.uint(uapi::A_PAGE_POOL_NAPI_ID),
            inflight: reply.uint(uapi::A_PAGE_POOL_INFLIGHT),
            inflight_bytes: reply.uint(uapi::A_PAGE_POOL_INFLIGHT_MEM),
            detached_at_s: reply.uint(uapi::A_PAGE_POOL_DETACH_TIME),
            dmabuf: reply.u32(uapi::A_PAGE_POOL_DMABUF),
            io_uring: reply.has(uapi::A_PAGE_POOL_IO_URING),
        })
    }
}

/// Counters of a page pool, by their kernel names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PagePoolStats {
    /// The pool.
    pub id: u64,
    /// Its netdev, if that still exists.
    pub ifindex: Option<u32>,
    /// Name and value.
    pub counters: BTreeMap<&'static str, u64>,
}

impl PagePoolStats {
    /// Reads a reply; `None` if it is not about a page pool.
    pub(crate) fn parse(reply: Attributes<'_>) -> Option<Self> {
        let info = reply.nested(uapi::A_PAGE_POOL_STATS_INFO)?;
        Some(Self {
            id: info.uint(uapi::A_PAGE_POOL_ID)?,
            ifindex: info.u32(uapi::A_PAGE_POOL_IFINDEX),
            counters: counters(reply, &uapi::PAGE_POOL_COUNTERS),
        })
    }
}

/// Counters of a queue or of a whole netdev, by their kernel names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// The queue; `None` for the sum over the netdev.
    pub queue: Option<(QueueKind, u32)>,
    /// Name and value; the set depends on the driver.
    pub counters: BTreeMap<&'static str, u64>,
}

impl QueueStats {
    /// Reads a reply about the netdev `ifindex`; `None` if it is about another.
    pub(crate) fn parse(reply: Attributes<'_>, ifindex: u32) -> Option<Self> {
        if reply.u32(uapi::A_QSTATS_IFINDEX)? != ifindex {
            return None;
        }
        let kind = match reply.u32(uapi::A_QSTATS_QUEUE_TYPE) {
            None => None,
            Some(raw) => Some(QueueKind::from_raw(raw)?),
        };
        Some(Self {
            queue: kind.zip(reply.u32(uapi::A_QSTATS_QUEUE_ID)),
            counters: counters(reply, &uapi::QUEUE_COUNTERS),
        })
    }
}

fn counters(reply: Attributes<'_>, known: &[(u16, &'static str)]) -> BTreeMap<&'static str, u64> {
    let found = reply.iter().filter_map(|attribute| {
        let (_, name) = known.iter().find(|(kind, _)| *kind == attribute.kind)?;
        Some((*name, attribute.uint()?))
    });
    found.collect()
}

impl Netdev {
    /// Lists the page pools of this netdev.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` before Linux 6.8.
    pub fn page_pools(&mut self) -> Result<Vec<PagePool>, NetlinkError> {
        let what = format!("list the page pools of {}", self.name);
        let request = self.socket.list(uapi::CMD_PAGE_POOL_GET, Names::NONE);
        let pools = self.socket.dump(&what, &request, PagePool::parse)?;
        let ours = |pool: &PagePool| pool.ifindex == Some(self.index.0);
        Ok(pools.into_iter().filter(ours).collect())
    }

    /// Reads the counters of the page pools of this netdev.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the kernel was built without CONFIG_PAGE_POOL_STATS.
    pub fn page_pool_stats(&mut self) -> Result<Vec<PagePoolStats>, NetlinkError> {
        let what = format!("read the page pool counters of {}", self.name);
        let request = self.socket.list(uapi::CMD_PAGE_POOL_STATS_GET, Names::NONE);
        let pools = self.socket.dump(&what, &request, PagePoolStats::parse)?;
        let ours = |pool: &PagePoolStats| pool.ifindex == Some(self.index.0);
        Ok(pools.into_iter().filter(ours).collect())
    }

    /// Reads the counters of each queue.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver keeps none; `ENODEV` if the interface went away.
    pub fn queue_stats(&mut self) -> Result<Vec<QueueStats>, NetlinkError> {
        self.qstats(Some(uapi::QSTATS_SCOPE_QUEUE))
    }

    /// Reads the counters of the whole netdev; `None` if the driver reports none.
    ///
    /// # Errors
    ///
    /// As [`queue_stats`](Self::queue_stats).
    pub fn total_stats(&mut self) -> Result<Option<QueueStats>, NetlinkError> {
        Ok(self.qstats(None)?.into_iter().next())
    }

    fn qstats(&mut self, scope: Option<u32>) -> Result<Vec<QueueStats>, NetlinkError> {
        let what = format!("read the queue counters of {}", self.name);
        let index = self.index.0;
        let request = self
            .socket
            .list(uapi::CMD_QSTATS_GET, IFINDEX_NAMES)
            .u32(uapi::A_QSTATS_IFINDEX, index)
            .with(scope, |r, scope| r.u32(uapi::A_QSTATS_SCOPE, scope));
        self.socket
            .dump(&what, &request, |reply| QueueStats::parse(reply, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Request;

    #[test]
    fn a_page_pool_of_a_binding_is_read() {
        let reply = Request::new(0, 0, &[])
            .u32(uapi::A_PAGE_POOL_ID, 7)
            .u32(uapi::A_PAGE_POOL_IFINDEX, 2)
            .u32(uapi::A_PAGE_POOL_INFLIGHT, 1024)
            .attribute(uapi::A_PAGE_POOL_INFLIGHT_MEM, &(4u64 << 20).to_ne_bytes())
            .u32(uapi::A_PAGE_POOL_DMABUF, 3);
        let pool = PagePool::parse(reply.reply());
        let expected = PagePool {
            id: 7,
            ifindex: Some(2),
            napi: None,
            inflight: Some(1024),
            inflight_bytes: Some(4 << 20),
            detached_at_s: None,
            dmabuf: Some(3),
            io_uring: false,
        };
        assert_eq!(pool, Some(expected));
    }

    #[test]
    fn page_pool_counters_have_their_kernel_names() {
        let reply = Request::new(0, 0, &[])
            .nested(uapi::A_PAGE_POOL_STATS_INFO, |r| {
                r.u32(uapi::A_PAGE_POOL_ID, 7)
                    .u32(uapi::A_PAGE_POOL_IFINDEX, 2)
            })
            .u32(8, 100)
            .u32(18, 1)
            .u32(99, 5);
        let stats = PagePoolStats::parse(reply.reply()).unwrap();
        assert_eq!((stats.id, stats.ifindex), (7, Some(2)));
        let counters: Vec<_> = stats.counters.into_iter().collect();
        assert_eq!(
            counters,
            [("alloc_fast", 100), ("recycle_released_refcnt", 1)]
        );
    }

    #[test]
    fn queue_counters_of_another_netdev_are_left_out() {
        let reply = Request::new(0, 0, &[])
            .u32(uapi::A_QSTATS_IFINDEX, 2)
            .u32(uapi::A_QSTATS_QUEUE_TYPE, 0)
            .u32(uapi::A_QSTATS_QUEUE_ID, 15)
            .u32(12, 9);
        let attributes = reply.reply();
        assert_eq!(QueueStats::parse(attributes, 3), None);
        let stats = QueueStats::parse(attributes, 2).unwrap();
        assert_eq!(stats.queue, Some((QueueKind::Rx, 15)));
        assert_eq!(stats.counters.get("rx_alloc_fail"), Some(&9));
    }
}
