//! Receive steering as pure decisions: RSS, ntuple rules, header split.
//!
//! Key types: [`Steering`] (selects the queue of a packet: ntuple rules first, then the RSS
//! indirection table), [`NtupleRule`] and [`is_split`] (whether payload is split from its headers). In
//! the walk of a received segment, `Steering::select_queue` is step 3.
//!
//! [`shard_of`] selects which of several NIC halves has a flow.
//!
//! The software NIC and the emulated gVNIC share this code, so nothing here depends on a NIC, a
//! buffer or a register: checked headers in, a decision out.

#![forbid(unsafe_code)]

mod header_split;
mod ids;
mod ntuple;
mod rss;
mod shard;
mod steering;
#[cfg(test)]
mod testing;

pub use header_split::is_split;
pub use ids::RxQueueId;
pub use ntuple::{
    DEFAULT_RULES, FlowType, IpMatch, NtupleRule, PortMatch, QueueRange, RuleAction, RuleError,
    RuleLocation, TosMatch,
};
pub use rss::{
    HashTypes, IndirectionTable, IndirectionTableError, MAX_INDIRECTION_ENTRIES, Rss, ToeplitzKey,
};
pub use shard::{ShardId, shard_of};
pub use steering::{Rules, Steering, Unsteered};
