//! Channels: the number of queues of an interface.

use serde::Serialize;

use super::requests::{Ethtool, EthtoolError, HEADER_NAMES};
use crate::netlink::Names;
use crate::netlink::attr::Attributes;

/// `ETHTOOL_MSG_CHANNELS_GET`, `_SET`.
const GET: u8 = 17;
const SET: u8 = 18;
/// `ETHTOOL_A_CHANNELS_*`.
const A_RX_MAX: u16 = 2;
const A_TX_MAX: u16 = 3;
const A_COMBINED_MAX: u16 = 5;
const A_RX: u16 = 6;
const A_TX: u16 = 7;
const A_COMBINED: u16 = 9;
const NAMES: Names = Names(&[
    (1, "header", HEADER_NAMES),
    (A_RX, "rx-count", Names::NONE),
    (A_TX, "tx-count", Names::NONE),
    (A_COMBINED, "combined-count", Names::NONE),
]);

/// The channels of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Channels {
    /// Number of RX-only channels.
    pub rx: u32,
    /// Maximum of the field before.
    pub rx_max: u32,
    /// Number of TX-only channels.
    pub tx: u32,
    /// Maximum of the field before.
    pub tx_max: u32,
    /// Number of combined channels, which have one RX queue and one TX queue.
    pub combined: u32,
    /// Maximum of the field before.
    pub combined_max: u32,
}

impl Channels {
    /// Parses a reply; an attribute that the driver leaves out counts as 0.
    pub(crate) fn parse(reply: Attributes<'_>) -> Self {
        let number = |kind| reply.u32(kind).unwrap_or(0);
        Self {
            rx: number(A_RX),
            rx_max: number(A_RX_MAX),
            tx: number(A_TX),
            tx_max: number(A_TX_MAX),
            combined: number(A_COMBINED),
            combined_max: number(A_COMBINED_MAX),
        }
    }

    /// Returns the number of RX queues.
    pub fn rx_queues(&self) -> u32 {
        self.rx.saturating_add(self.combined)
    }
}

/// A change of the channels; `None` keeps the current number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelsChange {
    /// Number of RX-only channels.
    pub rx: Option<u32>,
    /// Number of TX-only channels.
    pub tx: Option<u32>,
    /// Number of combined channels.
    pub combined: Option<u32>,
}

impl Ethtool {
    /// Reads the channels.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver does not report any.
    pub fn channels(&mut self) -> Result<Channels, EthtoolError> {
        self.read("the channels", GET, NAMES, Channels::parse)
    }

    /// Changes the channels.
    ///
    /// # Errors
    ///
    /// `EINVAL` above the maximum, or if it would remove a queue that is bound or that the RSS table uses.
    pub fn set_channels(&mut self, change: ChannelsChange) -> Result<(), EthtoolError> {
        let ChannelsChange { rx, tx, combined } = change;
        self.change("change the channels", SET, NAMES, |request| {
            request
                .with(rx, |r, count| r.u32(A_RX, count))
                .with(tx, |r, count| r.u32(A_TX, count))
                .with(combined, |r, count| r.u32(A_COMBINED, count))
        })?;
        Ok(())
    }
}
