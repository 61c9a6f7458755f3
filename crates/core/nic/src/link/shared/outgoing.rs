//! Memory of this end: which files the other end has, and which frames it still uses.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use ::wire::{Instant, VnetHeader};
use netmem::{DmaPort, Frag, FragList, MemoryObserver, MemoryProvider, Payload, ShareableMemory};

use super::super::{BorrowedUntil, TxFrame};
use super::departures::read_only;
use super::limits::{KEEP_BYTES, REGIONS, SLOTS};
use super::notes::{PeerNotes, next_number};
use super::own_memory::{SendMemory, Stage};
use super::record::{FileRecord, FrameFields, MAX_HEAD, MAX_PIECES, PieceRecord, emit_frame};

/// Regions of the memory of this link: the last ones.
const STAGE_REGION: usize = REGIONS - 1;
const SEND_REGION: usize = REGIONS - 2;

/// Memories that are marked as shared and have a file that the other end does not accept, that are remembered.
const KNOWN_PRIVATE: usize = 16;

/// Time after which the other end's memory is looked at without an event, while it has frames: a program may wait for the
/// completion of a send that nothing acknowledges any more.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Whether the other end has the memory of a payload.
pub(super) enum Found {
    /// It has all of it.
    Yes,
    /// It has to get this file first.
    New(Offer),
    /// It cannot map some of it, or must not.
    Private,
}

/// A file for the other end.
pub(super) struct Offer {
    pub(super) file: OwnedFd,
    pub(super) record: FileRecord,
    region: usize,
    memory: MemoryObserver,
}

/// A frame that the other end has, or will have.
#[derive(Debug)]
pub(super) struct SharedFrame {
    slot: u16,
    number: u32,
    payload: FragList,
    until: BorrowedUntil,
}

/// The sending side of a wire.
#[derive(Debug)]
pub(super) struct Outgoing {
    regions: Box<[Option<MemoryObserver>]>,
    /// How many of them the other end has: most looks for a freed one can be saved.
    known: usize,
    /// Region of the last piece: the next one is likely in the same.
    last_region: usize,
    private: VecDeque<MemoryObserver>,
    shared: Vec<SharedFrame>,
    free_slots: Vec<u16>,
    next_number: u32,
    kept_bytes: usize,
    /// A frame was refused for lack of a slot, since the last look at the slots.
    is_full: bool,
    /// Pieces of the payload that was found last.
    pieces: Vec<PieceRecord>,
    stage: Stage,
    /// Memory for the send queues of the stack, if its program has asked to share it.
    send_memory: Option<SendMemory>,
}

impl Outgoing {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            regions: (0..REGIONS).map(|_| None).collect(),
            known: 0,
            last_region: 0,
            private: VecDeque::new(),
            shared: Vec::new(),
            // The lowest on top. SLOTS is less than 65,536.
            free_slots: (0..SLOTS as u16).rev().collect(),
            next_number: 1,
            kept_bytes: 0,
            is_full: false,
            pieces: Vec::new(),
            stage: Stage::new()?,
            send_memory: None,
        })
    }

    /// Makes memory of `bytes` for the send queues of the stack, which the other end can read.
    pub(super) fn share_send_memory(&mut self, bytes: usize) -> io::Result<()> {
        self.send_memory = Some(SendMemory::new(bytes)?);
        Ok(())
    }

    pub(super) fn send_memory(&self) -> Option<&Arc<MemoryProvider>> {
        self.send_memory.as_ref().map(|it| &it.provider)
    }

    /// Takes back the memory of frames that the other end says to have let go of.
    pub(super) fn collect(&mut self, peer: Option<&PeerNotes>) {
        self.is_full = false;
        let Some(peer) = peer.filter(|_| !self.shared.is_empty()) else {
            return;
        };
        let Self {
            shared,
            free_slots,
            kept_bytes,
            ..
        } = self;
        shared.retain(|frame| {
            if peer.released(frame.slot) != frame.number {
                return true;
            }
            // The other end's reads come before all writes of what uses the memory next.
            fence(Ordering::Acquire);
            free_slots.push(frame.slot);
            if frame.until == BorrowedUntil::Read {
                *kept_bytes -= frame.payload.len();
            }
            false
        });
    }

    /// Returns whether the other end can get one more frame.
    pub(super) fn has_slot(&mut self) -> bool {
        self.is_full = self.free_slots.is_empty();
        !self.is_full
    }

    /// Returns whether the last frame was refused for lack of a slot.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns when to look at the other end's memory without an event.
    pub(super) fn next_due(&self, last: Instant) -> Option<Instant> {
        (!self.shared.is_empty()).then(|| last + RECHECK_INTERVAL)
    }

    /// Returns whether the other end cannot map some of a payload, or must not.
    pub(super) fn is_private(&self, payload: &FragList, port: &DmaPort) -> bool {
        payload.iter().any(|frag| match self.reachable(frag, port) {
            Some(memory) => self.private.iter().any(|it| memory.is_observed_by(it)),
            None => true,
        })
    }

    /// Returns the memory of a frag if the other end may have all of it: memory that its program has marked as shared, or memory
    /// of this link. Host memory of another link is for the peer of that one, also of a link to an earlier peer.
    fn reachable<'f>(&self, frag: &'f Frag, port: &DmaPort) -> Option<ShareableMemory<'f>> {
        let memory = port.shareable(frag)?;
        (!memory.is_host() || self.own_region(&memory).is_some()).then_some(memory)
    }

    /// Returns the region of memory of this link.
    fn own_region(&self, memory: &ShareableMemory<'_>) -> Option<usize> {
        let is_for_sends = || self.send_memory.as_ref().is_some_and(|it| it.is(memory));
        match self.stage.is(memory) {
            true => Some(STAGE_REGION),
            false => is_for_sends().then_some(SEND_REGION),
        }
    }

    /// Copies a payload to memory of this link; `None` if there is no room.
    pub(super) fn stage(&mut self, payload: &FragList, port: &DmaPort) -> Option<FragList> {
        self.stage.copy(payload, port)
    }

    /// Finds the files of a payload.
    pub(super) fn find(&mut self, payload: &FragList, port: &DmaPort) -> Found {
        self.pieces.clear();
        for frag in payload {
            let Some(memory) = self.reachable(frag, port) else {
                return Found::Private;
            };
            match self.region_of(memory) {
                Some(region) => self.add_piece(region, frag),
                None => {
                    return match self.offer(memory) {
                        Some(offer) => Found::New(offer),
                        None => {
                            self.private.truncate(KNOWN_PRIVATE - 1);
                            self.private.push_front(memory.observer());
                            Found::Private
                        }
                    };
                }
            }
        }
        Found::Yes
    }

    fn region_of(&mut self, memory: ShareableMemory<'_>) -> Option<usize> {
        let is_it = |region: &Option<MemoryObserver>| {
            region
                .as_ref()
                .is_some_and(|region| memory.is_observed_by(region))
        };
        if !self.regions.get(self.last_region).is_some_and(is_it) {
            self.last_region = self.regions.iter().position(is_it)?;
        }
        Some(self.last_region)
    }

    fn offer(&self, memory: ShareableMemory<'_>) -> Option<Offer> {
        let region = match self.own_region(&memory) {
            Some(own) => own,
            None => {
                let free = self.regions.iter().position(Option::is_none)?;
                Some(free).filter(|free| *free < SEND_REGION)?
            }
        };
        let file = read_only(memory.file()?.as_fd()).ok()?;
        Some(Offer {
            file,
            record: FileRecord::Memory {
                region: u32::try_from(region).ok()?,
                size: memory.size() as u64,
            },
            region,
            memory: memory.observer(),
        })
    }

    /// Notes that the other end has a file.
    pub(super) fn offered(&mut self, offer: Offer) {
        if let Some(region) = self.regions.get_mut(offer.region) {
            *region = Some(offer.memory);
            self.known += 1;
        }
    }

    fn add_piece(&mut self, region: usize, frag: &Frag) {
        // Both fit: there are REGIONS regions, and the length of a frag is a u32.
        let (region, len) = (region as u32, frag.len() as u32);
        let offset = frag.dmabuf_offset();
        match self.pieces.last_mut() {
            Some(last)
                if last.region == region
                    && last.offset + u64::from(last.len) == offset
                    && last.len.checked_add(len).is_some() =>
            {
                last.len += len;
            }
            _ => self.pieces.push(PieceRecord {
                region,
                len,
                offset,
            }),
        }
    }

    /// Writes the packet of a frame whose payload was found to `out`. There is a slot ([`has_slot`](Self::has_slot)). `None`: it
    /// has too many pieces.
    pub(super) fn emit(
        &mut self,
        frame: &TxFrame<'_>,
        payload: FragList,
        out: &mut Vec<u8>,
    ) -> Option<SharedFrame> {
        if self.pieces.len() > MAX_PIECES || frame.head.len() > MAX_HEAD {
            return None;
        }
        let slot = self.free_slots.pop()?;
        // What comes from device memory is copied there at once, and its program waits for it.
        let until =
            match !frame.payload.is_unreadable() && self.kept_bytes + payload.len() <= KEEP_BYTES {
                true => BorrowedUntil::Read,
                false => BorrowedUntil::Copied,
            };
        let number = self.next_number;
        self.next_number = next_number(number);
        let fields = FrameFields {
            header: VnetHeader::new(frame.offload(), frame.head),
            slot,
            number,
            until,
        };
        emit_frame(out, fields, &self.pieces, frame.head);
        Some(SharedFrame {
            slot,
            number,
            payload,
            until,
        })
    }

    /// Keeps the memory of a frame that was sent until the other end lets go of it.
    pub(super) fn sent(&mut self, frame: SharedFrame) {
        if frame.until == BorrowedUntil::Read {
            self.kept_bytes += frame.payload.len();
        }
        self.shared.push(frame);
    }

    /// Takes back all memory: the other end has left.
    pub(super) fn end(&mut self) {
        self.shared.clear();
        self.regions.fill_with(|| None);
        self.known = 0;
    }

    /// Takes back the slot of a frame that was not sent.
    pub(super) fn not_sent(&mut self, frame: SharedFrame) {
        self.free_slots.push(frame.slot);
    }

    /// Returns a record for a file whose memory was freed: no frame names it any more, because a frame holds its memory.
    pub(super) fn revocation(&self) -> Option<FileRecord> {
        if self.known == 0 {
            return None;
        }
        let is_freed =
            |region: &Option<MemoryObserver>| region.as_ref().is_some_and(MemoryObserver::is_freed);
        let region = self.regions.iter().position(is_freed)?;
        u32::try_from(region)
            .ok()
            .map(|region| FileRecord::Revoked { region })
    }

    /// Notes that the other end was told of a revocation.
    pub(super) fn revoked(&mut self, record: FileRecord) {
        if let FileRecord::Revoked { region } = record
            && let Some(region) = self.regions.get_mut(region as usize)
        {
            *region = None;
            self.known -= 1;
        }
    }
}
