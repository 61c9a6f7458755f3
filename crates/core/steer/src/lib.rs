//! Receive steering as pure decisions: RSS, ntuple rules, header split.
//!
//! Key types: [`Steering`] (which queue a packet goes to: ntuple rule first, then the RSS
//! indirection table), [`NtupleRule`] and [`HdsConfig`] (whether a packet's payload is parted from
//! its headers). In the walk of a received segment these are `header_split::settle` of step 2 and
//! `Steering::select_queue` of step 3.
//!
//! The same code serves the software NIC and the emulated gVNIC, so nothing here knows a NIC, a
//! buffer or a register: checked headers in, a decision out.

#![forbid(unsafe_code)]

pub mod header_split;
mod ids;
mod ntuple;
mod rss;
mod steering;
#[cfg(test)]
mod testing;

pub use header_split::{DataSplit, HdsConfig, Settle, Split, WhyWhole};
pub use ids::{RxQueueId, TxQueueId};
pub use ntuple::{
    DEFAULT_RULES, FlowType, IpMatch, NtupleRule, PortMatch, RuleAction, RuleError, RuleLocation,
    Rules, TosMatch,
};
pub use rss::{
    HashTypes, IndirectionTable, IndirectionTableError, MAX_INDIRECTION_ENTRIES, Rss, ToeplitzKey,
};
pub use steering::{By, Selected, Steering};
