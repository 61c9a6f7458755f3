//! Rings in guest memory: validated once, then only indexed.

use gve_defs::device_option::{MAX_RING_ENTRIES, MIN_RING_ENTRIES};

use crate::env::{BadAddress, GuestAddr, GuestMemory};

/// A ring in the address space; its number of entries is a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    base: GuestAddr,
    entries: u16,
    entry_bytes: u16,
}

/// Reason to refuse a ring of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingError {
    /// The size is not a power of two between the smallest and the largest ring.
    Size,
    /// The ring is not aligned to its entry size, or reaches past the end of the address space.
    Place,
    /// The first or last entry is not guest memory.
    Memory,
}

impl Ring {
    /// Validates a ring of the guest.
    pub(crate) fn new(
        base: GuestAddr,
        entries: u16,
        entry_bytes: u16,
        memory: &dyn GuestMemory,
    ) -> Result<Self, RingError> {
        let in_range = (MIN_RING_ENTRIES..=MAX_RING_ENTRIES).contains(&entries);
        if !in_range || !entries.is_power_of_two() {
            return Err(RingError::Size);
        }
        let ring = Self {
            base,
            entries,
            entry_bytes,
        };
        let bytes = u64::from(entries) * u64::from(entry_bytes);
        if !base.0.is_multiple_of(entry_bytes.into()) || base.checked_add(bytes).is_none() {
            return Err(RingError::Place);
        }
        // Memory may be unmapped later, so each access is checked as well; this detects a wrong address early.
        let mut byte = [0];
        let last = GuestAddr(base.0 + (bytes - 1));
        let ends = memory
            .read(base, &mut byte)
            .and_then(|()| memory.read(last, &mut byte));
        ends.map(|()| ring).map_err(|_| RingError::Memory)
    }

    /// Returns the number of entries.
    pub(crate) const fn entries(&self) -> u16 {
        self.entries
    }

    /// Returns the index `by` after `index`, both modulo the size.
    #[inline]
    pub(crate) const fn step(&self, index: u16, by: u16) -> u16 {
        index.wrapping_add(by) & (self.entries - 1)
    }

    /// Returns the number of entries from `head` to before `tail`.
    #[inline]
    pub(crate) const fn between(&self, head: u16, tail: u16) -> u16 {
        tail.wrapping_sub(head) & (self.entries - 1)
    }

    /// Returns an index from a doorbell, `None` if the ring has no such entry.
    pub(crate) fn index(&self, value: u32) -> Option<u16> {
        u16::try_from(value)
            .ok()
            .filter(|index| *index < self.entries)
    }

    /// Returns the address of an entry.
    #[inline]
    pub(crate) fn addr(&self, index: u16) -> GuestAddr {
        let index = u64::from(index & (self.entries - 1));
        // Cannot wrap: `new` has checked that the ring ends within the address space.
        GuestAddr(self.base.0 + index * u64::from(self.entry_bytes))
    }
}

/// Buffer of ring entries copied ahead of use, so that several need only one access to guest memory.
///
/// Each entry is copied once and parsed from that copy.
#[derive(Debug)]
pub(crate) struct RingWindow<const BYTES: usize> {
    first: u16,
    count: u16,
    bytes: Box<[[u8; BYTES]; WINDOW_ENTRIES]>,
}

/// Entries copied at once.
const WINDOW_ENTRIES: usize = 32;

impl<const BYTES: usize> RingWindow<BYTES> {
    pub(crate) fn new() -> Self {
        Self {
            first: 0,
            count: 0,
            bytes: Box::new([[0; BYTES]; WINDOW_ENTRIES]),
        }
    }

    /// Discards the copies, because the guest may have changed the entries.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// Returns entry `index`, which must be before `tail`.
    #[inline]
    pub(crate) fn get(
        &mut self,
        ring: &Ring,
        index: u16,
        tail: u16,
        memory: &dyn GuestMemory,
    ) -> Result<[u8; BYTES], BadAddress> {
        let at = ring.between(self.first, index);
        if at >= self.count {
            self.fill(ring, index, tail, memory)?;
            return Ok(self.bytes[0]);
        }
        Ok(self.bytes[usize::from(at)])
    }

    fn fill(
        &mut self,
        ring: &Ring,
        index: u16,
        tail: u16,
        memory: &dyn GuestMemory,
    ) -> Result<(), BadAddress> {
        self.count = 0;
        let to_end = ring.entries() - index;
        let ready = ring.between(index, tail).min(to_end).max(1);
        let count = usize::from(ready).min(WINDOW_ENTRIES);
        let bytes = self.bytes[..count].as_flattened_mut();
        memory.read(ring.addr(index), bytes)?;
        self.first = index;
        // At most 32.
        self.count = count as u16;
        Ok(())
    }
}

/// A completion ring, written by the device; each lap flips the generation bit.
#[derive(Debug)]
pub(crate) struct Completions {
    ring: Ring,
    next: u16,
    generation: bool,
}

/// The word with the generation bit of a kind of completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GenerationWord {
    /// Offset of the word.
    pub(crate) offset: u64,
    /// The word without the generation bit.
    pub(crate) word: u16,
    /// The bit.
    pub(crate) bit: u16,
}

impl Completions {
    pub(crate) const fn new(ring: Ring) -> Self {
        Self {
            ring,
            next: 0,
            generation: true,
        }
    }

    /// Writes `bytes` as the next entry, the generation bit last; that makes the entry valid for the guest.
    ///
    /// The generation bit in `bytes` must be the old one, as in the ring entry; see [`stale`](Self::stale).
    pub(crate) fn write(
        &mut self,
        bytes: &[u8],
        generation: GenerationWord,
        memory: &dyn GuestMemory,
    ) -> Result<(), BadAddress> {
        let addr = self.ring.addr(self.next);
        let GenerationWord { offset, word, bit } = generation;
        let word = if self.generation { word | bit } else { word };
        self.next = self.ring.step(self.next, 1);
        if self.next == 0 {
            self.generation = !self.generation;
        }
        memory.write(addr, bytes)?;
        memory.store_release_u16(GuestAddr(addr.0 + offset), word)
    }

    /// Returns `bit` if the next entry to write has the generation bit set from the previous lap, else 0.
    pub(crate) const fn stale(&self, bit: u16) -> u16 {
        if self.generation { 0 } else { bit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    fn ring(base: u64, entries: u16) -> Result<Ring, RingError> {
        Ring::new(GuestAddr(base), entries, 16, &Memory::new(1 << 16))
    }

    #[test]
    fn a_ring_is_a_power_of_two_between_the_limits() {
        for entries in [0, 1, 3, 255, 257, 384, 4095, 4097, 8192, 32_768, u16::MAX] {
            assert_eq!(ring(0, entries).err(), Some(RingError::Size), "{entries}");
        }
        for entries in [256, 512, 4096] {
            assert!(ring(0, entries).is_ok(), "{entries}");
        }
    }

    #[test]
    fn a_ring_lies_in_memory_and_aligned() {
        assert_eq!(ring(8, 256).err(), Some(RingError::Place));
        let top = u64::MAX - 15;
        assert_eq!(ring(top, 256).err(), Some(RingError::Place));
        assert_eq!(ring(1 << 16, 256).err(), Some(RingError::Memory));
        let half_out = (1 << 16) - 256 * 8;
        assert_eq!(ring(half_out, 256).err(), Some(RingError::Memory));
        assert!(ring((1 << 16) - 256 * 16, 256).is_ok());
    }

    #[test]
    fn a_doorbell_past_the_ring_is_no_index() {
        let ring = ring(0, 256).unwrap();
        assert_eq!(ring.index(255), Some(255));
        for value in [256, 65_536, u32::MAX] {
            assert_eq!(ring.index(value), None);
        }
    }

    #[test]
    fn a_window_does_not_read_past_the_end_of_the_ring_or_the_tail() {
        let memory = Memory::new(256 * 16);
        for index in 0..256u16 {
            let entry = [index as u8; 16];
            memory
                .write(GuestAddr(u64::from(index) * 16), &entry)
                .unwrap();
        }
        let ring = Ring::new(GuestAddr(0), 256, 16, &memory).unwrap();
        let mut window = RingWindow::<16>::new();
        for index in (200..256).chain(0..5) {
            assert_eq!(window.get(&ring, index, 5, &memory), Ok([index as u8; 16]));
        }
    }

    #[test]
    fn a_window_keeps_what_it_copied_until_it_is_cleared() {
        let memory = Memory::new(256 * 16);
        let ring = Ring::new(GuestAddr(0), 256, 16, &memory).unwrap();
        let mut window = RingWindow::<16>::new();
        assert_eq!(window.get(&ring, 0, 2, &memory), Ok([0; 16]));
        memory.write(GuestAddr(0), &[9; 32]).unwrap();
        assert_eq!(window.get(&ring, 1, 2, &memory), Ok([0; 16]));
        window.clear();
        assert_eq!(window.get(&ring, 1, 2, &memory), Ok([9; 16]));
    }

    #[test]
    fn the_generation_flips_with_every_lap() {
        let memory = Memory::new(256 * 16);
        let ring = Ring::new(GuestAddr(0), 256, 16, &memory).unwrap();
        let mut completions = Completions::new(ring);
        for lap in 0..4u16 {
            for _ in 0..256 {
                let stale = completions.stale(0x8000);
                assert_eq!(stale != 0, lap % 2 == 1);
                let generation = GenerationWord {
                    offset: 0,
                    word: 7,
                    bit: 0x8000,
                };
                completions.write(&[0; 16], generation, &memory).unwrap();
            }
            let mut word = [0; 2];
            memory.read(GuestAddr(255 * 16), &mut word).unwrap();
            let expected = if lap % 2 == 0 { 0x8007 } else { 7 };
            assert_eq!(u16::from_le_bytes(word), expected);
        }
    }
}
