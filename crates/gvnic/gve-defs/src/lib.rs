//! The gVNIC's registers, admin queue commands, descriptors and device options: facts only.
//!
//! Key types: [`registers::Bar0`] (the register file), [`adminq::Entry`] (one admin command) and
//! [`desc_dqo::RxCompletion`] (what the device says of one filled buffer). In the walk of a doorbell they are what is
//! copied out of guest memory before it is judged.
//!
//! Layouts and numbers are those of the interface headers of the Linux driver (drivers/net/ethernet/google/gve, which
//! are GPL-2.0 or MIT), said in our own words: registers and admin queue are big-endian, descriptors and doorbells
//! little-endian. Only the DQO-RDA queue format is here; GQI and queue page lists are not.
//!
//! Nothing here decides, allocates or fails: every struct is plain bytes of a size asserted at compile time, every
//! number a guest may choose stays an open value.

#![forbid(unsafe_code)]

pub mod adminq;
pub mod desc_dqo;
pub mod device_option;
pub mod doorbell;
pub mod pci;
pub mod registers;
