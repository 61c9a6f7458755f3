//! The outcome of a load.

use std::time::Duration;

use devmem_tcp::stats::StreamStats;

/// The outcome of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes in their place.
    pub bytes: u64,
    /// Time from the first request on.
    pub elapsed: Duration,
    /// Pieces that were requested.
    pub pieces: u64,
    /// Pieces that were requested again, because their connection broke.
    pub repeated: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that broke.
    pub broken: u64,
    /// How often an NVMe controller sent the data of another command than this host expected, or an HTTP server a head of another length: what
    /// was on the way was copied to its place.
    pub mispredicted: u64,
    /// Bytes of https servers that the CPU has decrypted in host memory, and that were copied to their place from there.
    pub decrypted: u64,
    /// Counters of all connections. Heads of responses and repeated pieces are included, what was received before the first request is not.
    pub stats: StreamStats,
}

impl Loaded {
    pub(super) fn add_stats(&mut self, stats: StreamStats) {
        self.stats.device_bytes += stats.device_bytes;
        self.stats.linear_bytes += stats.linear_bytes;
        self.stats.device_frags += stats.device_frags;
        self.stats.tokens_returned += stats.tokens_returned;
        self.stats.receives += stats.receives;
    }
}
