//! File-descriptor-shaped sockets, with Linux's calls, constants, control messages and errnos, over the user-space
//! stack.
//!
//! Key types: [`Table`] (files over one [`stack::Stack`]; nothing in it waits), [`Posix`] (the same calls with
//! blocking), and the [`Waiter`] that says how a thread waits: [`VirtualTime`], which a tester's thread moves, and
//! [`Engine`], a thread of its own in the machine's time. The packetdrill door and the C library are thin layers of
//! pointers over [`Posix`].
//!
//! In the walk of a received segment this is what calls step 8, in the walk of a send step 1, where the program is
//! not written in Rust.
//!
//! # What is as in Linux, and what is not
//!
//! | Area | The same | Not the same |
//! |---|---|---|
//! | handshake | options and their order, initial window of 10 segments, window scale from buffer sizes, SYN repeated 4 times each second and then 6 times at doubling intervals, SYN-ACK 5 times from 1 s on, SYN cookies, simultaneous open, Fast Open (cookies as Linux makes them, TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE, MSG_FASTOPEN), ECN granted to who asks (`tcp_ecn` = 2), AccECN with 3 to 5 | a SYN with AccECN opens no connection at once; Fast Open's payload that a SYN-ACK does not acknowledge is sent as new data, not as a retransmission; AccECN's option goes with every segment or with none, and what failed of it is not told; a SYN that meets a full backlog is answered by a cookie, which TCP_DEFER_ACCEPT does not bind |
//! | bind, listen | conflicts of addresses, families, IPV6_V6ONLY, SO_REUSEADDR and SO_REUSEPORT; a chosen port is nobody's; IP_BIND_ADDRESS_NO_PORT | the dynamic range begins at 49152 (RFC 6335); a handshake that is half done may be lost when a SO_REUSEPORT listener comes or goes |
//! | data | Nagle (Minshall's variant), TCP_CORK, MSG_MORE until the next ACK, both with a flush after a timeout, TCP_NODELAY lets out what is corked, PSH, segments without their timestamp are taken (RFC 7323 3.2 would drop them), super-segments, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SO_RCVLOWAT, TCP_INQ, TCP_NOTSENT_LOWAT, SIOCINQ, SIOCOUTQ and SIOCOUTQNSD | no urgent data (MSG_OOB is EINVAL or EOPNOTSUPP); windows follow the memory that is there, not SO_RCVBUF alone, and count payload, not `truesize`; the window never shrinks (`tcp_shrink_window`); a super-segment is as long as may be, with [`tcp::linux::Linux`] as long as Linux's; a send buffer is charged for payload and 128 bytes for each piece, where Linux charges the `truesize` of skbs; with [`tcp::linux::Linux`] a write fills the super-segment that exceeds the buffer, as in Linux |
//! | ACK policy | with [`tcp::linux::Linux`]: quick ACKs, 40 to 200 ms of delay, every second full segment, ACK of a FIN left to the answer, TCP_QUICKACK | ACKs of out-of-order data are never compressed; the stack's own style acknowledges when the link is empty |
//! | recovery | RFC 6298 timers with 200 ms minimum, RACK-TLP, SACK and D-SACK, PRR, F-RTO, CUBIC and Reno, which may be changed on the way | timers are exact, Linux rounds up to its ticks and adds two to the reordering timer; no BBR (ENOENT) |
//! | close | FIN-WAIT-2 and TIME-WAIT of 60 s, RST when unread data is lost, with a timestamp, RST without ACK for data after close, SO_LINGER, TCP_LINGER2, half-close, every order; a call that waits for a file goes on when another thread closes it | the file's number is not used again before that call returns; [`Table::close_all`] ends such calls with EBADF |
//! | errors | the errno of each refusal, told once, SO_ERROR, ICMP errors | EPIPE comes without SIGPIPE, as with MSG_NOSIGNAL; pointers that lead nowhere are not EFAULT but the program's end |
//! | options | those of [`abi`](mod@abi); what was set before connect or listen holds, accepted sockets inherit | what is not there is ENOPROTOOPT: see below; SO_RCVBUF is bounded by [`Settings::buffer_max`], SO_RCVBUFFORCE by nothing; SO_MEMINFO counts payload |
//! | poll, epoll | level, edge, one-shot, exclusive; hang-up and error bits; edges for reading, for room after there was none (SOCK_NOSPACE) and for each entry of the error queue, each to those who asked for it; epolls that watch epolls, 5 in a row | of many ways along which epolls watch one file all are taken, where Linux bounds their number (EINVAL) |
//! | SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING | software times of receives and sends (TX_SCHED, TX_SOFTWARE, TX_ACK) with OPT_ID, OPT_ID_TCP, OPT_TSONLY, OPT_RX_FILTER, old and new numbers: control message bytes, numbers, order; hardware is asked for in vain, as of a NIC without a clock | segments that Linux would merge keep a time each; without OPT_TSONLY the packet is not returned, only MSG_TRUNC: a copy of every packet would be kept for whom nothing but its time is wanted; no OPT_STATS, no BIND_PHC (EINVAL); sends that share a packet each have their times; a byte sent again has its first time; no packet scheduler: TX_SCHED is TX_SOFTWARE; SO_TIMESTAMP adds nothing to the error queue |
//! | zero-copy | numbering, merging, time and order of completions, control message bytes, one completion of a send that waited, SO_DEVMEM_DONTNEED's result | host bytes are always copied and say so (code 1), as Linux's are on loopback and under a packet socket; a range stays queued when the control buffer is too short |
//!
//! Of the options that Linux has, these are not here, and why:
//!
//! | Option | Reason |
//! |---|---|
//! | TCP_MD5SIG, TCP_AO_*, TCP_ULP (ENOENT), MPTCP | the protocol is not there |
//! | TCP_REPAIR and relatives, TCP_SAVE_SYN, TCP_ZEROCOPY_RECEIVE, TCP_TX_DELAY, TCP_RTO_*, TCP_DELACK_MAX_US, TCP_THIN_LINEAR_TIMEOUTS | not done |
//! | SO_ATTACH_FILTER and relatives, SO_LOCK_FILTER | there is no packet filter |
//! | SO_BINDTODEVICE, SO_DONTROUTE, SO_INCOMING_CPU, SO_INCOMING_NAPI_ID, SO_BUSY_POLL | one interface without a name, one router at most, polled by one thread; SO_BINDTOIFINDEX takes 1 |
//! | SO_PEERCRED and relatives, SO_PASSCRED, SO_PEERSEC | nobody stands behind a TCP peer |
//! | SO_MAX_PACING_RATE, SO_TXTIME, SO_RXQ_OVFL, SO_PEEK_OFF, SO_BUF_LOCK, SO_RESERVE_MEM, SO_TXREHASH | not done |
//! | IP_MINTTL, IP_MTU, IP_RECVERR, IP_FREEBIND, IP_TRANSPARENT, IP_OPTIONS, IP_PKTINFO and relatives, and IPv6's | not done; IP_MTU_DISCOVER takes WANT and DO, because every packet has DF |
//!
//! SO_DEBUG, SO_BROADCAST, SO_OOBINLINE, SO_NO_CHECK, SO_PRIORITY, SO_MARK and SO_SELECT_ERR_QUEUE are remembered and
//! change nothing: nobody here reads them.
//!
//! What programs may expect of sockets whatever way they call is tested through these files and through the stack's own
//! interface by the same scenarios (`crates/core/stack/tests/scenarios`).
//!
//! # What it does not do
//!
//! - UDP, Unix sockets, sendfile, dup: its files are not the kernel's.
//! - fork(2): a child has no part in its parent's files ([`Engine`] says what a child may do with them: drop them). It may
//!   have a stack of its own.
//! - Signals: no call returns EINTR.

#![forbid(unsafe_code)]

pub mod abi;
mod options;
mod posix;
mod ready_fd;
mod real_time;
pub mod sockaddr;
mod table;
pub mod tcp_info;
mod virtual_time;
mod waiter;

pub use posix::{Limit, PollFd, Posix, SpliceArgs, splice_flag};
pub use real_time::{Engine, RealTime};
pub use stack::{BindRxError, BindTxError};
pub use table::{
    EpollEvent, FD_BASE, Patience, Received, RecvArgs, SendArgs, Settings, Table, names_dmabuf,
};
pub use virtual_time::VirtualTime;
pub use waiter::Waiter;
