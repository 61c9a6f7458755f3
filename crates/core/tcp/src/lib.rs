//! A TCP connection that does no input or output (sans-IO), and whose payload type gives no access to bytes.
//!
//! # Key types
//!
//! - [`Segment`]: one TCP segment with its payload as a [`netmem::Payload`]: the input and the output of this crate.
//! - [`Connection`]: RFC 9293's state machine with the receiving and the sending half. It takes segments, times and calls. A
//!   [`Disposition`] says what the caller must do, and [`Connection::poll_send`] returns all segments to send.
//! - [`Settings`]: what the program has set for a socket, which owns them; an argument of each event. [`Config`] is the stack's,
//!   and [`Tuning`] the part of it in which stacks differ.
//! - [`SynBacklog`]: the half-open connections of a listener, until each becomes a [`Connection`].
//!
//! # Its part of the walks
//!
//! Receive: `Connection::on_segment` -> `Synchronized::on_segment` (the checks of RFC 9293 3.10.7.4 in
//! their order) -> `Receiver::accept` -> `receiver::cut_to_window` -> `Reassembly::insert` ->
//! [`RecvQueue`], from which the socket takes the payload. No byte is read or copied: payload is cut,
//! moved and joined as a list of owned pieces.
//!
//! Send: `Connection::admit` -> `Connection::send` -> `SendQueue::push` -> `Connection::poll_send` -> `Sender::poll_data`,
//! which returns a second owner of the bytes; the send queue keeps the first until they are acknowledged.
//!
//! # What it implements
//!
//! RFC 9293 (states, windows, probes, keepalive), 7323 (window scale, timestamps, PAWS), 2018 and
//! 2883 (SACK, D-SACK), 5961 (blind attacks), 6528 (ISNs), 4987 (SYN cookies), 1337 and 6191
//! (TIME-WAIT), 5482 (user timeout), 3168 (ECN), 9768 (AccECN), 7413 (Fast Open); in the sender 6298 (RTO), 5681 and 6582 (NewReno), 9438
//! (CUBIC), 9406 (HyStart++), draft-ietf-ccwg-bbr (BBR), 6675 and 8985 (SACK recovery, RACK-TLP), 9937 (PRR), 5682 (F-RTO), 6928 (initial window),
//! 3042 (limited transmit), 4821 (packet size without ICMP).
//!
//! # What it does not do
//!
//! - MPTCP, AO and MD5: not negotiated.
//! - The urgent pointer: urgent bytes are ordinary bytes (RFC 6093 advises against its use).
//! - Addresses, ports, sockets and NICs: the caller has them. Times, random numbers and payload are arguments.

#![forbid(unsafe_code)]

mod ack_policy;
mod chrono;
pub mod config;
mod congestion;
mod connection;
mod context;
mod disposition;
mod ecn;
mod error;
mod fast_open;
mod info;
mod isn;
mod link;
mod listen;
mod options;
mod pacing;
mod rack;
mod reassembly;
mod receiver;
mod recv_queue;
mod rtt;
mod scoreboard;
mod segment;
mod segment_drop;
mod sender;
mod seqnum;
mod settings;
mod state;
mod state_kind;
#[cfg(test)]
mod test_config;
#[cfg(test)]
mod test_payload;
#[cfg(test)]
mod test_random;
#[cfg(test)]
mod test_socket;
#[cfg(test)]
mod tests;
mod timers;
mod tuning;
mod window;

pub use chrono::{Busy, BusyTimes, Chrono};
pub use config::connection::ConnectionConfig;
pub use config::{AckConfig, Config, EcnConfig, EcnMode, EcnPolicy, SynCookies, TimerConfig};
pub use connection::Connection;
pub use connection::sending::{Push, SendError};
pub use disposition::Disposition;
pub use error::{TcpError, Unreachable};
pub use fast_open::{
    ClientFail, FastOpenCache, FastOpenConfig, FastOpenKeys, FastOpenListener, FastOpenModes,
    FastOpenStart, Learned,
};
pub use info::{CaState, Info};
pub use isn::{Endpoints, IsnGenerator};
pub use link::{LinkLimits, SuperPayload, UnfitPayload};
pub use listen::{AcceptQueue, Incoming, ListenOutcome, SynBacklog};
pub use receiver::KeptPayload;
pub use recv_queue::RecvQueue;
pub use segment::{Control, Segment};
pub use segment_drop::SegmentDrop;
pub use seqnum::SeqNum;
pub use settings::{CongestionKind, Keepalive, Settings};
pub use state::closing::TimeWait;
pub use state_kind::StateKind;
pub use tuning::{AckRules, SuperSegments, Tuning};
pub use window::window_scale_for;
