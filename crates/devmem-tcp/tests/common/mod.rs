//! What several tests need.
#![allow(dead_code, reason = "each program of tests uses a part")]

use std::time::Duration;

use devmem_tcp::{Dmabuf, Frag, RxBatch};

/// Far longer than anything here takes: a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns bytes that differ from page to page.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(byte_at).collect()
}

/// Returns one of these bytes.
pub fn byte_at(position: usize) -> u8 {
    (position % 251) as u8 ^ (position >> 12) as u8
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
