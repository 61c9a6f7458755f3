//! Configuration of a device.

use std::num::NonZeroU32;

use gve_defs::device_option::{HEADER_BUFFER_BYTES, MAX_FLOW_RULES};
use steer::ToeplitzKey;
use wire::MacAddr;

/// Maximum number of queue pairs; the doorbell layout has room for 256, MSI-X for 1,023.
pub const MAX_QUEUE_PAIRS: u16 = 16;
/// Smallest MTU that can be configured (RFC 791: the minimum of IPv4).
pub const MIN_MTU: u16 = 68;
/// Largest MTU: such a frame fits the 14 bits of a TX buffer's length.
pub const MAX_MTU: u16 = 9216;

/// Fixed properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Hardware address of the guest.
    pub mac: MacAddr,
    /// Queue pairs, 1 to [`MAX_QUEUE_PAIRS`].
    pub queue_pairs: u16,
    /// The default MTU, [`MIN_MTU`] to `max_mtu`. Linux ignores it and starts with `max_mtu`.
    pub mtu: u16,
    /// The largest MTU the guest may set, up to [`MAX_MTU`].
    pub max_mtu: u16,
    /// Reported speed, in Mb/s.
    pub link_mbps: u64,
    /// The RSS key until the guest sets one. Use random bytes: a peer that knows the key can choose its queue.
    pub rss_key: ToeplitzKey,
    /// Maximum frames in the backlog of each RX queue, for while the guest has no buffers posted.
    pub backlog_frames: usize,
    /// Maximum bytes in the backlog of each RX queue.
    pub backlog_bytes: usize,
}

impl Config {
    /// Returns a configuration with four queue pairs, an MTU of up to 9000 and the public RSS key.
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

    /// Returns the number of MSI-X vectors: one per queue, then the management vector.
    pub const fn vectors(&self) -> u16 {
        2 * self.queue_pairs + 1
    }

    /// Returns the number of notification blocks: one per queue.
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

/// Reason to refuse a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Too few or too many queue pairs.
    #[error("{queue_pairs} queue pairs: must be 1 to {MAX_QUEUE_PAIRS}")]
    QueuePairs {
        /// Configured queue pairs.
        queue_pairs: u16,
    },
    /// An MTU is out of range, or `mtu` is larger than `max_mtu`.
    #[error("MTU {mtu} of at most {max_mtu}: must be {MIN_MTU} to {MAX_MTU}, in this order")]
    Mtu {
        /// Configured default MTU.
        mtu: u16,
        /// Configured largest MTU.
        max_mtu: u16,
    },
    /// The hardware address is a group address or all zero; Linux accepts neither.
    #[error("hardware address {mac}: must be a station's, not a group's or zero")]
    Mac {
        /// Configured address.
        mac: MacAddr,
    },
}

/// Faults that a test can inject into the device; may be changed at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Bytes of payload to leave in the header buffer of split packets, limited by its size and by the completion's
    /// length field; the guest reports them as `SCM_DEVMEM_LINEAR`.
    pub linear_bytes: u16,
    /// Deliver every Nth splittable packet of a queue whole; a devmem queue drops it.
    pub unsplit_every: Option<NonZeroU32>,
    /// Number of buffers to leave posted: a queue with this many or fewer is treated as empty.
    pub rx_buffers_kept: u16,
}

/// Maximum number of flow rules.
pub(crate) const FLOW_RULES: u32 = MAX_FLOW_RULES;
/// Bytes of a header buffer, as announced to the guest.
pub(crate) const HEADER_BUFFER: u16 = HEADER_BUFFER_BYTES;
