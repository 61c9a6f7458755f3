//! Which tensors are loaded together, and how their memory is divided.

use super::settings::{Sharing, StreamSettings};
use crate::load::safetensors::selection::Selected;

/// Divisor: a window has a quarter of the bound, so that one is loaded while the program has others.
const WINDOWS: u64 = 4;
/// Tensors below this length share the memory of their window: an allocation for each would cost more than its bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// Alignment of every tensor, as in the memory of a whole checkpoint.
const ALIGNMENT: u64 = 256;
const PAGE_BYTES: u64 = 4096;

/// Tensors that are loaded together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// Bytes of all its memory.
    pub(super) bytes: u64,
    pub(super) rooms: Vec<Room>,
    /// Index of the room that tensors share.
    shared: Option<usize>,
}

/// A memory, and the tensors in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Its length: whole pages.
    pub(super) bytes: u64,
    /// Bytes in use.
    used: u64,
    pub(super) members: Vec<Member>,
}

/// A tensor in a memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its number in what was selected.
    pub(super) number: usize,
    pub(super) offset: usize,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryUse {
    /// In a memory of its own.
    Own,
    /// In the one that tensors of the window share.
    Shared,
}

impl Window {
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.rooms.iter().flat_map(|room| &room.members)
    }

    /// Adds a tensor of `bytes` if the window then has at most `most`, or if it is the first.
    fn add(&mut self, number: usize, bytes: u64, most: u64, memory_use: MemoryUse) -> bool {
        let at = match (memory_use, self.shared) {
            (MemoryUse::Shared, Some(at)) => at,
            (MemoryUse::Shared, None) | (MemoryUse::Own, _) => self.rooms.len(),
        };
        let (old, used) = self
            .rooms
            .get(at)
            .map_or((0, 0), |room| (room.bytes, room.used));
        let offset = used.next_multiple_of(ALIGNMENT);
        let used = offset.saturating_add(bytes);
        let room_bytes = used
            .max(1)
            .checked_next_multiple_of(PAGE_BYTES)
            .unwrap_or(u64::MAX);
        let all = (self.bytes - old).saturating_add(room_bytes);
        if all > most && !self.rooms.is_empty() {
            return false;
        }
        if at == self.rooms.len() {
            self.rooms.push(Room {
                bytes: 0,
                used: 0,
                members: Vec::new(),
            });
            if memory_use == MemoryUse::Shared {
                self.shared = Some(at);
            }
        }
        let room = &mut self.rooms[at];
        room.bytes = room_bytes;
        room.used = used;
        // Fits, or there is no memory of this length.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        room.members.push(Member { number, offset });
        self.bytes = all;
        true
    }
}

/// Divides what was selected into windows, in order. One that has more than the bound has one tensor.
pub(super) fn windows(selected: &[Selected], settings: &StreamSettings) -> Vec<Window> {
    let most = (settings.memory_limit / WINDOWS).max(PAGE_BYTES);
    cut(
        selected
            .iter()
            .map(|it| it.memory_bytes(settings.merge_gap)),
        most,
        settings.sharing,
    )
}

fn cut(lengths: impl Iterator<Item = u64>, most: u64, sharing: Sharing) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    for (number, bytes) in lengths.enumerate() {
        let memory_use = match sharing {
            Sharing::SmallTensors if bytes >= SMALL_BYTES => MemoryUse::Own,
            Sharing::SmallTensors | Sharing::Windows => MemoryUse::Shared,
        };
        let added = windows
            .last_mut()
            .is_some_and(|last| last.add(number, bytes, most, memory_use));
        if !added {
            let mut window = Window::default();
            window.add(number, bytes, most, memory_use);
            windows.push(window);
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns of each window its bytes, and the numbers of the tensors in each of its memories.
    fn rooms(lengths: &[u64], limit: u64, sharing: Sharing) -> Vec<(u64, Vec<Vec<usize>>)> {
        let numbers = |room: &Room| room.members.iter().map(|it| it.number).collect();
        let of = |window: &Window| (window.bytes, window.rooms.iter().map(numbers).collect());
        let windows = cut(lengths.iter().copied(), limit / WINDOWS, sharing);
        windows.iter().map(of).collect()
    }

    #[test]
    fn small_tensors_share_a_memory_and_long_ones_have_their_own() {
        let mib = 1 << 20;
        let lengths = [100, 2 * mib, 0, 300, 3 * mib, 10];
        let apart = rooms(&lengths, 16 * mib, Sharing::SmallTensors);
        // 5 MiB and the small ones are more than a quarter of 16 MiB.
        assert_eq!(
            apart,
            [
                (2 * mib + 4096, vec![vec![0, 2, 3], vec![1]]),
                (3 * mib + 4096, vec![vec![4], vec![5]]),
            ]
        );
        let together = rooms(&lengths, 64 * mib, Sharing::Windows);
        assert_eq!(together, [(5 * mib + 4096, vec![vec![0, 1, 2, 3, 4, 5]])]);
        let longer = rooms(&[1, 5 * mib, 1], 16 * mib, Sharing::SmallTensors);
        assert_eq!(
            longer,
            [
                (4096, vec![vec![0]]),
                (5 * mib, vec![vec![1]]),
                (4096, vec![vec![2]]),
            ]
        );
    }

    #[test]
    fn places_are_aligned_and_do_not_overlap() {
        let mut window = Window::default();
        for (number, bytes) in [1, 256, 257, 0].into_iter().enumerate() {
            assert!(window.add(number, bytes, u64::MAX, MemoryUse::Shared));
        }
        let offsets: Vec<_> = window.members().map(|it| it.offset).collect();
        assert_eq!(offsets, [0, 256, 512, 1024]);
        assert_eq!(window.bytes, 4096);
    }
}
