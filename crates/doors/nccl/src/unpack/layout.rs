//! What NCCL's kernels read: the lists of a connection, and the handle that leads to them; version 7 of the device type.

use std::mem::offset_of;

/// Type of device: NCCL's kernels unpack.
pub(crate) const TYPE: i32 = 1;
/// Version of what is laid out here.
pub(crate) const VERSION: i32 = 7;

/// Receives of a connection whose lists exist at a time.
pub(crate) const SLOTS: usize = 16;
/// Most entries of a list.
pub(crate) const SLOT_ENTRIES: usize = 2048;

/// One copy of a kernel: `len` bytes at `src_off` of the bounce buffer belong to `dst_off` of the receive's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub(crate) struct Entry {
    pub(crate) src_off: u32,
    pub(crate) len: u32,
    pub(crate) dst_off: u64,
}

/// The lists of a connection, in host memory.
#[repr(C)]
struct Lists {
    entries: [[Entry; SLOT_ENTRIES]; SLOTS],
    /// Entries of each list; written last.
    counts: [u64; SLOTS],
}

/// What a connection's kernels begin with, in memory of the GPU.
#[repr(C)]
pub(crate) struct DeviceHandle {
    /// Address of the lists.
    pub(crate) lists: u64,
    /// Address of the bounce buffer.
    pub(crate) bounce: u64,
    /// Number of receives that kernels have begun to unpack, minus one.
    pub(crate) head: u64,
}

const _: () = {
    assert!(size_of::<Entry>() == 16 && align_of::<Entry>() == 16);
    assert!(offset_of!(Entry, len) == 4 && offset_of!(Entry, dst_off) == 8);
    assert!(size_of::<[Entry; SLOT_ENTRIES]>() == 32_768);
    assert!(size_of::<Lists>() == 524_416 && offset_of!(Lists, counts) == 524_288);
    assert!(size_of::<DeviceHandle>() == 24);
    assert!(offset_of!(DeviceHandle, bounce) == 8 && offset_of!(DeviceHandle, head) == 16);
    // Both sides of a list are words of this machine; GPUs are little-endian.
    assert!(cfg!(target_endian = "little"));
};

const WORD: usize = size_of::<u64>();

/// Words of the lists of a connection.
pub(crate) const WORDS: usize = size_of::<Lists>() / WORD;

/// Returns the word at which the list of a slot begins.
pub(crate) fn list_at(slot: usize) -> usize {
    slot * (size_of::<[Entry; SLOT_ENTRIES]>() / WORD)
}

/// Returns the word with the number of entries of a slot.
pub(crate) fn count_at(slot: usize) -> usize {
    offset_of!(Lists, counts) / WORD + slot
}

impl Entry {
    /// Returns the words of the entry.
    pub(crate) fn words(self) -> [u64; 2] {
        [
            u64::from(self.src_off) | u64::from(self.len) << 32,
            self.dst_off,
        ]
    }
}

impl DeviceHandle {
    /// Returns the handle of a connection without receives: a kernel adds one to `head` before it uses it.
    pub(crate) fn new(lists: u64, bounce: u64) -> Self {
        let head = u64::MAX;
        Self {
            lists,
            bounce,
            head,
        }
    }

    pub(crate) fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        for (at, word) in [self.lists, self.bounce, self.head].into_iter().enumerate() {
            bytes[at * WORD..][..WORD].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_counts_are_where_kernels_look() {
        assert_eq!(list_at(1) * WORD, 32_768);
        assert_eq!(list_at(15) * WORD, 491_520);
        assert_eq!(count_at(0) * WORD, 524_288);
        assert_eq!((count_at(15) + 1) * WORD, WORDS * WORD);
        let entry = Entry {
            src_off: 0x0102_0304,
            len: 0x0506_0708,
            dst_off: 0x1112_1314_1516_1718,
        };
        assert_eq!(
            entry.words(),
            [0x0506_0708_0102_0304, 0x1112_1314_1516_1718]
        );
        let handle = DeviceHandle::new(0x10, 0x20).to_bytes();
        assert_eq!((handle[0], handle[8]), (0x10, 0x20));
        assert_eq!(handle[16..], [0xff; 8]);
    }
}
