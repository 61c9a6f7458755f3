//! The plan of a run: the validated command line. Code after this file sees no unchecked text.

mod checks;
mod demo;
mod exchange;
mod host;
mod lease;
mod link;
mod load;
mod nic;
mod recv;
mod send;
mod store;
mod tcp;
#[cfg(test)]
mod tests;

pub use demo::DemoPlan;
pub use exchange::{ExchangePlan, RingWires};
pub use lease::{LeasePlan, PodPlan};
pub use link::{LinkPlan, TapPlan};
pub use load::{LoadJob, LoadPlan, LoadTarget, strict_https};
pub use nic::NicPlan;
pub use recv::{Destination, KernelPlan, RecvPlan};
pub use send::{Input, SendPlan};
pub use store::StorePlan;
