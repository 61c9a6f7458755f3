//! What `wire` says at its end.

use serde::Serialize;

/// The result of `wire`. The field names are the JSON's and stay as they are.
#[derive(Clone, Debug, Serialize)]
pub struct WireReport {
    /// Time that the ends were joined.
    pub seconds: f64,
    /// What was wrong with the cable.
    pub impair: String,
    /// From the first end to the second.
    pub a_to_b: LaneReport,
    /// The other way.
    pub b_to_a: LaneReport,
}

/// Frames of one direction.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LaneReport {
    pub offered: u64,
    pub delivered: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub corrupted: u64,
    pub reordered: u64,
    pub overflowed: u64,
    pub refused: u64,
}

impl WireReport {
    pub fn show(&self) {
        for (name, lane) in [("a to b", self.a_to_b), ("b to a", self.b_to_a)] {
            eprintln!(
                "{name:>13}  {} frames in, {} out: {} lost, {} doubled, {} damaged, {} overtaken, {} over \
                 the limit, {} refused",
                lane.offered,
                lane.delivered,
                lane.lost,
                lane.duplicated,
                lane.corrupted,
                lane.reordered,
                lane.overflowed,
                lane.refused
            );
        }
    }
}
