//! Settings of a new NIC.

use wire::MacAddr;

use crate::features::{MAX_RX_QUEUES, MAX_TX_PACKETS, Rings, TcpDataSplit};
use crate::link::LinkCaps;
use crate::restart_error::RestartError;

/// Maximum of [`NicConfig::linear_bytes`].
pub const MAX_LINEAR_BYTES: usize = 4096;

/// Settings of a new [`Nic`](crate::Nic).
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Hardware address.
    pub mac: MacAddr,
    /// Bytes of the largest IP packet that is not a super-packet; at most the MTU of the link.
    pub mtu: u16,
    /// Number of RX queues.
    pub rx_queues: u16,
    /// Bytes of host memory for each queue without device memory, and as many again for linear bytes and
    /// packets that are not split. Pages are allocated when they are first used.
    pub host_mem_bytes: usize,
    /// Number of payload bytes at the start of each packet that stay in host memory, as with hardware that splits only
    /// at certain offsets. 0: none.
    pub linear_bytes: usize,
    /// Initial settings of the rings.
    pub rings: Rings,
}

impl Default for NicConfig {
    /// One queue, 16 MiB of host memory, and a locally administered hardware address.
    fn default() -> Self {
        Self {
            mac: MacAddr([0x02, 0, 0, 0, 0, 1]),
            mtu: 1500,
            rx_queues: 1,
            host_mem_bytes: 16 << 20,
            linear_bytes: 0,
            rings: Rings {
                tx_packets: 1024,
                tcp_data_split: TcpDataSplit::Auto,
            },
        }
    }
}

impl NicConfig {
    /// Checks the settings against their limits and the capabilities of the link.
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

/// Error of [`Nic::new`](crate::Nic::new).
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The MTU is larger than that of the link.
    #[error("an MTU of {mtu} bytes: the {link} link carries at most {max}")]
    Mtu {
        /// The requested MTU.
        mtu: u16,
        /// Kind of link.
        link: &'static str,
        /// MTU of the link.
        max: u16,
    },
    /// The number of queues is out of range.
    #[error("{0} rx queues: take 1 to {MAX_RX_QUEUES}")]
    Queues(u16),
    /// There are more linear bytes than fit into a header buffer.
    #[error("{0} linear bytes: take at most {MAX_LINEAR_BYTES}")]
    Linear(usize),
    /// The length of the transmit queue is out of range.
    #[error("a transmit queue of {0} packets: take 1 to {MAX_TX_PACKETS}")]
    TxPackets(u32),
    /// There is no host memory.
    #[error(transparent)]
    Memory(#[from] RestartError),
}
