//! Settings as in ethtool: rings, channels, features, RSS, flow rules. Some changes are refused while device memory is
//! bound to a queue.

use steer::{
    HdsConfig, HeaderSplit, IndirectionTable, IndirectionTableError, NtupleRule, Rss, RuleError,
    RuleLocation, Rules, RxQueueId,
};

use crate::nic::Nic;
use crate::queue_mgmt::{ProviderChoice, RestartError};
use crate::rx_queue::RxQueue;

/// Maximum number of RX queues of a NIC.
pub const MAX_RX_QUEUES: u16 = 64;

/// Maximum length of the transmit queue in packets.
pub const MAX_TX_PACKETS: u32 = 4096;

/// Default number of entries in the indirection table, as in most NICs.
const DEFAULT_INDIRECTION_ENTRIES: usize = 128;

/// Returns the table that distributes packets evenly over `queues` queues, 1 to [`MAX_RX_QUEUES`].
pub(crate) fn default_table(queues: u16) -> IndirectionTable {
    IndirectionTable::round_robin(DEFAULT_INDIRECTION_ENTRIES, queues)
        .expect("a power of two of entries, each naming one of at least one queue")
}

/// ethtool's `tcp-data-split`.
///
/// Linux distinguishes "on" from "chosen by the driver", and binds device memory only if it is "on".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpDataSplit {
    /// Not set: this NIC splits.
    #[default]
    Auto,
    /// Headers and payload stay together, in host memory.
    Disabled,
    /// Payload is split from the headers.
    Enabled,
}

/// ethtool's rings (`ethtool -g`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Maximum number of packets that are queued while the link is busy.
    pub tx_packets: u32,
    /// Header split.
    pub tcp_data_split: TcpDataSplit,
    /// Frames of at most this many bytes are not split; 0: all are split.
    pub hds_thresh: u16,
}

impl Rings {
    pub(crate) fn hds(&self) -> HdsConfig {
        let split = match self.tcp_data_split {
            TcpDataSplit::Auto | TcpDataSplit::Enabled => HeaderSplit::Enabled,
            TcpDataSplit::Disabled => HeaderSplit::Disabled,
        };
        HdsConfig {
            split,
            thresh: self.hds_thresh,
        }
    }
}

/// Received checksums that this NIC verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyChecksums {
    /// Those that the link has not verified.
    #[default]
    Untrusted,
    /// All checksums, including those that the link has verified. A partial checksum (of a sender on this host, which
    /// left it to its NIC) cannot be verified.
    All,
    /// None; for measurements.
    None,
}

/// ethtool's features (`ethtool -k`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Flow rules are applied (`rx-ntuple-filter`).
    pub ntuple: bool,
    /// Verification of received checksums (`rx-checksum`).
    pub rx_checksum: VerifyChecksums,
    /// The link computes checksums of sent packets if it can (`tx-checksum-ip-generic`); otherwise this NIC does.
    pub link_tx_checksum: bool,
    /// The link cuts super-packets if it can (`tcp-segmentation-offload`); otherwise this NIC does.
    pub link_tso: bool,
    /// Payload that the stack cannot read may be sent (linux `net_device.netmem_tx`).
    pub netmem_tx: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            ntuple: true,
            rx_checksum: VerifyChecksums::default(),
            link_tx_checksum: true,
            link_tso: true,
            netmem_tx: true,
        }
    }
}

/// ethtool's channels (`ethtool -l`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Number of RX queues.
    pub rx: u16,
    /// Maximum number of RX queues.
    pub max_rx: u16,
}

/// Error of [`Nic::set_rings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetRingsError {
    /// Header split cannot be switched off while device memory is bound.
    #[error("tcp-data-split cannot be switched off while device memory is bound to rx queue {0}")]
    SplitNeeded(RxQueueId),
    /// The threshold must be 0 (every packet is split) while device memory is bound.
    #[error("hds-thresh must stay 0 while device memory is bound to rx queue {0}")]
    ThreshNeeded(RxQueueId),
    /// The length of the transmit queue is out of range.
    #[error("a transmit queue of {0} packets: take 1 to {MAX_TX_PACKETS}")]
    TxPackets(u32),
}

/// Error of [`Nic::set_channels`].
#[derive(Debug, thiserror::Error)]
pub enum SetChannelsError {
    /// The number of queues is out of range.
    #[error("{0} rx queues: take 1 to {MAX_RX_QUEUES}")]
    Count(u16),
    /// Device memory is bound to a queue that would be removed.
    #[error("{rx} rx queues are too few while device memory is bound to rx queue {queue}")]
    Bound {
        /// The requested number of queues.
        rx: u16,
        /// The bound queue with the highest number.
        queue: RxQueueId,
    },
    /// The RSS table, which was set by a caller, names a queue that would be removed.
    #[error("too few rx queues for the RSS table: {0}")]
    Rss(#[from] IndirectionTableError),
    /// A flow rule names a queue that would be removed.
    #[error("too few rx queues for the flow rules: {0}")]
    Rule(#[from] RuleError),
    /// There is no memory for another queue.
    #[error("no memory for another rx queue: {0}")]
    Memory(#[from] RestartError),
}

impl Nic {
    /// Returns the rings.
    pub fn rings(&self) -> Rings {
        self.rings
    }

    /// Sets the rings.
    ///
    /// # Errors
    /// [`SetRingsError`]: a length out of range, or header split switched off while device memory is bound (linux
    /// net/ethtool/rings.c ethnl_set_rings).
    pub fn set_rings(&mut self, rings: Rings) -> Result<(), SetRingsError> {
        let Rings {
            tx_packets,
            tcp_data_split,
            hds_thresh,
        } = rings;
        if tx_packets == 0 || tx_packets > MAX_TX_PACKETS {
            return Err(SetRingsError::TxPackets(tx_packets));
        }
        if let Some(queue) = self.last_bound_queue() {
            if tcp_data_split != TcpDataSplit::Enabled {
                return Err(SetRingsError::SplitNeeded(queue));
            }
            if hds_thresh != 0 {
                return Err(SetRingsError::ThreshNeeded(queue));
            }
        }
        self.rings = rings;
        self.tx.set_limit(tx_packets);
        Ok(())
    }

    /// Returns the number of queues.
    pub fn channels(&self) -> Channels {
        Channels {
            rx: self.rx_queue_count(),
            max_rx: MAX_RX_QUEUES,
        }
    }

    /// Sets the number of RX queues; the remaining queues keep running.
    ///
    /// # Errors
    /// [`SetChannelsError`]; nothing has changed.
    pub fn set_channels(&mut self, rx: u16) -> Result<(), SetChannelsError> {
        if rx == 0 || rx > MAX_RX_QUEUES {
            return Err(SetChannelsError::Count(rx));
        }
        if let Some(queue) = self.last_bound_queue().filter(|queue| queue.0 >= rx) {
            return Err(SetChannelsError::Bound { rx, queue });
        }
        self.steering.rules.check(rx)?;
        let table = match self.rss_configured {
            true => self.steering.rss.table.clone(),
            false => default_table(rx),
        };
        table.check(rx)?;
        let mut added = Vec::new();
        for id in self.rx_queue_count()..rx {
            added.push(RxQueue::new(
                RxQueueId(id),
                ProviderChoice::Host,
                &self.config,
            )?);
        }
        self.rx.set_queues(rx, added);
        self.note_sharing();
        self.steering.rss.table = table;
        Ok(())
    }

    /// Returns the features.
    pub fn features(&self) -> Features {
        Features {
            ntuple: self.steering.ntuple,
            ..self.features
        }
    }

    /// Sets the features. If a feature is on that the link lacks, this NIC does the work.
    pub fn set_features(&mut self, features: Features) {
        self.steering.ntuple = features.ntuple;
        self.features = features;
    }

    /// Returns key, table and hash types of receive side scaling.
    pub fn rss(&self) -> &Rss {
        &self.steering.rss
    }

    /// Sets receive side scaling.
    ///
    /// # Errors
    /// The table names a queue that does not exist.
    pub fn set_rss(&mut self, rss: Rss) -> Result<(), IndirectionTableError> {
        rss.table.check(self.rx_queue_count())?;
        self.steering.rss = rss;
        self.rss_configured = true;
        Ok(())
    }

    /// Restores the default table, which distributes packets over all queues and follows their number.
    pub fn reset_rss_table(&mut self) {
        self.steering.rss.table = default_table(self.rx_queue_count());
        self.rss_configured = false;
    }

    /// Returns true if the RSS table was set by [`set_rss`](Self::set_rss).
    pub fn rss_is_configured(&self) -> bool {
        self.rss_configured
    }

    /// Returns the flow rules.
    pub fn rules(&self) -> &Rules {
        &self.steering.rules
    }

    /// Inserts a flow rule at `location`, or at the first free location; returns the location.
    ///
    /// # Errors
    /// [`RuleError`]: the table is full, the rule malformed, or its queue does not exist.
    pub fn insert_rule(
        &mut self,
        location: Option<RuleLocation>,
        rule: NtupleRule,
    ) -> Result<RuleLocation, RuleError> {
        let queues = self.rx_queue_count();
        if let Some(queue) = rule.queue().filter(|queue| queue.0 >= queues) {
            let location = location.unwrap_or(RuleLocation(0));
            return Err(RuleError::NoSuchQueue {
                location,
                queue,
                queues,
            });
        }
        self.steering.rules.insert(location, rule)
    }

    /// Removes the flow rule at `location`.
    ///
    /// # Errors
    /// [`RuleError::NoRule`].
    pub fn remove_rule(&mut self, location: RuleLocation) -> Result<NtupleRule, RuleError> {
        self.steering.rules.remove(location)
    }

    fn last_bound_queue(&self) -> Option<RxQueueId> {
        self.rx
            .queues
            .iter()
            .rev()
            .find(|queue| queue.dmabuf_id().is_some())
            .map(RxQueue::id)
    }
}
