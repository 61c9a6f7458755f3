//! A small guest driver for the gVNIC: the test and fuzz partner of the device. Never shipped.
//!
//! Key types: [`GuestRam`] (a guest's memory, an array), [`Bus`] (the device as a driver reaches it) and [`Driver`]
//! (what Linux's `gve` does, in its order: probe, queues up, send, receive, restart of one queue, reset).
//!
//! It knows the device only through `gve-defs`, so what it takes for granted is what a guest does. Whatever the device
//! does that no gVNIC may do, it reports as a [`Violation`]: a completion of a buffer that is not posted, a generation
//! out of turn, a length past the buffer.
//!
//! It allocates memory and never frees it, polls and has no interrupts of its own.

#![forbid(unsafe_code)]

mod driver;
mod ram;
mod rx_ring;
mod tx_ring;

pub use driver::{Bus, Driver, DriverError, QueueOptions, adminq_entry};
pub use ram::GuestRam;
pub use rx_ring::{RxPacket, Violation};
pub use tx_ring::{Tso, TxDone, TxRequest};
