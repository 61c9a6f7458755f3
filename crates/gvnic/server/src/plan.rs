//! Validated command lines.

mod cable;
mod nic;

pub use cable::{Lateness, WireEnd, WirePlan};
pub use nic::{GvnicPlan, WirePort};
