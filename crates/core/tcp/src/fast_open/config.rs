//! Settings of Fast Open.

use core::time::Duration;

use super::keys::FastOpenKeys;

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
