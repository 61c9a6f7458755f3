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
//! | handshake | options and their order, initial window of 10 segments, window scale from buffer sizes, SYN and SYN-ACK repeated 6 and 5 times from 1 s on, SYN cookies, simultaneous open, ECN granted to who asks (`tcp_ecn` = 2) | no Fast Open (ENOPROTOOPT), no AccECN; a SYN that meets a full backlog is answered by a cookie, which TCP_DEFER_ACCEPT does not bind; a listener on the IPv4 wildcard answers IPv6, too |
//! | data | Nagle (Minshall's variant), TCP_CORK and MSG_MORE with the 200 ms flush, PSH, super-segments, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SO_RCVLOWAT, TCP_INQ, TCP_NOTSENT_LOWAT | no urgent data (MSG_OOB is EINVAL or EOPNOTSUPP); windows follow the memory that is there, not SO_RCVBUF alone; a send buffer is charged for payload and little else, where Linux charges whole skbs |
//! | ACK policy | with `AckStyle::Linux`: quick ACKs, 40 to 200 ms of delay, every second full segment, ACK of a FIN left to the answer, TCP_QUICKACK | ACKs of out-of-order data are never compressed; the stack's own style acknowledges when the link is empty |
//! | recovery | RFC 6298 timers with 200 ms minimum, RACK-TLP, SACK and D-SACK, PRR, F-RTO, CUBIC and Reno | timers are exact, Linux rounds up to its ticks and adds two to the reordering timer; no BBR (ENOENT); TCP_CONGESTION is EBUSY once a connection is open |
//! | close | FIN-WAIT-2 and TIME-WAIT of 60 s, RST when unread data is lost, SO_LINGER, TCP_LINGER2, half-close, every order | a thread blocked on a file that another closes gets EBADF |
//! | errors | the errno of each refusal, told once, SO_ERROR, ICMP errors | EPIPE comes without SIGPIPE; pointers that lead nowhere are not EFAULT but the program's end |
//! | options | those of [`abi`](mod@abi); what was set before connect or listen holds, accepted sockets inherit | everything else is ENOPROTOOPT, SO_RCVBUFFORCE among it; SO_RCVBUF is bounded by [`Settings::buffer_max`] |
//! | poll, epoll | level, edge, one-shot, exclusive; hang-up and error bits | epolls do not nest (EINVAL); EPOLLOUT edges come with every gain of room, not only after EAGAIN |
//! | SO_TIMESTAMPING | software times of sends (TX_SCHED, TX_SOFTWARE, TX_ACK) with OPT_ID, OPT_ID_TCP, OPT_TSONLY: control message bytes, numbers, order | no times of receives and no hardware (EINVAL); without OPT_TSONLY the packet is not returned, only MSG_TRUNC; sends that share a packet each have their times; a byte sent again has its first time; a blocking send that waited has times for each part; no packet scheduler: TX_SCHED is TX_SOFTWARE |
//! | pipe, splice | 64 KiB, whole writes of 4 KiB and less, EOF and EPIPE, SPLICE_F_NONBLOCK and SPLICE_F_MORE, each file's own O_NONBLOCK | splice copies, and a pipe is full by bytes, not by pages; no tee, no vmsplice, no F_SETPIPE_SZ, no packet mode |
//! | zero-copy | numbering, merging, control message bytes, SO_DEVMEM_DONTNEED's result | host bytes are copied and say so (code 1) at once; a range stays queued when the control buffer is too short; a blocking send from device memory may return short |
//!
//! # What it does not do
//!
//! - UDP, Unix sockets, sendfile, dup, fork: its files are not the kernel's.
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

pub use posix::{PollFd, Posix, SpliceArgs};
pub use real_time::{Engine, RealTime};
pub use table::{
    EpollEvent, FD_BASE, Patience, Received, RecvArgs, SendArgs, Settings, Table, names_dmabuf,
};
pub use virtual_time::VirtualTime;
pub use waiter::Waiter;
