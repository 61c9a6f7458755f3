//! What several tests need.
#![allow(dead_code, reason = "each program of tests uses a part")]

use std::time::Duration;

use devmem_tcp::{Dmabuf, Frag, RxBatch};

/// Far longer than anything here takes: a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// After so many bytes the pattern repeats. It is prime, so that no two pages of a test are the same.
const PERIOD: usize = 65_537;

/// Returns bytes that differ from page to page. One period is computed, the rest copied: a loop over 64 MiB takes seconds without
/// optimisation, and minutes in an emulated guest.
pub fn pattern(len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len.min(PERIOD)).map(byte_at).collect();
    while bytes.len() < len {
        bytes.extend_from_within(..PERIOD.min(len - bytes.len()));
    }
    bytes
}

/// Returns one of these bytes.
pub fn byte_at(position: usize) -> u8 {
    let position = position % PERIOD;
    (position % 251) as u8 ^ (position >> 8) as u8
}

/// Appends a batch's bytes, wherever they lie.
pub fn collect(batch: &RxBatch, memory: &Dmabuf, bytes: &mut Vec<u8>) {
    for frag in batch {
        match frag {
            Frag::Device { range, .. } => bytes.extend(memory.slice(range).to_vec()),
            Frag::Linear(linear) => bytes.extend_from_slice(linear),
        }
    }
}
