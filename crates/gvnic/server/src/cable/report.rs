//! What `wire` says at its end.

use serde::Serialize;

use tool::counters::Lane;
use tool::output::say;

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
    #[serde(flatten)]
    pub lane: Lane,
    /// Frames that the receiving end refused.
    pub refused: u64,
}

impl WireReport {
    pub fn show(&self) {
        for (name, LaneReport { lane, refused }) in
            [("a to b", self.a_to_b), ("b to a", self.b_to_a)]
        {
            say!("{name:>13}  {lane}, {refused} refused");
        }
    }
}
