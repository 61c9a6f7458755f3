//! Keys that peers cannot guess, and a repeatable random generator.

use std::hash::Hasher;

use siphasher::sip::{SipHasher13, SipHasher24};

/// The secret of one stack, from which the keys of all hashes and all random numbers are derived.
///
/// It is 16 random bytes, or made from a seed in a simulation. Each purpose has a separate key, derived from a
/// label: values that a peer sees of one purpose say nothing about another.
#[derive(Clone, Copy)]
pub struct Secret([u8; 16]);

impl Secret {
    /// Returns a secret; `bytes` must be random.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the secret of a seed, for simulations and tests only.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = SplitMix::new(seed);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random.next().to_le_bytes());
        bytes[8..].copy_from_slice(&random.next().to_le_bytes());
        Self(bytes)
    }

    /// Returns the key for one purpose.
    pub(crate) fn key(&self, purpose: &str) -> [u8; 16] {
        let mut key = [0; 16];
        for (half, part) in key.chunks_exact_mut(8).zip(0u8..) {
            let mut hasher = SipHasher24::new_with_key(&self.0);
            hasher.write_u8(part);
            hasher.write(purpose.as_bytes());
            half.copy_from_slice(&hasher.finish().to_le_bytes());
        }
        key
    }
}

/// Prints no bytes, because a secret must not appear in a log.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Builds keyed hashers for tables with keys chosen by peers (against hash flooding).
#[derive(Clone)]
pub(crate) struct KeyedState([u8; 16]);

impl KeyedState {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self(key)
    }
}

impl std::hash::BuildHasher for KeyedState {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a repeatable generator, not for values that must be secret.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_get_different_keys_and_a_seed_repeats() {
        let secret = Secret::from_seed(1);
        assert_ne!(secret.key("demux"), secret.key("ports"));
        assert_eq!(secret.key("demux"), Secret::from_seed(1).key("demux"));
        assert_ne!(secret.key("demux"), Secret::from_seed(2).key("demux"));
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
