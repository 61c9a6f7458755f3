//! Finds the lowest free number in `O(log n)`, in a tree of 64-bit words.
//!
//! Level 0 has one bit per number, set while the number is free. A bit of a higher level is set if the word below it
//! has a set bit. The kernel allocates tokens by the same rule (linux `xa_alloc`: lowest free index).

const BITS: usize = u64::BITS as usize;

/// A set of free numbers from 0 on.
#[derive(Debug, Default)]
pub(crate) struct FreeMap {
    /// `levels[0]` has one bit per number; the last level has one word.
    levels: Vec<Vec<u64>>,
    /// Number of numbers that exist, free or taken.
    len: usize,
}

impl FreeMap {
    /// Takes the lowest free number, or adds a number if none is free.
    pub(crate) fn take_lowest(&mut self) -> usize {
        let number = match self.lowest() {
            Some(number) => number,
            None => return self.grow(),
        };
        self.clear(number);
        number
    }

    /// Makes a taken number free again.
    pub(crate) fn give_back(&mut self, mut number: usize) {
        debug_assert!(number < self.len);
        for level in &mut self.levels {
            let word = &mut level[number / BITS];
            let was_empty = *word == 0;
            *word |= 1 << (number % BITS);
            if !was_empty {
                return;
            }
            number /= BITS;
        }
    }

    fn lowest(&self) -> Option<usize> {
        let top = self.levels.last()?;
        if top[0] == 0 {
            return None;
        }
        Some(self.levels.iter().rev().fold(0, |index, level| {
            index * BITS + level[index].trailing_zeros() as usize
        }))
    }

    fn clear(&mut self, mut number: usize) {
        for level in &mut self.levels {
            let word = &mut level[number / BITS];
            *word &= !(1 << (number % BITS));
            if *word != 0 {
                return;
            }
            number /= BITS;
        }
    }

    /// Adds one number, which is taken.
    fn grow(&mut self) -> usize {
        let number = self.len;
        self.len += 1;
        let mut words = self.len.div_ceil(BITS);
        let mut level = 0;
        loop {
            match self.levels.get_mut(level) {
                Some(bits) => bits.resize(words, 0),
                // A new top level has no set bits: it is added only when no number is free.
                None => self.levels.push(vec![0; words]),
            }
            if words == 1 {
                return number;
            }
            words = words.div_ceil(BITS);
            level += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::SplitMix;

    #[test]
    fn numbers_are_taken_in_order_and_the_lowest_given_back_comes_first() {
        let mut map = FreeMap::default();
        for expected in 0..10_000 {
            assert_eq!(map.take_lowest(), expected);
        }
        for number in [9_999, 4_096, 63, 64, 5_000] {
            map.give_back(number);
        }
        let again: Vec<_> = (0..6).map(|_| map.take_lowest()).collect();
        assert_eq!(again, [63, 64, 4_096, 5_000, 9_999, 10_000]);
    }

    #[test]
    fn it_agrees_with_a_sorted_set_over_many_random_steps() {
        for seed in 0..20 {
            let mut random = SplitMix::new(seed);
            let mut map = FreeMap::default();
            let (mut free, mut taken, mut len) = (BTreeSet::new(), Vec::new(), 0);
            for step in 0..20_000 {
                // Phases of growth and of shrinking, so that several levels fill and empty.
                let grows = (step / 5_000) % 2 == 0;
                if random.next() % 10 < if grows { 8 } else { 3 } || taken.is_empty() {
                    let expected = free.pop_first().unwrap_or_else(|| {
                        len += 1;
                        len - 1
                    });
                    assert_eq!(map.take_lowest(), expected, "seed {seed} step {step}");
                    taken.push(expected);
                } else {
                    let number = taken.swap_remove((random.next() % taken.len() as u64) as usize);
                    map.give_back(number);
                    free.insert(number);
                }
            }
        }
    }
}
