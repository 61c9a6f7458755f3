//! Device memory as a source and destination of streams of bytes, in host memory or files.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;

use super::{DeviceSlice, Dmabuf};
use crate::cpu_view::{CopyError, CpuView};
use crate::device::CpuAccess;

/// Bytes that are copied at a time: they fit into the second-level cache. Miri takes minutes for some of these blocks.
const BLOCK_BYTES: usize = if cfg!(miri) { 4 << 10 } else { 256 << 10 };

impl Dmabuf {
    /// Reads from `source` into `range`, until the range is full or the source ends. Returns the number of bytes.
    ///
    /// ```
    /// use netmem::Dmabuf;
    ///
    /// let memory = Dmabuf::anonymous(4096)?;
    /// assert_eq!(memory.read_from(100..4096, &b"weights"[..])?, 7);
    /// let mut copy = Vec::new();
    /// memory.write_to(100..107, &mut copy)?;
    /// assert_eq!(copy, b"weights");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The range is outside the memory; an error of the source or of the memory's exporter. Bytes read before may have been
    /// copied.
    pub fn read_from(&self, range: Range<usize>, mut source: impl Read) -> io::Result<usize> {
        let slice = self.get(range).map_err(CopyError::from)?;
        let mut block = vec![0; slice.len().min(BLOCK_BYTES)];
        let mut done = 0;
        while done < slice.len() {
            let room = block.len().min(slice.len() - done);
            match source.read(&mut block[..room]) {
                Ok(0) => break,
                Ok(read) => {
                    let bytes = block.get(..read).unwrap_or(&block);
                    self.copy_in(slice.offset() + done, bytes)?;
                    done += bytes.len();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Reads once from `file`, by a system call that writes to `range` itself. Returns the number of bytes, 0 at the end; `None` if the
    /// memory takes no such calls: that of a device, and that with an exporter, which would have to be called before and after each.
    ///
    /// # Errors
    ///
    /// The range is outside the memory; as read(2).
    pub fn read_file(
        &self,
        range: Range<usize>,
        file: BorrowedFd<'_>,
    ) -> io::Result<Option<usize>> {
        let (offset, len) = self.check_range(&range).map_err(CopyError::from)?;
        if self.cpu_address().is_none() || self.exporter().is_some() {
            return Ok(None);
        }
        self.memory.cpu().read(file, offset, len).map(Some)
    }

    /// Writes the bytes of `range` to `destination`.
    ///
    /// # Errors
    ///
    /// The range is outside the memory; an error of the destination or of the memory's exporter.
    pub fn write_to(&self, range: Range<usize>, mut destination: impl Write) -> io::Result<()> {
        let mut slice = self.get(range).map_err(CopyError::from)?;
        let mut block = vec![0; slice.len().min(BLOCK_BYTES)];
        while !slice.is_empty() {
            let read = slice.read(&mut block)?;
            destination.write_all(&block[..read])?;
        }
        Ok(())
    }
}

impl From<CopyError> for io::Error {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::OutOfBounds(_) => Self::new(io::ErrorKind::InvalidInput, error),
            CopyError::Device(_) => Self::other(error),
            CopyError::Sync { errno } => Self::new(Self::from_raw_os_error(errno.0).kind(), error),
        }
    }
}

impl<'a> DeviceSlice<'a> {
    /// Divides the range into pieces of `size` bytes; the last one may be shorter.
    ///
    /// # Panics
    ///
    /// When `size` is 0, as `chunks` of slices does.
    pub fn chunks(&self, size: usize) -> Chunks<'a> {
        assert!(size > 0, "chunks of 0 bytes");
        Chunks { rest: *self, size }
    }

    /// Removes the first `len` bytes, which it has, and returns them.
    fn split_off_front(&mut self, len: usize) -> Self {
        let front = Self { len, ..*self };
        self.offset += len;
        self.len -= len;
        front
    }
}

/// Copies the first bytes of the range to `out`, and removes them from the range, as `Read` of `&[u8]` does.
impl Read for DeviceSlice<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.len);
        let view = CpuView::of(self.memory, CpuAccess::Read)?;
        view.copy_out(self.offset, &mut out[..len])?;
        view.end()?;
        let _copied = self.split_off_front(len);
        Ok(len)
    }
}

/// Pieces of a range of device memory: see [`DeviceSlice::chunks`].
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    rest: DeviceSlice<'a>,
    size: usize,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = DeviceSlice<'a>;

    fn next(&mut self) -> Option<DeviceSlice<'a>> {
        let len = self.rest.len().min(self.size);
        (len > 0).then(|| self.rest.split_off_front(len))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.rest.len().div_ceil(self.size);
        (count, Some(count))
    }
}

impl ExactSizeIterator for Chunks<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three blocks and a bit, with every byte told by its position.
    fn filled() -> (Dmabuf, Vec<u8>) {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 4096)
            .map(|at| (at % 251) as u8 ^ (at >> 12) as u8)
            .collect();
        let memory = Dmabuf::anonymous(bytes.len()).unwrap();
        assert_eq!(
            memory.read_from(0..bytes.len(), &bytes[..]).unwrap(),
            bytes.len()
        );
        (memory, bytes)
    }

    #[test]
    fn a_stream_is_read_in_and_written_out_over_several_blocks() {
        let (memory, bytes) = filled();
        let mut copy = Vec::new();
        memory.write_to(1..bytes.len() - 1, &mut copy).unwrap();
        assert!(copy == bytes[1..bytes.len() - 1]);
    }

    #[test]
    fn a_source_that_ends_early_leaves_the_rest_of_the_range_as_it_was() {
        let memory = Dmabuf::anonymous(8192).unwrap();
        memory.fill(0..8192, 9).unwrap();
        assert_eq!(memory.read_from(10..8192, &b"abc"[..]).unwrap(), 3);
        assert_eq!(memory.slice(9..14).to_vec(), b"\x09abc\x09");
    }

    #[test]
    fn a_range_outside_the_memory_is_invalid_input_and_reads_nothing() {
        let memory = Dmabuf::anonymous(4096).unwrap();
        let mut source = &b"abc"[..];
        let refused = memory.read_from(4095..4097, &mut source).unwrap_err();
        assert_eq!(
            (refused.kind(), source.len()),
            (io::ErrorKind::InvalidInput, 3)
        );
        let refused = memory.write_to(0..4097, io::sink()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn chunks_and_reads_go_through_a_slice_in_order() {
        let (memory, bytes) = filled();
        let slice = memory.slice(5..5 + 10_000);
        let chunks: Vec<_> = slice.chunks(4096).collect();
        assert_eq!(
            chunks.iter().map(DeviceSlice::len).collect::<Vec<_>>(),
            [4096, 4096, 1808]
        );
        let copied: Vec<u8> = chunks.iter().flat_map(DeviceSlice::to_vec).collect();
        assert!(copied == bytes[5..10_005]);
        let (mut rest, mut block, mut read) = (slice, [0; 3000], Vec::new());
        loop {
            match rest.read(&mut block).unwrap() {
                0 => break,
                len => read.extend_from_slice(&block[..len]),
            }
        }
        assert!(read == bytes[5..10_005] && rest.is_empty() && rest.offset() == 10_005);
    }
}
