//! Numbers of the generic netlink family `netdev` (linux include/uapi/linux/netdev.h).

/// Name of the family.
pub const FAMILY_NAME: &str = "netdev";
/// Version of the family.
pub const FAMILY_VERSION: u8 = 1;

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
/// `NETDEV_CMD_QUEUE_CREATE`.
pub const CMD_QUEUE_CREATE: u8 = 16;

/// `NETDEV_A_DMABUF_IFINDEX` (u32).
pub const A_DMABUF_IFINDEX: u16 = 1;
/// `NETDEV_A_DMABUF_QUEUES` (nested, one per queue).
pub const A_DMABUF_QUEUES: u16 = 2;
/// `NETDEV_A_DMABUF_FD` (u32).
pub const A_DMABUF_FD: u16 = 3;
/// `NETDEV_A_DMABUF_ID` (u32).
pub const A_DMABUF_ID: u16 = 4;

/// `NETDEV_A_QUEUE_ID` (u32).
pub const A_QUEUE_ID: u16 = 1;
/// `NETDEV_A_QUEUE_IFINDEX` (u32).
pub const A_QUEUE_IFINDEX: u16 = 2;
/// `NETDEV_A_QUEUE_TYPE` (u32: [`QUEUE_TYPE_RX`] or [`QUEUE_TYPE_TX`]).
pub const A_QUEUE_TYPE: u16 = 3;
/// `NETDEV_A_QUEUE_NAPI_ID` (u32).
pub const A_QUEUE_NAPI_ID: u16 = 4;
/// `NETDEV_A_QUEUE_DMABUF` (nested): the queue's dma-buf provider.
pub const A_QUEUE_DMABUF: u16 = 5;
/// `NETDEV_A_QUEUE_IO_URING` (nested): the queue's io_uring provider.
pub const A_QUEUE_IO_URING: u16 = 6;
/// `NETDEV_A_QUEUE_XSK` (nested): the queue's AF_XDP socket.
pub const A_QUEUE_XSK: u16 = 7;
/// `NETDEV_A_QUEUE_LEASE` (nested): whom the queue is leased to.
pub const A_QUEUE_LEASE: u16 = 8;

/// `NETDEV_QUEUE_TYPE_RX`.
pub const QUEUE_TYPE_RX: u32 = 0;
/// `NETDEV_QUEUE_TYPE_TX`.
pub const QUEUE_TYPE_TX: u32 = 1;
