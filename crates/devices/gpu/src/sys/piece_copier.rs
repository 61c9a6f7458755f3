//! Many small copies by one kernel: a copy of its own for each piece takes the driver 2 to 4 microseconds, in which a GPU moves megabytes.
//!
// UNSAFETY: device code that is run with the addresses of checked ranges of memory, in a list that it reads.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::sync::Arc;

use netmem::{DeviceError, Fence, Lane};

use super::context::Current;
use super::copies::RawCopy;
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

    /// Returns whether so many copies are faster by this than each by its own.
    pub(crate) fn suits(copies: usize, bytes: usize) -> bool {
        copies > 1 && bytes / copies < LONG_BYTES
    }

    /// Starts copies of `bytes` together, in a lane, which no other copier uses.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the driver; an error among the copies; their memory has been revoked.
    pub(crate) fn submit<'a>(
        &self,
        lane: Lane,
        bytes: usize,
        copies: impl Iterator<Item = Result<RawCopy<'a>, DeviceError>>,
    ) -> Result<Fence, DeviceError> {
        let piece_bytes = (bytes / LIST_PIECES).next_power_of_two();
        let piece_bytes = piece_bytes.clamp(*PIECE_BYTES.start(), *PIECE_BYTES.end());
        let mut pieces = Pieces {
            copies,
            piece_bytes,
            rest: None,
        };
        let lanes = &self.module.lanes;
        lanes.submit_parts(lane, Self::LISTS, |state, current, number| {
            self.start(current, (state.stream(), number), &mut pieces)
        })
    }

    /// Starts as many of the pieces as a list has room for, as submission `number`. No submission that is [`LISTS`](Self::LISTS) or more older is running,
    /// and the lock of the lane is held.
    fn start<'a>(
        &self,
        current: &Current<'_>,
        (stream, number): (RawStream, u64),
        pieces: &mut Pieces<'a, impl Iterator<Item = Result<RawCopy<'a>, DeviceError>>>,
    ) -> Result<Left, DeviceError> {
        // Below the number of lists.
        let list = (number % Self::LISTS) as usize * LIST_PIECES * PIECE_WORDS;
        let mut count = 0;
        let left = loop {
            if count == LIST_PIECES {
                break Left::Something;
            }
            let Some(piece) = pieces.next()? else {
                break Left::Nothing;
            };
            self.lists.write(list + count * PIECE_WORDS, &piece);
            count += 1;
        };
        if count == 0 {
            return Ok(Left::Nothing);
        }
        // Inside of the lists.
        let address = self.lists.device_ptr() + (list * size_of::<u64>()) as u64;
        let arguments = [address, count as u64];
        // SAFETY: (1) the function of the module (invariant) takes two arguments, reads `count` pieces of the list, copies them, and accesses nothing
        // else (contract of `Driver`); the pieces are parts of copies whose sides were checked, and stay until the stream is done (`RawCopy`, `Pieces`). (2) The list
        // is written again after this submission only, and freed by `drop`, after it. (3) The stream is that of the lane.
        unsafe {
            self.module
                .start(current, stream, count * THREADS, arguments)
        }?;
        Ok(left)
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
struct Pieces<'a, C> {
    copies: C,
    piece_bytes: usize,
    /// The copy that was begun, and the bytes of it that are done.
    rest: Option<(RawCopy<'a>, usize)>,
}

impl<'a, C: Iterator<Item = Result<RawCopy<'a>, DeviceError>>> Pieces<'a, C> {
    /// Returns the words of the next piece in a list. To be asked under the lock of the lane.
    fn next(&mut self) -> Result<Option<[u64; PIECE_WORDS]>, DeviceError> {
        let (copy, done) = match self.rest.take() {
            Some(rest) => rest,
            None => match self.copies.next().transpose()? {
                None => return Ok(None),
                Some(copy) if copy.is_revoked() => return Err(revoked()),
                Some(copy) => (copy, 0),
            },
        };
        let len = self.piece_bytes.min(copy.bytes() - done);
        // Inside of the copy, whose sides end below the largest address.
        let words = [copy.to, copy.from].map(|side| side + done as u64);
        if done + len < copy.bytes() {
            self.rest = Some((copy, done + len));
        }
        Ok(Some([words[0], words[1], len as u64]))
    }
}
