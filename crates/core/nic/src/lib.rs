//! A software NIC with header split, RSS, ntuple rules and a page pool per receive queue.
//!
//! Key types: [`Nic`] (the device: receive, transmit, settings), [`Link`] (the cable it is plugged
//! into: a TAP, an in-memory wire, a UNIX socket, and wrappers that impair or capture) and [`RxPacket`] (judged
//! headers in host memory, payload wherever the queue's memory is).
//!
//! In the walk of a received segment this crate is steps 1 to 3: a queue keeps a run of net_iovs
//! posted (`RxQueue::posted`), the link fills it (`Link::receive`), a wrong guess of header length
//! or queue is put right (`header_split::settle`, `RxQueue::place`). In the walk of a send it is
//! step 6: checksums and segmentation that the link does not do, then `Link::send`.
//!
//! What guesses cost: payload is placed before anybody could parse the frame. The header length
//! and the queue are predicted from the last packet; a longer header moves nothing, a shorter one
//! moves a few bytes, another queue costs one copy from memory to memory. All are counted.
//!
//! A packet sent to this NIC's own hardware address never sees the link: it goes through the same
//! steering and header split into the queue's memory, by one copy from memory to memory (`loopback.rs`).
//!
//! Below the links there is one port for everybody who has frames, with a NIC or without (the gVNIC server, the cable, the
//! benchmarks): [`VnetFd`] reads and writes packets with their virtio-net header, [`WireHello`] and [`UnixPort`] are the
//! UNIX wire: connecting, listening, the hellos, and the rule that a connection without a hello keeps no seat.
//!
//! It does not speak ARP, ICMP or TCP, keeps no time, opens no device and spawns no thread.

#![forbid(unsafe_code)]

mod collapse;
mod config;
mod drops;
mod features;
mod fill;
mod link;
mod loopback;
mod nic;
mod packet;
mod place;
mod queue_mgmt;
mod rx_checksum;
mod rx_queue;
mod stats;
#[cfg(test)]
mod tests;
mod tso;
mod tx_queue;

pub use collapse::{NiovUsage, RxMemory};
pub use config::{MAX_LINEAR_BYTES, NicConfig, NicError};
pub use drops::{DropReason, Drops};
pub use features::{
    Channels, Features, MAX_RX_QUEUES, MAX_TX_PACKETS, Rings, SetChannelsError, SetRingsError,
    TcpDataSplit, VerifyChecksums,
};
pub use fill::{MemoryDemand, MemoryLevel, RxSpace};
pub use link::*;
pub use nic::Nic;
pub use packet::{HeadBuf, Origin, RxPacket, TxPacket};
pub use queue_mgmt::{ProviderChoice, RestartError};
pub use rx_queue::RxQueueInfo;
pub use stats::{RxQueueStats, TxStats};
pub use tx_queue::TransmitError;
