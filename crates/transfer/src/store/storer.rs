//! The storer: what is stored, and by which rules.

use std::io;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use devmem_tcp::{Dmabuf, Netdev};

use super::error::{Operation, StoreError};
use super::part::{Layout, Part};
use super::run::{Flushes, Job, Run};
use super::session::Acknowledge;
use super::supply::{Filled, Supply};
use super::{NbdExport, Progress};
use crate::load::nbd::{SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES};
use crate::parallel::ranges::{piece_bytes, sorted_apart, unaligned};
use crate::parallel::{Pieces, Settings, settable};

/// When stored bytes are on the server's storage, and not only in its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When the store returns: a flush is its last request, if the server has this operation. Until then, writes that a
    /// restarted server may have lost are repeated.
    #[default]
    Flush,
    /// When each request is acknowledged (FUA). The server must have it.
    EachWrite,
    /// Some time later, as the server likes. A server that is restarted may have lost acknowledged writes.
    None,
}

/// The outcome of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Bytes that the server has acknowledged.
    pub bytes: u64,
    /// Bytes among them that were not sent, because they are zeros or discarded.
    pub unsent_bytes: u64,
    /// Time from the first connection to the last reply.
    pub elapsed: Duration,
    /// Pieces that were acknowledged.
    pub pieces: u64,
    /// Pieces that were written again, because a connection broke.
    pub repeated: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Flushes. Without one, the server may have the bytes in its memory only, unless each write was durable.
    pub flushes: u64,
    /// Zero-copy sends.
    pub sends: u64,
    /// Sends whose bytes were copied by the stack.
    pub copied_sends: u64,
}

/// Length of a piece, by default.
const PIECE_BYTES: u64 = 1 << 20;

/// Stores bytes of device memory in an export of an NBD server, over several connections.
///
/// The payload is sent from the memory where it lies. It must not change before the store returns.
#[derive(Clone, Debug)]
pub struct Storer {
    pub(super) nic: Netdev,
    pub(super) settings: Settings,
    durability: Durability,
}

settable!(Storer);

impl Storer {
    /// Returns a storer with 4 connections, pieces of 1 MiB, 16 requests in flight on each connection, and a flush at the end.
    pub fn new(nic: &Netdev) -> Self {
        let mut settings = Settings::new();
        settings.set_window(16);
        Self {
            nic: nic.clone(),
            settings,
            durability: Durability::default(),
        }
    }

    /// Sets how many requests one connection may have in flight, at least 1.
    #[must_use]
    pub fn window(mut self, requests: usize) -> Self {
        self.settings.set_window(requests);
        self
    }

    /// Sets when the bytes are on the server's storage; [`Durability::Flush`] by default.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Stores `parts` of `memory` in `export`. `progress` is called at least every 100 ms, and may end the store.
    ///
    /// # Errors
    /// The export is read-only or too small, or the parts do not match its blocks; the server refuses or fails too often;
    /// `progress` ended the store. Some parts may have been written. The connections are reset then: the memory may be
    /// changed, unless the error is [`StoreError::Incomplete`].
    pub fn store(
        &self,
        export: &NbdExport,
        memory: &Dmabuf,
        parts: &[Part],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let layout = Layout::new(parts, memory.size())?;
        let (ranges, piece_bytes) = self.check(export, layout.ranges())?;
        let pieces = Pieces::new(ranges, piece_bytes);
        self.run(export, memory, pieces, Supply::Memory(layout), progress)
    }

    /// Stores `ranges` of bytes that `fill` puts into chunks of `memory`, for bytes that are not all in device memory. A
    /// chunk has one piece, and is filled again when the server has acknowledged its piece and the send is complete.
    ///
    /// `fill` gets a range of the export and the range of `memory` for its bytes. It is called again for the same range of the
    /// export if a connection breaks, and must then supply the same bytes.
    ///
    /// # Errors
    /// As [`store`](Self::store); `memory` has no room for one piece; those of `fill`.
    pub fn store_from(
        &self,
        export: &NbdExport,
        memory: &Dmabuf,
        ranges: &[Range<u64>],
        fill: &mut dyn FnMut(Range<u64>, Range<usize>) -> io::Result<Filled>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let (ranges, piece) = self.check(export, sorted_apart(ranges.iter().cloned())?)?;
        let size = memory.size();
        let chunk_bytes = usize::try_from(piece).ok().filter(|bytes| *bytes <= size);
        let chunk_bytes = chunk_bytes.ok_or(StoreError::NoRoom { size, piece })?;
        let supply = Supply::Chunks {
            chunk_bytes,
            free: (0..size / chunk_bytes).rev().collect(),
            fill,
            zeros: match export.has(SEND_WRITE_ZEROES) {
                true => Operation::WriteZeroes,
                false => Operation::Write,
            },
        };
        self.run(export, memory, Pieces::new(ranges, piece), supply, progress)
    }

    /// Makes `ranges` of `export` zeros, without sending them.
    ///
    /// # Errors
    /// As [`store`](Self::store); the server has no such operation.
    pub fn write_zeroes(
        &self,
        export: &NbdExport,
        ranges: &[Range<u64>],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        if !export.has(SEND_WRITE_ZEROES) {
            let remedy = "store zeros from memory";
            return Err(lacks(export, "NBD_CMD_WRITE_ZEROES", remedy));
        }
        self.run_without_payload(export, Operation::WriteZeroes, ranges, progress)
    }

    /// Discards `ranges` of `export`: what is read there afterwards is undefined.
    ///
    /// # Errors
    /// As [`store`](Self::store); the server has no such operation.
    pub fn trim(
        &self,
        export: &NbdExport,
        ranges: &[Range<u64>],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        if !export.has(SEND_TRIM) {
            let remedy = "leave the bytes as they are: trimming them only saves space";
            return Err(lacks(export, "NBD_CMD_TRIM", remedy));
        }
        self.run_without_payload(export, Operation::Trim, ranges, progress)
    }

    fn run_without_payload(
        &self,
        export: &NbdExport,
        operation: Operation,
        ranges: &[Range<u64>],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let (ranges, piece) = self.check(export, sorted_apart(ranges.iter().cloned())?)?;
        // Nothing is sent from it, but connections have a binding.
        let memory =
            Dmabuf::anonymous(4096).map_err(|error| StoreError::Caller(io::Error::other(error)))?;
        let supply = Supply::Nothing(operation);
        self.run(
            export,
            &memory,
            Pieces::new(ranges, piece),
            supply,
            progress,
        )
    }

    /// Checks what can be checked without a request. Returns the ranges, and the length of a piece.
    fn check(
        &self,
        export: &NbdExport,
        ranges: Vec<Range<u64>>,
    ) -> Result<(Vec<Range<u64>>, u64), StoreError> {
        if export.is_read_only() {
            let export = export.url().to_string();
            return Err(StoreError::ReadOnly { export });
        }
        if self.durability == Durability::EachWrite && !export.has(SEND_FUA) {
            let remedy = "a flush at the end also brings all bytes to storage";
            return Err(lacks(export, "FUA", remedy));
        }
        let (size, block) = (export.size(), export.block_bytes());
        if let Some(end) = ranges.last().map(|last| last.end).filter(|end| *end > size) {
            let export = export.url().to_string();
            return Err(StoreError::PastEnd { export, end, size });
        }
        if let Some(&Range { start, end }) = unaligned(&ranges, block) {
            return Err(StoreError::Unaligned { start, end, block });
        }
        let wanted = self.settings.piece_bytes(PIECE_BYTES);
        let piece = piece_bytes(wanted, export.preferred_bytes(), export.max_bytes());
        Ok((ranges, piece))
    }

    fn run<'a>(
        &'a self,
        export: &'a NbdExport,
        memory: &Dmabuf,
        pieces: Pieces,
        supply: Supply<'a>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let connections = match export.takes_many_connections() {
            true => self.settings.connections(),
            false => 1,
        };
        let acknowledge = match self.durability {
            Durability::EachWrite => Acknowledge::Durable,
            Durability::Flush | Durability::None => Acknowledge::Received,
        };
        let flushes = match self.durability {
            Durability::Flush if export.has(SEND_FLUSH) => Flushes::Wanted,
            Durability::Flush | Durability::EachWrite | Durability::None => Flushes::Never,
        };
        let job = Job {
            storer: self,
            export,
            supply,
            acknowledge,
            flushes,
        };
        Run::new(job, memory, pieces, connections)?.run(progress)
    }
}

fn lacks(export: &NbdExport, lacking: &'static str, remedy: &'static str) -> StoreError {
    StoreError::Lacks {
        export: export.url().to_string(),
        lacking,
        remedy,
    }
}
