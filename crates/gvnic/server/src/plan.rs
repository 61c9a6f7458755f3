//! What a run will do: the command line, judged.

mod cable;
mod nic;

pub use cable::{WireEnd, WirePlan};
pub use nic::{GvnicPlan, WirePort};
