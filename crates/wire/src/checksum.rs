//! The Internet checksum (RFC 1071), fed in pieces.
//!
//! One's complement addition does not care about byte order until the end (RFC 1071 2 (B)), so the
//! loop adds native words and only [`Checksum::partial`] swaps. A piece that starts at an odd
//! offset contributes its sum with the two bytes exchanged: that is all an odd boundary costs.

use std::net::{Ipv4Addr, Ipv6Addr};

/// An Internet checksum in the making.
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
    /// Returns the sum of nothing.
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
        self.odd ^= bytes.len() % 2 != 0;
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

    /// Merges the [`partial`](Self::partial) sum of a piece that was summed elsewhere and starts
    /// at an odd or even offset of the whole. The position for later appends does not move.
    #[inline]
    pub fn add_partial(&mut self, sum: u16, at_odd_offset: bool) {
        let sum = sum.to_be();
        self.sum += u64::from(if at_odd_offset { sum.swap_bytes() } else { sum });
    }

    /// Returns the folded sum, not complemented: what a CHECKSUM_PARTIAL field stores.
    #[inline]
    #[must_use]
    pub fn partial(&self) -> u16 {
        u16::from_be(fold(self.sum))
    }

    /// Returns the checksum (complemented). Over data that includes a correct one it is 0.
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

/// Adds `bytes` as native 16-bit words (an odd tail padded with zero), folded only as far as 64
/// bits need it: 2^16 is 1 modulo 2^16 - 1, so wider words may be added just as well.
#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    const LANES: usize = 4;
    // Each lane takes one u32 per round: a slice would need 2^36 bytes to overflow one.
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
