//! The gVNIC as a device model: registers, admin queue and rings, independent of transport and wire.
//!
//! Key types: [`Gve`] (the device; its input is BAR accesses and frames, its output frames and interrupts), [`Env`]
//! (arguments of one call: guest memory, interrupts, a wire, the time) and [`RxFrame`] / [`TxFrame`] (a frame with the
//! metadata of a virtio-net header).
//!
//! In the walk of a doorbell this crate is everything behind the BAR: `Gve::write_bar` finds the queue, `TxQueue::run`
//! copies each descriptor out of guest memory once and validates the copy, [`Backend::send`] takes the packet,
//! `Completions::write` writes the completion, `Notify::raise` interrupts. In the other direction `Gve::receive` gets
//! the queue from `steer`, and `RxQueue::offer` fills the guest's buffers or puts the frame into the backlog of that
//! queue.
//!
//! The crate has no thread, socket, clock or unsafe code. vfio-user, PCI configuration space and MSI-X table belong to
//! the caller. There is one queue format, DQO with raw addresses; there are no queue page lists, XDP or hardware
//! timestamps.

#![forbid(unsafe_code)]

mod bar2;
mod config;
mod device;
mod env;
mod notify;
mod receive;
mod ring;
mod rx;
mod rx_frame;
mod segment;
mod stats;
#[cfg(test)]
mod testing;
mod tx;
mod tx_desc;
mod tx_offload;
mod tx_packet;

pub use config::{Config, ConfigError, Faults, MAX_MTU, MAX_QUEUE_PAIRS, MIN_MTU};
pub use device::{Gve, LinkState};
pub use env::{
    Backend, BadAddress, Env, GuestAddr, GuestMemory, GuestRange, IrqSink, RxFrame, TxFrame,
    TxOutcome, TxPayload, WireFeatures,
};
pub use rx::RxOutcome;
pub use stats::{DeviceStats, DropReason, RxQueueStats, Stats, TxQueueStats};
// What a frame has beside it, in the words of the virtio-net header.
pub use wire::{ChecksumState, Gso, GsoKind, Offload};
