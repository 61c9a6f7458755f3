//! What comes with every event of a connection, beside its input.

use wire::Instant;

use crate::config::Config;
use crate::config::connection::ConnectionConfig;
use crate::settings::Settings;

/// The circumstances of an event: none of them is kept by what handles it.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The settings of the socket, as they are now.
    pub settings: &'a Settings,
    /// What the connection began with.
    pub config: &'a ConnectionConfig,
    /// The time.
    pub now: Instant,
}

impl<'a> Context<'a> {
    /// Returns the circumstances of an event at `now`.
    #[must_use]
    pub const fn new(settings: &'a Settings, config: &'a ConnectionConfig, now: Instant) -> Self {
        Self {
            settings,
            config,
            now,
        }
    }

    /// Returns what all connections of the stack share.
    pub(crate) fn shared(&self) -> &'a Config {
        &self.config.shared
    }
}
