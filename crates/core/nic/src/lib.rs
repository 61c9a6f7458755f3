//! A software NIC with header split, RSS, ntuple rules and a page pool per receive queue.
//!
//! Key types: [`Nic`] (the device: receive, transmit, settings), [`Link`] (what the NIC sends to and receives from: a
//! TAP, a packet socket, a macvtap interface, an in-memory wire, a UNIX socket, and wrappers that impair or capture) and
//! [`RxPacket`] (validated headers in host memory, payload in the queue's memory).
//!
//! In the walk of a received segment this crate is steps 1 to 3: a queue keeps a run of net_iovs posted, the link fills it
//! (`RxSide::receive`, `Link::receive`), and the frame with its bytes (`RxFrame`) is parsed, steered and placed
//! (`RxFrame::place`), which corrects a wrong prediction of the header length or the queue. In the walk of a send it is
//! step 6: checksums and segmentation that the link does not do, then `Link::send`.
//!
//! Cost of wrong predictions: the link places payload before the NIC can parse the frame, so header length and queue
//! are predicted from the last packet. If the header is longer than predicted, nothing is moved; if it is shorter, a
//! few bytes are moved; if the queue is another one, the payload is copied once. Each case has a counter.
//!
//! A connection may have a place of its own for its next bytes (`ddp.rs`): it is posted before the memory of the queue if the
//! connection is the predicted one.
//!
//! A packet to this NIC's own hardware address does not pass the link: it goes through the same
//! steering and header split, and its payload is copied once into the queue's memory (`loopback.rs`).
//!
//! A NIC may be one of several shards, each with a queue pair of the link (`crossing.rs`): a frame of a flow that another shard
//! has crosses to it.
//!
//! The gVNIC server, the cable and the benchmarks exchange frames without a [`Nic`]. They use the same two types as the
//! links: [`VnetFd`] reads and writes packets with their virtio-net header; [`UnixPort`] is one end of a UNIX wire: it
//! connects or listens, and exchanges a [`WireHello`] before it accepts a connection as its peer.
//!
//! The crate does not implement ARP, ICMP or TCP, reads no clock, opens no device and starts no thread.

#![forbid(unsafe_code)]

mod arrival;
mod collapse;
mod config;
mod conveyor;
mod crossing;
mod ddp;
mod drops;
mod eventfd;
mod features;
mod fill;
mod frame;
mod link;
mod loopback;
mod nic;
mod packet;
mod pieces;
mod queue_mgmt;
mod rate_limit;
mod restart_error;
mod rx;
mod rx_queue;
mod staging;
mod stats;
#[cfg(test)]
mod tests;
mod tso;
mod tx_queue;
mod tx_stage;

pub use collapse::{NiovUsage, RxMemory};
pub use config::{MAX_LINEAR_BYTES, NicConfig, NicError};
pub use crossing::{Crossing, CrossingStats, CrossingWakeup};
pub use ddp::DdpTable;
pub use drops::{DropReason, Drops};
pub use features::{MAX_RX_QUEUES, MAX_TX_PACKETS, Rings, SetRingsError, TcpDataSplit};
pub use fill::{MemoryDemand, MemoryLevel, RxSpace};
pub use link::*;
pub use nic::Nic;
pub use packet::{FailedTx, HeadBuf, Origin, Placed, RxPacket, TxPacket};
pub use queue_mgmt::ProviderChoice;
pub use rate_limit::RateLimit;
pub use restart_error::RestartError;
pub use rx_queue::RxQueueInfo;
pub use stats::{RxQueueStats, TxStats};
