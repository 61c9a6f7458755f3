//! Where received payload goes: to its place in memory, or to the caller.

use std::io;

use devmem_tcp::RxBatch;

use super::error::LoadError;
use super::part::Layout;

/// Bytes of the source that have arrived, for the caller of [`Loader::deliver`](super::Loader::deliver).
#[derive(Debug)]
pub struct Landed<'a> {
    /// Offset of the first byte in the source.
    pub at: u64,
    /// The bytes. Frags that are [taken](RxBatch::take) stay lent; the server waits while too much memory is lent.
    pub batch: &'a mut RxBatch,
}

/// Receives what has landed.
pub(crate) type Take<'a> = dyn FnMut(Landed<'_>) -> io::Result<()> + 'a;

/// Where payload goes.
pub(crate) enum Landing<'a> {
    /// To the place of its part.
    Memory(&'a Layout),
    /// To the caller, where it lies.
    Caller(&'a mut Take<'a>),
}

impl Landing<'_> {
    /// Returns how many bytes from `at` on can be placed at once.
    pub(crate) fn room(&self, at: u64) -> u64 {
        match self {
            Self::Memory(layout) => layout.place(at).map_or(0, |place| place.room),
            Self::Caller(_) => u64::MAX,
        }
    }

    /// Moves a batch, of at most [`room`](Self::room) bytes, to its place.
    ///
    /// # Errors
    /// The copy failed, or the caller did.
    pub(crate) fn place(&mut self, at: u64, batch: &mut RxBatch) -> Result<(), LoadError> {
        match self {
            Self::Memory(layout) => {
                let place = layout.place(at).ok_or(LoadError::Unasked { at })?;
                batch.gather_into(place.memory, place.offset)?;
                Ok(())
            }
            Self::Caller(take) => take(Landed { at, batch }).map_err(LoadError::Caller),
        }
    }
}
