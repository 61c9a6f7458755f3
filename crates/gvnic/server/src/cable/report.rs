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
    /// Frames lost at the receiving end, and those that no cable carries.
    pub refused: u64,
    /// Super-packets that were passed on whole, each one frame of the counters above.
    pub super_packets: u64,
    /// Bytes of the longest of them, with the Ethernet header.
    pub longest_super: usize,
}

impl WireReport {
    pub fn show(&self) {
        for (name, report) in [("a to b", self.a_to_b), ("b to a", self.b_to_a)] {
            let LaneReport {
                lane,
                refused,
                super_packets,
                longest_super,
            } = report;
            tell_table(format_args!("{name:>13}  {lane}, {refused} refused\n"));
            if super_packets > 0 {
                tell_table(format_args!(
                    "{name:>13}  {super_packets} of them super-packets of up to {longest_super} bytes\n"
                ));
            }
        }
    }
}
