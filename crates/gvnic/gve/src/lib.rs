//! The gVNIC as a device without a transport: registers, admin queue, rings and wires are handed in.
//!
//! Key types: [`Gve`] (the device: BAR accesses and frames go in, frames and interrupts come out), [`Env`] (what it
//! is given for one call: guest memory, interrupts, a wire, the time) and [`RxFrame`] / [`TxFrame`] (a frame with
//! what a virtio-net header would say of it).
//!
//! In the walk of a doorbell this crate is everything behind the BAR: `Gve::write_bar` finds the queue, `TxQueue::run`
//! copies each descriptor out of guest memory once and judges the copy, [`Backend::send`] has the packet,
//! `Completions::write` tells the guest, `Notify::raise` wakes it. In the other direction `Gve::receive` asks `steer`
//! for the queue, and `RxQueue::offer` fills the guest's buffers or holds the frame in a backlog of that queue alone.
//!
//! It has no thread, socket, clock or unsafe code, and knows no vfio-user, PCI configuration space or MSI-X table:
//! whoever serves it has those. It has one queue format, DQO with raw addresses, and no queue page lists, XDP or
//! hardware timestamps.

#![forbid(unsafe_code)]

mod adminq;
mod bar0;
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

pub use config::{Config, ConfigError, Knobs, MAX_MTU, MAX_QUEUE_PAIRS, MIN_MTU};
pub use device::{Gve, LinkState};
pub use env::{
    Backend, BadAddress, Env, GuestAddr, GuestMemory, GuestRange, IrqSink, RxFrame, Sent, TxFrame,
    TxPayload, WireFeatures,
};
pub use rx::Received;
pub use stats::{DeviceStats, DropReason, RxQueueStats, Stats, TxQueueStats};
// What a frame has beside it, in the words of the virtio-net header.
pub use wire::{ChecksumState, Gso, GsoKind, Offload};
