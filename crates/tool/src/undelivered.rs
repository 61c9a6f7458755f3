//! The packets that the NIC and the stack did not deliver: drops, and packets that were discarded as they should be.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Reasons that are normal in a faultless transfer over a faultless link. Nothing is missing afterwards:
///
/// - segments that had been received before, because the sender repeated them although nothing was lost;
/// - segments and RSTs of connections that have ended;
/// - messages of the kernel's end of the link that request nothing from this stack: neighbour and router discovery,
///   multicast reports, broadcasts of other protocols.
const NORMAL: &[&str] = &[
    "icmp_ignored",
    "ip_no_protocol",
    "ip_not_for_us",
    "rx_not_for_us",
    "tcp_duplicate",
    "tcp_old_ack",
    "tcp_time_wait",
    "tcp_time_wait_rst",
    "tcp_withdrawn",
    "unhandled_protocol",
];

/// Packets that were not delivered, by reason; reasons that did not occur are left out. Two fields of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Undelivered {
    /// Packets that were lost or refused: something is wrong, missing or too slow.
    pub drops: BTreeMap<String, u64>,
    /// Packets that were not needed. They are normal.
    pub discarded: BTreeMap<String, u64>,
}

impl Undelivered {
    /// Sorts the counters of a NIC, by the name of their reason.
    pub fn of(counters: impl IntoIterator<Item = (&'static str, u64)>) -> Self {
        let mut sorted = Self::default();
        for (reason, count) in counters {
            let counts = match NORMAL.contains(&reason) {
                true => &mut sorted.discarded,
                false => &mut sorted.drops,
            };
            counts.insert(reason.to_owned(), count);
        }
        sorted
    }
}

impl fmt::Display for Undelivered {
    /// Writes the rows of a table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.drops.is_empty() {
            writeln!(f, "{:>13}  none", "drops")?;
        }
        for (reason, count) in &self.drops {
            writeln!(f, "{:>13}  {count} {reason}", "drops")?;
        }
        for (reason, count) in &self.discarded {
            writeln!(f, "{:>13}  {count} {reason} (normal)", "discarded")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_normal_is_discarded_and_not_dropped() {
        let counters = [("rx_no_buffers", 3), ("tcp_duplicate", 8)];
        let sorted = Undelivered::of(counters);
        let json = serde_json::to_value(&sorted).unwrap();
        let expected = serde_json::json!({
            "drops": { "rx_no_buffers": 3 },
            "discarded": { "tcp_duplicate": 8 },
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_clean_run_has_no_drops() {
        let text = Undelivered::of([("tcp_duplicate", 8)]).to_string();
        assert_eq!(
            text,
            "        drops  none\n    discarded  8 tcp_duplicate (normal)\n"
        );
    }
}
