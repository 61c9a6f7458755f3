//! The storer: what is stored, and by which rules.

mod run;

use std::io;
use std::ops::{ControlFlow, Range};

use devmem_tcp::{Dmabuf, Netdev};

use super::Progress;
use super::error::{Operation, StoreError};
use super::part::{Layout, Part};
use super::session::Acknowledge;
use super::sink::Sink;
use super::stored::Stored;
use super::supply::{Filled, Supply};
use crate::parallel::ranges::{piece_bytes, sorted_apart, unaligned};
use crate::parallel::{Pieces, Settings, settable};
use run::{Flushes, Job, Run};

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

/// Length of a piece, by default.
const PIECE_BYTES: u64 = 1 << 20;

/// Stores bytes of device memory in an export of an NBD server or a namespace of an NVMe subsystem, over several connections.
///
/// The payload is sent from the memory where it lies. It must not change before the store returns.
#[derive(Clone, Debug)]
pub struct Storer {
    nic: Netdev,
    settings: Settings,
    durability: Durability,
}

settable!(Storer);

impl Storer {
    /// Returns a storer with 4 connections, pieces of 1 MiB, 16 requests in flight on each connection, and a flush at the end.
    pub fn new(nic: &Netdev) -> Self {
        Self {
            nic: nic.clone(),
            settings: Settings::new(),
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

    /// Stores `parts` of `memory` in `sink`. `progress` is called at least every 100 ms, and may end the store.
    ///
    /// # Errors
    /// The sink is read-only or too small, or the parts do not match its blocks; the server refuses or fails too often;
    /// `progress` ended the store. Some parts may have been written. The connections are reset then: the memory may be
    /// changed, unless the error is [`StoreError::Incomplete`].
    pub fn store(
        &self,
        sink: impl Into<Sink>,
        memory: &Dmabuf,
        parts: &[Part],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let sink = &sink.into();
        let layout = Layout::new(parts, memory.size())?;
        let (ranges, piece_bytes) = self.check(sink, layout.ranges())?;
        let pieces = Pieces::new(ranges, piece_bytes);
        self.run(sink, memory, pieces, Supply::Memory(layout), progress)
    }

    /// Stores `ranges` of bytes that `fill` puts into chunks of `memory`, for bytes that are not all in device memory. A
    /// chunk has one piece, and is filled again when the server has acknowledged its piece and the send is complete.
    ///
    /// `fill` gets a range of the sink and the range of `memory` for its bytes. It is called again for the same range of the
    /// sink if a connection breaks, and must then supply the same bytes.
    ///
    /// # Errors
    /// As [`store`](Self::store); `memory` has no room for one piece; those of `fill`.
    pub fn store_from(
        &self,
        sink: impl Into<Sink>,
        memory: &Dmabuf,
        ranges: &[Range<u64>],
        fill: &mut dyn FnMut(Range<u64>, Range<usize>) -> io::Result<Filled>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let sink = &sink.into();
        let (ranges, piece) = self.check(sink, sorted_apart(ranges.iter().cloned())?)?;
        let size = memory.size();
        let chunk_bytes = usize::try_from(piece).ok().filter(|bytes| *bytes <= size);
        let chunk_bytes = chunk_bytes.ok_or(StoreError::NoRoom { size, piece })?;
        let supply = Supply::Chunks {
            chunk_bytes,
            free: (0..size / chunk_bytes).rev().collect(),
            fill,
            memory,
            zeros: match sink.has(Operation::WriteZeroes) {
                true => Operation::WriteZeroes,
                false => Operation::Write,
            },
        };
        self.run(sink, memory, Pieces::new(ranges, piece), supply, progress)
    }

    /// Makes `ranges` of `sink` zeros, without sending them.
    ///
    /// # Errors
    /// As [`store`](Self::store); the server has no such operation.
    pub fn write_zeroes(
        &self,
        sink: impl Into<Sink>,
        ranges: &[Range<u64>],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let remedy = "store zeros from memory";
        self.run_without_payload(
            &sink.into(),
            Operation::WriteZeroes,
            remedy,
            ranges,
            progress,
        )
    }

    /// Discards `ranges` of `sink`: what is read there afterwards is undefined.
    ///
    /// # Errors
    /// As [`store`](Self::store); the server has no such operation.
    pub fn trim(
        &self,
        sink: impl Into<Sink>,
        ranges: &[Range<u64>],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let remedy = "leave the bytes as they are: trimming them only saves space";
        self.run_without_payload(&sink.into(), Operation::Trim, remedy, ranges, progress)
    }

    fn run_without_payload(
        &self,
        sink: &Sink,
        operation: Operation,
        remedy: &'static str,
        ranges: &[Range<u64>],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        if !sink.has(operation) {
            return Err(lacks(sink, sink.name_of(operation), remedy));
        }
        let (ranges, piece) = self.check(sink, sorted_apart(ranges.iter().cloned())?)?;
        // Nothing is sent from it, but connections have a binding.
        let memory =
            Dmabuf::anonymous(4096).map_err(|error| StoreError::Caller(io::Error::other(error)))?;
        let supply = Supply::Nothing(operation);
        let pieces = Pieces::new(ranges, piece);
        self.run(sink, &memory, pieces, supply, progress)
    }

    /// Checks what can be checked without a request. Returns the ranges, and the length of a piece.
    fn check(
        &self,
        sink: &Sink,
        ranges: Vec<Range<u64>>,
    ) -> Result<(Vec<Range<u64>>, u64), StoreError> {
        let export = || sink.to_string();
        if sink.is_read_only() {
            let export = export();
            return Err(StoreError::ReadOnly { export });
        }
        if self.durability == Durability::EachWrite && !sink.has_durable_writes() {
            let remedy = "a flush at the end also brings all bytes to storage";
            return Err(lacks(sink, "FUA", remedy));
        }
        let (size, block) = (sink.size(), sink.block_bytes());
        if let Some(end) = ranges.last().map(|last| last.end).filter(|end| *end > size) {
            let export = export();
            return Err(StoreError::PastEnd { export, end, size });
        }
        if let Some((Range { start, end }, _)) = unaligned(&ranges, block, Some(size)) {
            return Err(StoreError::Unaligned { start, end, block });
        }
        let wanted = self.settings.piece_bytes(PIECE_BYTES);
        let piece = piece_bytes(wanted, sink.preferred_bytes(), sink.max_bytes());
        Ok((ranges, piece))
    }

    fn run<'a>(
        &'a self,
        sink: &'a Sink,
        memory: &Dmabuf,
        pieces: Pieces,
        supply: Supply<'a>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Stored, StoreError> {
        let connections = sink.usable_connections(self.settings.connections());
        let acknowledge = match self.durability {
            Durability::EachWrite => Acknowledge::Durable,
            Durability::Flush | Durability::None => Acknowledge::Received,
        };
        let flushes = match self.durability {
            Durability::Flush if sink.has(Operation::Flush) => Flushes::Wanted,
            Durability::Flush | Durability::EachWrite | Durability::None => Flushes::Never,
        };
        let job = Job {
            nic: &self.nic,
            settings: &self.settings,
            sink,
            supply,
            acknowledge,
            flushes,
        };
        Run::new(job, memory, pieces, connections)?.run(progress)
    }
}

fn lacks(sink: &Sink, lacking: &'static str, remedy: &'static str) -> StoreError {
    StoreError::Lacks {
        export: sink.to_string(),
        lacking,
        remedy: remedy.into(),
    }
}
