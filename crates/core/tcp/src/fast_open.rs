//! TCP Fast Open (RFC 7413): payload in the SYN, for peers that have shown by a cookie that they own their address.
//!
//! # The server's walk
//!
//! 1. [`SynBacklog`](crate::SynBacklog) passes a SYN to [`FastOpenListener::judge`] if the listener allows Fast Open. A SYN
//!    that requests a cookie, or has a wrong one, gets the right cookie in the SYN-ACK, and the handshake goes on as ever:
//!    the payload is not acknowledged, and the peer sends it again.
//! 2. A SYN with a valid cookie takes a place among the listener's pending opens ([`pending`]). It becomes a connection at
//!    once: its payload is in the receive queue, it can be accepted, and it may send up to the initial window. While
//!    [`Opening`] exists its state is SYN-RECEIVED, and the SYN-ACK, which acknowledges the payload too, is repeated by the
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
//!    [`Connection::connect_early`](crate::Connection::connect_early) takes it, and then as much payload as fits the SYN.
//! 2. The first SYN has option and payload; its repetitions have neither, in case a middlebox drops such packets.
//! 3. The SYN-ACK acknowledges the SYN, or payload too. What it does not acknowledge is sent as ordinary payload at once.
//! 4. [`Connection::take_learned`](crate::Connection::take_learned) has the cookie, the MSS and the failures for
//!    [`FastOpenCache::learn`].

mod cache;
mod client;
mod keys;
mod opening;
mod pending;
mod server;

pub use cache::FastOpenCache;
pub(crate) use client::ClientOpen;
pub use client::{ClientFail, FastOpenStart, Learned};
pub use keys::FastOpenKeys;
pub(crate) use opening::Opening;
pub use server::FastOpenListener;
pub(crate) use server::Judgement;

use core::time::Duration;

/// Which parts of Fast Open are in use (linux `tcp_fastopen`, with its bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastOpenModes(pub u32);

impl FastOpenModes {
    /// Connections may have payload in their SYN.
    pub const CLIENT: FastOpenModes = FastOpenModes(0x1);
    /// Listeners may accept it.
    pub const SERVER: FastOpenModes = FastOpenModes(0x2);
    /// Connections send payload without a cookie.
    pub const CLIENT_NO_COOKIE: FastOpenModes = FastOpenModes(0x4);
    /// Listeners accept it without a cookie.
    pub const SERVER_NO_COOKIE: FastOpenModes = FastOpenModes(0x200);
    /// Listeners allow Fast Open without being told, as many pending opens as their backlog.
    pub const ALL_LISTENERS: FastOpenModes = FastOpenModes(0x400);

    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: FastOpenModes) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Settings of Fast Open for all connections of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastOpenConfig {
    /// Which parts are in use. The default is both sides, each of which a program must ask for; linux has the client only.
    pub modes: FastOpenModes,
    /// Key of the cookies (linux `tcp_fastopen_key`); `None`: the stack's secret.
    pub keys: Option<FastOpenKeys>,
    /// How long connections do without Fast Open after the path has dropped it, doubled for each time in a row; 0: they
    /// try again at once (linux `tcp_fastopen_blackhole_timeout_sec`).
    pub blackhole_timeout: Duration,
}

impl Default for FastOpenConfig {
    fn default() -> FastOpenConfig {
        FastOpenConfig {
            modes: FastOpenModes(FastOpenModes::CLIENT.0 | FastOpenModes::SERVER.0),
            keys: None,
            blackhole_timeout: Duration::ZERO,
        }
    }
}
