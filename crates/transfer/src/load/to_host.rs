//! Loads of bytes that the CPU needs: into a file, or through memory.

use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;

use client::LoadError;
use devmem_tcp::{Dmabuf, memory::CopyError};

use super::landing::Landed;
use super::loaded::Loaded;
use super::loader::Loader;
use super::part::Part;
use super::partial::PartialFile;
use super::source::Source;
use crate::parallel::Progress;
use crate::parallel::ranges::widened;

impl Loader {
    /// Loads a range of `source` into a file, whose first byte is the first one of the range. Holes of the source are not
    /// written: the file must have zeros there, as a new one.
    ///
    /// # Errors
    /// As [`load`](Self::load); the file cannot be written.
    pub fn load_to_file(
        &self,
        source: impl Into<Source>,
        range: Range<u64>,
        file: &File,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let mut bytes = Vec::new();
        let start = range.start;
        let mut write = |landed: Landed<'_>| match landed {
            Landed::Zeros { .. } => Ok(()),
            Landed::Frags { at, batch } => {
                bytes.resize(batch.device_bytes() + batch.linear_bytes(), 0);
                batch.copy_to(&mut bytes).map_err(io::Error::other)?;
                file.write_all_at(&bytes, at - start)
            }
            Landed::Bytes { at, bytes } => file.write_all_at(bytes, at - start),
        };
        self.deliver(source, &[range], &mut write, progress)
    }

    /// Loads what is missing of a partial file. `progress` also counts the bytes that had come before.
    ///
    /// # Errors
    /// As [`load`](Self::load); the file cannot be written. What has come stays, and can be gone on with.
    pub fn load_partial(
        &self,
        source: impl Into<Source>,
        partial: &mut PartialFile,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let source = source.into();
        let whole = partial.range();
        let block = source.piece_lengths().block;
        let missing = widened(&partial.missing(), block, &whole);
        let wanted: u64 = missing.iter().map(|range| range.end - range.start).sum();
        let before = (whole.end - whole.start).saturating_sub(wanted);
        let (mut bytes, start) = (Vec::new(), whole.start);
        let mut write = |landed: Landed<'_>| match landed {
            Landed::Zeros { at, len } => partial.wrote(at..at.saturating_add(len)),
            Landed::Frags { at, batch } => {
                bytes.resize(batch.device_bytes() + batch.linear_bytes(), 0);
                batch.copy_to(&mut bytes).map_err(io::Error::other)?;
                partial.file().write_all_at(&bytes, at - start)?;
                partial.wrote(at..at + bytes.len() as u64)
            }
            Landed::Bytes { at, bytes } => {
                partial.file().write_all_at(bytes, at - start)?;
                partial.wrote(at..at + bytes.len() as u64)
            }
        };
        self.deliver(source, &missing, &mut write, &mut |so_far| {
            progress(Progress {
                bytes: before + so_far.bytes,
                total: before + so_far.total,
                ..so_far
            })
        })
    }

    /// Loads a range of `source` through `memory`, as many bytes at a time as it has room for, in order. `look` gets the range of `memory`
    /// that has them.
    ///
    /// # Errors
    /// As [`load`](Self::load); those of `look`.
    pub fn read_through(
        &self,
        source: impl Into<Source>,
        range: Range<u64>,
        memory: &Dmabuf,
        look: &mut dyn FnMut(Range<usize>) -> Result<(), CopyError>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), LoadError> {
        let source = source.into();
        let total = range.end.saturating_sub(range.start);
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(memory.size() as u64));
            let part = Part {
                source: start..end,
                memory: memory.clone(),
                offset: 0,
            };
            let before = start - range.start;
            self.load(source.clone(), &[part], &mut |so_far| {
                let bytes = before + so_far.bytes;
                progress(Progress {
                    bytes,
                    total,
                    ..so_far
                })
            })?;
            // Fits: it is at most the size of the memory.
            let len = usize::try_from(end - start).unwrap_or(memory.size());
            look(0..len).map_err(|error| LoadError::Gather(error.into()))?;
            start = end;
        }
        Ok(())
    }
}
