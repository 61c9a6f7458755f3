//! Memory of the other end: its files, and which of its frames are still in use here.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use netmem::{DmaPort, FragList, FragUse, PeerMemory};
use smallvec::SmallVec;

use super::limits::LONGEST_FRAME;
use super::limits::{REGIONS, SLOTS};
use super::notes::OwnNotes;
use super::record::FrameRecord;

/// A frame whose memory is in use: by the NIC, or by a frag that the program has not read.
#[derive(Debug)]
struct Borrowed {
    slot: u16,
    number: u32,
    /// One for each file that the frame has pieces of.
    handles: SmallVec<[FragUse; 1]>,
}

impl Borrowed {
    fn is_over(&mut self) -> bool {
        self.handles.iter_mut().all(FragUse::is_over)
    }
}

/// The receiving side of a wire.
#[derive(Debug)]
pub(super) struct Incoming {
    regions: Box<[Option<PeerMemory>]>,
    borrowed: Vec<Borrowed>,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self {
            regions: (0..REGIONS).map(|_| None).collect(),
            borrowed: Vec::new(),
        }
    }

    /// Maps a file of the other end. `None`: it is not acceptable, or the region exists.
    pub(super) fn map(
        &mut self,
        region: u32,
        file: &OwnedFd,
        size: u64,
        port: &DmaPort,
    ) -> Option<()> {
        let entry = self.regions.get_mut(usize::try_from(region).ok()?)?;
        if entry.is_some() {
            return None;
        }
        *entry = Some(port.map_peer(file.as_fd(), size).ok()?);
        Some(())
    }

    /// Forgets a file. Frags in it keep it mapped. `None`: there is no such region.
    pub(super) fn unmap(&mut self, region: u32) -> Option<()> {
        let entry = self.regions.get_mut(usize::try_from(region).ok()?)?;
        entry.take().map(drop)
    }

    /// Forgets all files. Frags in them keep them mapped.
    pub(super) fn end(&mut self) {
        self.regions.fill_with(|| None);
        self.borrowed.clear();
    }

    /// Appends the payload of a frame to `list`. `None`: it names memory that does not exist; what was appended is to be dropped.
    /// The other end is told that the frame is not in use when the last of its frags is dropped.
    pub(super) fn borrow(&mut self, record: &FrameRecord<'_>, list: &mut FragList) -> Option<()> {
        // An honest sender has one frame in each slot. Each one costs memory here, too.
        if usize::from(record.slot) >= SLOTS || self.borrowed.len() >= SLOTS {
            return None;
        }
        let mut handles = SmallVec::new();
        let mut last: Option<u32> = None;
        // Checked first: each 2 MiB of the pieces cost a frag.
        let bytes: u64 = record.pieces().map(|piece| u64::from(piece.len)).sum();
        let mut found = (bytes <= LONGEST_FRAME as u64).then_some(());
        for piece in record.pieces() {
            if found.is_none() {
                break;
            }
            let region = usize::try_from(piece.region).ok();
            let memory = region
                .and_then(|region| self.regions.get(region))
                .and_then(Option::as_ref);
            let offset = usize::try_from(piece.offset).ok();
            found = memory.zip(offset).and_then(|(memory, offset)| {
                let len = piece.len as usize;
                match (last, handles.last()) {
                    (Some(same), Some(handle)) if same == piece.region => {
                        let handle: &FragUse = handle;
                        handle.append(offset, len, list).ok()
                    }
                    _ => {
                        handles.push(memory.borrow_frags(offset, len, list).ok()?);
                        last = Some(piece.region);
                        Some(())
                    }
                }
            });
        }
        // Also a frame that is dropped: the sender has its memory back then.
        self.borrowed.push(Borrowed {
            slot: record.slot,
            number: record.number,
            handles,
        });
        found
    }

    /// Tells the other end of frames that are not in use any more.
    pub(super) fn let_go(&mut self, notes: &OwnNotes) {
        self.borrowed.retain_mut(|frame| {
            if !frame.is_over() {
                return true;
            }
            // All reads of the payload come before the write that permits the other end to change it.
            fence(Ordering::Release);
            // The slot was checked.
            notes.note_released(frame.slot, frame.number);
            false
        });
    }
}
