// UNSAFETY: an address of the caller becomes memory that threads of this library write.

//! Memory of the caller.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// Memory of the caller for one range. Invariant: `start` leads to `len` bytes of the caller that are writable and that nobody else touches, until the streamer
/// has answered the range or was ended; all access is before that.
#[derive(Debug)]
pub(crate) struct Target {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to no thread; access ends before the answer (invariant).
unsafe impl Send for Target {}
// SAFETY: as above; two threads write different parts: the tasks of a range are apart, and an object has one thread.
unsafe impl Sync for Target {}

impl Target {
    /// # Safety
    /// The invariant.
    pub(super) unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn check(&self, from: usize, len: usize) -> io::Result<()> {
        match from.checked_add(len).is_some_and(|end| end <= self.len) {
            true => Ok(()),
            false => Err(io::Error::other("bytes outside of the range")),
        }
    }

    /// Has `write` fill `len` bytes from `from` on.
    pub(crate) fn fill(
        &self,
        from: usize,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check(from, len)?;
        if len == 0 {
            return Ok(());
        }
        let start = self.start.wrapping_add(from);
        // SAFETY: (1) `check`: the bytes are those of the caller, who wants them written (invariant); (2) only this thread has this part; (3) memory from outside
        // of Rust has some value; (4) the reference ends with the call.
        write(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    /// Reads up to `len` bytes of a file from `at` on to `from`. Returns their number: 0 at the end of the file.
    pub(crate) fn read_from(
        &self,
        from: usize,
        len: usize,
        file: &File,
        at: u64,
    ) -> io::Result<usize> {
        self.check(from, len)?;
        let start = self.start.wrapping_add(from).cast::<MaybeUninit<u8>>();
        // SAFETY: as in `fill`; `len` is not 0, because no task has an empty piece of a file.
        let out = unsafe { std::slice::from_raw_parts_mut(start, len) };
        loop {
            match rustix::io::pread(file.as_fd(), &mut *out, at) {
                Ok((read, _)) => return Ok(read.len()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
