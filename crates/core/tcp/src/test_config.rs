//! Settings for tests, in few words.

use std::sync::Arc;

use crate::config::{Config, ConnectionConfig, LinkLimits, MAX_GSO_PAYLOAD};

impl Default for ConnectionConfig {
    /// A link of Ethernet's MTU, whose NIC cuts super-segments of any length.
    fn default() -> ConnectionConfig {
        let mut link = LinkLimits::of_mss(1460);
        link.super_payload.longest = MAX_GSO_PAYLOAD as u32;
        ConnectionConfig::new(&Arc::default(), link)
    }
}

impl ConnectionConfig {
    /// Returns what is shared, for this connection alone.
    pub(crate) fn shared_mut(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.shared)
    }

    /// Returns this with a change.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut ConnectionConfig)) -> ConnectionConfig {
        change(&mut self);
        self
    }
}
