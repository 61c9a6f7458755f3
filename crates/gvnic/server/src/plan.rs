//! Validated command lines.

mod cable;
mod nic;

pub use cable::{WireEnd, WirePlan};
pub use nic::{GvnicPlan, WirePort};
