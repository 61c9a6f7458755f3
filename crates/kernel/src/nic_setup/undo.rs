//! One change of a NIC's settings, with what is needed to undo it. The state file is a list of these.

use serde::{Deserialize, Serialize};

use crate::ethtool::{DataSplit, NTUPLE, RuleAction, TcpFlow};
use crate::netdev::KernelRxQueueId;

/// A change, with the old and the new value. It is written to the state file before it is made, and completed afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Undo {
    /// A feature was turned on.
    Feature {
        name: String,
        /// Its previous wanted state.
        before: bool,
    },
    /// Header split was turned on for packets of every size.
    Rings {
        split_before: DataSplit,
        /// `None`: the driver has no threshold.
        thresh_before: Option<u32>,
        /// Restoring has begun: header split may be the driver's choice, which can differ from the previous value.
        given_back: bool,
    },
    /// The queues were removed from the main RSS table; or it did not contain them and is recorded only because some drivers
    /// forget it when the rings change.
    RssTable { before: Vec<u32>, set: Vec<u32> },
    /// An RSS context was created.
    Context {
        /// `None` while it is being created.
        context: Option<u32>,
        table: Vec<u32>,
        /// The contexts that existed before.
        others: Vec<u32>,
    },
    /// A flow rule was added. There was no such rule before.
    Rule {
        /// `None` while it is being added.
        location: Option<u32>,
        flow: TcpFlow,
        action: RuleAction,
    },
    /// A netkit pair was made, and queues leased to its peer. There was no netkit of this name before.
    Netkit {
        name: String,
        peer: String,
        /// Index of the primary end; `None` while it is being made.
        index: Option<u32>,
        /// The queues, which are free again when the netkit is removed.
        queues: Vec<KernelRxQueueId>,
    },
}

impl Undo {
    /// Returns whether anything was changed.
    pub(super) fn is_change(&self) -> bool {
        !matches!(self, Self::RssTable { before, set } if before == set)
    }

    /// Returns whether the change switched the feature of flow rules.
    pub(super) fn is_ntuple(&self) -> bool {
        matches!(self, Self::Feature { name, .. } if name == NTUPLE)
    }

    /// Returns the change as a command.
    pub(super) fn command(&self, interface: &str) -> String {
        match self {
            Self::Feature { name, .. } => format!("ethtool -K {interface} {name} on"),
            Self::Rings {
                thresh_before: None,
                ..
            } => format!("ethtool -G {interface} tcp-data-split on"),
            Self::Rings { .. } => format!("ethtool -G {interface} tcp-data-split on hds-thresh 0"),
            Self::RssTable { set, .. } => format!("ethtool -X {interface} {}", table_words(set)),
            Self::Context { table, .. } => {
                format!("ethtool -X {interface} context new {}", table_words(table))
            }
            Self::Rule {
                location,
                flow,
                action,
            } => {
                let place = location.map_or_else(String::new, |at| format!(" loc {at}"));
                format!("ethtool -N {interface} {flow} {action}{place}")
            }
            Self::Netkit {
                name, peer, queues, ..
            } => netkit_words(interface, name, peer, queues),
        }
    }
}

/// Returns the commands that make a netkit pair and lease queues to it, in one line. No tool of iproute2 makes leases.
pub(super) fn netkit_words(
    interface: &str,
    name: &str,
    peer: &str,
    queues: &[KernelRxQueueId],
) -> String {
    let count = queues.len() + 1;
    let numbers: Vec<_> = queues.iter().map(ToString::to_string).collect();
    format!(
        "ip link add {name} numrxqueues {count} type netkit mode l3 peer name {peer} numrxqueues {count}   \
         # then queue-create for {peer}: leases of queue {} of {interface}",
        numbers.join(", ")
    )
}

/// Largest queue number that is written as a list of weights: more than any NIC has. Limits the length of the list, because
/// the table comes from the kernel or from a file.
const WEIGHED_QUEUE_MAX: u32 = 4095;

/// Returns a table as arguments of `ethtool -X`: `[start S] equal N` if it has that form, else the weight of each
/// queue, which may lose the order of the entries. A table with queue numbers that no NIC has is only described.
pub(super) fn table_words(table: &[u32]) -> String {
    let (Some(&first), Some(&last)) = (table.iter().min(), table.iter().max()) else {
        return "equal 0".to_owned();
    };
    // In u64, because the range of all queue numbers has 2^32 elements.
    let count = u64::from(last - first) + 1;
    let expected = |at: u64| u64::from(first) + at % count;
    let equal = (0..)
        .zip(table)
        .all(|(at, q)| u64::from(*q) == expected(at));
    match (equal, first) {
        (true, 0) => format!("equal {count}"),
        (true, start) => format!("start {start} equal {count}"),
        (false, _) if last > WEIGHED_QUEUE_MAX => {
            let entries = table.len();
            format!("({entries} entries from queue {first} to queue {last})")
        }
        (false, _) => {
            let mut weights = vec![0_usize; last as usize + 1];
            for queue in table {
                weights[*queue as usize] += 1;
            }
            let weights: Vec<_> = weights.iter().map(usize::to_string).collect();
            format!("weight {}", weights.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_written_as_ethtool_arguments() {
        assert_eq!(table_words(&[0, 1, 2, 0, 1, 2, 0, 1]), "equal 3");
        assert_eq!(table_words(&[14, 15, 14, 15]), "start 14 equal 2");
        assert_eq!(table_words(&[0, 1, 2, 0]), "equal 3");
        assert_eq!(table_words(&[0, 1, 0, 0]), "weight 3 1");
        assert_eq!(table_words(&[]), "equal 0");
    }

    #[test]
    fn a_table_with_a_queue_number_of_billions_has_a_short_text() {
        assert_eq!(
            table_words(&[u32::MAX, u32::MAX]),
            "start 4294967295 equal 1"
        );
        for table in [[0, u32::MAX], [1, 1_500_000_000]] {
            let words = table_words(&[table, [5, 5]].concat());
            assert!(words.len() < 100, "{} bytes", words.len());
            assert!(words.contains(&table[1].to_string()), "{words}");
        }
    }
}
