// UNSAFETY: copies that read and write registered memory by its address.

//! Copies from and to ranges, and slices of them for calls that take such.

use std::io;

use super::Scatter;

/// Bytes that are in host memory between two memories, one of which is a GPU's.
const HOST_BYTES: usize = 256 << 10;

impl Scatter {
    /// Copies bytes to the places.
    pub(crate) fn fill(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        while let Some((at, len)) = self.front(bytes.len()) {
            let (now, rest) = bytes.split_at(len);
            match self.front_gpu() {
                Some(gpu) => gpu.copy_in(at, now)?,
                None => {
                    let to = std::ptr::with_exposed_provenance_mut::<u8>(at);
                    // SAFETY: `len` bytes of a place, which may be written (`Scatter`, `Region`), and `now` is as long.
                    unsafe { std::ptr::copy(now.as_ptr(), to, len) };
                }
            }
            self.advance(len);
            bytes = rest;
        }
        Ok(())
    }

    /// Copies the next bytes of the places to `out`, until one of both is used up. Returns how many.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        let mut done = 0;
        while let Some((at, len)) = self.front(out.len() - done) {
            let now = &mut out[done..done + len];
            match self.front_gpu() {
                Some(gpu) => gpu.copy_out(at, now)?,
                None => {
                    let from = std::ptr::with_exposed_provenance::<u8>(at);
                    // SAFETY: `len` bytes of a place, which may be read (`Scatter`, `Region`), and `now` is as long.
                    unsafe { std::ptr::copy(from, now.as_mut_ptr(), len) };
                }
            }
            self.advance(len);
            done += len;
        }
        Ok(done)
    }

    /// Appends the bytes of the places to `out`. They are few.
    pub(crate) fn append_to(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let start = out.len();
        out.resize(start + self.left as usize, 0);
        self.take(&mut out[start..]).map(drop)
    }

    /// Copies at most `at_most` bytes to the places of another list, which may overlap with these.
    pub(crate) fn copy_to(&mut self, to: &mut Self, mut at_most: usize) -> io::Result<usize> {
        if !self.is_host() || !to.is_host() {
            return self.copy_by_host(to, at_most);
        }
        self.check()?;
        to.check()?;
        let mut copied = 0;
        while let Some((from, len)) = self.front(at_most)
            && let Some((place, len)) = to.front(len)
        {
            let source = std::ptr::with_exposed_provenance::<u8>(from);
            let target = std::ptr::with_exposed_provenance_mut::<u8>(place);
            // SAFETY: `len` bytes of a place of each list, which may be read and written (`Scatter`, `Region`).
            unsafe { std::ptr::copy(source, target, len) };
            self.advance(len);
            to.advance(len);
            at_most -= len;
            copied += len;
        }
        Ok(copied)
    }

    /// As [`copy_to`](Self::copy_to), with memory of a GPU on a side.
    fn copy_by_host(&mut self, to: &mut Self, at_most: usize) -> io::Result<usize> {
        let mut bytes = vec![0; HOST_BYTES.min(at_most)];
        let mut copied = 0;
        while copied < at_most {
            if self.is_gpu_next() && to.is_gpu_next() {
                copied += self.copy_by_gpu(to, at_most - copied)?;
                continue;
            }
            let room = bytes.len().min(at_most - copied);
            let taken = self.take(&mut bytes[..room])?;
            if taken == 0 {
                break;
            }
            to.fill(&bytes[..taken])?;
            copied += taken;
        }
        Ok(copied)
    }

    /// Lends what is left of the first place, at most `at_most` bytes, to a call that returns how many of them it has written. 0: nothing is
    /// left, or the call has returned 0.
    pub(crate) fn fill_by(
        &mut self,
        at_most: usize,
        write: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.check_front()?;
        let Some((address, len)) = self.front(at_most) else {
            return Ok(0);
        };
        let start = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: `len` bytes of a place, which may be written (`Scatter`, `Region`); no other Rust reference to them exists, and no other
        // call that touches registered memory runs: the caller holds the lock of the agent.
        let place = unsafe { std::slice::from_raw_parts_mut(start, len) };
        let bytes = write(place)?.min(len);
        self.advance(bytes);
        Ok(bytes)
    }

    /// As [`fill_by`](Self::fill_by), for a call that reads.
    pub(crate) fn take_by(
        &mut self,
        at_most: usize,
        read: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.check_front()?;
        let Some((address, len)) = self.front(at_most) else {
            return Ok(0);
        };
        let start = std::ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: as in `fill_by`, of memory that may be read.
        let place = unsafe { std::slice::from_raw_parts(start, len) };
        let bytes = read(place)?.min(len);
        self.advance(bytes);
        Ok(bytes)
    }
}
