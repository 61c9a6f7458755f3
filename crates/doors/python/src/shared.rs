//! Memory that several processes of one machine share: one of them loads tensors, and the others map the file that they are in.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use devmem_tcp::Dmabuf as Memory;
use devmem_tcp::memory::{CpuAccess, Exporter};
use devmem_transfer::load::{Selected, Tensor as Placed};
use pyo3::prelude::*;
use rustix::net::SendFlags;

use crate::device::Device;
use crate::error::Error;
use crate::raw::duplicate;
use crate::released::released;
use crate::source::Source;
use crate::tensor::{Tensor, view_of};
use crate::view::View;

/// Device memory is allocated in pages.
const PAGE_BYTES: usize = 4096;

/// A file of another process, and the socket on which that is told when it is free here.
struct SharedFile {
    file: OwnedFd,
    bytes: usize,
    number: u64,
    /// `None`: it is not told.
    tell: Option<OwnedFd>,
}

impl Exporter for SharedFile {
    fn size(&self) -> usize {
        self.bytes
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn begin_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    fn end_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Some(tell) = &self.tell {
            // The other process may be gone.
            let _ = rustix::net::send(tell, &self.number.to_le_bytes(), SendFlags::NOSIGNAL);
        }
    }
}

/// Maps a memory of another process, and returns it as a read-only tensor of bytes. When it is not used any more, `number` is sent on the socket `tell`.
#[pyfunction]
#[pyo3(signature = (file, nbytes, number, tell=None))]
pub(crate) fn _shared_file<'py>(
    file: &Bound<'py, PyAny>,
    nbytes: usize,
    number: u64,
    tell: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Tensor>> {
    let py = file.py();
    let file = SharedFile {
        file: duplicate(file)?,
        bytes: nbytes,
        number,
        tell: tell.map(duplicate).transpose()?,
    };
    let memory = released(py, || Memory::exported(Arc::new(file)).map_err(Error::from))?;
    let source = Source::adopted(memory, true)?;
    Tensor::make(py, View::of_bytes(source, 0, nbytes)?)
}

/// Returns the file descriptor of the memory of a tensor, which belongs to that, and the length of the memory.
#[pyfunction]
pub(crate) fn _shared_tensor(tensor: &Bound<'_, Tensor>) -> PyResult<(i32, usize)> {
    let source = view_of(tensor).source();
    let memory = source.memory().and_then(|memory| memory.as_fd());
    let fd = memory.ok_or_else(|| Error::value("the memory of the tensor has no file"))?;
    Ok((fd.as_raw_fd(), source.bytes()))
}

/// Returns a part of a tensor that has `shape` in its file, on `device`: where it lies, if that is the CPU and its bytes are contiguous, else as a copy.
#[pyfunction]
pub(crate) fn _shared_part<'py>(
    tensor: &Bound<'py, Tensor>,
    shape: Vec<u64>,
    bounds: Vec<(u64, u64)>,
    device: &str,
) -> PyResult<Bound<'py, Tensor>> {
    let (py, view, device) = (tensor.py(), view_of(tensor), Device::named(device)?);
    let whole = Placed {
        name: String::new(),
        dtype: String::new(),
        shape,
        place: 0..view.bytes(),
    };
    let bounds: Vec<_> = bounds.iter().map(|(start, end)| *start..*end).collect();
    let part = Selected::of(&whole, 0, &bounds).map_err(Error::from)?;
    let runs = part
        .runs()
        .map(|run| Ok(usize::try_from(run.start)?..usize::try_from(run.end)?));
    let runs: Vec<Range<usize>> = runs.collect::<PyResult<_>>()?;
    let bytes = usize::try_from(part.bytes)?;
    let bytes = match runs.as_slice() {
        [run] if device == Device::Cpu => view.part(run.start, run.len())?,
        runs => {
            let copied = released(py, || copy_runs(view, runs, bytes, device))?;
            View::of_bytes(copied, 0, bytes)?
        }
    };
    // A type without a name here is shown as bytes.
    let shape = part.shape.iter().map(|extent| i64::try_from(*extent));
    let shape: Vec<i64> = shape.collect::<Result<_, _>>()?;
    let elements = shape.iter().product::<i64>();
    let shaped = match usize::try_from(elements)?.checked_mul(view.dtype().bytes()) {
        Some(len) if len == bytes.bytes() => bytes.shaped(view.dtype(), Some(&shape))?,
        _ => bytes,
    };
    Tensor::make(py, shaped)
}

/// Copies runs of the bytes of a view to new memory.
fn copy_runs(
    view: &View,
    runs: &[Range<usize>],
    bytes: usize,
    device: Device,
) -> Result<Source, Error> {
    let pages = bytes.max(1).next_multiple_of(PAGE_BYTES);
    let to = Source::device(device.alloc(pages)?, Vec::new())?;
    let mut at = 0;
    for run in runs {
        view.source()
            .copy_to(view.offset() + run.start, &to, at, run.len())?;
        at += run.len();
    }
    Ok(to)
}
