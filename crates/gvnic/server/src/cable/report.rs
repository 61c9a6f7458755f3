//! The result of `wire`.

use serde::Serialize;

use tool::counters::Lane;
use tool::terminal::tell_table;

/// The result of `wire`. The JSON has these field names; they are stable.
#[derive(Clone, Debug, Serialize)]
pub struct WireReport {
    /// Time that the ends were connected.
    pub seconds: f64,
    /// Impairments of the cable.
    pub impair: String,
    /// From the first end to the second.
    pub a_to_b: LaneReport,
    /// From the second end to the first.
    pub b_to_a: LaneReport,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LaneReport {
    #[serde(flatten)]
    pub lane: Lane,
    /// Frames lost at the receiving end.
    pub refused: u64,
}

impl WireReport {
    pub fn show(&self) {
        for (name, LaneReport { lane, refused }) in
            [("a to b", self.a_to_b), ("b to a", self.b_to_a)]
        {
            tell_table(format_args!("{name:>13}  {lane}, {refused} refused\n"));
        }
    }
}
