//! The gVNIC as a device without a transport: registers, admin queue, rings and wires are handed in.

#![forbid(unsafe_code)]

mod config;
mod env;

pub use config::{Config, ConfigError, Knobs, MAX_MTU, MAX_QUEUE_PAIRS, MIN_MTU};
pub use env::{
    Backend, BadAddress, ChecksumState, Env, Gso, GsoKind, GuestAddr, GuestMemory, GuestRange,
    IrqSink, Offload, RxFrame, Sent, TxFrame, TxPayload, WireFeatures,
};
