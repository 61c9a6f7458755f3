//! What an end of the wire tells the other one without a packet: a file that it alone writes, and that the other end maps for reading.
//!
//! ```text
//!    0  for each slot: the number of the frame that was let go of last      u32 each
//! 2048  bytes that were read of the other end's ring, modulo 2^32           u32
//! 2176  number of the sleep from which a packet has to wake this end, or 0  u32
//! ```
//!
//! The last two are in cache lines of their own: one changes with each packet, the other one is read with each packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mapped::{MapAccess, MappableFile, Mapping};
use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};

use super::limits::SLOTS;

const NOTES_BYTES: usize = 4096;
const READ_AT: usize = 2048;
const SLEEP_AT: usize = 2048 + 128;
const _: () = assert!(SLOTS * WORD <= READ_AT);

const WORD: usize = size_of::<u32>();

/// The number of no sleep: the end looks for packets by itself.
pub(super) const AWAKE: u32 = 0;

/// The notes of this end.
#[derive(Debug)]
pub(super) struct OwnNotes {
    memory: Mapping,
    file: OwnedFd,
}

impl OwnNotes {
    pub(super) fn new() -> io::Result<Self> {
        let file = shared_file("devmem-tcp-notes", NOTES_BYTES)?;
        let memory = map(file.as_fd(), NOTES_BYTES, MapAccess::ReadWrite)?;
        Ok(Self { memory, file })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Tells that the frame `number` of `slot`, one of [`SLOTS`], is not in use any more.
    pub(super) fn note_released(&self, slot: u16, number: u32) {
        store(&self.memory, usize::from(slot) * WORD, number);
    }

    /// Tells how far the ring of the other end was read.
    pub(super) fn note_read(&self, bytes: u32) {
        store(&self.memory, READ_AT, bytes);
    }

    /// Tells that a packet has to wake this end from the sleep `number`; or [`AWAKE`].
    pub(super) fn note_sleep(&self, number: u32) {
        store(&self.memory, SLEEP_AT, number);
    }
}

/// The notes of the other end. It may write anything at any time.
#[derive(Debug)]
pub(super) struct PeerNotes(Mapping);

impl PeerNotes {
    /// Maps the file that the other end has sent. `None`: it is not acceptable.
    pub(super) fn map(file: &OwnedFd) -> Option<Self> {
        map(file.as_fd(), NOTES_BYTES, MapAccess::Read)
            .ok()
            .map(Self)
    }

    pub(super) fn released(&self, slot: u16) -> u32 {
        load(&self.0, usize::from(slot) * WORD)
    }

    pub(super) fn read(&self) -> u32 {
        load(&self.0, READ_AT)
    }

    pub(super) fn sleep(&self) -> u32 {
        load(&self.0, SLEEP_AT)
    }
}

/// Returns the number after `number`; never [`AWAKE`], which is what an unused word has.
pub(super) fn next_number(number: u32) -> u32 {
    number.checked_add(1).unwrap_or(1)
}

/// Makes a memory file whose length never changes, and that no other user opens again for writing.
pub(super) fn shared_file(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&file, bytes as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// Maps the first `bytes` of a memory file that cannot get shorter.
pub(super) fn map(file: BorrowedFd<'_>, bytes: usize, access: MapAccess) -> io::Result<Mapping> {
    let mapped = MappableFile::memfd(file).and_then(|file| Mapping::file(&file, 0, bytes, access));
    mapped.map_err(io::Error::other)
}

/// Writes an aligned word, as one store.
pub(super) fn store(memory: &Mapping, at: usize, word: u32) {
    let written = memory.copy_in(at, &word.to_ne_bytes());
    debug_assert!(written.is_ok(), "{written:?}");
}

/// Reads an aligned word, as one load.
pub(super) fn load(memory: &Mapping, at: usize) -> u32 {
    let mut word = [0; WORD];
    let read = memory.copy_out(at, &mut word);
    debug_assert!(read.is_ok(), "{read:?}");
    u32::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_note_is_read_as_it_was_written_and_touches_no_other() {
        let notes = OwnNotes::new().unwrap();
        let peer = PeerNotes::map(&notes.file).unwrap();
        assert_eq!((peer.released(0), peer.read(), peer.sleep()), (0, 0, AWAKE));
        let last = SLOTS as u16 - 1;
        notes.note_released(last, 7);
        notes.note_read(u32::MAX);
        notes.note_sleep(9);
        assert_eq!(
            (peer.released(last), peer.read(), peer.sleep()),
            (7, u32::MAX, 9)
        );
        assert_eq!(peer.released(last - 1), 0);
        assert_eq!([next_number(0), next_number(u32::MAX)], [1, 1]);
    }

    #[test]
    fn a_file_that_may_get_shorter_is_not_mapped() {
        let file = memfd_create("notes", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, NOTES_BYTES as u64).unwrap();
        assert!(PeerNotes::map(&file).is_none());
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(PeerNotes::map(&file).is_some());
    }
}
