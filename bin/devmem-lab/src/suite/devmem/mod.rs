//! Device memory streams: the guest's kernel receives into a dma-buf bound to our NIC, or sends from one.

pub mod bound;
pub mod receiving;
pub mod sending;
