//! How the received packets were spread over the shards of a NIC.

use std::fmt;

use devmem_tcp::Netdev;
use serde::Serialize;

/// The shards of a NIC after a transfer. Two fields of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// What each shard received. An interface of the kernel has one.
    pub shards: Vec<ShardRow>,
    /// Received frames that crossed from one shard to another, and were copied once more.
    pub crossed_frames: u64,
}

/// Counters of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShardRow {
    /// Its number.
    pub shard: usize,
    /// Received packets.
    pub packets: u64,
    /// Bytes of payload of these packets.
    pub bytes: u64,
}

impl Spread {
    /// Reads the counters of a NIC.
    pub fn of(nic: &Netdev) -> Self {
        let row = |(shard, nic): (usize, &Netdev)| {
            let queues = nic.queue_stats();
            ShardRow {
                shard,
                packets: queues.iter().map(|queue| queue.packets).sum(),
                bytes: queues.iter().map(|queue| queue.bytes).sum(),
            }
        };
        Self {
            shards: nic.shards().iter().enumerate().map(row).collect(),
            crossed_frames: nic.crossed_frames(),
        }
    }
}

impl fmt::Display for Spread {
    /// Writes the row of a table; none for a NIC with one shard.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, ..] = &*self.shards else {
            return Ok(());
        };
        let all: u64 = self.shards.iter().map(|row| row.bytes).sum();
        let shares: Vec<_> = self
            .shards
            .iter()
            .map(|row| format!("{:.0} %", 100.0 * row.bytes as f64 / all.max(1) as f64))
            .collect();
        let (count, crossed) = (self.shards.len(), self.crossed_frames);
        let shares = shares.join(", ");
        let name = "shards";
        writeln!(
            f,
            "{name:>13}  {count}, with {shares} of the received bytes; {crossed} frames crossed"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{ShardRow, Spread};

    fn rows(bytes: &[u64]) -> Spread {
        let row = |(shard, bytes): (usize, &u64)| ShardRow {
            shard,
            packets: 1,
            bytes: *bytes,
        };
        Spread {
            shards: bytes.iter().enumerate().map(row).collect(),
            crossed_frames: 7,
        }
    }

    #[test]
    fn a_row_tells_the_shares_of_several_shards() {
        assert_eq!(rows(&[5]).to_string(), "");
        assert_eq!(
            rows(&[300, 100]).to_string(),
            "       shards  2, with 75 %, 25 % of the received bytes; 7 frames crossed\n"
        );
        assert!(rows(&[0, 0]).to_string().contains("0 %, 0 %"));
    }
}
