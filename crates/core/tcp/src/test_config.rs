//! Settings for tests.

use core::ops::{Deref, DerefMut};
use std::sync::Arc;

use wire::Instant;

use crate::config::Config;
use crate::config::connection::ConnectionConfig;
use crate::context::Context;
use crate::isn::Endpoints;
use crate::link::LinkLimits;
use crate::settings::Settings;
use crate::tuning::SuperSegments;

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

/// What a connection begins with, and the settings of its socket.
#[derive(Debug, Clone)]
pub(crate) struct TestConfig {
    config: ConnectionConfig,
    pub settings: Settings,
}

impl Default for TestConfig {
    /// A link of Ethernet's MTU, whose NIC cuts super-segments of any length; these are long on every path, so that a test lists few.
    fn default() -> TestConfig {
        let mut shared = Config::default();
        shared.tuning.super_segments = SuperSegments::ByRate { least: u8::MAX };
        TestConfig {
            config: ConnectionConfig::new(
                &Arc::new(shared),
                LinkLimits::new(1460, LONGEST_SUPER_PAYLOAD),
            ),
            settings: Settings::default(),
        }
    }
}

impl TestConfig {
    /// Returns the shared settings, which become this connection's alone.
    pub(crate) fn shared_mut(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.config.shared)
    }

    /// Returns this with a change.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut TestConfig)) -> TestConfig {
        change(&mut self);
        self
    }

    /// Returns the circumstances of an event at `now`.
    pub(crate) fn at(&self, now: Instant) -> Context<'_> {
        Context::new(&self.settings, &self.config, now)
    }
}

impl Deref for TestConfig {
    type Target = ConnectionConfig;

    fn deref(&self) -> &ConnectionConfig {
        &self.config
    }
}

impl DerefMut for TestConfig {
    fn deref_mut(&mut self) -> &mut ConnectionConfig {
        &mut self.config
    }
}
