//! A gather that a GPU is doing.

use std::fmt;
use std::marker::PhantomData;

use netmem::{CopyError, DeviceGather, Fence};

use crate::batch::RxBatch;
use crate::error::GatherError;

/// Copies of the frags of a batch to contiguous memory, by a GPU: see [`RxBatch::start_gather`]. Dropping it waits.
#[must_use = "dropping it waits for the copies"]
pub struct Gather<'a> {
    bytes: usize,
    /// Copies that may not be done.
    copies: Vec<DeviceGather>,
    batch: PhantomData<&'a RxBatch>,
}

impl Gather<'_> {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            copies: Vec::new(),
            batch: PhantomData,
        }
    }

    pub(crate) fn push(&mut self, copies: DeviceGather) {
        self.copies.push(copies);
    }

    /// Returns the number of bytes that are copied.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether all bytes are in their place. Does not wait.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn is_done(&mut self) -> Result<bool, GatherError> {
        for copies in &mut self.copies {
            if !copies.is_done().map_err(CopyError::Device)? {
                return Ok(false);
            }
        }
        self.copies.clear();
        Ok(true)
    }

    /// Returns the points in the GPU's lane at which the bytes are in their place, for streams that shall wait for them.
    pub fn fences(&self) -> impl Iterator<Item = Fence> + '_ {
        self.copies.iter().filter_map(DeviceGather::fence)
    }

    /// Waits until all bytes are in their place, and returns their number.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn wait(self) -> Result<usize, GatherError> {
        for copies in self.copies {
            copies.wait().map_err(CopyError::Device)?;
        }
        Ok(self.bytes)
    }
}

impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("bytes", &self.bytes)
            .field("copies", &self.copies.len())
            .finish()
    }
}
