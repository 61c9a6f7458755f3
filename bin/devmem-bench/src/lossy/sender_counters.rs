//! How a sender reacted to losses, which explains its throughput.

use std::iter::Sum;
use std::{fmt, fs};

use anyhow::{Context, Result};
use serde::Serialize;

/// Counters of a sender over one run, or over all runs of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SenderCounters {
    /// Packets retransmitted.
    pub retransmitted: u64,
    /// Fast recoveries begun.
    pub recoveries: u64,
    /// Tail loss probes and similar probes.
    pub probes: u64,
    /// Retransmission timeouts, each after at least 200 ms without an ACK.
    pub timeouts: u64,
}

impl SenderCounters {
    /// Returns the counters of all kernel connections in this network namespace since its creation (nstat(8)).
    pub fn of_the_kernel() -> Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/self/net/{file}");
            fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        let (snmp, netstat) = (read("snmp")?, read("netstat")?);
        let extended = |name| counter(&netstat, "TcpExt:", name);
        Ok(Self {
            retransmitted: counter(&snmp, "Tcp:", "RetransSegs"),
            recoveries: extended("TCPSackRecovery") + extended("TCPRenoRecovery"),
            probes: extended("TCPLossProbes"),
            timeouts: extended("TCPTimeouts"),
        })
    }

    /// Returns the counters of one of our connections.
    pub fn of_ours(info: &devmem_tcp::tcp::TcpInfo) -> Self {
        Self {
            retransmitted: info.total_retrans,
            recoveries: info.recoveries,
            probes: info.tail_probes,
            timeouts: info.total_rto,
        }
    }

    /// Returns the difference to `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            retransmitted: self.retransmitted.saturating_sub(before.retransmitted),
            recoveries: self.recoveries.saturating_sub(before.recoveries),
            probes: self.probes.saturating_sub(before.probes),
            timeouts: self.timeouts.saturating_sub(before.timeouts),
        }
    }
}

/// Those of several runs.
impl Sum for SenderCounters {
    fn sum<I: Iterator<Item = Self>>(runs: I) -> Self {
        runs.fold(Self::default(), |sum, run| Self {
            retransmitted: sum.retransmitted + run.retransmitted,
            recoveries: sum.recoveries + run.recoveries,
            probes: sum.probes + run.probes,
            timeouts: sum.timeouts + run.timeouts,
        })
    }
}

impl fmt::Display for SenderCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            retransmitted,
            recoveries,
            probes,
            timeouts,
        } = self;
        // Padded as a whole.
        f.pad(&format!("{retransmitted}/{recoveries}/{probes}/{timeouts}"))
    }
}

/// Returns a counter from a file of line pairs, one with names and one with values; 0 if the name is missing.
fn counter(file: &str, group: &str, name: &str) -> u64 {
    let mut lines = file.lines().filter_map(|line| line.strip_prefix(group));
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let mut both = names.split_whitespace().zip(values.split_whitespace());
        if let Some((_, value)) = both.find(|&(this, _)| this == name) {
            return value.parse().unwrap_or(0);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_group_and_name() {
        let file = "Ip: A B\nIp: 1 2\nTcpExt: A C\nTcpExt: 3 4\n";
        assert_eq!(counter(file, "TcpExt:", "A"), 3);
        assert_eq!(counter(file, "Ip:", "B"), 2);
        assert_eq!(counter(file, "TcpExt:", "B"), 0);
        assert_eq!(counter("TcpExt: A", "TcpExt:", "A"), 0);
    }

    #[test]
    fn this_kernel_has_the_counters() {
        let sender_counters = SenderCounters::of_the_kernel().unwrap();
        assert_eq!(
            sender_counters.since(sender_counters),
            SenderCounters::default()
        );
        let netstat = fs::read_to_string("/proc/self/net/netstat").unwrap();
        for name in ["TCPSackRecovery", "TCPLossProbes", "TCPTimeouts"] {
            assert!(netstat.contains(name), "{name}");
        }
    }
}
