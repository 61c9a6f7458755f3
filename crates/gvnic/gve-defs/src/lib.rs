//! The gVNIC's registers, admin queue commands, descriptors and device options: layouts and numbers only.
//!
//! Key types: [`registers::Bar0`] (the register file), [`adminq::AdminqEntry`] (one admin command) and
//! [`desc_dqo::RxCompletion`] (the completion of one filled buffer). In the walk of a doorbell these structs are copied
//! out of guest memory, then validated.
//!
//! Layouts and numbers are those of the interface headers of the Linux driver (drivers/net/ethernet/google/gve, which
//! are GPL-2.0 or MIT), written anew: registers and admin queue are big-endian, descriptors and doorbells
//! little-endian. Only the DQO-RDA queue format is here; GQI and queue page lists are not.
//!
//! Nothing here decides, allocates or fails: every struct is plain bytes of a size asserted at compile time, and any
//! number that a guest may write is a valid value.

#![forbid(unsafe_code)]

pub mod adminq;
pub mod desc_dqo;
pub mod device_option;
pub mod doorbell;
pub mod pci;
pub mod registers;
