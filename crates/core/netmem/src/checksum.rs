//! The Internet checksum of memory to which there can be no slice.

use wire::Checksum;

use crate::region::RegionSpan;

/// Bytes per step. Small enough that the copy is a few loads and stores, which the processor prefetches
/// (a longer one becomes a string instruction: less than half the speed from memory); large enough for
/// vector instructions.
const STEP_BYTES: usize = 256;

/// Returns the folded, not complemented ones' complement sum of big-endian words (RFC 1071).
pub(crate) fn of_span(span: RegionSpan<'_>) -> u16 {
    let mut buffer = [0; STEP_BYTES];
    let mut sum = Checksum::new();
    let mut done = 0;
    while done < span.len {
        let step = &mut buffer[..STEP_BYTES.min(span.len - done)];
        span.region.copy_out(span.offset + done, step);
        sum.add_bytes(step);
        done += step.len();
    }
    sum.partial()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{Commit, MemoryRegion};

    /// RFC 1071 section 1, word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|pair| match *pair {
            [high, low] => u32::from(u16::from_be_bytes([high, low])),
            [high] => u32::from(high) << 8,
            _ => unreachable!("chunks of 1 or 2"),
        });
        let mut sum = words.fold(0_u64, |sum, word| sum + u64::from(word));
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_sum_is_that_of_rfc_1071_for_every_length_and_alignment() {
        let region = MemoryRegion::anonymous(8192, Commit::Lazily).unwrap();
        let bytes: Vec<u8> = (0..8192_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        region.copy_in(0, &bytes);
        let lengths = (0..70)
            .chain(STEP_BYTES - 3..STEP_BYTES + 36)
            .chain([1460, 4095, 8000]);
        // Miri checks the accesses, not the sums: fewer cases suffice.
        for len in lengths.step_by(if cfg!(miri) { 17 } else { 1 }) {
            for offset in [0, 1, 2, 7, 64, 192] {
                let got = of_span(RegionSpan {
                    region: &region,
                    offset,
                    len,
                });
                assert_eq!(
                    got,
                    plain(&bytes[offset..offset + len]),
                    "{len} bytes at {offset}"
                );
            }
        }
    }

    #[test]
    fn carries_out_of_every_word_are_added() {
        let region = MemoryRegion::anonymous(8192, Commit::Lazily).unwrap();
        region.fill(0, 8192, 0xff);
        assert_eq!(
            of_span(RegionSpan {
                region: &region,
                offset: 0,
                len: 8192
            }),
            0xffff
        );
        assert_eq!(
            of_span(RegionSpan {
                region: &region,
                offset: 0,
                len: 8191
            }),
            0xff00
        );
        // RFC 1071 3, numerical example.
        region.copy_in(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(
            of_span(RegionSpan {
                region: &region,
                offset: 0,
                len: 8
            }),
            0xddf2
        );
    }
}
