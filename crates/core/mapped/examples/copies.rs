//! Measures the copies of mapped memory beside the standard library's: `cargo run --release -p devmem-mapped --example copies`.
//!
//! For each size the best of many rounds, in GB/s: bytes out of and into mapped memory, and between two ordinary buffers by
//! `copy_from_slice` (the C library's memcpy). "hot" repeats one range; "streaming" walks through 256 MiB.

#![forbid(unsafe_code)]

use std::time::Instant;

use mapped::{Advice, Commit, Mapping};

const MEMORY_BYTES: usize = 256 << 20;
const ROUND_BYTES: usize = 64 << 20;
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mapping = Mapping::anonymous(MEMORY_BYTES, Commit::Now)?;
    // Huge pages, as for network memory. The ordinary buffer has them only if the system enables them for all memory.
    mapping.advise(0..mapping.len(), Advice::Huge)?;
    mapping.fill(0, MEMORY_BYTES, 1)?;
    let ordinary = vec![1_u8; MEMORY_BYTES];
    println!("walk        bytes   copy_out    copy_in    memcpy (GB/s)");
    for (walk, step) in [("hot", false), ("streaming", true)] {
        for size in [64, 256, 1448, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            let mut buffer = vec![0_u8; size];
            let stride = if step { size } else { 0 };
            let out = best(size, stride, |at| {
                mapping.copy_out(at, &mut buffer).expect("inside");
            });
            let into = best(size, stride, |at| {
                mapping.copy_in(at, &buffer).expect("inside");
            });
            let mut target = vec![0_u8; size];
            let memcpy = best(size, stride, |at| {
                target.copy_from_slice(std::hint::black_box(&ordinary[at..at + size]));
                std::hint::black_box(&mut target);
            });
            println!("{walk:9} {size:8} {out:10.1} {into:10.1} {memcpy:9.1}");
        }
    }
    Ok(())
}

/// Returns the most bytes per nanosecond of all rounds.
fn best(size: usize, stride: usize, mut copy: impl FnMut(usize)) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let mut at = 0;
        let begin = Instant::now();
        for _ in 0..ROUND_BYTES / size {
            copy(at);
            at += stride;
            if at + size > MEMORY_BYTES {
                at = 0;
            }
        }
        best = best.min(begin.elapsed().as_secs_f64());
    }
    (ROUND_BYTES / size * size) as f64 / best / 1e9
}
