//! What a batch holds: frags as they were received, or the memory below its tensors.

use std::ops::Range;

use devmem_tcp::{DmabufId, Frag as RxFrag, RxBatch};

use crate::device::{Device, Place};
use crate::error::Error;
use crate::raw::HostBytes;
use crate::source::Source;
use crate::view::View;

/// The frags of a batch.
#[derive(Debug)]
pub(crate) enum State {
    /// As received.
    Lent(RxBatch),
    /// The frags were moved to the sources of tensors.
    Shared(Runs),
    Released,
}

/// A batch in parts that are contiguous in their memory.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    frags: Vec<Layout>,
    pub(crate) runs: Vec<Run>,
}

/// A part of a batch that is contiguous in its memory.
#[derive(Debug)]
pub(crate) struct Run {
    source: Source,
    range: Range<usize>,
}

/// One frag: its bytes in the batch, and its place in device memory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    /// `None`: in host memory.
    pub(crate) place: Option<(DmabufId, usize)>,
}

/// A run that is being collected.
enum Growing {
    Device(DmabufId, Range<usize>, Vec<devmem_tcp::RxFrag>),
    Host(Vec<u8>),
}

pub(crate) fn was_released() -> Error {
    Error::value("the batch was released\n  use it before that, or keep its tensors")
}

impl State {
    pub(crate) fn frags(&self) -> Result<Vec<Layout>, Error> {
        match self {
            Self::Lent(batch) => Ok(layout_of(batch)),
            Self::Shared(shared) => Ok(shared.frags.clone()),
            Self::Released => Err(was_released()),
        }
    }

    pub(crate) fn bytes(&self) -> Result<usize, Error> {
        match self {
            Self::Lent(batch) => Ok(batch.device_bytes() + batch.linear_bytes()),
            Self::Shared(shared) => Ok(shared.runs.iter().map(|run| run.range.len()).sum()),
            Self::Released => Err(was_released()),
        }
    }

    /// Returns the device of the first frag in device memory.
    pub(crate) fn device(&self) -> Result<Device, Error> {
        match self {
            Self::Lent(batch) => {
                let mut ids = batch.iter().filter_map(|frag| match frag {
                    RxFrag::Device { dmabuf, .. } => Some(dmabuf),
                    RxFrag::Linear(_) => None,
                });
                match ids.next() {
                    None => Ok(Device::Cpu),
                    Some(id) => Ok(Place::of(&batch.memory_of(id)?)?.device),
                }
            }
            Self::Shared(shared) => {
                let mut devices = shared.runs.iter().map(|run| run.source.place().device);
                let other = devices.find(|device| *device != Device::Cpu);
                Ok(other.unwrap_or(Device::Cpu))
            }
            Self::Released => Err(was_released()),
        }
    }

    /// Copies the first bytes to `out`; returns their number.
    pub(crate) fn copy_out(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Lent(batch) => Ok(batch.copy_to(out)?),
            Self::Shared(shared) => {
                let mut done = 0;
                for run in &shared.runs {
                    let room = out.get_mut(done..).unwrap_or_default();
                    let len = run.range.len().min(room.len());
                    run.source.copy_out(run.range.start, &mut room[..len])?;
                    done += len;
                }
                Ok(done)
            }
            Self::Released => Err(was_released()),
        }
    }

    /// Copies all bytes to `at` of `target`.
    pub(crate) fn copy_to(&self, target: &Source, at: usize) -> Result<(), Error> {
        match (self, target.memory()) {
            (Self::Lent(batch), Some(memory)) => {
                batch.gather_into(memory, at)?;
            }
            (Self::Lent(batch), None) => {
                let mut bytes = vec![0; batch.device_bytes() + batch.linear_bytes()];
                batch.copy_to(&mut bytes)?;
                target.copy_in(at, &bytes)?;
            }
            (Self::Shared(shared), _) => {
                let mut at = at;
                for run in &shared.runs {
                    run.source
                        .copy_to(run.range.start, target, at, run.range.len())?;
                    at += run.range.len();
                }
            }
            (Self::Released, _) => return Err(was_released()),
        }
        Ok(())
    }
}

impl Runs {
    pub(crate) fn of(batch: &mut RxBatch) -> Result<Self, Error> {
        let frags = layout_of(batch);
        let mut memories = Vec::new();
        for (id, _) in frags.iter().filter_map(|frag| frag.place) {
            if memories.iter().all(|(known, _)| *known != id) {
                memories.push((id, batch.memory_of(id)?));
            }
        }
        let mut growing: Vec<Growing> = Vec::new();
        for frag in batch.take() {
            match (frag.as_frag(), growing.last_mut()) {
                (RxFrag::Linear(bytes), Some(Growing::Host(last))) => last.extend_from_slice(bytes),
                (RxFrag::Linear(bytes), _) => growing.push(Growing::Host(bytes.to_vec())),
                (RxFrag::Device { range, dmabuf }, Some(Growing::Device(id, last, frags)))
                    if *id == dmabuf && last.end == range.start =>
                {
                    last.end = range.end;
                    frags.push(frag);
                }
                (RxFrag::Device { range, dmabuf }, _) => {
                    growing.push(Growing::Device(dmabuf, range, vec![frag]));
                }
            }
        }
        let runs = growing.into_iter().map(|run| run.finish(&memories));
        let runs = runs.collect::<Result<_, _>>()?;
        Ok(Self { frags, runs })
    }

    /// Returns `bytes` at `at` of the batch, which are of one frag.
    pub(crate) fn part(&self, at: usize, bytes: usize) -> Result<View, Error> {
        let mut before = 0;
        for run in &self.runs {
            let inside = at - before;
            if inside < run.range.len() {
                let start = run.range.start + inside;
                return View::of_bytes(run.source.clone(), start, bytes);
            }
            before += run.range.len();
        }
        Err(was_released())
    }
}

impl Run {
    /// Returns the bytes, as bytes.
    pub(crate) fn view(&self) -> Result<View, Error> {
        View::of_bytes(self.source.clone(), self.range.start, self.range.len())
    }
}

impl Growing {
    fn finish(self, memories: &[(DmabufId, devmem_tcp::Dmabuf)]) -> Result<Run, Error> {
        match self {
            Self::Host(bytes) => {
                let copy = |out: &mut [u8]| {
                    out.copy_from_slice(&bytes);
                    Ok(())
                };
                Ok(Run {
                    range: 0..bytes.len(),
                    source: Source::host(HostBytes::filled(bytes.len(), copy)?),
                })
            }
            Self::Device(id, range, frags) => {
                let memory = memories.iter().find(|(known, _)| *known == id);
                let (_, memory) = memory.ok_or_else(was_released)?;
                let source = Source::device(memory.clone(), frags)?;
                Ok(Run { source, range })
            }
        }
    }
}

fn layout_of(batch: &RxBatch) -> Vec<Layout> {
    let mut at = 0;
    let layout = batch.iter().map(|frag| {
        let (bytes, place) = match frag {
            RxFrag::Device { range, dmabuf } => (range.len(), Some((dmabuf, range.start))),
            RxFrag::Linear(bytes) => (bytes.len(), None),
        };
        at += bytes;
        Layout {
            at: at - bytes,
            bytes,
            place,
        }
    });
    layout.collect()
}
