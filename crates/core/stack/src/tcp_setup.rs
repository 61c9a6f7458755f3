//! TCP configuration, initial sequence numbers and SYN cookies of new connections.

use std::sync::Arc;

use netmem::FragList;
use tcp::{
    Connection, FastOpenCache, FastOpenKeys, FastOpenListener, IsnGenerator, LinkLimits, SynBacklog,
};
use wire::Instant;

use crate::random::Secret;

/// Configuration and secrets of new connections and listeners.
pub(crate) struct TcpSetup {
    /// Shared with existing connections; [`TcpSetup::set_config`] replaces it for new ones.
    config: Arc<tcp::Config>,
    isns: IsnGenerator,
    cookie_key: [u8; 16],
    /// Keys of Fast Open's cookies, unless the configuration has some.
    fast_open_keys: FastOpenKeys,
    /// What peers have told about Fast Open.
    pub(crate) fast_open: FastOpenCache,
}

/// Whether a connection that sends payload in its SYN (RFC 7413) needs a cookie for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EarlyCookie {
    /// It does; without one the SYN requests it, and has no payload.
    #[default]
    Needed,
    /// It does not: the program knows that the peer accepts such SYNs, and that a repeated SYN does no harm
    /// (TCP_FASTOPEN_NO_COOKIE).
    NotNeeded,
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
            fast_open_keys: FastOpenKeys::new(secret.key("fast open cookies"), None),
            fast_open: FastOpenCache::default(),
        }
    }

    pub(crate) fn config(&self) -> &tcp::Config {
        &self.config
    }

    pub(crate) fn set_config(&mut self, config: tcp::Config) {
        self.config = Arc::new(config);
    }

    /// Returns an empty backlog of half-open connections for a new listener.
    pub(crate) fn backlog(&self, rcv_space: u32, capacity: usize) -> SynBacklog<FragList> {
        let (config, isns) = (Arc::clone(&self.config), self.isns.clone());
        let keys = config.fast_open.keys.unwrap_or(self.fast_open_keys);
        let mut backlog = SynBacklog::new(config, rcv_space, capacity, isns, self.cookie_key);
        backlog.set_fast_open(FastOpenListener::new(keys));
        backlog
    }

    /// Returns a connection that is about to send its SYN; with `early`, the SYN takes payload if the peer's cookie is known.
    pub(crate) fn connect(
        &self,
        path: &NewPath,
        settings: &tcp::Settings,
        early: Option<EarlyCookie>,
        now: Instant,
    ) -> Connection<FragList> {
        let NewPath {
            endpoints,
            link,
            path_mss,
        } = *path;
        let config = tcp::ConnectionConfig {
            shared: Arc::clone(&self.config),
            link,
            path_mss,
            timestamp_offset: self.isns.timestamp_offset(&endpoints),
        };
        let isn = self.isns.isn(&endpoints, now);
        let start = early.and_then(|cookie| {
            let (peer, mss) = (endpoints.remote.ip(), config.mss(settings));
            let no_cookie = cookie == EarlyCookie::NotNeeded;
            let config = &self.config.fast_open;
            self.fast_open.start(peer, mss, no_cookie, config, now)
        });
        Connection::connect(&config, settings, isn, start, now)
    }
}
