//! Many small copies by one kernel: a copy of its own for each piece takes the driver 2 to 4 microseconds, in which a GPU moves megabytes.
//!
// UNSAFETY: device code that is run with the addresses of two memories, and copies pieces between them by a list that it reads.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netmem::{CopyPiece, DeviceError, Fence, Lane, PieceList};

use super::context::Current;
use super::copies::Copies;
use super::functions::RawStream;
use super::lanes::{Lanes, Remaining};
use super::module::Module;
use super::revocation::revoked;
use super::shared::SharedWords;

/// Threads that copy a piece together.
const THREADS: usize = 32;

/// Bytes of a piece in a list: at least, so that its threads have several loads each; and at most, so that they are not the last ones that run.
const PIECE_BYTES: RangeInclusive<usize> = 4 << 10..=PieceList::PIECE_BYTES;

/// Pieces of a list.
const LIST_PIECES: usize = PieceList::PIECES;

/// Words of a piece in a list.
const PIECE_WORDS: usize = 2;

/// Pieces from which on a list is used as it is: with less, long ones are cut, so that all processors have some.
const MANY_PIECES: usize = 1024;

/// Average bytes from which on copies of their own are as fast, and leave the processors to kernels.
const LONG_BYTES: usize = 256 << 10;

/// The code that copies pieces, with the lists that it reads: one lane's.
///
/// Invariant: the module is that of [`Driver::copy_kernel`](super::driver::Driver::copy_kernel).
#[derive(Debug)]
pub(crate) struct PieceCopier {
    module: Arc<Module>,
    lists: SharedWords,
}

impl PieceCopier {
    /// Submissions that may be in flight: that of number n reads the list n modulo this.
    const LISTS: u64 = 16;

    /// Loads the code, with lists for each lane; `None`: there is none for the vendor.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the driver, which refuses the code, or the memory for the lists.
    pub(crate) fn load(lanes: &Arc<Lanes>) -> Result<Option<[Self; 3]>, DeviceError> {
        let Some(kernel) = lanes.context.driver.copy_kernel() else {
            return Ok(None);
        };
        let words = Self::LISTS as usize * LIST_PIECES * PIECE_WORDS;
        let module = Arc::new(Module::load(lanes, kernel)?);
        let of_lane = || {
            let lists = SharedWords::alloc(lanes, words)?;
            let module = Arc::clone(&module);
            Ok(Self { module, lists })
        };
        Ok(Some([of_lane()?, of_lane()?, of_lane()?]))
    }

    /// Returns whether the copies are faster by this than each by its own.
    pub(crate) fn suits(copies: &Copies<'_>) -> bool {
        let count = copies.pieces.len();
        let longest = copies.from.len.max(copies.to.len);
        count > 1 && copies.bytes / count < LONG_BYTES && longest <= PieceList::MEMORY_BYTES
    }

    /// Returns whether a list is copied as it is, by [`submit_list`](Self::submit_list).
    pub(crate) fn takes(list: &PieceList) -> bool {
        list.len() >= MANY_PIECES
    }

    /// Starts copies together, in a lane, which no other copier uses.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the driver; a piece is not inside of its memories; one of these has been revoked.
    pub(crate) fn submit(&self, lane: Lane, copies: &Copies<'_>) -> Result<Fence, DeviceError> {
        let piece_bytes = (copies.bytes / LIST_PIECES).next_power_of_two();
        let mut pieces = Pieces {
            left: copies.pieces.iter(),
            copies,
            piece_bytes: piece_bytes.clamp(*PIECE_BYTES.start(), *PIECE_BYTES.end()),
            rest: None,
        };
        self.start(lane, copies, |places| {
            let mut count = 0;
            for place in places {
                let Some(piece) = pieces.next()? else { break };
                write(place, piece.packed());
                count += 1;
            }
            Ok((count, pieces.left()))
        })
    }

    /// Starts the copies of a list between the two memories of `sides`, in a lane, which no other copier uses. Pieces that are not inside of the memories are
    /// left out.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the driver; one of the memories has been revoked.
    pub(crate) fn submit_list(
        &self,
        lane: Lane,
        sides: &Copies<'_>,
        list: &PieceList,
    ) -> Result<Fence, DeviceError> {
        self.start(lane, sides, |places| {
            for (place, words) in places.iter().zip(list.words()) {
                write(place, *words);
            }
            Ok((list.len().min(places.len()), Remaining::Nothing))
        })
    }

    /// Starts copies between the two memories of `sides`, a list at a time: `fill` writes the next one, and returns the number of its pieces.
    fn start(
        &self,
        lane: Lane,
        sides: &Copies<'_>,
        mut fill: impl FnMut(&[[AtomicU64; PIECE_WORDS]]) -> Result<(usize, Remaining), DeviceError>,
    ) -> Result<Fence, DeviceError> {
        let lanes = &self.module.lanes;
        lanes.submit_parts(lane, Self::LISTS, |state, current, number| {
            if sides.is_revoked() {
                return Err(revoked());
            }
            // Below the number of lists. No submission that is `LISTS` or more older is running, and the lock of the lane is held.
            let list = (number % Self::LISTS) as usize * LIST_PIECES * PIECE_WORDS;
            let words = self.lists.words(list..list + LIST_PIECES * PIECE_WORDS);
            let (count, left) = fill(words.as_chunks().0)?;
            // Inside of the lists.
            let address = self.lists.device_ptr() + (list * size_of::<u64>()) as u64;
            self.launch(current, state.stream(), sides, (address, count))?;
            Ok(left)
        })
    }

    /// Starts the copies of `count` pieces of a list between the two memories of `sides`.
    fn launch(
        &self,
        current: &Current<'_>,
        stream: RawStream,
        sides: &Copies<'_>,
        (list, count): (u64, usize),
    ) -> Result<(), DeviceError> {
        if count == 0 {
            return Ok(());
        }
        let (from, to) = (sides.from, sides.to);
        let sizes = [from.len as u64, to.len as u64];
        let arguments = [
            list,
            count as u64,
            from.address,
            sizes[0],
            to.address,
            sizes[1],
        ];
        // SAFETY: (1) the function of the module (invariant) takes six arguments, reads `count` pieces of the list, copies those that are inside of the two
        // memories, and accesses nothing else (contract of `Driver`); these stay until the stream is done (`Copies`). (2) The list is written again after
        // this submission only, and freed by `drop`, after it. (3) The stream is that of the lane.
        unsafe {
            self.module
                .start(current, stream, count * THREADS, arguments)
        }
    }
}

/// Writes the words of a piece to its place in a list.
#[inline]
fn write(place: &[AtomicU64; PIECE_WORDS], words: [u64; PIECE_WORDS]) {
    for (place, word) in place.iter().zip(words) {
        place.store(word, Ordering::Relaxed);
    }
}

impl Drop for PieceCopier {
    fn drop(&mut self) {
        if !self.module.lanes.context.is_forked() {
            self.module.lanes.wait_all();
        }
    }
}

/// Copies, cut into pieces for lists.
struct Pieces<'a> {
    copies: &'a Copies<'a>,
    left: slice::Iter<'a, CopyPiece>,
    piece_bytes: usize,
    /// What is left of the copy that was begun.
    rest: Option<CopyPiece>,
}

impl Pieces<'_> {
    /// Returns the next piece.
    ///
    /// # Errors
    ///
    /// The copy is not inside of its memories.
    #[inline]
    fn next(&mut self) -> Result<Option<CopyPiece>, DeviceError> {
        let mut piece = match self.rest.take() {
            Some(rest) => rest,
            None => match self.left.find(|piece| piece.len > 0) {
                Some(piece) => {
                    self.copies.raw(piece)?;
                    *piece
                }
                None => return Ok(None),
            },
        };
        if piece.len > self.piece_bytes {
            // Inside of the copy.
            self.rest = Some(CopyPiece {
                from: piece.from + self.piece_bytes,
                to: piece.to + self.piece_bytes,
                len: piece.len - self.piece_bytes,
            });
            piece.len = self.piece_bytes;
        }
        Ok(Some(piece))
    }

    fn left(&self) -> Remaining {
        match self.rest.is_none() && self.left.as_slice().is_empty() {
            true => Remaining::Nothing,
            false => Remaining::Something,
        }
    }
}
