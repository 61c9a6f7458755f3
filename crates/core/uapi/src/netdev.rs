//! Numbers of the generic netlink family `netdev` (linux include/uapi/linux/netdev.h).

/// Name of the family.
pub const FAMILY_NAME: &str = "netdev";
/// Version of the family.
pub const FAMILY_VERSION: u8 = 1;

/// `NETDEV_CMD_DEV_GET`.
pub const CMD_DEV_GET: u8 = 1;
/// `NETDEV_CMD_PAGE_POOL_GET`.
pub const CMD_PAGE_POOL_GET: u8 = 5;
/// `NETDEV_CMD_PAGE_POOL_STATS_GET`.
pub const CMD_PAGE_POOL_STATS_GET: u8 = 9;
/// `NETDEV_CMD_QUEUE_GET`.
pub const CMD_QUEUE_GET: u8 = 10;
/// `NETDEV_CMD_NAPI_GET`.
pub const CMD_NAPI_GET: u8 = 11;
/// `NETDEV_CMD_QSTATS_GET`.
pub const CMD_QSTATS_GET: u8 = 12;
/// `NETDEV_CMD_BIND_RX`: attaches a dma-buf to RX queues.
pub const CMD_BIND_RX: u8 = 13;
/// `NETDEV_CMD_NAPI_SET`.
pub const CMD_NAPI_SET: u8 = 14;
/// `NETDEV_CMD_BIND_TX`: attaches a dma-buf to a netdev for sending.
pub const CMD_BIND_TX: u8 = 15;
/// `NETDEV_CMD_QUEUE_CREATE` (Linux 7.1): makes a queue of a virtual netdev, leased from one of a NIC.
pub const CMD_QUEUE_CREATE: u8 = 16;

/// `NETDEV_A_DMABUF_IFINDEX` (u32).
pub const A_DMABUF_IFINDEX: u16 = 1;
/// `NETDEV_A_DMABUF_QUEUES` (nested, one per queue).
pub const A_DMABUF_QUEUES: u16 = 2;
/// `NETDEV_A_DMABUF_FD` (u32).
pub const A_DMABUF_FD: u16 = 3;
/// `NETDEV_A_DMABUF_ID` (u32).
pub const A_DMABUF_ID: u16 = 4;
/// `NETDEV_A_DMABUF_RX_PAGE_SIZE` (u32; bind-rx, Linux 7.3): bytes of one net_iov.
pub const A_DMABUF_RX_PAGE_SIZE: u16 = 5;

/// `NETDEV_A_QUEUE_ID` (u32).
pub const A_QUEUE_ID: u16 = 1;
/// `NETDEV_A_QUEUE_IFINDEX` (u32).
pub const A_QUEUE_IFINDEX: u16 = 2;
/// `NETDEV_A_QUEUE_TYPE` (u32: [`QUEUE_TYPE_RX`] or [`QUEUE_TYPE_TX`]).
pub const A_QUEUE_TYPE: u16 = 3;
/// `NETDEV_A_QUEUE_NAPI_ID` (u32).
pub const A_QUEUE_NAPI_ID: u16 = 4;
/// `NETDEV_A_QUEUE_DMABUF` (u32: the id): the queue's dma-buf provider.
pub const A_QUEUE_DMABUF: u16 = 5;
/// `NETDEV_A_QUEUE_IO_URING` (nested): the queue's io_uring provider.
pub const A_QUEUE_IO_URING: u16 = 6;
/// `NETDEV_A_QUEUE_XSK` (nested): the queue's AF_XDP socket.
pub const A_QUEUE_XSK: u16 = 7;
/// `NETDEV_A_QUEUE_LEASE` (nested: `A_LEASE_*`): in a request to make a queue, the one that it is leased from; in the reply about a
/// queue of a NIC, the one that it is leased to.
pub const A_QUEUE_LEASE: u16 = 8;

/// `NETDEV_A_LEASE_IFINDEX` (u32): the netdev at the other end of a lease.
pub const A_LEASE_IFINDEX: u16 = 1;
/// `NETDEV_A_LEASE_QUEUE` (nested: [`A_QUEUE_ID`] and [`A_QUEUE_TYPE`]): its queue.
pub const A_LEASE_QUEUE: u16 = 2;
/// `NETDEV_A_LEASE_NETNS_ID` (s32): its network namespace, as this one numbers it; absent if it is this one.
pub const A_LEASE_NETNS_ID: u16 = 3;

/// `NETDEV_QUEUE_TYPE_RX`.
pub const QUEUE_TYPE_RX: u32 = 0;
/// `NETDEV_QUEUE_TYPE_TX`.
pub const QUEUE_TYPE_TX: u32 = 1;

/// `NETDEV_A_DEV_IFINDEX` (u32).
pub const A_DEV_IFINDEX: u16 = 1;
/// `NETDEV_A_DEV_XDP_FEATURES` (u64).
pub const A_DEV_XDP_FEATURES: u16 = 3;

/// `NETDEV_A_PAGE_POOL_ID` (uint).
pub const A_PAGE_POOL_ID: u16 = 1;
/// `NETDEV_A_PAGE_POOL_IFINDEX` (u32); absent once the netdev is gone.
pub const A_PAGE_POOL_IFINDEX: u16 = 2;
/// `NETDEV_A_PAGE_POOL_NAPI_ID` (uint).
pub const A_PAGE_POOL_NAPI_ID: u16 = 3;
/// `NETDEV_A_PAGE_POOL_INFLIGHT` (uint): pages or net_iovs in use outside the pool.
pub const A_PAGE_POOL_INFLIGHT: u16 = 4;
/// `NETDEV_A_PAGE_POOL_INFLIGHT_MEM` (uint): the same in bytes.
pub const A_PAGE_POOL_INFLIGHT_MEM: u16 = 5;
/// `NETDEV_A_PAGE_POOL_DETACH_TIME` (uint): time at which its queue detached from it, in seconds since boot.
pub const A_PAGE_POOL_DETACH_TIME: u16 = 6;
/// `NETDEV_A_PAGE_POOL_DMABUF` (u32: the id).
pub const A_PAGE_POOL_DMABUF: u16 = 7;
/// `NETDEV_A_PAGE_POOL_IO_URING` (nested).
pub const A_PAGE_POOL_IO_URING: u16 = 8;

/// `NETDEV_A_PAGE_POOL_STATS_INFO` (nested: [`A_PAGE_POOL_ID`] and [`A_PAGE_POOL_IFINDEX`]).
pub const A_PAGE_POOL_STATS_INFO: u16 = 1;
/// Counters of a page pool (uint): attribute and name.
pub const PAGE_POOL_COUNTERS: [(u16, &str); 11] = [
    (8, "alloc_fast"),
    (9, "alloc_slow"),
    (10, "alloc_slow_high_order"),
    (11, "alloc_empty"),
    (12, "alloc_refill"),
    (13, "alloc_waive"),
    (14, "recycle_cached"),
    (15, "recycle_cache_full"),
    (16, "recycle_ring"),
    (17, "recycle_ring_full"),
    (18, "recycle_released_refcnt"),
];

/// `NETDEV_A_QSTATS_IFINDEX` (u32).
pub const A_QSTATS_IFINDEX: u16 = 1;
/// `NETDEV_A_QSTATS_QUEUE_TYPE` (u32).
pub const A_QSTATS_QUEUE_TYPE: u16 = 2;
/// `NETDEV_A_QSTATS_QUEUE_ID` (u32).
pub const A_QSTATS_QUEUE_ID: u16 = 3;
/// `NETDEV_A_QSTATS_SCOPE` (uint): [`QSTATS_SCOPE_QUEUE`], or absent for the whole netdev.
pub const A_QSTATS_SCOPE: u16 = 4;
/// `NETDEV_QSTATS_SCOPE_QUEUE`: counters per queue.
pub const QSTATS_SCOPE_QUEUE: u32 = 1;
/// Counters of a queue (uint): attribute and name.
pub const QUEUE_COUNTERS: [(u16, &str); 27] = [
    (8, "rx_packets"),
    (9, "rx_bytes"),
    (10, "tx_packets"),
    (11, "tx_bytes"),
    (12, "rx_alloc_fail"),
    (13, "rx_hw_drops"),
    (14, "rx_hw_drop_overruns"),
    (15, "rx_csum_complete"),
    (16, "rx_csum_unnecessary"),
    (17, "rx_csum_none"),
    (18, "rx_csum_bad"),
    (19, "rx_hw_gro_packets"),
    (20, "rx_hw_gro_bytes"),
    (21, "rx_hw_gro_wire_packets"),
    (22, "rx_hw_gro_wire_bytes"),
    (23, "rx_hw_drop_ratelimits"),
    (24, "tx_hw_drops"),
    (25, "tx_hw_drop_errors"),
    (26, "tx_csum_none"),
    (27, "tx_needs_csum"),
    (28, "tx_hw_gso_packets"),
    (29, "tx_hw_gso_bytes"),
    (30, "tx_hw_gso_wire_packets"),
    (31, "tx_hw_gso_wire_bytes"),
    (32, "tx_hw_drop_ratelimits"),
    (33, "tx_stop"),
    (34, "tx_wake"),
];
