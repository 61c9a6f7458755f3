//! Loads what was selected of a checkpoint, each tensor to a place of its own, and tells when one is there.

use std::ops::{ControlFlow, Range};

use client::LoadError;
use devmem_tcp::Dmabuf;

use super::selection::{Selected, Step};
use super::{Checkpoint, CheckpointFile};
use crate::load::arrival_counter::ArrivalCounter;
use crate::load::loaded::Loaded;
use crate::load::loader::Loader;
use crate::load::part::Part;
use crate::load::source::Source;
use crate::parallel::Progress;

/// Where a selected tensor goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The tensor, or the part of it. One load has each once.
    pub selected: &'a Selected,
    /// The memory that its bytes are copied to. It must not be bound for receiving.
    pub memory: &'a Dmabuf,
    /// The place of the first byte. There must be room for [`Selected::memory_bytes`].
    pub offset: usize,
}

impl Checkpoint {
    /// Loads selected tensors to their places. `landed` is called with the number of each destination, once, as soon as all its bytes are in place:
    /// in the order in which they come.
    ///
    /// Runs of a part with at most `merge_gap` bytes between them are requested together. What is between them counts as loaded, and goes to
    /// the last bytes of the [memory](Selected::memory_bytes) of the part.
    ///
    /// # Errors
    /// A place is too small, a tensor is there twice, or a file cannot be loaded.
    ///
    /// # Panics
    /// When one was selected from another checkpoint, which has more tensors.
    pub fn load_selected(
        &self,
        loader: &Loader,
        destinations: &[Destination<'_>],
        merge_gap: u64,
        landed: &mut dyn FnMut(usize),
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let mut plan = Plan::default();
        let starts: Vec<u64> = self.volume.starts().collect();
        for (number, destination) in destinations.iter().enumerate() {
            let (file, tensor) = self.file_of(destination.selected.tensor);
            plan.add(
                number,
                destination,
                merge_gap,
                &self.files[file],
                (starts[file], tensor),
            )?;
        }
        let Plan {
            parts,
            spans,
            early,
        } = plan;
        let mut counter = ArrivalCounter::new(spans, destinations.len());
        counter.complete().for_each(&mut *landed);
        let source = Source::Files(self.volume.clone());
        let mut watch = |range| counter.add(range, landed);
        let mut loaded = loader.load_watched(&source, &parts, Some(&mut watch), &mut |so_far| {
            progress(Progress {
                bytes: early + so_far.bytes,
                total: early + so_far.total,
                ..so_far
            })
        })?;
        loaded.bytes += early;
        Ok(loaded)
    }

    /// Returns the number of the file that has a tensor, and the tensor's bytes there.
    fn file_of(&self, tensor: usize) -> (usize, &Range<u64>) {
        let after = self.files.partition_point(|file| file.first <= tensor);
        // The first file has the first tensor.
        let file = after - 1;
        let its = &self.files[file];
        let (source, _) = &its.places[tensor - its.first];
        (file, source)
    }
}

/// What is requested, and what it belongs to.
#[derive(Default)]
struct Plan {
    parts: Vec<Part>,
    /// The source of each part, and the number of its destination.
    spans: Vec<(Range<u64>, usize)>,
    /// Bytes that came with the headers.
    early: u64,
}

impl Plan {
    fn add(
        &mut self,
        number: usize,
        destination: &Destination<'_>,
        merge_gap: u64,
        file: &CheckpointFile,
        (base, tensor): (u64, &Range<u64>),
    ) -> Result<(), LoadError> {
        let Destination {
            selected,
            memory,
            offset,
        } = *destination;
        let early_end = file.early_start + file.early.len() as u64;
        // Where the next run goes, and what is between two runs. Neither fits if the place is too small: the layout of the load says so.
        let mut at = offset;
        let beyond = offset.saturating_add(usize::try_from(selected.bytes).unwrap_or(usize::MAX));
        for step in selected.steps(merge_gap) {
            let (range, place, is_kept) = match step {
                Step::Keep(range) => (range, at, true),
                Step::Skip(range) => (range, beyond, false),
            };
            let source = tensor.start + range.start..tensor.start + range.end;
            let came = match is_kept {
                true => file.put_early(&source, place, memory)?,
                false => early_end.clamp(source.start, source.end) - source.start,
            };
            self.early += came;
            let inside = usize::try_from(came).unwrap_or(usize::MAX);
            let requested = base + source.start + came..base + source.end;
            if is_kept {
                let len = usize::try_from(source.end - source.start).unwrap_or(usize::MAX);
                at = at.saturating_add(len);
            }
            if requested.is_empty() {
                continue;
            }
            self.spans.push((requested.clone(), number));
            self.parts.push(Part {
                source: requested,
                memory: memory.clone(),
                offset: place.saturating_add(inside),
            });
        }
        Ok(())
    }
}
