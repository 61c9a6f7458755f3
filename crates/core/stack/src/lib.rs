//! The user-space TCP/IP stack and its device memory sockets.
//!
//! Key types: [`Stack`] (a NIC, its addresses, its connections: polled by one owner), [`SocketId`]
//! (a program's handle of a connection or listener) and [`BindRx`] (device memory attached to
//! receive queues).
//!
//! In the walk of a received segment this crate is steps 4, 5, 7, 8 and 9: `Stack::poll` pops a
//! packet from the NIC, `Stack::receive` and `Stack::receive_tcp` find its connection or listener
//! (`Demux::lookup`), `rx::into_segment` makes a segment for `tcp::Connection::on_segment`;
//! `Network::send_control` sends replies that belong to no connection; [`Stack::recvmsg`] delivers bytes or
//! tokens (`TokenTable::issue`), [`Stack::dontneed`] takes tokens back (`TokenTable::release`). In the walk
//! of a send it is steps 1, 2, 4, 6, 7 and 8; of a bind-rx, all but the restart of a queue.
//!
//! The stack never reads payload in device memory: it moves [`netmem::FragList`]s. The windows that it
//! advertises to active peers never add up to more than the memory of the queue can take (see
//! `window.rs`): when tokens come back late, the sender slows down and no packet is dropped.
//!
//! # What it does not do
//!
//! - It has no thread and no clock, and no call blocks: the owner calls [`Stack::poll`] and passes the time.
//! - It does not forward, fragment or reassemble IP packets, speak UDP, or send ICMP errors.
//! - IPv6: no router or prefix discovery (addresses and routes are configured), no multicast listener reports.
//! - It does not send host memory without a copy, even with MSG_ZEROCOPY. Device memory is never copied.

#![forbid(unsafe_code)]

mod bind_addr;
mod binding;
mod claims;
mod config;
mod drops;
mod icmp;
mod memory;
mod neighbor;
mod network;
mod path_mtu;
mod placement;
mod ports;
mod pressure;
mod random;
mod received;
mod route;
mod slot_heap;
mod socket;
mod stack;
mod tcp_setup;
mod tuple;
mod window;

pub use bind_addr::BindAddr;
pub use binding::{BindRx, BindRxError, BindTxError, BoundMemory, RxPart, UnbindRxError};
pub use claims::{
    AddressCheck, AddressConflict, AddressConflicts, ConflictOutcome, DEFEND_INTERVAL, PROBE_WAIT,
    PROBES,
};
pub use config::{
    MAX_BACKLOG, MAX_ORPHANS, MAX_SOCKETS, POLL_BUDGET, POLL_BYTES, RCV_BUF_MAX, SEND_MEMORY_BYTES,
    StackConfig, StackError,
};
pub use drops::DropReason;
pub use neighbor::{
    ANSWER_BROADCASTS_PER_SECOND, ANSWER_UNICASTS_PER_SECOND, LOCK_TIME, MAX_ANSWERS_HELD,
    MAX_ANSWERS_PER_NEIGHBOR, MAX_HELD, MAX_HELD_PER_NEIGHBOR, MAX_NEIGHBORS, MAX_SOLICITS,
    REACHABLE_TIME, RETRANS_TIMER,
};
pub use path_mtu::PathMtus;
pub use placement::{BindTargetError, PlaceError, PlaceInUse, PlaceUse};
pub use ports::{EPHEMERAL_FIRST, LocalPorts};
pub use random::Secret;
pub use route::{
    AddressError, LeasedAddress, NetworkRoute, RouteError, check_address, check_gateway,
};
pub use socket::error::connection_errno;
pub use socket::error::{
    AcceptError, BadSocket, ConnectError, DontneedError, ETOOSMALL, ListenError, OptionError,
    RecvError, SendError, ShutdownError, UnknownBinding,
};
pub use socket::id::SocketId;
pub use socket::limits::{MAX_TOKENS, MAX_ZEROCOPY_SENDS};
pub use socket::readiness::Readiness;
pub use socket::recv_msg::{RecvMsg, RecvOutcome, Stopped};
pub use socket::sockopt::SocketOption;
pub use socket::timestamps::{StampIds, Timestamping};
pub use stack::holders::MemoryHolders;
pub use stack::poll::{PollOutcome, PollUntil};
pub use stack::sendmsg::{SendMsg, Sending};
pub use stack::{FlushScope, MIN_IPV6_MTU, Stack, StackStats};
pub use tcp_setup::EarlyCookie;
pub use window::INITIAL_PROMISE;
