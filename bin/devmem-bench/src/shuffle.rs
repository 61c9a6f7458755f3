//! Random orders that are the same in every run.

/// A seed.
pub const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Shuffles the items (Fisher and Yates, with a xorshift generator).
pub fn shuffle<T>(items: &mut [T], mut seed: u64) {
    for last in (1..items.len()).rev() {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        items.swap(last, (seed % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_item_and_moves_most() {
        let mut items: Vec<u32> = (0..1000).collect();
        shuffle(&mut items, SEED);
        let moved = items
            .iter()
            .enumerate()
            .filter(|&(at, &item)| at as u32 != item)
            .count();
        assert!(moved > 900, "{moved}");
        items.sort_unstable();
        assert!(items.into_iter().eq(0..1000));
    }
}
