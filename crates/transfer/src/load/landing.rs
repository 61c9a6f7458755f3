//! Where received payload goes: to its place in memory, or to the caller.

mod places;
mod staging;

use std::io;
use std::ops::Range;

use client::LoadError;
use devmem_tcp::{BoundTarget, Dmabuf, RxBatch};

pub(crate) use self::places::{Places, Watch};
use crate::checksum::Crc32c;

/// Bytes of the source that have arrived, for the caller of [`Loader::deliver`](super::Loader::deliver).
#[derive(Debug)]
pub enum Landed<'a> {
    /// Received bytes.
    Frags {
        /// Offset of the first byte in the source.
        at: u64,
        /// The bytes. Frags that are [taken](RxBatch::take) stay lent; the server waits while too much memory is lent.
        batch: &'a mut RxBatch,
    },
    /// Bytes of a server by https, decrypted in host memory.
    Bytes {
        /// Offset of the first byte in the source.
        at: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Zeros that an NBD server did not send, because the source has a hole there.
    Zeros {
        /// Offset of the first byte in the source.
        at: u64,
        /// Their number.
        len: u64,
    },
}

impl Landed<'_> {
    /// Copies received bytes to the first ones of `out`, as many as fit. Returns their number; 0 for zeros, which nobody has sent.
    ///
    /// # Errors
    /// The memory that they lie in cannot be read.
    pub fn copy_to(&self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Frags { batch, .. } => batch.copy_to(out).map_err(io::Error::other),
            Self::Bytes { bytes, .. } => {
                let count = bytes.len().min(out.len());
                out[..count].copy_from_slice(&bytes[..count]);
                Ok(count)
            }
            Self::Zeros { .. } => Ok(0),
        }
    }
}

/// Fewer bytes than this are not worth telling the NIC where they belong: those of a super-packet.
const DIRECT_BYTES: u64 = 64 << 10;

/// Receives what has landed.
pub(crate) type Take<'a> = dyn FnMut(Landed<'_>) -> io::Result<()> + 'a;

/// Where payload goes.
pub(crate) enum Landing<'a> {
    /// To the place of its part; directly where the NIC can do that.
    Memory(Places<'a>),
    /// To the caller, where it lies.
    Caller(&'a mut Take<'a>),
}

impl Landing<'_> {
    /// Returns whether it is worth telling the NIC where so many bytes belong.
    pub(crate) fn is_worth_telling(len: u64) -> bool {
        len >= DIRECT_BYTES
    }

    /// Returns the target of the NIC that the byte `at` belongs to; `None` if its memory is none.
    pub(crate) fn target_at(&self, at: u64) -> Option<&BoundTarget> {
        match self {
            Self::Memory(places) => places.target_at(at),
            Self::Caller(_) => None,
        }
    }

    /// Returns where the NIC is to receive the bytes from `at` on, of which the next `len` come: up to those for another memory.
    /// `None` if they are few, or it cannot.
    pub(crate) fn target(&self, at: u64, len: u64) -> Option<(&BoundTarget, Vec<Range<usize>>)> {
        match self {
            Self::Memory(places) if Self::is_worth_telling(len) => places.target(at, len),
            Self::Memory(_) | Self::Caller(_) => None,
        }
    }

    /// Returns a target of the NIC, if there is one.
    pub(crate) fn any_target(&self) -> Option<&BoundTarget> {
        match self {
            Self::Memory(places) => places.any_target(),
            Self::Caller(_) => None,
        }
    }

    /// Returns how many bytes from `at` on can be placed at once.
    pub(crate) fn room(&self, at: u64) -> u64 {
        match self {
            Self::Memory(places) => places.room(at),
            Self::Caller(_) => u64::MAX,
        }
    }

    /// Moves a batch, of at most [`room`](Self::room) bytes, to its place, and adds its bytes to `sum`.
    ///
    /// # Errors
    /// The copy failed, or the caller did.
    pub(crate) fn place(
        &mut self,
        at: u64,
        batch: &mut RxBatch,
        sum: Option<&mut Crc32c>,
    ) -> Result<(), LoadError> {
        match self {
            Self::Memory(places) => places.place(at, batch, sum),
            Self::Caller(take) => {
                if let Some(sum) = sum {
                    let mut bytes = vec![0; batch.device_bytes() + batch.linear_bytes()];
                    batch.copy_to(&mut bytes).map_err(LoadError::Gather)?;
                    sum.add(&bytes);
                }
                take(Landed::Frags { at, batch }).map_err(LoadError::Caller)
            }
        }
    }

    /// Returns the memory of the byte `at`, and its offset there; `None` if the caller takes it.
    pub(crate) fn memory_at(&self, at: u64) -> Option<(&Dmabuf, usize)> {
        match self {
            Self::Memory(places) => places.memory_at(at),
            Self::Caller(_) => None,
        }
    }

    /// Counts bytes that were received in their place, of at most [`room`](Self::room), and adds them to `sum`.
    ///
    /// # Errors
    /// They cannot be read for the sum.
    pub(crate) fn landed(
        &mut self,
        at: u64,
        len: usize,
        sum: Option<&mut Crc32c>,
    ) -> Result<(), LoadError> {
        match self {
            Self::Memory(places) => places.landed(at, len, sum),
            // Its bytes have no place.
            Self::Caller(_) => Ok(()),
        }
    }

    /// Writes bytes of host memory, of at most [`room`](Self::room), to their place. They are there after [`finish`](Self::finish).
    ///
    /// # Errors
    /// They cannot be copied, or the caller failed.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), LoadError> {
        match self {
            Self::Memory(places) => places.write(at, bytes),
            Self::Caller(take) => take(Landed::Bytes { at, bytes }).map_err(LoadError::Caller),
        }
    }

    /// Starts to copy what was collected for memory whose each access costs.
    ///
    /// # Errors
    /// It cannot be copied.
    pub(crate) fn settle(&mut self) -> Result<(), LoadError> {
        match self {
            Self::Memory(places) => places.settle(),
            Self::Caller(_) => Ok(()),
        }
    }

    /// Waits until all bytes are in their places.
    ///
    /// # Errors
    /// They cannot be copied.
    pub(crate) fn finish(&mut self) -> Result<(), LoadError> {
        match self {
            Self::Memory(places) => places.finish(),
            Self::Caller(_) => Ok(()),
        }
    }

    /// Writes zeros to the places of `len` bytes.
    ///
    /// # Errors
    /// The memory cannot be written, or the caller failed.
    pub(crate) fn zeros(&mut self, at: u64, len: u64) -> Result<(), LoadError> {
        match self {
            Self::Memory(places) => places.zeros(at, len),
            Self::Caller(take) => take(Landed::Zeros { at, len }).map_err(LoadError::Caller),
        }
    }
}
