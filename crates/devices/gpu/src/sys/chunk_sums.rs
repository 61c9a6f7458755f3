//! CRC-32Cs of chunks of memory, computed by a device.
//!
// UNSAFETY: device code that is run with the addresses of checked ranges of memory.
#![allow(unsafe_code)]

use std::sync::Arc;

use netmem::DeviceError;

use super::copies::out_of_range;
use super::lanes::Lanes;
use super::memory::DeviceMemory;
use super::module::Module;

/// Bytes of a chunk, of which one thread computes the sum: a GPU with 132 processors of 2,048 threads is full from 1 GiB on. The sums are 1/1024 of the
/// bytes.
pub(crate) const CHUNK_BYTES: usize = 4096;

/// Of the address of the first chunk: a thread reads 16 bytes at a time.
pub(crate) const CHUNK_ALIGN: usize = 16;

/// Most chunks of a call: the sums have 1 MiB, and other work in the lane waits for no more than 1 GiB.
pub(crate) const CHUNKS_MAX: usize = 256 << 10;

const SUM_BYTES: usize = size_of::<u32>();

/// The code that computes CRC-32Cs of chunks.
///
/// Invariant: the module is that of [`Driver::crc32c_kernel`](super::driver::Driver::crc32c_kernel).
#[derive(Debug)]
pub(crate) struct ChunkSums {
    module: Module,
}

impl ChunkSums {
    /// Loads the code; `None`: there is none for the vendor.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the driver, which refuses the code.
    pub(crate) fn load(lanes: &Arc<Lanes>) -> Result<Option<Self>, DeviceError> {
        let kernel = lanes.context.driver.crc32c_kernel();
        let module = kernel.map(|kernel| Module::load(lanes, kernel));
        Ok(module.transpose()?.map(|module| Self { module }))
    }

    /// Allocates device memory for the sums of `chunks`.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the driver.
    pub(crate) fn room(&self, chunks: usize) -> Result<DeviceMemory, DeviceError> {
        DeviceMemory::alloc(&self.module.lanes, chunks.saturating_mul(SUM_BYTES))
    }

    /// Computes the sums of chunks that begin at a byte of `memory`, by way of `room`, and returns them in order.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the chunks are not inside the memory, or not aligned, or `room` is too small; the memory has been revoked; the driver refuses.
    pub(crate) fn compute(
        &self,
        (memory, offset): (&DeviceMemory, usize),
        chunks: usize,
        room: &DeviceMemory,
    ) -> Result<Vec<u32>, DeviceError> {
        let len = |each| chunks.checked_mul(each).ok_or_else(out_of_range);
        let (len, sums_len) = (len(CHUNK_BYTES)?, len(SUM_BYTES)?);
        let address = memory.at(offset, len).filter(|address| {
            // The device would be lost.
            address.is_multiple_of(CHUNK_ALIGN as u64)
        });
        let sums = room.at(0, sums_len);
        let is_of_this = |memory: &DeviceMemory| Arc::ptr_eq(&memory.lanes, &self.module.lanes);
        let (Some(address), Some(sums), true, true) =
            (address, sums, is_of_this(memory), is_of_this(room))
        else {
            return Err(out_of_range());
        };
        if chunks == 0 {
            return Ok(Vec::new());
        }
        let arguments = [sums, address, CHUNK_BYTES as u64, chunks as u64];
        // SAFETY: the function of the module (invariant) takes four arguments. It writes `chunks` sums, reads as many chunks and accesses nothing else
        // (contract of `Driver`), and both are inside of the two memories, of this device.
        unsafe { self.module.run([memory, room], chunks, arguments) }?;
        let mut bytes = vec![0; sums_len];
        room.read(0, &mut bytes)?;
        let sums = bytes.as_chunks::<SUM_BYTES>().0.iter();
        Ok(sums.map(|sum| u32::from_ne_bytes(*sum)).collect())
    }
}
