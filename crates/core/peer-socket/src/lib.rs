//! UNIX sockets whose other end is not trusted.
//!
//! Such a peer can send descriptors (SCM_RIGHTS), and close(2) of the last descriptor of a file may wait: for the SO_LINGER time
//! of a TCP socket, or for the server of a FUSE file system. Whoever receives a packet without room for its descriptors, or closes a
//! socket with unread ones, closes them. And connect(2) waits while the queue of a listener is full. Here:
//!
//! - [`PeerSocket`] is one end of a connection, or a listener. It refuses descriptors, where the kernel can (Linux 6.16), until
//!   it is told to take them. What came nevertheless is closed in another thread ([`close_aside`]).
//! - [`receive`] reads one packet and takes all descriptors that came with it.
//! - [`SocketFile`] is the file that a listener is found by: created, taken over if its listener is gone, removed; of
//!   any number of processes that want it at the same time, one gets it.
//! - [`connect`] waits for a listener no longer than it is told.
//!
//! The links of a NIC, and the servers of an emulated one, are built on these. The crate knows no packets.

mod closing;
mod connecting;
mod receiving;
mod rights;
mod socket;
mod socket_file;

pub use closing::{PeerFds, close_aside, is_memory};
pub use connecting::connect;
pub use receiving::{ReceivedPacket, SCM_MAX_FD, receive};
pub use socket::PeerSocket;
pub use socket_file::{Descriptors, ListenError, ListenOptions, SocketFile};
