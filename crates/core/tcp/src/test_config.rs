//! Settings for tests.

use std::sync::Arc;

use crate::Endpoints;
use crate::config::{Config, ConnectionConfig, LinkLimits};

/// Longest payload of a super-segment in tests: eight times that of the longest IP packet, as some links take it.
pub(crate) const LONGEST_SUPER_PAYLOAD: u32 = 8 * 65_535 - 80;

/// Returns the limits of a link whose super-packets have an IP header that says how long they are.
pub(crate) const fn test_link(mss: u16) -> LinkLimits {
    LinkLimits::new(mss, 65_160)
}

/// Returns the addresses of a connection from a port of the peer to port 80 here.
pub(crate) fn endpoints(port: u16) -> Endpoints {
    Endpoints {
        local: ([10, 0, 0, 1], 80).into(),
        remote: ([10, 0, 0, 2], port).into(),
    }
}

impl Default for ConnectionConfig {
    /// A link of Ethernet's MTU, whose NIC cuts super-segments of any length.
    fn default() -> ConnectionConfig {
        ConnectionConfig::new(
            &Arc::default(),
            LinkLimits::new(1460, LONGEST_SUPER_PAYLOAD),
        )
    }
}

impl ConnectionConfig {
    /// Returns the shared settings, which become this connection's alone.
    pub(crate) fn shared_mut(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.shared)
    }

    /// Returns this with a change.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut ConnectionConfig)) -> ConnectionConfig {
        change(&mut self);
        self
    }
}
