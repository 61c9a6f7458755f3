//! The Internet checksum of memory that no slice may point to.

use crate::region::Span;

/// Bytes per step: they stay in the first-level cache between the copy and the sum.
const STEP_BYTES: usize = 2048;

/// Returns the folded, not complemented ones' complement sum of big-endian words (RFC 1071).
pub(crate) fn of_span(span: Span<'_>) -> u16 {
    let mut buffer = [0; STEP_BYTES];
    let mut sum = 0_u64;
    let mut done = 0;
    while done < span.len {
        // Every step but the last is of even length, so words stay aligned with the span.
        let step = &mut buffer[..STEP_BYTES.min(span.len - done)];
        span.region.copy_out(span.offset + done, step);
        sum = add(sum, of_bytes(step));
        done += step.len();
    }
    fold(sum)
}

/// Returns a sum of native-endian words that folds to the ones' complement sum (RFC 1071 2(B)).
fn of_bytes(bytes: &[u8]) -> u64 {
    // Four sums of 32-bit halves in 64 bits: no carry until 2^32 of them, and the compiler may use
    // vectors.
    let mut lanes = [0_u64; 8];
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut sum = lanes.into_iter().fold(0, add);
    for pair in blocks.remainder().chunks(2) {
        let word = [pair[0], pair.get(1).copied().unwrap_or(0)];
        sum = add(sum, u64::from(u16::from_ne_bytes(word)));
    }
    sum
}

/// Adds with end-around carry.
fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

/// Folds to 16 bits, in network order's value.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    // At most 0xffff; words were read in native order.
    u16::from_be(sum as u16)
}
