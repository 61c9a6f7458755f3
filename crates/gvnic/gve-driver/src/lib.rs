//! A small guest driver for the gVNIC: the test and fuzz partner of the device. Never shipped.
//!
//! Key types: [`GuestRam`] (guest memory, an array), [`BarAccess`] (access to the device) and [`Driver`] (the operations of
//! Linux's `gve`, in the same order: probe, create queues, send, receive, restart of one queue, reset).
//!
//! It depends on the device only through `gve-defs`, so its assumptions are those of a guest. It reports a violation of
//! the interface by the device as a [`Violation`]: a completion of a buffer that is not posted, a wrong generation bit, a
//! length past the buffer.
//!
//! It allocates memory and never frees it, and it polls: it has no interrupt handler.

#![forbid(unsafe_code)]

mod driver;
mod ram;
mod rx_ring;
mod tx_ring;

pub use driver::{BarAccess, Driver, DriverError, QueueOptions, adminq_entry};
pub use ram::GuestRam;
pub use rx_ring::{RxPacket, Violation};
pub use tx_ring::{Tso, TxDone, TxRequest};
