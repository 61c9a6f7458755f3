//! Numbers of Linux's socket interface, for architectures with the generic numbers.
//!
//! Sources: include/linux/socket.h, include/uapi/asm-generic/{socket,fcntl,ioctls}.h,
//! include/uapi/linux/{in,in6,tcp,sockios,eventpoll}.h, include/uapi/asm-generic/poll.h,
//! include/uapi/linux/net_tstamp.h.

/// Address families.
pub const AF_UNSPEC: u16 = 0;
/// IPv4.
pub const AF_INET: u16 = 2;
/// IPv6.
pub const AF_INET6: u16 = 10;

/// Socket type: a byte stream.
pub const SOCK_STREAM: i32 = 1;
/// Flag in the socket type: O_NONBLOCK.
pub const SOCK_NONBLOCK: i32 = 0o4000;
/// Flag in the socket type: O_CLOEXEC.
pub const SOCK_CLOEXEC: i32 = 0o2_000_000;
/// Bits of the socket type without the flags.
pub const SOCK_TYPE_MASK: i32 = 0xf;

/// TCP, as protocol and as level of options.
pub const IPPROTO_TCP: i32 = 6;
/// Multipath TCP, which is not supported.
pub const IPPROTO_MPTCP: i32 = 262;
/// Level of TCP's options and control messages.
pub const SOL_TCP: i32 = IPPROTO_TCP;

/// Options of level `SOL_SOCKET`.
pub mod so {
    #![allow(
        missing_docs,
        reason = "names and numbers of the header, explained in socket(7)"
    )]
    pub const DEBUG: i32 = 1;
    pub const REUSEADDR: i32 = 2;
    pub const TYPE: i32 = 3;
    pub const ERROR: i32 = 4;
    pub const BROADCAST: i32 = 6;
    pub const SNDBUF: i32 = 7;
    pub const RCVBUF: i32 = 8;
    pub const KEEPALIVE: i32 = 9;
    pub const OOBINLINE: i32 = 10;
    pub const NO_CHECK: i32 = 11;
    pub const PRIORITY: i32 = 12;
    pub const LINGER: i32 = 13;
    pub const REUSEPORT: i32 = 15;
    pub const RCVLOWAT: i32 = 18;
    pub const SNDLOWAT: i32 = 19;
    pub const RCVTIMEO: i32 = 20;
    pub const SNDTIMEO: i32 = 21;
    pub const BINDTODEVICE: i32 = 25;
    pub const PEERNAME: i32 = 28;
    pub const TIMESTAMP: i32 = 29;
    pub const ACCEPTCONN: i32 = 30;
    pub const SNDBUFFORCE: i32 = 32;
    pub const RCVBUFFORCE: i32 = 33;
    pub const TIMESTAMPNS: i32 = 35;
    pub const MARK: i32 = 36;
    pub const TIMESTAMPING: i32 = 37;
    pub const PROTOCOL: i32 = 38;
    pub const DOMAIN: i32 = 39;
    pub const SELECT_ERR_QUEUE: i32 = 45;
    pub const MEMINFO: i32 = 55;
    pub const INCOMING_NAPI_ID: i32 = 56;
    pub const COOKIE: i32 = 57;
    pub const ZEROCOPY: i32 = 60;
    pub const BINDTOIFINDEX: i32 = 62;
    pub const TIMESTAMP_NEW: i32 = 63;
    pub const TIMESTAMPNS_NEW: i32 = 64;
    pub const TIMESTAMPING_NEW: i32 = 65;
    pub const RCVTIMEO_NEW: i32 = 66;
    pub const SNDTIMEO_NEW: i32 = 67;
}

/// Options of level `SOL_TCP`.
pub mod tcp_opt {
    #![allow(
        missing_docs,
        reason = "names and numbers of the header, explained in tcp(7)"
    )]
    pub const NODELAY: i32 = 1;
    pub const MAXSEG: i32 = 2;
    pub const CORK: i32 = 3;
    pub const KEEPIDLE: i32 = 4;
    pub const KEEPINTVL: i32 = 5;
    pub const KEEPCNT: i32 = 6;
    pub const SYNCNT: i32 = 7;
    pub const LINGER2: i32 = 8;
    pub const DEFER_ACCEPT: i32 = 9;
    pub const WINDOW_CLAMP: i32 = 10;
    pub const INFO: i32 = 11;
    pub const QUICKACK: i32 = 12;
    pub const CONGESTION: i32 = 13;
    pub const THIN_DUPACK: i32 = 17;
    pub const USER_TIMEOUT: i32 = 18;
    pub const FASTOPEN: i32 = 23;
    pub const NOTSENT_LOWAT: i32 = 25;
    pub const CC_INFO: i32 = 26;
    pub const FASTOPEN_CONNECT: i32 = 30;
    pub const ULP: i32 = 31;
    pub const FASTOPEN_KEY: i32 = 33;
    pub const FASTOPEN_NO_COOKIE: i32 = 34;
    pub const INQ: i32 = 36;
    pub const IS_MPTCP: i32 = 43;
}

/// Control message with the bytes that are left to be read (`TCP_CM_INQ`).
pub const TCP_CM_INQ: i32 = tcp_opt::INQ;

/// Option of level `SOL_IP`: differentiated services.
pub const IP_TOS: i32 = 1;
/// Option of level `SOL_IP`: time to live.
pub const IP_TTL: i32 = 2;
/// Option of level `SOL_IPV6`: hop limit.
pub const IPV6_UNICAST_HOPS: i32 = 16;
/// Option of level `SOL_IP`: path MTU discovery.
pub const IP_MTU_DISCOVER: i32 = 10;
/// Option of level `SOL_IP`: bind sets the address only, and connect chooses the port.
pub const IP_BIND_ADDRESS_NO_PORT: i32 = 24;
/// Option of level `SOL_IP`: an address that is not local can be bound.
pub const IP_FREEBIND: i32 = 15;
/// Option of level `SOL_IPV6`: path MTU discovery.
pub const IPV6_MTU_DISCOVER: i32 = 23;
/// Value of both: packets are not fragmented but made to fit (`IP_PMTUDISC_WANT`, `IP_PMTUDISC_DO`).
pub const PMTUDISC: std::ops::RangeInclusive<i32> = 1..=2;
/// Value of `IP_MTU_DISCOVER`: routers may fragment packets (`IP_PMTUDISC_DONT`).
pub const PMTUDISC_DONT: i32 = 0;
/// Option of level `SOL_IPV6`: no IPv4 on this socket.
pub const IPV6_V6ONLY: i32 = 26;
/// Option of level `SOL_IPV6`: differentiated services.
pub const IPV6_TCLASS: i32 = 67;

/// Commands of fcntl.
pub mod fcntl {
    #![allow(
        missing_docs,
        reason = "names and numbers of the header, explained in fcntl(2)"
    )]
    pub const GETFD: i32 = 1;
    pub const SETFD: i32 = 2;
    pub const GETFL: i32 = 3;
    pub const SETFL: i32 = 4;
    pub const FD_CLOEXEC: i32 = 1;
    pub const O_RDONLY: i32 = 0;
    pub const O_WRONLY: i32 = 1;
    pub const O_RDWR: i32 = 2;
    pub const O_NONBLOCK: i32 = 0o4000;
}

/// Requests of ioctl.
pub mod ioctl {
    #![allow(
        missing_docs,
        reason = "names and numbers of the header, explained in tcp(7)"
    )]
    pub const SIOCATMARK: u64 = 0x8905;
    pub const SIOCOUTQ: u64 = 0x5411;
    pub const SIOCINQ: u64 = 0x541b;
    pub const FIONBIO: u64 = 0x5421;
    pub const SIOCOUTQNSD: u64 = 0x894b;
}

/// Bits of poll and epoll.
pub mod ev {
    #![allow(
        missing_docs,
        reason = "names and numbers of the header, explained in poll(2) and epoll_ctl(2)"
    )]
    pub const IN: u32 = 0x1;
    pub const PRI: u32 = 0x2;
    pub const OUT: u32 = 0x4;
    pub const ERR: u32 = 0x8;
    pub const HUP: u32 = 0x10;
    pub const NVAL: u32 = 0x20;
    pub const RDNORM: u32 = 0x40;
    pub const RDBAND: u32 = 0x80;
    pub const WRNORM: u32 = 0x100;
    pub const WRBAND: u32 = 0x200;
    pub const RDHUP: u32 = 0x2000;
    pub const EXCLUSIVE: u32 = 1 << 28;
    pub const WAKEUP: u32 = 1 << 29;
    pub const ONESHOT: u32 = 1 << 30;
    pub const ET: u32 = 1 << 31;
}

/// Operations of epoll_ctl.
pub mod ctl {
    #![allow(
        missing_docs,
        reason = "names and numbers of the header, explained in epoll_ctl(2)"
    )]
    pub const ADD: i32 = 1;
    pub const DEL: i32 = 2;
    pub const MOD: i32 = 3;
}

/// Longest accept queue that listen grants (linux `net.core.somaxconn`).
pub const SOMAXCONN: usize = 4096;

/// Flags of SO_TIMESTAMPING that are accepted. As in Linux, hardware flags are accepted even for a NIC without a clock. No
/// NIC here has one, so these flags have no effect.
pub mod sof {
    #![allow(
        missing_docs,
        reason = "names and numbers of the header, explained in the kernel's documentation of timestamping"
    )]
    pub const TX_HARDWARE: u32 = 1;
    pub const TX_SOFTWARE: u32 = 1 << 1;
    pub const RX_HARDWARE: u32 = 1 << 2;
    pub const RX_SOFTWARE: u32 = 1 << 3;
    pub const SOFTWARE: u32 = 1 << 4;
    pub const SYS_HARDWARE: u32 = 1 << 5;
    pub const RAW_HARDWARE: u32 = 1 << 6;
    pub const OPT_ID: u32 = 1 << 7;
    pub const TX_SCHED: u32 = 1 << 8;
    pub const TX_ACK: u32 = 1 << 9;
    pub const OPT_CMSG: u32 = 1 << 10;
    pub const OPT_TSONLY: u32 = 1 << 11;
    pub const OPT_PKTINFO: u32 = 1 << 13;
    pub const OPT_TX_SWHW: u32 = 1 << 14;
    pub const OPT_ID_TCP: u32 = 1 << 16;
    pub const OPT_RX_FILTER: u32 = 1 << 17;
    const HARDWARE: u32 =
        TX_HARDWARE | RX_HARDWARE | SYS_HARDWARE | RAW_HARDWARE | OPT_PKTINFO | OPT_TX_SWHW;
    pub const ALL: u32 = HARDWARE
        | TX_SOFTWARE
        | RX_SOFTWARE
        | SOFTWARE
        | OPT_ID
        | TX_SCHED
        | TX_ACK
        | OPT_CMSG
        | OPT_TSONLY
        | OPT_ID_TCP
        | OPT_RX_FILTER;
}

/// Maximum bytes of one call (linux `MAX_RW_COUNT`).
pub const MAX_RW_COUNT: usize = 0x7fff_f000;

/// MSG_OOB.
pub const MSG_OOB: u32 = 0x1;
/// MSG_FASTOPEN.
pub const MSG_FASTOPEN: u32 = 0x2000_0000;
