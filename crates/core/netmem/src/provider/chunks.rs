//! The chunk allocator: the free net_iovs of an area (the kernel uses a gen_pool).

use std::sync::PoisonError;

use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

/// Maximum number of words (of 64 net_iovs) that the search for a run examines: about a
/// microsecond, and 256 MiB of memory in the smallest net_iovs.
const RUN_SEARCH_WORDS: usize = 1024;

/// A bitmap of free net_iovs. The lowest one is allocated first, so that few pages are in use and free runs stay long.
pub(crate) struct Chunks {
    free: AtomicU32,
    // Lock order: a leaf. Nothing is called while it is held.
    map: Mutex<Bitmap>,
}

struct Bitmap {
    /// A set bit is a free net_iov.
    words: Box<[u64]>,
    /// No bit is set in the words below.
    low: usize,
    free: u32,
    count: u32,
}

impl Chunks {
    /// Returns `count` free net_iovs.
    pub(crate) fn new(count: u32) -> Self {
        let mut words = vec![u64::MAX; (count as usize).div_ceil(64)];
        if let (Some(last), tail @ 1..) = (words.last_mut(), count % 64) {
            *last = (1 << tail) - 1;
        }
        let map = Bitmap {
            words: words.into_boxed_slice(),
            low: 0,
            free: count,
            count,
        };
        Chunks {
            free: AtomicU32::new(count),
            map: Mutex::new(map),
        }
    }

    /// Returns the number of free net_iovs, which may have changed already.
    pub(crate) fn free(&self) -> u32 {
        // Acquire pairs with the Release of `free`: a thread that finds all of them free may reuse the memory.
        self.free.load(Ordering::Acquire)
    }

    /// Takes up to `out.len()` net_iovs, ascending. Returns the number.
    pub(crate) fn alloc_bulk(&self, out: &mut [u32]) -> usize {
        if self.free() == 0 {
            return 0;
        }
        let mut map = self.lock();
        let taken = map.take_lowest(out);
        self.free.store(map.free, Ordering::Release);
        taken
    }

    /// Takes `out.len()` adjacent net_iovs, or none.
    pub(crate) fn alloc_run(&self, out: &mut [u32]) -> bool {
        if (self.free() as usize) < out.len() {
            return false;
        }
        let mut map = self.lock();
        let found = map.take_run(out);
        self.free.store(map.free, Ordering::Release);
        found
    }

    /// Frees net_iovs.
    ///
    /// # Panics
    ///
    /// When one is free already or does not exist: two owners would overwrite each other's data.
    pub(crate) fn release(&self, indices: &[u32]) {
        let mut map = self.lock();
        for &index in indices {
            map.put(index);
        }
        self.free.store(map.free, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Bitmap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bitmap {
    fn take_lowest(&mut self, out: &mut [u32]) -> usize {
        let mut taken = 0;
        while let (Some(slot), Some(word)) = (out.get_mut(taken), self.words.get_mut(self.low)) {
            if *word == 0 {
                self.low += 1;
                continue;
            }
            *slot = index_of(self.low, word.trailing_zeros());
            *word &= *word - 1;
            taken += 1;
        }
        // At most the net_iovs that were free.
        self.free -= taken as u32;
        taken
    }

    fn take_run(&mut self, out: &mut [u32]) -> bool {
        let Some(start) = self.find_run(out.len()) else {
            return false;
        };
        for (slot, index) in out.iter_mut().zip(start..) {
            *slot = index;
            self.words[index as usize / 64] &= !(1 << (index % 64));
        }
        // No more than were free: `find_run` saw as many set bits.
        self.free -= out.len() as u32;
        true
    }

    /// Returns the start of `wanted` consecutive set bits.
    fn find_run(&mut self, wanted: usize) -> Option<u32> {
        while self.words.get(self.low) == Some(&0) {
            self.low += 1;
        }
        let mut start = 0;
        let mut run = 0_usize;
        for (at, &word) in self
            .words
            .iter()
            .enumerate()
            .skip(self.low)
            .take(RUN_SEARCH_WORDS)
        {
            let mut bit = 0;
            while bit < 64 {
                let ones = (word >> bit).trailing_ones();
                if run == 0 {
                    start = index_of(at, bit);
                }
                run += ones as usize;
                if ones > 0 && run >= wanted {
                    return Some(start);
                }
                bit += ones;
                if bit < 64 {
                    run = 0;
                    bit += (word >> bit).trailing_zeros().min(64 - bit);
                }
            }
        }
        None
    }

    fn put(&mut self, index: u32) {
        assert!(
            index < self.count,
            "net_iov {index} of {} was released",
            self.count
        );
        let at = index as usize / 64;
        let bit = 1 << (index % 64);
        let word = &mut self.words[at];
        assert!(*word & bit == 0, "net_iov {index} was released twice");
        *word |= bit;
        self.low = self.low.min(at);
        self.free += 1;
    }
}

/// Bit `bit` of word `word`: below the net_iov count, which is a u32.
fn index_of(word: usize, bit: u32) -> u32 {
    word as u32 * 64 + bit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(chunks: &Chunks, n: usize) -> Vec<u32> {
        let mut out = vec![0; n];
        let taken = chunks.alloc_bulk(&mut out);
        out.truncate(taken);
        out
    }

    fn run(chunks: &Chunks, n: usize) -> Option<Vec<u32>> {
        let mut out = vec![0; n];
        chunks.alloc_run(&mut out).then_some(out)
    }

    #[test]
    fn bulks_ascend_and_end_where_the_net_iovs_end() {
        let chunks = Chunks::new(130);
        assert_eq!(bulk(&chunks, 100), (0..100).collect::<Vec<_>>());
        assert_eq!(bulk(&chunks, 100), (100..130).collect::<Vec<_>>());
        assert_eq!(bulk(&chunks, 1), []);
        assert_eq!(chunks.free(), 0);
    }

    #[test]
    fn released_chunks_are_allocated_again_lowest_first() {
        let chunks = Chunks::new(256);
        assert_eq!(bulk(&chunks, 256).len(), 256);
        chunks.release(&[200, 7, 64]);
        assert_eq!(chunks.free(), 3);
        assert_eq!(bulk(&chunks, 5), [7, 64, 200]);
    }

    #[test]
    fn a_run_is_found_across_words_and_behind_holes() {
        let chunks = Chunks::new(192);
        assert_eq!(bulk(&chunks, 192).len(), 192);
        chunks.release(&[3, 4, 5, 10, 11]);
        chunks.release(&(60..70).collect::<Vec<_>>());
        assert_eq!(run(&chunks, 11), None);
        assert_eq!(run(&chunks, 4), Some((60..64).collect()));
        assert_eq!(run(&chunks, 3), Some(vec![3, 4, 5]));
        assert_eq!(run(&chunks, 6), Some((64..70).collect()));
        assert_eq!(run(&chunks, 3), None);
        assert_eq!(bulk(&chunks, 9), [10, 11]);
    }

    #[test]
    fn a_run_as_long_as_the_area_is_found_once() {
        let chunks = Chunks::new(150);
        assert_eq!(run(&chunks, 150), Some((0..150).collect()));
        assert_eq!(run(&chunks, 1), None);
        chunks.release(&(0..150).collect::<Vec<_>>());
        assert_eq!(run(&chunks, 151), None);
        assert_eq!(chunks.free(), 150);
    }

    #[test]
    #[should_panic(expected = "net_iov 5 was released twice")]
    fn releasing_twice_panics() {
        let chunks = Chunks::new(64);
        assert_eq!(bulk(&chunks, 64).len(), 64);
        chunks.release(&[5]);
        chunks.release(&[5]);
    }

    #[test]
    #[should_panic(expected = "net_iov 70 of 70 was released")]
    fn releasing_a_chunk_that_is_not_allocated_panics() {
        Chunks::new(70).release(&[70]);
    }
}
