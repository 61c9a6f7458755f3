//! How a NIC is made.

use netmem::NiovSize;
use steer::ToeplitzKey;
use wire::MacAddr;

use crate::features::{Features, MAX_RX_QUEUES, MAX_TX_PACKETS, Rings, TcpDataSplit};
use crate::link::LinkCaps;
use crate::queue_mgmt::RestartError;

/// Most payload bytes of a packet that can be left in host memory.
pub const MAX_LINEAR_BYTES: usize = 4096;

/// How a [`Nic`](crate::Nic) is made.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Hardware address.
    pub mac: MacAddr,
    /// Bytes of the largest IP packet that is not a super-packet; at most the link's.
    pub mtu: u16,
    /// RX queues.
    pub rx_queues: u16,
    /// Host memory of each queue that no device memory is bound to, and once more for linear bytes and
    /// packets that are not split. Costs nothing until used.
    pub host_mem_bytes: usize,
    /// Size of one piece of it.
    pub host_niov_size: NiovSize,
    /// So many first payload bytes of each packet stay in host memory: what hardware does whose split is
    /// coarse. 0: none.
    pub linear_bytes: usize,
    /// Secret of the RSS hash.
    pub rss_key: ToeplitzKey,
    /// First settings of the rings.
    pub rings: Rings,
    /// First settings of the features.
    pub features: Features,
}

impl Default for NicConfig {
    /// One queue, 16 MiB of host memory, a hardware address of nobody's and an RSS key everybody knows.
    fn default() -> Self {
        Self {
            mac: MacAddr([0x02, 0, 0, 0, 0, 1]),
            mtu: 1500,
            rx_queues: 1,
            host_mem_bytes: 16 << 20,
            host_niov_size: NiovSize::DEFAULT,
            linear_bytes: 0,
            rss_key: ToeplitzKey::MICROSOFT,
            rings: Rings {
                tx_packets: 1024,
                tcp_data_split: TcpDataSplit::Auto,
                hds_thresh: 0,
            },
            features: Features::default(),
        }
    }
}

impl NicConfig {
    /// Judges the settings for a link with `caps`.
    pub(crate) fn check(&self, caps: &LinkCaps) -> Result<(), NicError> {
        let Self {
            mtu,
            rx_queues,
            linear_bytes,
            rings,
            ..
        } = *self;
        if mtu > caps.mtu {
            return Err(NicError::Mtu {
                mtu,
                link: caps.name,
                max: caps.mtu,
            });
        }
        if rx_queues == 0 || rx_queues > MAX_RX_QUEUES {
            return Err(NicError::Queues(rx_queues));
        }
        if linear_bytes > MAX_LINEAR_BYTES {
            return Err(NicError::Linear(linear_bytes));
        }
        if rings.tx_packets == 0 || rings.tx_packets > MAX_TX_PACKETS {
            return Err(NicError::TxPackets(rings.tx_packets));
        }
        Ok(())
    }
}

/// Why there is no NIC.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The link carries no packets of that size.
    #[error("an MTU of {mtu} bytes: the {link} link carries at most {max}")]
    Mtu {
        /// What was asked for.
        mtu: u16,
        /// Kind of link.
        link: &'static str,
        /// Most bytes.
        max: u16,
    },
    /// There cannot be as many queues, or none.
    #[error("{0} rx queues: take 1 to {MAX_RX_QUEUES}")]
    Queues(u16),
    /// More linear bytes than fit a header buffer.
    #[error("{0} linear bytes: take at most {MAX_LINEAR_BYTES}")]
    Linear(usize),
    /// The transmit queue cannot be as long as that.
    #[error("a transmit queue of {0} packets: take 1 to {MAX_TX_PACKETS}")]
    TxPackets(u32),
    /// Host memory cannot be had.
    #[error(transparent)]
    Memory(#[from] RestartError),
}
