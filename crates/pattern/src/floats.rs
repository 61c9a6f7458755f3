//! Vectors of floats (binary32, little-endian) of the ranks of a collective: what touches each float of them.

use std::ops::Range;

/// Bytes of a float.
pub const FLOAT_BYTES: usize = size_of::<f32>();

/// Values of the vectors: sums of them are exact, whatever the order of the additions.
const VALUES: usize = 1021;

/// Returns element `at` of the vector that a rank begins with: a whole number.
fn value(rank: usize, at: usize) -> f32 {
    // Less than VALUES, so that the conversion is exact.
    ((at + 7 * rank) % VALUES) as f32
}

/// Writes the vector of a rank, from element `first` on.
pub fn fill(bytes: &mut [u8], first: usize, rank: usize) {
    let (floats, _) = bytes.as_chunks_mut::<FLOAT_BYTES>();
    for (float, number) in floats.iter_mut().zip(first..) {
        *float = value(rank, number).to_le_bytes();
    }
}

/// Writes floats that are no numbers, and of no vector.
pub fn fill_with_nan(bytes: &mut [u8]) {
    bytes.fill(0xff);
}

/// Counts the floats that are not exactly the sums of the vectors of `ranks`, from element `first` on.
pub fn count_wrong(bytes: &[u8], first: usize, ranks: Range<usize>) -> u64 {
    let expected = |number| -> f32 { ranks.clone().map(|rank| value(rank, number)).sum() };
    let (floats, _) = bytes.as_chunks::<FLOAT_BYTES>();
    let wrong = floats.iter().zip(first..).filter(|(float, number)| {
        f32::from_le_bytes(**float).to_bits() != expected(*number).to_bits()
    });
    wrong.count() as u64
}

/// Adds as many floats as there are sums.
pub fn add(sums: &mut [u8], summands: &[u8]) {
    let (sums, _) = sums.as_chunks_mut::<FLOAT_BYTES>();
    let (summands, _) = summands.as_chunks::<FLOAT_BYTES>();
    for (sum, summand) in sums.iter_mut().zip(summands) {
        *sum = (f32::from_le_bytes(*sum) + f32::from_le_bytes(*summand)).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_the_values_are_exact_in_any_order() {
        let last = (0..4).map(|_| (VALUES - 1) as f32).sum::<f32>();
        assert!(last < 2_f32.powi(f32::MANTISSA_DIGITS as i32));
        assert_eq!(value(3, 5), 26.0);
    }

    #[test]
    fn a_single_wrong_float_is_found() {
        let mut bytes = vec![0; 10 * FLOAT_BYTES];
        fill(&mut bytes, 5, 2);
        assert_eq!(count_wrong(&bytes, 5, 2..3), 0);
        bytes[39] ^= 0x80;
        assert_eq!(count_wrong(&bytes, 5, 2..3), 1);
        fill_with_nan(&mut bytes);
        assert_eq!(count_wrong(&bytes, 5, 2..3), 10);
    }

    #[test]
    fn added_vectors_are_the_expected_sums() {
        let [mut sums, mut summands] = [(); 2].map(|()| vec![0; 2000 * FLOAT_BYTES]);
        fill(&mut sums, 100, 0);
        fill(&mut summands, 100, 1);
        add(&mut sums, &summands);
        assert_eq!(count_wrong(&sums, 100, 0..2), 0);
        assert_ne!(count_wrong(&sums, 101, 0..2), 0);
    }
}
