//! Many small copies by one kernel: a copy of its own for each piece takes the driver 2 to 4 microseconds, in which a GPU moves megabytes.
//!
// UNSAFETY: device code that is run with the addresses of checked ranges of memory, in a list that it reads.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use netmem::{CopyPiece, DeviceError, Fence, Lane};

use super::context::Current;
use super::copies::{Copies, RawCopy};
use super::functions::RawStream;
use super::lanes::{Lanes, Left};
use super::module::Module;
use super::revocation::revoked;
use super::shared::SharedWords;

/// Threads that copy a piece together.
const THREADS: usize = 32;

/// Bytes of a piece in a list: at least, so that its threads have several loads each; and at most, so that they are not the last ones that run.
const PIECE_BYTES: RangeInclusive<usize> = 4 << 10..=64 << 10;

/// Pieces of a list.
const LIST_PIECES: usize = 4096;

/// Words of a piece in a list: where it goes, where it comes from, its bytes.
const PIECE_WORDS: usize = 3;

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
        count > 1 && copies.bytes / count < LONG_BYTES
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
        let lanes = &self.module.lanes;
        lanes.submit_parts(lane, Self::LISTS, |state, current, number| {
            if copies.is_revoked() {
                return Err(revoked());
            }
            self.start(current, (state.stream(), number), &mut pieces)
        })
    }

    /// Starts as many of the pieces as a list has room for, as submission `number`. No submission that is [`LISTS`](Self::LISTS) or more older is running,
    /// and the lock of the lane is held.
    fn start(
        &self,
        current: &Current<'_>,
        (stream, number): (RawStream, u64),
        pieces: &mut Pieces<'_>,
    ) -> Result<Left, DeviceError> {
        // Below the number of lists.
        let list = (number % Self::LISTS) as usize * LIST_PIECES * PIECE_WORDS;
        let words = self.lists.words(list..list + LIST_PIECES * PIECE_WORDS);
        let (entries, _) = words.as_chunks::<PIECE_WORDS>();
        let mut count = 0;
        for entry in entries {
            let Some(piece) = pieces.next()? else { break };
            let words = [piece.destination(), piece.source(), piece.bytes() as u64];
            for (place, word) in entry.iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
            count += 1;
        }
        if count == 0 {
            return Ok(Left::Nothing);
        }
        // Inside of the lists.
        let address = self.lists.device_ptr() + (list * size_of::<u64>()) as u64;
        let arguments = [address, count as u64];
        // SAFETY: (1) the function of the module (invariant) takes two arguments, reads `count` pieces of the list, copies them, and accesses nothing
        // else (contract of `Driver`); the pieces are parts of copies whose sides were checked, and stay until the stream is done (`Copies`). (2) The list
        // is written again after this submission only, and freed by `drop`, after it. (3) The stream is that of the lane.
        unsafe {
            self.module
                .start(current, stream, count * THREADS, arguments)
        }?;
        Ok(pieces.left())
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
    rest: Option<RawCopy>,
}

impl Pieces<'_> {
    /// Returns the next piece.
    ///
    /// # Errors
    ///
    /// The copy is not inside of its memories.
    #[inline]
    fn next(&mut self) -> Result<Option<RawCopy>, DeviceError> {
        let copy = match self.rest {
            Some(rest) => rest,
            None => match self.left.next() {
                Some(piece) => self.copies.raw(piece)?,
                None => return Ok(None),
            },
        };
        let (piece, rest) = copy.split(self.piece_bytes);
        self.rest = rest;
        Ok(Some(piece))
    }

    fn left(&self) -> Left {
        match self.rest.is_none() && self.left.as_slice().is_empty() {
            true => Left::Nothing,
            false => Left::Something,
        }
    }
}
