//! What a stream may use.

use std::time::Duration;

/// What a stream may use, and how.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StreamSettings {
    /// Most bytes of memory. Those of a tensor count from before it is requested until its [`Share`](super::Share) is dropped.
    pub memory_limit: u64,
    /// Which tensors share a memory.
    pub sharing: Sharing,
    /// Longest gap between two runs of a part that are requested together; 32 KiB if a request costs as much as so many bytes.
    pub merge_gap: u64,
    /// How long [`TensorStream::next`](super::TensorStream::next) waits, in all, for room that only the program can make.
    pub patience: Duration,
}

/// Which tensors share a memory, which is free when all of them are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Those below 1 MiB that are loaded together.
    SmallTensors,
    /// All that are loaded together.
    Windows,
}

impl StreamSettings {
    /// Returns settings with a bound: see [`memory_limit`](Self::memory_limit).
    pub fn new(memory_limit: u64) -> Self {
        Self {
            memory_limit,
            sharing: Sharing::SmallTensors,
            merge_gap: 32 << 10,
            patience: Duration::from_secs(30),
        }
    }
}
