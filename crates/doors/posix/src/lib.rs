//! File-descriptor-shaped sockets, with Linux's calls, constants, control messages and errnos, over the user-space
//! stack.
//!
//! Key types: [`Table`] (files over one [`stack::Stack`]; nothing in it waits), [`Posix`] (the same calls with
//! blocking), and [`Waiter`] (the owner of a table: how threads wait, and the clock): [`VirtualTime`], which the thread of a test
//! program advances, and [`RealTime`], over the driver of the Rust library: a thread that waits polls the stack itself, spins and
//! naps, and the background thread of an [`Engine`] polls while none waits. The packetdrill door and the C library convert pointers
//! and call [`Posix`].
//!
//! For programs that are not written in Rust, this crate calls step 8 in the walk of a received segment, and step 1 in the
//! walk of a send.
//!
//! # Comparison with Linux
//!
//! | Area | As in Linux | Different |
//! |---|---|---|
//! | handshake | options and their order, initial window of 10 segments, window scale from buffer sizes, SYN repeated 4 times each second and then 6 times at doubling intervals, SYN-ACK 5 times from 1 s on, SYN cookies, simultaneous open, Fast Open (cookies as Linux makes them, TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE, MSG_FASTOPEN), ECN accepted if the peer requests it (`tcp_ecn` = 2), AccECN with 3 to 5 | a SYN with AccECN opens no connection at once; Fast Open's payload that a SYN-ACK does not acknowledge is sent as new data, not as a retransmission; AccECN's option is in every segment or in none, and its failures are not reported; a SYN that arrives when the backlog is full is answered with a SYN cookie, for which TCP_DEFER_ACCEPT has no effect |
//! | bind, listen | conflicts of addresses, families, IPV6_V6ONLY, SO_REUSEADDR and SO_REUSEPORT; a port that the system chooses is unused; IP_BIND_ADDRESS_NO_PORT | the dynamic range begins at 49152 (RFC 6335); an incomplete handshake may be lost when a SO_REUSEPORT listener is added or closed |
//! | data | Nagle (Minshall's variant), TCP_CORK, MSG_MORE until the next ACK, both with a flush after a timeout, TCP_NODELAY sends corked data, PSH, segments without their timestamp are accepted (RFC 7323 3.2 drops them), super-segments, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SO_RCVLOWAT, TCP_INQ, TCP_NOTSENT_LOWAT, SIOCINQ, SIOCOUTQ and SIOCOUTQNSD | urgent data stays in the stream (MSG_OOB is EINVAL or EOPNOTSUPP); POLLPRI, SIOCATMARK and splice use its position, and there is no SIGURG; windows depend on the available memory, not on SO_RCVBUF alone, and count payload, not `truesize`; the window never shrinks (`tcp_shrink_window`); a super-segment has the maximum length, with [`tcp::Tuning::LINUX`] the length of Linux's; a send buffer is charged for payload and 128 bytes for each piece, where Linux charges the `truesize` of skbs; with [`tcp::Tuning::LINUX`] a write fills the super-segment that exceeds the buffer, as in Linux |
//! | ACK policy | with [`tcp::Tuning::LINUX`]: quick ACKs, 40 to 200 ms of delay, every second full segment, ACK of a FIN in the next segment to the peer, TCP_QUICKACK | ACKs of out-of-order data are never compressed; without it, the stack acknowledges when the link has no more packets |
//! | recovery | RFC 6298 timers with 200 ms minimum, RACK-TLP, SACK and D-SACK, PRR, F-RTO, CUBIC and Reno, which may be changed during a connection | timers are exact, Linux rounds up to its ticks and adds two to the reordering timer; no BBR (ENOENT) |
//! | close | FIN-WAIT-2 and TIME-WAIT of 60 s, RST when unread data is lost, with a timestamp, RST without ACK for data after close, SO_LINGER, TCP_LINGER2, half-close, in every order; a call that waits for a file continues when another thread closes the file | the file's number is not used again before that call returns; [`Table::close_all`] ends such calls with EBADF |
//! | errors | the errno of each refusal, an error of a connection reported once, SO_ERROR, ICMP errors | EPIPE comes without SIGPIPE, as with MSG_NOSIGNAL; an invalid pointer that is not NULL is not EFAULT: the program may crash |
//! | options | those of [`abi`](mod@abi); options set before connect or listen apply to the connection, accepted sockets inherit | missing options are ENOPROTOOPT: see below; SO_RCVBUF is bounded by [`Settings::buffer_max`], SO_RCVBUFFORCE is not bounded; SO_MEMINFO counts payload |
//! | poll, epoll | level, edge, one-shot, exclusive; hang-up and error bits; edges for reading, for room after there was none (SOCK_NOSPACE) and for each entry of the error queue, each only to epolls that watch for it; epolls that watch epolls, 5 in a row | the number of paths from epolls to one file is not limited (EINVAL in Linux) |
//! | SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING | software times of receives and sends (TX_SCHED, TX_SOFTWARE, TX_ACK) with OPT_ID, OPT_ID_TCP, OPT_TSONLY, OPT_RX_FILTER, old and new numbers: control message bytes, numbers, order; requests for hardware timestamps have no effect, as on a NIC without a clock | each segment has its time, also segments that Linux would merge; without OPT_TSONLY the packet is not returned, only MSG_TRUNC, because packets are not kept; no OPT_STATS, no BIND_PHC (EINVAL); sends that share a packet each have their times; a retransmitted byte has the time of its first transmission; no packet scheduler: TX_SCHED is TX_SOFTWARE; SO_TIMESTAMP adds nothing to the error queue |
//! | zero-copy | numbering, merging, time and order of completions, control message bytes, one completion of a send that waited, SO_DEVMEM_DONTNEED's result | host bytes are always copied, which their completions report (code 1), as in Linux on loopback and with a packet socket; a range stays queued when the control buffer is too short |
//!
//! Options of Linux that are not supported:
//!
//! | Option | Reason |
//! |---|---|
//! | TCP_MD5SIG, TCP_AO_*, TCP_ULP (ENOENT), MPTCP | the protocol is not implemented |
//! | TCP_REPAIR and relatives, TCP_SAVE_SYN, TCP_ZEROCOPY_RECEIVE, TCP_TX_DELAY, TCP_RTO_*, TCP_DELACK_MAX_US, TCP_THIN_LINEAR_TIMEOUTS | not implemented |
//! | SO_ATTACH_FILTER and relatives, SO_LOCK_FILTER | there is no packet filter |
//! | SO_BINDTODEVICE, SO_DONTROUTE, SO_INCOMING_CPU, SO_INCOMING_NAPI_ID, SO_BUSY_POLL | one interface without a name, one router at most, polled by the threads that wait; SO_BINDTOIFINDEX takes 1 |
//! | SO_PEERCRED and relatives, SO_PASSCRED, SO_PEERSEC | a TCP peer has no credentials |
//! | SO_MAX_PACING_RATE, SO_TXTIME, SO_RXQ_OVFL, SO_PEEK_OFF, SO_BUF_LOCK, SO_RESERVE_MEM, SO_TXREHASH | not implemented |
//! | IP_MINTTL, IP_MTU, IP_RECVERR, IP_TRANSPARENT, IP_OPTIONS, IP_PKTINFO and relatives, and IPv6's | not implemented; IP_MTU_DISCOVER accepts DONT, WANT and DO, IPV6_MTU_DISCOVER WANT and DO, and path MTU discovery is always on; IP_FREEBIND is supported if every address is local (`any_local`) |
//!
//! SO_DEBUG, SO_BROADCAST, SO_OOBINLINE, SO_NO_CHECK, SO_PRIORITY, SO_MARK and SO_SELECT_ERR_QUEUE are stored and returned,
//! and have no other effect.
//!
//! The scenarios in `crates/core/stack/tests/scenarios` run both through these files and through the Rust interface of the
//! stack.
//!
//! # What it does not do
//!
//! - UDP, Unix sockets, sendfile, dup: its files are not files of the kernel.
//! - fork(2): a child cannot use the files of its parent, only drop them (see [`Engine`]). It may open another stack.
//! - Signals: no call returns EINTR.

#![forbid(unsafe_code)]

pub mod abi;
mod options;
mod posix;
mod real_time;
pub mod sockaddr;
mod table;
pub mod tcp_info;
mod virtual_time;
mod waiter;

pub use posix::splice::{SpliceArgs, flag as splice_flag};
pub use posix::{PollFd, Posix};
pub use real_time::{Engine, RealTime};
pub use runtime::{Clock, Opened, Pauses, WaitLimit};
pub use stack::{BindRxError, BindTxError, MemoryHolders};
pub use table::epoll::EpollEvent;
pub use table::receive::{Received, RecvArgs};
pub use table::send::{SendArgs, names_dmabuf};
pub use table::{FD_BASE, Settings, Table, WaitSettings};
pub use virtual_time::VirtualTime;
pub use waiter::{Waiter, Waits};
