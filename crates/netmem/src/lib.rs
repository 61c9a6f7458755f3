//! Network memory: page pools, net_iovs, memory providers, unreadable payload.
mod payload;

pub use payload::Payload;
