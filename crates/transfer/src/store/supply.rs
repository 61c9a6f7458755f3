//! Where the bytes of a piece come from: the caller's memory, or chunks that the caller fills.

use std::io;
use std::ops::Range;

use client::Piece;
use devmem_tcp::Dmabuf;

use super::error::{Operation, StoreError};
use super::part::Layout;

/// What [`Storer::store_from`](super::Storer::store_from)'s caller has put into a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The bytes.
    Bytes,
    /// Nothing: all bytes are zeros, which need not be sent if the server can write them by itself.
    Zeros,
}

/// Fills a range of the memory with a range of the bytes to store.
pub(crate) type Fill<'a> = dyn FnMut(Range<u64>, Range<usize>) -> io::Result<Filled> + 'a;

/// Where bytes come from.
pub(crate) enum Supply<'a> {
    /// The caller's memory, as it is.
    Memory(Layout),
    /// Chunks of one piece each.
    Chunks {
        chunk_bytes: usize,
        /// Indices of the free ones.
        free: Vec<usize>,
        fill: &'a mut Fill<'a>,
        /// The memory of the chunks.
        memory: &'a Dmabuf,
        /// The request for a piece of zeros.
        zeros: Operation,
    },
    /// Nowhere: the operation has no payload.
    Nothing(Operation),
}

/// The bytes of one piece.
#[derive(Debug)]
pub(crate) struct Supplied {
    pub(crate) operation: Operation,
    /// Their places in memory, in order. Empty unless the operation is [`Operation::Write`].
    pub(crate) places: Vec<Range<usize>>,
    /// The chunk that is free again when the piece is acknowledged and its send complete.
    pub(crate) chunk: Option<usize>,
}

impl Supplied {
    /// Returns the supply of an operation without payload.
    pub(crate) fn nothing(operation: Operation) -> Self {
        Self {
            operation,
            places: Vec::new(),
            chunk: None,
        }
    }
}

impl Supply<'_> {
    /// Returns whether there is room for a piece.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Self::Memory(_) | Self::Nothing(_) => true,
            Self::Chunks { free, .. } => !free.is_empty(),
        }
    }

    /// Supplies the bytes of a piece. There is [room](Self::has_room).
    ///
    /// # Errors
    /// The caller's source failed.
    pub(crate) fn next(&mut self, piece: Piece) -> Result<Supplied, StoreError> {
        let (operation, places, chunk) = match self {
            Self::Memory(layout) => (Operation::Write, layout.places(piece), None),
            Self::Nothing(operation) => (*operation, Vec::new(), None),
            Self::Chunks {
                chunk_bytes,
                free,
                fill,
                memory,
                zeros,
            } => {
                let chunk = free.pop().expect("there is room");
                let start = chunk * *chunk_bytes;
                // A piece is at most as long as a chunk.
                let len = usize::try_from(piece.len()).unwrap_or(*chunk_bytes);
                let place = start..start + len;
                let filled = fill(piece.start..piece.end, place.clone());
                match (filled.map_err(StoreError::Caller)?, *zeros) {
                    (Filled::Zeros, operation @ Operation::WriteZeroes) => {
                        free.push(chunk);
                        (operation, Vec::new(), None)
                    }
                    (filled, _) => {
                        if filled == Filled::Zeros {
                            // The caller may have put nothing there.
                            let zeroed = memory.fill(place.clone(), 0);
                            zeroed.map_err(|error| StoreError::Caller(io::Error::other(error)))?;
                        }
                        (Operation::Write, vec![place], Some(chunk))
                    }
                }
            }
        };
        Ok(Supplied {
            operation,
            places,
            chunk,
        })
    }

    /// Has zeros sent as bytes from now on, because the server cannot write them by itself. Returns whether they can be.
    pub(crate) fn send_zeros(&mut self) -> bool {
        match self {
            Self::Chunks { zeros, .. } => {
                *zeros = Operation::Write;
                true
            }
            Self::Memory(_) | Self::Nothing(_) => false,
        }
    }

    /// Takes back a chunk whose bytes nobody needs any more.
    pub(crate) fn free(&mut self, chunk: usize) {
        if let Self::Chunks { free, .. } = self {
            free.push(chunk);
        }
    }
}
