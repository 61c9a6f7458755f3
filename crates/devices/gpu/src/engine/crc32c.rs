//! CRC-32C of a range of device memory: the device computes those of its chunks, the CPU combines them.

use std::ops::Range;
use std::sync::{Arc, LazyLock, PoisonError};

use netmem::{DeviceError, DeviceState};

use super::Engine;
use crate::sys::chunk_sums::{CHUNK_ALIGN, CHUNK_BYTES, CHUNKS_MAX, ChunkSums};
use crate::sys::copies::out_of_range;
use crate::sys::memory::DeviceMemory;

/// The effect of [`CHUNK_BYTES`] zero bytes on a CRC-32C. It is linear, so the effect on a sum is the exclusive or of those on its four bytes, for
/// each of which there is a table.
struct Advance([[u32; 256]; 4]);

impl Advance {
    fn new() -> Self {
        let mut tables = [[0; 256]; 4];
        for (place, table) in tables.iter_mut().enumerate() {
            for bit in 0..8 {
                let effect = crc32c::crc32c_combine(1 << (8 * place + bit), 0, CHUNK_BYTES);
                for lower in 0..1 << bit {
                    table[1 << bit | lower] = table[lower] ^ effect;
                }
            }
        }
        Self(tables)
    }

    /// Returns the CRC-32C of bytes of which `first` is that of all but the last chunk, and `last` that of the last chunk.
    fn combine(&self, first: u32, last: u32) -> u32 {
        let bytes = first.to_le_bytes();
        let effects = self.0.iter().zip(bytes);
        effects.fold(last, |sum, (table, byte)| sum ^ table[usize::from(byte)])
    }
}

/// A range of device memory, cut: a head of fewer than [`CHUNK_ALIGN`] bytes, whole chunks, and a tail of less than a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cut {
    head: usize,
    chunks: usize,
    tail: usize,
}

impl Cut {
    /// Cuts `len` bytes at an address.
    fn of(address: u64, len: usize) -> Self {
        // The alignment is a power of 2.
        let head = (address.wrapping_neg() as usize % CHUNK_ALIGN).min(len);
        let rest = len - head;
        Self {
            head,
            chunks: rest / CHUNK_BYTES,
            tail: rest % CHUNK_BYTES,
        }
    }

    /// Returns the numbers of the chunks in parts of at most `most`, in order.
    fn parts(self, most: usize) -> impl Iterator<Item = Range<usize>> {
        let starts = (0..self.chunks).step_by(most);
        starts.map(move |start| start..self.chunks.min(start + most))
    }
}

impl Engine {
    /// Returns the CRC-32C of `len` bytes at `offset` of memory of this device. `None`, so that the caller reads the bytes back: there is no whole
    /// chunk, no code for the vendor, or no room for the sums; or the driver does not take the code.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the range is not inside the memory; the memory has been revoked; the device fails, or is lost.
    pub(super) fn crc32c_at(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        len: usize,
    ) -> Result<Option<u32>, DeviceError> {
        static ADVANCE: LazyLock<Advance> = LazyLock::new(Advance::new);
        let cut = Cut::of(memory.at(offset, len).ok_or_else(out_of_range)?, len);
        if cut.chunks == 0 {
            return Ok(None);
        }
        // A child by fork(2) gets its error before a lock that it may have inherited locked.
        drop(self.lanes.enter()?);
        let Some(code) = if_possible(self.chunk_sums())?.flatten() else {
            return Ok(None);
        };
        let Some(room) = if_possible(code.room(cut.chunks.min(CHUNKS_MAX)))? else {
            return Ok(None);
        };
        let mut sum = read(memory, offset, cut.head, 0)?;
        for chunks in cut.parts(CHUNKS_MAX) {
            // In bounds: the range is inside of the memory.
            let at = offset + cut.head + chunks.start * CHUNK_BYTES;
            let sums = code.compute((memory, at), chunks.len(), &room)?;
            sum = sums
                .into_iter()
                .fold(sum, |sum, next| ADVANCE.combine(sum, next));
        }
        // In bounds: the tail is a part of the range.
        read(memory, offset + len - cut.tail, cut.tail, sum).map(Some)
    }

    /// Returns the code, which the first call loads; `None`: there is none for the vendor.
    fn chunk_sums(&self) -> Result<Option<Arc<ChunkSums>>, DeviceError> {
        let mut loaded = self
            .chunk_sums
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if loaded.is_none() {
            *loaded = ChunkSums::load(&self.lanes)?.map(Arc::new);
        }
        Ok(loaded.clone())
    }
}

/// Adds `len` bytes at `offset`, less than a chunk, to a CRC-32C.
fn read(memory: &DeviceMemory, offset: usize, len: usize, sum: u32) -> Result<u32, DeviceError> {
    if len == 0 {
        return Ok(sum);
    }
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes)?;
    Ok(crc32c::crc32c_append(sum, &bytes))
}

/// Returns what was prepared; `None` after an error, unless the device cannot be used any more.
fn if_possible<T>(prepared: Result<T, DeviceError>) -> Result<Option<T>, DeviceError> {
    match prepared {
        Err(error) if error.state == DeviceState::Usable => Ok(None),
        prepared => prepared.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_chunks_are_combined_to_that_of_all_bytes() {
        let bytes: Vec<u8> = (0..3 * CHUNK_BYTES + 100)
            .map(|at| ((at * at) >> 3) as u8)
            .collect();
        let (advance, mut sum) = (Advance::new(), crc32c::crc32c(&bytes[..100]));
        for chunk in bytes[100..].chunks(CHUNK_BYTES) {
            sum = advance.combine(sum, crc32c::crc32c(chunk));
        }
        assert_eq!(sum, crc32c::crc32c(&bytes));
    }

    #[test]
    fn a_range_is_cut_at_aligned_addresses() {
        let cut = |address, len| {
            let Cut { head, chunks, tail } = Cut::of(address, len);
            (head, chunks, tail)
        };
        assert_eq!(cut(0x1000, 0), (0, 0, 0));
        assert_eq!(cut(0x1000, CHUNK_BYTES), (0, 1, 0));
        assert_eq!(cut(0x1001, 3), (3, 0, 0));
        assert_eq!(cut(0x1001, CHUNK_BYTES), (15, 0, CHUNK_BYTES - 15));
        assert_eq!(cut(0x100f, 2 * CHUNK_BYTES + 2), (1, 2, 1));
        assert_eq!(cut(u64::MAX - 15, 16), (0, 0, 16));
    }

    #[test]
    fn parts_cover_all_chunks_in_order() {
        let parts = |chunks, most| {
            let cut = Cut::of(0x1000, chunks * CHUNK_BYTES + 1);
            cut.parts(most).collect::<Vec<_>>()
        };
        assert_eq!(parts(0, 3), []);
        assert_eq!(parts(6, 3), [0..3, 3..6]);
        assert_eq!(parts(7, 3), [0..3, 3..6, 6..7]);
    }
}
