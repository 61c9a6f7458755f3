//! The checksums that servers have of the files of a checkpoint, compared with those of its tensors in memory.
//!
//! A file of tensors is its header, and the tensors without gaps between them. So its checksum is that of the header and of the tensors at their places,
//! one after the other, if all of them were loaded.

use std::ops::Range;

use client::LoadError;
use client::dial::CancelCheck;
use client::http::HttpFile;
use devmem_tcp::Dmabuf;

use super::{Checkpoint, CheckpointFile};
use crate::checksum::{Compared, Crc32c, NoSum, RunningSum, SumKind, SumValue};
use crate::load::loader::Loader;
use crate::load::source::Source;

/// What the comparison of a file of a checkpoint has found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComparedFile {
    /// URL of the file.
    pub file: String,
    /// The two checksums, or why there are not two.
    pub outcome: Result<Compared, NoSum>,
}

impl Checkpoint {
    /// Compares the checksums that the servers have of the files with those of the tensors in `memory`, to which [`load`](Self::load) has loaded
    /// them, in the order of the files. The header of a file is requested again.
    ///
    /// # Errors
    /// A server does not answer, or its file has changed; the memory cannot be read; [`LoadError::Cancelled`].
    pub fn compare(
        &self,
        loader: &Loader,
        memory: &Dmabuf,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Vec<ComparedFile>, LoadError> {
        let files = self.files.iter().zip(self.volume.files());
        let compared = files.map(|(tensors, file)| {
            Ok(ComparedFile {
                file: file.name(),
                outcome: tensors.compare(file, loader, memory, cancel_check)?,
            })
        });
        compared.collect()
    }
}

impl CheckpointFile {
    fn compare(
        &self,
        file: &HttpFile,
        loader: &Loader,
        memory: &Dmabuf,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Result<Compared, NoSum>, LoadError> {
        if !self.is_whole {
            return Ok(Err(NoSum::NotAll));
        }
        let source = Source::from(file);
        let stored = match loader.stored_sum(&source, cancel_check)? {
            Ok(stored) => stored,
            Err(why) => return Ok(Err(why)),
        };
        let header = self.header(file, &source, loader, cancel_check)?;
        let size = file.size().unwrap_or(0);
        let compared = stored.compare(size, |range| {
            self.sum_of(stored.kind(), &header, memory, range, cancel_check)
        });
        compared.map(Ok)
    }

    /// Requests the header again, which must be the one that the places of the tensors are from.
    fn header(
        &self,
        file: &HttpFile,
        source: &Source,
        loader: &Loader,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Vec<u8>, LoadError> {
        let mut header = Vec::new();
        // Fits: a header has at most 100 MB.
        let len = u32::try_from(self.early_start).unwrap_or(u32::MAX);
        loader.read_on(source, &mut header, len, cancel_check)?;
        let mut sum = Crc32c::default();
        sum.add(&header);
        match sum == self.header_sum {
            true => Ok(header),
            false => Err(LoadError::Changed {
                url: file.name(),
                problem: "its header is another one".to_owned(),
            }),
        }
    }

    /// Returns the checksum of a range of the file.
    fn sum_of(
        &self,
        kind: SumKind,
        header: &[u8],
        memory: &Dmabuf,
        range: Range<u64>,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<SumValue, LoadError> {
        let mut sum = RunningSum::begin(kind);
        let of_header = inside(&range, &(0..header.len() as u64));
        sum.add(&header[of_header]);
        for (source, place) in &self.places {
            if cancel_check().is_break() {
                return Err(LoadError::Cancelled);
            }
            let part = inside(&range, source);
            let at = place.start + part.start..place.start + part.end;
            let added = sum.add_memory(memory, at);
            added.map_err(|error| LoadError::Digest(error.into()))?;
        }
        Ok(sum.value())
    }
}

/// Returns the offsets in `part` of the bytes that are in `range`, too. Both are in one file, and `part` is in memory.
fn inside(range: &Range<u64>, part: &Range<u64>) -> Range<usize> {
    let (start, end) = (range.start.max(part.start), range.end.min(part.end));
    let offset = |at: u64| usize::try_from(at - part.start).unwrap_or(usize::MAX);
    match start < end {
        true => offset(start)..offset(end),
        false => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_its_bytes_of_each_part() {
        for (range, part, expected) in [
            (0..100, 10..20, 0..10),
            (15..100, 10..20, 5..10),
            (12..15, 10..20, 2..5),
            (20..30, 10..20, 0..0),
            (0..10, 10..20, 0..0),
            (0..100, 10..10, 0..0),
        ] {
            assert_eq!(inside(&range, &part), expected, "{range:?} {part:?}");
        }
    }
}
