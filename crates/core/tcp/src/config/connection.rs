//! What is fixed for one connection: the settings of its stack, its link, its path.

use std::sync::Arc;

use super::{Config, MIN_MSS};
use crate::link::{LinkLimits, SuperPayload};
use crate::settings::Settings;

/// What a connection begins with, beside the [`Settings`] of its socket.
#[derive(Debug, Clone)]
pub struct ConnectionConfig {
    /// Settings of all connections of its stack.
    pub shared: Arc<Config>,
    /// Limits of the link to its peer.
    pub link: LinkLimits,
    /// Largest payload of a packet that the path carries, in bytes, if it is known to be less than the link's. It limits the
    /// segments that are sent, not the MSS that is announced.
    pub path_mss: Option<u16>,
    /// Offset of the timestamps option's clock, so that timestamps do not reveal the uptime of this host
    /// ([`IsnGenerator::timestamp_offset`](crate::IsnGenerator::timestamp_offset)).
    pub timestamp_offset: u32,
}

impl ConnectionConfig {
    /// Returns those of a connection over `link`, with an unknown path.
    #[must_use]
    pub fn new(shared: &Arc<Config>, link: LinkLimits) -> ConnectionConfig {
        ConnectionConfig {
            shared: Arc::clone(shared),
            link,
            path_mss: None,
            timestamp_offset: 0,
        }
    }

    /// Returns the MSS that is announced to the peer, in bytes: the link's, or less if the program limits it.
    #[must_use]
    pub fn mss(&self, settings: &Settings) -> u16 {
        let link = self.link.mss;
        settings
            .user_mss
            .map_or(link, |user| user.max(MIN_MSS).min(link))
    }

    /// Returns the allowed payload lengths of one outgoing segment.
    pub(crate) fn super_payload(&self) -> SuperPayload {
        let link = self.link.super_payload;
        SuperPayload {
            longest: self
                .shared
                .max_gso_payload
                .map_or(link.longest, |most| most.min(link.longest)),
            ..link
        }
    }
}
