//! TCP configuration, initial sequence numbers and SYN cookies of new connections.

use std::sync::Arc;

use netmem::FragList;
use tcp::{Connection, IsnGenerator, LinkLimits, SynBacklog};
use wire::Instant;

use crate::random::Secret;

/// Configuration and secrets of new connections and listeners.
pub(crate) struct TcpSetup {
    /// Shared with existing connections; [`TcpSetup::set_config`] replaces it for new ones.
    config: Arc<tcp::Config>,
    isns: IsnGenerator,
    cookie_key: [u8; 16],
}

/// The path of a new connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewPath {
    pub(crate) endpoints: tcp::Endpoints,
    pub(crate) link: LinkLimits,
    /// Maximum segment size of the path, if an earlier connection discovered one.
    pub(crate) path_mss: Option<u16>,
}

impl TcpSetup {
    pub(crate) fn new(config: tcp::Config, secret: &Secret) -> Self {
        Self {
            config: Arc::new(config),
            isns: IsnGenerator::new(secret.key("initial sequence numbers")),
            cookie_key: secret.key("syn cookies"),
        }
    }

    pub(crate) fn config(&self) -> &tcp::Config {
        &self.config
    }

    pub(crate) fn set_config(&mut self, config: tcp::Config) {
        self.config = Arc::new(config);
    }

    /// Returns an empty backlog of half-open connections for a new listener.
    pub(crate) fn backlog(
        &self,
        options: &tcp::ConnectionOptions,
        capacity: usize,
    ) -> SynBacklog<FragList> {
        let (config, isns) = (Arc::clone(&self.config), self.isns.clone());
        SynBacklog::new(config, *options, capacity, isns, self.cookie_key)
    }

    /// Returns a connection that is about to send its SYN.
    pub(crate) fn connect(
        &self,
        path: &NewPath,
        options: &tcp::ConnectionOptions,
        now: Instant,
    ) -> Connection<FragList> {
        let NewPath {
            endpoints,
            link,
            path_mss,
        } = *path;
        let config = tcp::ConnectionConfig {
            shared: Arc::clone(&self.config),
            options: *options,
            link,
            path_mss,
            timestamp_offset: self.isns.timestamp_offset(&endpoints),
        };
        Connection::connect(&config, self.isns.isn(&endpoints, now), now)
    }
}
