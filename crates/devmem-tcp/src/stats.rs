//! Counters: of RX queues, of the transmit side, of streams, of sends and of net_iovs.

pub use crate::net_iov_count::NetIovCount;
pub use crate::queue_stats::{PoolStats, QueueStats, TxStats};
pub use crate::recv_half::StreamStats;
pub use crate::send_id::SendCounts;
