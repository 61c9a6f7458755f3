//! The netdev family of generic netlink: binding device memory to a NIC, and reading its queues.
//!
//! A [`Netdev`] is one interface. [`Netdev::bind_rx`] and [`Netdev::bind_tx`] return a [`BoundRx`] and a
//! [`BoundTx`], each with a netlink socket that *is* the binding: closing it, also by a crash, unbinds.
//!
//! A queue of a NIC can be leased to the netkit of a pod ([`Netdev::lease_queue`]): there it is bound by the netkit's number of it.

mod bind;
mod lease;
mod pieces;
mod queue;
mod refusal;
mod requests;
mod stats;

pub use crate::queue_id::{KernelRxQueueId, LeaseEnd, QueueUser};
pub use bind::{BindError, BoundRx, BoundTx, DriverSupport};
pub use lease::LeaseError;
pub use queue::{QueueInfo, QueueKind};
pub use requests::Netdev;
pub use stats::{PagePool, PagePoolStats, QueueStats};
