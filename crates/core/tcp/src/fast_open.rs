//! TCP Fast Open (RFC 7413): payload in the SYN, for peers that have shown by a cookie that they own their address.
//!
//! # The server's walk
//!
//! 1. [`SynBacklog`](crate::SynBacklog) passes a SYN to [`FastOpenListener::judge`] if the listener allows Fast Open. A SYN
//!    that requests a cookie, or has a wrong one, gets the right cookie in the SYN-ACK, and the handshake goes on as ever:
//!    the payload is not acknowledged, and the peer sends it again.
//! 2. A SYN with a valid cookie takes a place among the listener's pending opens ([`pending`]). It becomes a connection at
//!    once: its payload is in the receive queue, it can be accepted, and it may send up to the initial window. While
//!    [`Opening`](crate::state::opening::Opening) exists its state is SYN-RECEIVED, and the SYN-ACK, which acknowledges the payload too, is repeated by the
//!    handshake's timer. Nothing else is repeated before the peer's ACK.
//! 3. The first acceptable ACK ends the opening and frees the place. A RST ends the connection, and its place stays taken for
//!    [`RESET_HOLD`](pending::RESET_HOLD) (RFC 7413 5.1: forged SYNs from addresses that answer by RSTs must not open
//!    connections without limit).
//!
//! A listener that answers with SYN cookies keeps no state, and ignores Fast Open. So does the handshake with AccECN: its
//! counters begin with the ACK of the SYN-ACK.
//!
//! # The client's walk
//!
//! 1. [`FastOpenCache::start`] says what the SYN carries: the peer's cookie and payload, or the request for a cookie.
//!    [`Connection::connect`](crate::Connection::connect) takes it, and then as much payload as fits the SYN.
//! 2. The first SYN has option and payload; its repetitions have neither, in case a middlebox drops such packets.
//! 3. The SYN-ACK acknowledges the SYN, or payload too. What it does not acknowledge is sent as ordinary payload at once.
//! 4. [`Connection::take_learned`](crate::Connection::take_learned) has the cookie, the MSS and the failures for
//!    [`FastOpenCache::learn`].

mod cache;
pub(crate) mod config;
mod keys;
pub(crate) mod pending;
mod server;
pub(crate) mod start;

pub use cache::FastOpenCache;
pub use config::{FastOpenConfig, FastOpenModes};
pub use keys::FastOpenKeys;
pub use server::FastOpenListener;
pub(crate) use server::Judgement;
pub use start::{ClientFail, FastOpenStart, Learned};
