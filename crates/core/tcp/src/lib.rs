//! TCP without input or output, over payload that it cannot read.
//!
//! # Key types
//!
//! - [`Segment`]: one TCP segment, payload as a [`netmem::Payload`]; what crosses the border in
//!   both directions.
//! - [`Connection`]: RFC 9293's state machine with both halves. Segments, times and calls go in; a
//!   [`Disposition`] says what the caller must do, and [`Connection::poll_send`] is everything this
//!   side has to say.
//! - [`SynBacklog`]: the passive side, up to the moment when there is a connection.
//!
//! # Its part of the walks
//!
//! Receive: `Connection::on_segment` -> `Synchronized::process` (the checks of RFC 9293 3.10.7.4 in
//! their order) -> `Receiver::accept` -> `Segment::trim_to_window` -> `Reassembly::insert` ->
//! [`RecvQueue`], from which the socket takes it. No byte is touched on the way: payload is cut,
//! moved and joined as a list of owned pieces.
//!
//! Send: `Connection::send` -> `Sender::push` -> `Connection::poll_send` -> `Sender::poll_data`,
//! which lends out a second owner of the bytes and keeps the first until they are acknowledged.
//!
//! # What it implements
//!
//! RFC 9293 (states, windows, probes, keepalive), 7323 (window scale, timestamps, PAWS), 2018 and
//! 2883 (SACK, D-SACK), 5961 (blind attacks), 6528 (ISNs), 4987 (SYN cookies), 1337 and 6191
//! (TIME-WAIT), 5482 (user timeout), 3168 (ECN), 9768 (AccECN), and in the sender 6298, 5681, 6582, 6675, 8985, 9438, 6928,
//! 3042.
//!
//! # What it does not do
//!
//! - TCP Fast Open (RFC 7413), MPTCP, AO and MD5: not negotiated.
//! - The urgent pointer: urgent bytes are ordinary bytes (RFC 6093 says not to use it).
//! - Addresses, ports, sockets, NICs, clocks, randomness and memory: all of them enter as
//!   arguments.

#![forbid(unsafe_code)]

mod accecn;
mod ack_policy;
pub mod config;
mod congestion;
mod connection;
mod ecn;
mod error;
mod info;
mod isn;
pub mod linux;
mod options;
mod pacing;
pub mod policy;
mod rack;
mod reassembly;
mod receiver;
mod recv_queue;
mod rtt;
mod scoreboard;
mod segment;
mod send_queue;
mod sender;
mod seqnum;
mod state;
#[cfg(test)]
mod test_config;
#[cfg(test)]
mod test_payload;
#[cfg(test)]
mod test_random;
#[cfg(test)]
mod tests;
mod timers;
mod window;

pub use config::{
    AckConfig, Config, CongestionKind, ConnectionConfig, ConnectionOptions, EcnConfig, EcnMode,
    EcnPolicy, Keepalive, LinkLimits, SuperPayload, SynCookies, TimerConfig, UnfitPayload,
};
pub use connection::{Connection, Push, SendError};
pub use error::{TcpError, Unreachable};
pub use info::{Busy, BusyTimes, CaState, Chrono, Info};
pub use isn::{Endpoints, IsnGenerator};
pub use options::{Negotiated, TimestampClock};
pub use receiver::KeptPayload;
pub use recv_queue::RecvQueue;
pub use segment::{Control, Segment};
pub use sender::{
    AckKind, AckOutcome, DataSegment, Established, IncomingAck, Sender, TimerOutcome,
};
pub use seqnum::SeqNum;
pub use state::closing::TimeWait;
pub use state::listen::{AcceptQueue, Incoming, ListenOutcome, SynBacklog};
pub use state::{Disposition, SegmentDrop, StateKind};
pub use window::window_scale_for;
