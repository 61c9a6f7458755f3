//! Levels and names of socket options and control messages (linux include/uapi/asm-generic/socket.h,
//! include/linux/socket.h, include/uapi/linux/in.h, in6.h).

/// Level of socket options and control messages that belong to no protocol.
pub const SOL_SOCKET: i32 = 1;
/// Level of IPv4.
pub const SOL_IP: i32 = 0;
/// Level of IPv6.
pub const SOL_IPV6: i32 = 41;

/// Minimum number of readable bytes that wakes a reader.
pub const SO_RCVLOWAT: i32 = 18;
/// Restricts a socket to one netdev, by name.
pub const SO_BINDTODEVICE: i32 = 25;
/// Enables timestamps.
pub const SO_TIMESTAMPING: i32 = 37;
/// NAPI instance, and so the RX queue, of the last packet of a connection.
pub const SO_INCOMING_NAPI_ID: i32 = 56;
/// Lets a socket use [`MsgFlags::ZEROCOPY`](crate::MsgFlags::ZEROCOPY).
pub const SO_ZEROCOPY: i32 = 60;
/// Number of [`SCM_DEVMEM_LINEAR`]; not a socket option to set.
pub const SO_DEVMEM_LINEAR: i32 = 78;
/// Number of [`SCM_DEVMEM_DMABUF`]; not a socket option to set.
pub const SO_DEVMEM_DMABUF: i32 = 79;
/// Gives frags back: an array of [`DmabufToken`](crate::DmabufToken).
pub const SO_DEVMEM_DONTNEED: i32 = 80;

/// Control message: payload bytes that landed in host memory and were copied to the iovec.
pub const SCM_DEVMEM_LINEAR: i32 = SO_DEVMEM_LINEAR;
/// Control message: on receive, where payload lies in device memory; on send, a plain u32
/// [`DmabufId`](crate::DmabufId).
pub const SCM_DEVMEM_DMABUF: i32 = SO_DEVMEM_DMABUF;

/// Control message: three timestamps in seconds and nanoseconds; the first is the software timestamp.
pub const SCM_TIMESTAMPING: i32 = SO_TIMESTAMPING;

/// Control message of the error queue, at level [`SOL_IP`].
pub const IP_RECVERR: i32 = 11;
/// Control message of the error queue, at level [`SOL_IPV6`].
pub const IPV6_RECVERR: i32 = 25;
