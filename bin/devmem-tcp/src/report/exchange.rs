//! The report of `demo --exchange`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::rows::row;
use tool::size::Size;

/// The report of `demo --exchange`. The field names are those of the JSON and must not change.
#[derive(Clone, Debug, Serialize)]
pub struct ExchangeReport {
    /// The stack: `user`.
    pub backend: &'static str,
    /// The link: `unix-listen`, wires that share memory, or `unix`, cables.
    pub link: &'static str,
    /// Number of processes.
    pub ranks: u16,
    /// Length of the vector.
    pub floats: u64,
    /// Bytes of the vector.
    pub bytes: u64,
    /// Measured rounds.
    pub rounds: usize,
    /// Kind of memory that the vectors were in, as `--memory` takes it.
    pub memory: String,
    /// What has added: `gpu`, that of the memory, or `cpu`.
    pub reduction: Reduction,
    /// The sums of the vectors of all ranks, on all ranks.
    pub all_reduce: Collective,
    /// The blocks of all ranks, on all ranks.
    pub all_gather: Collective,
    /// CPU time of all ranks in the rounds, without the cables.
    pub ranks_cpu_seconds: f64,
    /// Largest IP packet.
    pub mtu: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// Impairments of each wire.
    pub impair: String,
}

/// What adds the vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// The CPU.
    #[default]
    Cpu,
    /// The GPU that the vectors are in.
    Gpu,
}

/// The times of one collective. The rates are those of nccl-tests, in 10^9 bytes per second.
#[derive(Clone, Debug, Serialize)]
pub struct Collective {
    /// Median time of a round, until the last rank was done.
    pub seconds: f64,
    /// Shortest time.
    pub min_seconds: f64,
    /// Longest time.
    pub max_seconds: f64,
    /// Bytes of the vector divided by the median time.
    pub algbw_gb_per_s: f64,
    /// The same times the share of the bytes that each rank must send: the rate of the wires.
    pub busbw_gb_per_s: f64,
    /// Floats that differ from the serial result, over all ranks and rounds.
    pub wrong: u64,
}

impl Collective {
    /// Returns the figures of the times of all rounds. `share` is the bytes that each rank must send, divided by those of the
    /// vector.
    pub fn new(bytes: u64, mut rounds: Vec<f64>, share: f64, wrong: u64) -> Self {
        rounds.sort_by(f64::total_cmp);
        let seconds = rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN);
        let algbw = bytes as f64 / seconds / 1e9;
        Self {
            seconds,
            min_seconds: rounds.first().copied().unwrap_or(f64::NAN),
            max_seconds: rounds.last().copied().unwrap_or(f64::NAN),
            algbw_gb_per_s: algbw,
            busbw_gb_per_s: algbw * share,
            wrong,
        }
    }
}

impl ExchangeReport {
    /// Returns the error of a run with a wrong result; `None` if the result is correct.
    pub fn complaint(&self) -> Option<String> {
        let collectives = [
            ("all-reduce", &self.all_reduce),
            ("all-gather", &self.all_gather),
        ];
        let wrong = collectives.into_iter().find(|(_, it)| it.wrong > 0);
        wrong.map(|(name, it)| {
            format!(
                "{} floats of the {name} differ from the serial result",
                it.wrong
            )
        })
    }
}

impl fmt::Display for ExchangeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, floats, ranks) = (Size(self.bytes), self.floats, self.ranks);
        row(
            f,
            "exchange",
            format_args!("{size}, {floats} floats, {ranks} processes in a ring"),
        )?;
        let adds = match self.reduction {
            Reduction::Gpu => "the GPU adds",
            Reduction::Cpu => "the CPU adds",
        };
        let memory = match self.memory.as_str() {
            "anonymous" => "host memory".to_owned(),
            kind => format!("memory of {kind}"),
        };
        row(f, "vectors", format_args!("{memory}, {adds}"))?;
        for (name, it) in [
            ("all-reduce", &self.all_reduce),
            ("all-gather", &self.all_gather),
        ] {
            let Collective {
                seconds,
                min_seconds,
                max_seconds,
                algbw_gb_per_s,
                busbw_gb_per_s,
                wrong,
            } = it;
            let (ms, min, max) = (1e3 * seconds, 1e3 * min_seconds, 1e3 * max_seconds);
            let result = match wrong {
                0 => "as computed serially".to_owned(),
                wrong => format!("{wrong} floats WRONG"),
            };
            row(
                f,
                name,
                format_args!(
                    "{ms:.1} ms ({min:.1} to {max:.1}), algbw {algbw_gb_per_s:.2} GB/s, busbw {busbw_gb_per_s:.2} GB/s, {result}"
                ),
            )?;
        }
        let (cpu, mtu, impair) = (self.ranks_cpu_seconds, self.mtu, &self.impair);
        let wires = match self.link {
            "unix" => "UNIX sockets and cables",
            _ => "UNIX sockets, shared memory",
        };
        row(
            f,
            "CPU",
            format_args!("{cpu:.2} s, all ranks in all rounds"),
        )?;
        row(
            f,
            "wires",
            format_args!(
                "{wires}, MTU {mtu}, IPv{}, impairment {impair}",
                self.ip_version
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        let it = Collective::new(4_000_000_000, vec![3.0, 1.0, 2.0], 1.5, 0);
        assert_eq!(
            (it.seconds, it.min_seconds, it.max_seconds),
            (2.0, 1.0, 3.0)
        );
        assert_eq!((it.algbw_gb_per_s, it.busbw_gb_per_s), (2.0, 3.0));
    }
}
