//! Files of HTTP servers side by side, as one source: a load of all files of a checkpoint uses its connections for each of them.

use std::net::SocketAddr;
use std::sync::Arc;

use client::http::HttpFile;
use client::{Piece, Pool};

/// Files, each at an offset. Between two of them is at least one byte of neither.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Sorted by their start.
    files: Arc<[Placed]>,
    addresses: Arc<[SocketAddr]>,
    serves_ranges: bool,
}

/// A file of a volume.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) start: u64,
    pub(crate) file: HttpFile,
}

impl Volume {
    /// Puts files side by side. `None`: together they are too long.
    pub(crate) fn new(files: impl IntoIterator<Item = HttpFile>) -> Option<Self> {
        let (mut start, mut placed, mut addresses) = (0_u64, Vec::new(), Vec::new());
        let mut serves_ranges = true;
        for file in files {
            addresses.extend_from_slice(file.addresses());
            serves_ranges &= file.serves_ranges();
            let end = start
                .checked_add(file.size().unwrap_or(0))?
                .checked_add(1)?;
            placed.push(Placed { start, file });
            start = end;
        }
        addresses.sort_unstable();
        addresses.dedup();
        Some(Self {
            files: placed.into(),
            addresses: addresses.into(),
            serves_ranges,
        })
    }

    /// Returns the volume of one file, which starts at 0.
    pub(crate) fn of(file: &HttpFile) -> Self {
        Self {
            files: [Placed {
                start: 0,
                file: file.clone(),
            }]
            .into(),
            addresses: file.addresses().into(),
            serves_ranges: file.serves_ranges(),
        }
    }

    /// Returns the files, in the order of their offsets.
    pub(crate) fn files(&self) -> impl Iterator<Item = &HttpFile> {
        self.files.iter().map(|placed| &placed.file)
    }

    /// Returns the offset of each file.
    pub(crate) fn starts(&self) -> impl Iterator<Item = u64> {
        self.files.iter().map(|placed| placed.start)
    }

    /// Returns the file with the byte at `at`: the last one that starts there or before.
    pub(crate) fn file_at(&self, at: u64) -> Option<&Placed> {
        let after = self.files.partition_point(|placed| placed.start <= at);
        self.files.get(after.checked_sub(1)?)
    }

    /// Returns the end of the last file, if its size is known.
    pub(crate) fn size(&self) -> Option<u64> {
        match self.files.last() {
            Some(last) => last.start.checked_add(last.file.size()?),
            None => Some(0),
        }
    }

    /// Returns the place of the first file, for messages.
    pub(crate) fn place(&self) -> String {
        self.files
            .first()
            .map_or_else(String::new, |placed| placed.file.place())
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.files.iter().any(|placed| placed.file.is_encrypted())
    }

    pub(crate) fn pool(&self) -> Option<&Pool> {
        self.files.first().map(|placed| &**placed.file.pool())
    }

    pub(crate) fn serves_ranges(&self) -> bool {
        self.serves_ranges
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Placed {
    /// Returns the piece as one of the file.
    pub(crate) fn local(&self, piece: Piece) -> Piece {
        Piece {
            start: piece.start.saturating_sub(self.start),
            end: piece.end.saturating_sub(self.start),
        }
    }

    /// Returns the offset of a byte of the file in the volume.
    pub(crate) fn global(&self, at: u64) -> u64 {
        self.start.saturating_add(at)
    }
}
