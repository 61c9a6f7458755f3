//! Files of this machine.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::code::Code;
use crate::log;
use crate::streamer::FileNumber;
use crate::submission::FileWanted;

/// A file, and what is wanted of it.
pub(crate) struct LocalFile {
    number: FileNumber,
    wanted: FileWanted,
    /// Opened by the first task.
    file: OnceLock<Option<File>>,
    ranges: Vec<RangeProgress>,
    /// One message for each file is enough.
    has_complained: AtomicBool,
}

/// What has come of a range.
struct RangeProgress {
    /// Pieces that were not read.
    left: AtomicU64,
    is_short: AtomicBool,
    has_failed: AtomicBool,
}

impl LocalFile {
    pub(crate) fn new(number: FileNumber, wanted: FileWanted) -> Self {
        let range = || RangeProgress {
            left: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        };
        Self {
            number,
            ranges: wanted.ranges.iter().map(|_| range()).collect(),
            wanted,
            file: OnceLock::new(),
            has_complained: AtomicBool::new(false),
        }
    }

    /// Cuts the ranges into pieces of at most `longest` bytes: the number of each range, and bytes of it. An empty range has one piece, because its file is opened,
    /// too.
    pub(crate) fn pieces(&self, longest: u64) -> impl Iterator<Item = (usize, Range<u64>)> {
        self.wanted
            .ranges
            .iter()
            .enumerate()
            .flat_map(move |(number, wanted)| {
                let len = wanted.target.len() as u64;
                let count = len.div_ceil(longest).max(1);
                self.ranges[number].left.store(count, Ordering::Relaxed);
                (0..count).map(move |at| (number, at * longest..len.min((at + 1) * longest)))
            })
    }

    /// Reads a piece. Returns the outcome of its range with the last one of it.
    pub(crate) fn read(&self, range: usize, bytes: Range<u64>) -> Option<(FileNumber, Code)> {
        let progress = &self.ranges[range];
        match self.read_piece(range, bytes) {
            Ok(true) => {}
            Ok(false) => progress.is_short.store(true, Ordering::Relaxed),
            Err(error) => {
                progress.has_failed.store(true, Ordering::Relaxed);
                self.complain(&error);
            }
        }
        // What the other threads have written of this range is seen by whoever gets the answer.
        if progress.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let code = if progress.has_failed.load(Ordering::Relaxed) {
            Code::FileAccess
        } else if progress.is_short.load(Ordering::Relaxed) {
            Code::EndOfFile
        } else {
            Code::Success
        };
        Some((self.number, code))
    }

    /// Returns whether all bytes of a piece were there.
    fn read_piece(&self, range: usize, bytes: Range<u64>) -> io::Result<bool> {
        let Some(file) = self.file.get_or_init(|| self.open()) else {
            return Err(io::Error::other("it was not opened"));
        };
        let wanted = &self.wanted.ranges[range];
        let mut at = bytes.start;
        while at < bytes.end {
            // Fits: the range lies in memory.
            let from = usize::try_from(at).map_err(io::Error::other)?;
            let len = usize::try_from(bytes.end - at).map_err(io::Error::other)?;
            let read = wanted
                .target
                .read_from(from, len, file, wanted.start.saturating_add(at))?;
            if read == 0 {
                return Ok(false);
            }
            at += read as u64;
        }
        Ok(true)
    }

    fn open(&self) -> Option<File> {
        match File::open(&self.wanted.path) {
            Ok(file) => Some(file),
            Err(error) => {
                self.complain(&error);
                None
            }
        }
    }

    fn complain(&self, error: &io::Error) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            log::failure(&self.wanted.path.to_string_lossy(), error);
        }
    }
}
