//! The Internet checksum (RFC 1071), computed in pieces.
//!
//! One's complement addition is independent of byte order (RFC 1071 2 (B)), so the loop adds native
//! words and only [`Checksum::partial`] swaps bytes. A piece that starts at an odd offset contributes
//! its sum with the two bytes swapped.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Running sum of an Internet checksum.
///
/// Bytes are appended in order; sums made elsewhere (by a NIC over device memory) are merged with
/// [`add_partial`](Self::add_partial).
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Checksum {
    /// Sum of folded 16-bit words in native byte order; 2^48 pieces fit.
    sum: u64,
    /// An odd number of bytes was appended so far.
    odd: bool,
}

impl Checksum {
    /// Returns an empty sum.
    #[inline]
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// Returns the sum of an IPv4 pseudo-header (RFC 9293 3.1).
    ///
    /// `len` is the length of the transport header and its payload.
    #[inline]
    pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u32) -> Self {
        let mut sum = Self::new();
        sum.add_u32(src.to_bits());
        sum.add_u32(dst.to_bits());
        sum.add_u16(protocol.into());
        sum.add_u32(len);
        sum
    }

    /// Returns the sum of an IPv6 pseudo-header (RFC 8200 8.1).
    ///
    /// `len` is the length of the transport header and its payload.
    #[inline]
    pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> Self {
        let mut sum = Self::new();
        sum.add_bytes(&src.octets());
        sum.add_bytes(&dst.octets());
        sum.add_u32(len);
        sum.add_u16(protocol.into());
        sum
    }

    /// Appends `bytes`.
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add_folded(fold(sum_words(bytes)));
        self.odd ^= !bytes.len().is_multiple_of(2);
    }

    /// Appends the two bytes of `value`, most significant first.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.add_folded(value.to_be());
    }

    /// Appends the four bytes of `value`, most significant first.
    #[inline]
    pub fn add_u32(&mut self, value: u32) {
        self.add_folded(fold(value.to_be().into()));
    }

    /// Adds the [`partial`](Self::partial) sum of a piece that starts at byte `offset` of the whole. Later appends are not
    /// affected.
    #[inline]
    pub fn add_partial(&mut self, sum: u16, offset: usize) {
        let sum = sum.to_be();
        let is_odd = !offset.is_multiple_of(2);
        self.sum += u64::from(if is_odd { sum.swap_bytes() } else { sum });
    }

    /// Returns the folded sum, not complemented: the value of the checksum field with CHECKSUM_PARTIAL.
    #[inline]
    #[must_use]
    pub fn partial(&self) -> u16 {
        u16::from_be(fold(self.sum))
    }

    /// Returns the checksum (complemented): 0 over data that includes a correct checksum.
    #[inline]
    #[must_use]
    pub fn finish(&self) -> u16 {
        !self.partial()
    }

    #[inline]
    fn add_folded(&mut self, native: u16) {
        self.sum += u64::from(if self.odd {
            native.swap_bytes()
        } else {
            native
        });
    }
}

/// Returns the Internet checksum of `bytes`; 0 if they contain their own correct checksum.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Checksum::new();
    sum.add_bytes(bytes);
    sum.finish()
}

/// Returns the sum of `bytes` as native 16-bit words (an odd tail padded with zero), not fully
/// folded. 2^16 is 1 modulo 2^16 - 1, so adding 32-bit words gives the same result.
#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    const LANES: usize = 4;
    // Each lane takes two u32 per round: it would take 2^36 bytes to overflow one.
    let mut lanes = [0u64; LANES];
    let (rounds, rest) = bytes.as_chunks::<{ LANES * 8 }>();
    for round in rounds {
        let (words, _) = round.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            let word = u64::from_ne_bytes(*word);
            *lane += (word & 0xffff_ffff) + (word >> 32);
        }
    }
    let mut sum: u64 = lanes
        .iter()
        .map(|lane| (lane & 0xffff_ffff) + (lane >> 32))
        .sum();
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let mut tail = [0; 4];
    tail[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(tail))
}

#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation: RFC 1071 1, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            sum += u32::from(word);
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        let mut sum = Checksum::new();
        sum.add_bytes(&bytes);
        assert_eq!(sum.partial(), 0xddf2);
        assert_eq!(sum.finish(), !0xddf2);
    }

    #[test]
    fn nothing_sums_to_zero() {
        assert_eq!(Checksum::new().partial(), 0);
        assert_eq!(checksum(&[]), 0xffff);
        assert_eq!(checksum(&[0; 9]), 0xffff);
    }

    #[test]
    fn carries_run_to_the_end() {
        for len in [1, 2, 3, 31, 32, 33, 64, 65_535, 65_536] {
            let ones = vec![0xff; len];
            assert_eq!(checksum(&ones), naive(&ones), "{len} bytes of ones");
        }
    }

    #[test]
    fn a_pseudo_header_sums_like_its_bytes() {
        let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 7));
        let bytes = [192, 0, 2, 1, 198, 51, 100, 7, 0, 6, 0xff, 0xfe];
        assert_eq!(
            Checksum::pseudo_v4(src, dst, 6, 0xfffe).finish(),
            naive(&bytes)
        );

        let (src, dst) = (Ipv6Addr::from([0xfe; 16]), Ipv6Addr::from([0x1d; 16]));
        let mut bytes = [src.octets(), dst.octets()].concat();
        bytes.extend([0, 1, 2, 3, 0, 0, 0, 58]);
        assert_eq!(
            Checksum::pseudo_v6(src, dst, 58, 0x0001_0203).finish(),
            naive(&bytes)
        );
    }

    #[test]
    fn integers_after_an_odd_byte_straddle_words() {
        let mut sum = Checksum::new();
        sum.add_bytes(&[0xab]);
        sum.add_u16(0x1234);
        sum.add_u32(0x5678_9abc);
        sum.add_bytes(&[0xef]);
        assert_eq!(
            sum.finish(),
            naive(&[0xab, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xef])
        );
    }

    proptest! {
        #[test]
        fn any_bytes_at_any_alignment_sum_as_they_should(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            start in 0usize..16,
        ) {
            let bytes = &bytes[start.min(bytes.len())..];
            prop_assert_eq!(checksum(bytes), naive(bytes));
        }

        #[test]
        fn splits_do_not_change_the_sum(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..70), 0..8),
        ) {
            let mut sum = Checksum::new();
            for piece in &pieces {
                sum.add_bytes(piece);
            }
            prop_assert_eq!(sum.finish(), naive(&pieces.concat()));
        }

        #[test]
        fn pieces_summed_elsewhere_merge_in_any_order(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..70), 0..8),
        ) {
            let mut offset = 0;
            let mut partials = Vec::new();
            for piece in &pieces {
                let mut sum = Checksum::new();
                sum.add_bytes(piece);
                partials.push((sum.partial(), offset));
                offset += piece.len();
            }
            let mut sum = Checksum::new();
            for (partial, offset) in partials.into_iter().rev() {
                sum.add_partial(partial, offset);
            }
            prop_assert_eq!(sum.finish(), naive(&pieces.concat()));
        }

        #[test]
        fn data_with_its_checksum_in_it_sums_to_zero(
            mut bytes in proptest::collection::vec(any::<u8>(), 2..100),
        ) {
            bytes[..2].fill(0);
            let sum = checksum(&bytes);
            bytes[..2].copy_from_slice(&sum.to_be_bytes());
            // 0 and 0xffff both represent zero; only all-zero data gives 0xffff here.
            prop_assert!(checksum(&bytes) == 0 || bytes.iter().all(|byte| *byte == 0));
        }
    }
}
