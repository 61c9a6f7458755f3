//! What a device is made with.

use std::num::NonZeroU32;

use gve_defs::device_option::{HEADER_BUFFER_BYTES, MAX_FLOW_RULES};
use steer::ToeplitzKey;
use wire::MacAddr;

/// Most queue pairs: the doorbell layout has room for 256, MSI-X for 1,023.
pub const MAX_QUEUE_PAIRS: u16 = 16;
/// Smallest MTU a guest may be offered (RFC 791: every host takes 68 bytes).
pub const MIN_MTU: u16 = 68;
/// Largest MTU: with headers it fits the 14 bits of a TX buffer's length.
pub const MAX_MTU: u16 = 9216;

/// A device's unchanging properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address the guest takes.
    pub mac: MacAddr,
    /// Queue pairs, 1 to [`MAX_QUEUE_PAIRS`].
    pub queue_pairs: u16,
    /// The default MTU, [`MIN_MTU`] to `max_mtu`. Linux starts with `max_mtu` all the same.
    pub mtu: u16,
    /// The largest MTU the guest may set, up to [`MAX_MTU`].
    pub max_mtu: u16,
    /// Reported speed, in Mb/s.
    pub link_mbps: u64,
    /// The RSS key until the guest sets one. Whoever knows it can aim at a queue: give random bytes.
    pub rss_key: ToeplitzKey,
    /// Frames held per RX queue while the guest has no buffers for them.
    pub backlog_frames: usize,
    /// Bytes held per RX queue while the guest has no buffers for them.
    pub backlog_bytes: usize,
}

impl Config {
    /// Returns a device of four queue pairs, MTU up to 9000 and the well-known RSS key.
    pub const fn new(mac: MacAddr) -> Self {
        Self {
            mac,
            queue_pairs: 4,
            mtu: 1500,
            max_mtu: 9000,
            link_mbps: 100_000,
            rss_key: ToeplitzKey::MICROSOFT,
            backlog_frames: 256,
            backlog_bytes: 1 << 20,
        }
    }

    /// Returns the MSI-X vectors: one per queue, and the management vector behind them.
    pub const fn vectors(&self) -> u16 {
        2 * self.queue_pairs + 1
    }

    /// Returns the notification blocks: one per queue.
    pub const fn blocks(&self) -> u16 {
        2 * self.queue_pairs
    }

    /// Returns the vector of link changes and requests to the driver.
    pub const fn management_vector(&self) -> u16 {
        2 * self.queue_pairs
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self {
            mac,
            queue_pairs,
            mtu,
            max_mtu,
            ..
        } = *self;
        if !(1..=MAX_QUEUE_PAIRS).contains(&queue_pairs) {
            return Err(ConfigError::QueuePairs { queue_pairs });
        }
        if mtu < MIN_MTU || mtu > max_mtu || max_mtu > MAX_MTU {
            return Err(ConfigError::Mtu { mtu, max_mtu });
        }
        if mac.is_multicast() || mac == MacAddr::default() {
            return Err(ConfigError::Mac { mac });
        }
        Ok(())
    }
}

/// Why no device can be made so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Too few or too many queue pairs.
    #[error("{queue_pairs} queue pairs: must be 1 to {MAX_QUEUE_PAIRS}")]
    QueuePairs {
        /// Asked for.
        queue_pairs: u16,
    },
    /// The MTUs are out of range or order.
    #[error("MTU {mtu} of at most {max_mtu}: must be {MIN_MTU} to {MAX_MTU}, in this order")]
    Mtu {
        /// Default MTU asked for.
        mtu: u16,
        /// Largest MTU asked for.
        max_mtu: u16,
    },
    /// The address is a group's or all zero: Linux takes no such address.
    #[error("hardware address {mac}: must be a station's, not a group's or zero")]
    Mac {
        /// Asked for.
        mac: MacAddr,
    },
}

/// What a test may ask a device to do that a good device would not; may change at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Bytes of payload left in the header buffer of split packets, as far as there is room in it and in the
    /// descriptor: the guest reports them as `SCM_DEVMEM_LINEAR`.
    pub linear_bytes: u16,
    /// Every so manieth packet of a queue that would be split is delivered whole: a devmem queue loses it.
    pub unsplit_every: Option<NonZeroU32>,
    /// Buffers that stay posted: a queue with so many or fewer counts as empty.
    pub rx_buffers_kept: u16,
}

/// Flow rules a device holds.
pub(crate) const FLOW_RULES: u32 = MAX_FLOW_RULES;
/// Bytes of a header buffer the guest is told to post.
pub(crate) const HEADER_BUFFER: u16 = HEADER_BUFFER_BYTES;
