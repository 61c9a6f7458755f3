//! What one receive has returned, and the tensors over it.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_tcp::{DmabufId, Frag as RxFrag, RxBatch, cuda};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::dtype::Dtype;
use crate::error::Error;
use crate::raw::{Foreign, HostBytes, Use};
use crate::released::released;
use crate::source::{Device, Source};
use crate::tensor::{Shape, Tensor, view_of};
use crate::view::View;

/// Frags of one receive, as the Rust examples have them.
const MAX_FRAGS: usize = 1024;

/// Empty batches of a stream, for its next receives: each has buffers.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<RxBatch>>);

/// A stream with its last batch kept by the program needs two.
const MAX_SPARES: usize = 2;

impl Spares {
    pub(crate) fn take(&self) -> RxBatch {
        let spare = self.lock().pop();
        spare.unwrap_or_else(|| RxBatch::with_capacity(MAX_FRAGS))
    }

    pub(crate) fn put(&self, batch: RxBatch) {
        let mut spares = self.lock();
        if spares.len() < MAX_SPARES {
            spares.push(batch);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RxBatch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of one receive, in stream order: frags of device memory, which are lent until the batch is released or collected,
/// and bytes in host memory. It is true unless the stream has ended.
///
/// Tensors of a batch outlive it: they keep their frags, and while they do, that memory receives nothing else.
#[pyclass(frozen, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Batch {
    state: Mutex<State>,
    spares: Arc<Spares>,
}

#[derive(Debug)]
enum State {
    /// As received.
    Lent(RxBatch),
    /// The frags were moved to the sources of tensors.
    Kept(Kept),
    Released,
}

/// A batch in parts that are contiguous in their memory.
#[derive(Debug, Default)]
struct Kept {
    frags: Vec<Layout>,
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    source: Source,
    range: Range<usize>,
}

/// One frag: its bytes in the batch, and its place in device memory.
#[derive(Clone, Debug)]
struct Layout {
    at: usize,
    bytes: usize,
    /// `None`: in host memory.
    place: Option<(DmabufId, usize)>,
}

/// A run that is being collected.
enum Growing {
    Device(DmabufId, Range<usize>, Vec<devmem_tcp::RxFrag>),
    Host(Vec<u8>),
}

impl Batch {
    pub(crate) fn new(batch: RxBatch, spares: &Arc<Spares>) -> Self {
        Self {
            state: Mutex::new(State::Lent(batch)),
            spares: Arc::clone(spares),
        }
    }

    /// The lock is held for as long as a call copies; other threads wait for it without Python's lock.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut State) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        released(py, || {
            call(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Returns whether there are bytes: there are none at the end of the stream.
    pub(crate) fn has_bytes(&self, py: Python<'_>) -> Result<bool, Error> {
        Ok(self.with(py, |state| state.bytes())? > 0)
    }

    /// Returns the frags, and ends the batch.
    pub(crate) fn end(&self, py: Python<'_>) -> Result<(), Error> {
        self.with(py, |state| self.release_now(state))
    }

    fn release_now(&self, state: &mut State) -> Result<(), Error> {
        if let State::Lent(mut batch) = std::mem::replace(state, State::Released) {
            let released = batch.release();
            self.spares.put(batch);
            released?;
        }
        Ok(())
    }

    /// Moves the frags to sources of tensors.
    fn keep<'a>(&self, state: &'a mut State) -> Result<&'a Kept, Error> {
        if let State::Lent(batch) = state {
            let kept = Kept::of(batch)?;
            if let State::Lent(batch) = std::mem::replace(state, State::Kept(kept)) {
                self.spares.put(batch);
            }
        }
        match state {
            State::Kept(kept) => Ok(kept),
            State::Lent(_) | State::Released => Err(was_released()),
        }
    }

    /// Copies the bytes to new memory of their device.
    fn gathered(&self, state: &mut State) -> Result<View, Error> {
        let bytes = state.bytes()?;
        let device = state.device()?;
        let source = match device {
            Device::Cpu => {
                let copy = |out: &mut [u8]| state.copy_out(out).map(drop);
                Source::host(HostBytes::filled(bytes, copy)?)
            }
            Device::Cuda(ordinal) => {
                let ordinal = u32::try_from(ordinal).unwrap_or_default();
                let memory = cuda::alloc(ordinal, bytes.max(1))?;
                let source = Source::device(memory, Vec::new())?;
                state.copy_to(&source, 0)?;
                source
            }
        };
        View::of_bytes(source, 0, bytes)
    }
}

fn was_released() -> Error {
    Error::value("the batch was released\n  use it before that, or keep its tensors")
}

impl State {
    fn frags(&self) -> Result<Vec<Layout>, Error> {
        match self {
            Self::Lent(batch) => Ok(layout_of(batch)),
            Self::Kept(kept) => Ok(kept.frags.clone()),
            Self::Released => Err(was_released()),
        }
    }

    fn bytes(&self) -> Result<usize, Error> {
        match self {
            Self::Lent(batch) => Ok(batch.device_bytes() + batch.linear_bytes()),
            Self::Kept(kept) => Ok(kept.runs.iter().map(|run| run.range.len()).sum()),
            Self::Released => Err(was_released()),
        }
    }

    /// Returns the device of the first frag in device memory.
    fn device(&self) -> Result<Device, Error> {
        match self {
            Self::Lent(batch) => {
                let mut ids = batch.iter().filter_map(|frag| match frag {
                    RxFrag::Device { dmabuf, .. } => Some(dmabuf),
                    RxFrag::Linear(_) => None,
                });
                match ids.next() {
                    None => Ok(Device::Cpu),
                    Some(id) => {
                        let memory = batch.memory_of(id)?;
                        // Memory of the CPU, or of the exporter that `Source` knows.
                        Ok(Source::device(memory, Vec::new())?.place().device)
                    }
                }
            }
            Self::Kept(kept) => {
                let mut devices = kept.runs.iter().map(|run| run.source.place().device);
                let other = devices.find(|device| *device != Device::Cpu);
                Ok(other.unwrap_or(Device::Cpu))
            }
            Self::Released => Err(was_released()),
        }
    }

    /// Copies the first bytes to `out`; returns their number.
    fn copy_out(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Lent(batch) => Ok(batch.copy_to(out)?),
            Self::Kept(kept) => {
                let mut done = 0;
                for run in &kept.runs {
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
    fn copy_to(&self, target: &Source, at: usize) -> Result<(), Error> {
        match (self, target.memory()) {
            (Self::Lent(batch), Some(memory)) => {
                batch.gather_into(memory, at)?;
            }
            (Self::Lent(batch), None) => {
                let mut bytes = vec![0; batch.device_bytes() + batch.linear_bytes()];
                batch.copy_to(&mut bytes)?;
                target.copy_in(at, &bytes)?;
            }
            (Self::Kept(kept), _) => {
                let mut at = at;
                for run in &kept.runs {
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

impl Kept {
    fn of(batch: &mut RxBatch) -> Result<Self, Error> {
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
    fn part(&self, at: usize, bytes: usize) -> Result<View, Error> {
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

#[pymethods]
impl Batch {
    /// The number of bytes; 0 at the end of the stream.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.with(py, |state| state.bytes())?)
    }

    /// The number of bytes in device memory.
    #[getter]
    fn device_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        let frags = self.with(py, |state| state.frags())?;
        let device = frags.iter().filter(|frag| frag.place.is_some());
        Ok(device.map(|frag| frag.bytes).sum())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.with(py, |state| Ok(state.frags()?.len()))?)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.with(py, |state| state.bytes())? > 0)
    }

    /// Iterates over the frags.
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let frags = slf.get().with(py, |state| state.frags())?;
        let frags = frags.into_iter().map(|layout| {
            let batch = slf.clone().unbind();
            Frag { batch, layout }
        });
        let frags = frags.collect::<Vec<_>>();
        Ok(PyList::new(
            py,
            frags
                .into_iter()
                .map(|frag| Py::new(py, frag))
                .collect::<PyResult<Vec<_>>>()?,
        )?
        .try_iter()?
        .into_any())
    }

    /// Returns the bytes as tensors of uint8, without a copy: one for each contiguous part.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, Tensor>>> {
        let views = self.with(py, |state| {
            let runs = self.keep(state)?.runs.iter();
            let views = runs
                .map(|run| View::of_bytes(run.source.clone(), run.range.start, run.range.len()));
            views.collect::<Result<Vec<_>, _>>()
        })?;
        views
            .into_iter()
            .map(|view| Tensor::make(py, view))
            .collect()
    }

    /// Returns all bytes as one tensor: without a copy if they are contiguous and aligned, else gathered.
    #[pyo3(signature = (dtype=None, shape=None))]
    fn tensor<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        shape: Option<Shape>,
    ) -> PyResult<Bound<'py, Tensor>> {
        let dtype = dtype.map_or(Ok(Dtype::BYTE), Dtype::of)?;
        let shape = shape.map(Shape::into_vec);
        let view = self.with(py, |state| {
            let kept = self.keep(state)?;
            if let [run] = &kept.runs[..] {
                let view = View::of_bytes(run.source.clone(), run.range.start, run.range.len())?;
                if view.address().is_multiple_of(dtype.bytes()) {
                    return view.shaped(dtype, shape.as_deref());
                }
            }
            self.gathered(state)?.shaped(dtype, shape.as_deref())
        })?;
        Tensor::make(py, view)
    }

    /// Returns all bytes as one array of numpy, as `tensor` does.
    #[pyo3(signature = (dtype=None, shape=None))]
    fn array<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        shape: Option<Shape>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.tensor(py, dtype, shape)?;
        py.import("numpy")?.call_method1("from_dlpack", (tensor,))
    }

    /// Copies all bytes, in stream order and without gaps, to the beginning of `out`: a tensor, a Dmabuf, or a writable array
    /// or buffer. Returns their number. Without `out`, returns a new tensor on the same device.
    #[pyo3(signature = (out=None))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(out) = out else {
            let view = self.with(py, |state| self.gathered(state))?;
            return Ok(Tensor::make(py, view)?.into_any());
        };
        let mut target = Target::of(out)?;
        let bytes = self.with(py, |state| {
            let bytes = state.bytes()?;
            target.check(0, bytes)?;
            match &mut target {
                Target::Own(view) => state.copy_to(view.source(), view.offset())?,
                Target::Foreign(foreign) => drop(state.copy_out(foreign.bytes_mut())?),
            }
            Ok(bytes)
        })?;
        Ok(bytes.into_pyobject(py)?.into_any())
    }

    /// Returns a copy of all bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let copy = self.with(py, |state| {
            let mut copy = vec![0; state.bytes()?];
            state.copy_out(&mut copy)?;
            Ok(copy)
        })?;
        Ok(PyBytes::new(py, &copy))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.tobytes(py)
    }

    /// Returns the frags that no tensor keeps. The batch cannot be used any more. A second call does nothing.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.end(py)?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release(py)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let state = std::mem::replace(state, State::Released);
        if let State::Lent(mut batch) = state {
            // As in the library, a drop cannot report an error.
            let _ = batch.release();
            self.spares.put(batch);
        }
    }
}

/// Where bytes are copied to.
#[derive(Debug)]
pub(crate) enum Target {
    Own(View),
    Foreign(Foreign),
}

impl Target {
    pub(crate) fn of(out: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(match out.cast::<Tensor>() {
            Ok(tensor) => Self::Own(view_of(tensor).clone()),
            Err(_) => Self::Foreign(Foreign::of(out, Use::Write)?),
        })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(view) => view.bytes(),
            Self::Foreign(foreign) => foreign.len(),
        }
    }

    fn check(&self, at: usize, bytes: usize) -> Result<(), Error> {
        let room = self.len().saturating_sub(at);
        if bytes <= room {
            return Ok(());
        }
        Err(Error::value(format!(
            "{bytes} bytes do not fit into the {room} bytes of the target"
        )))
    }

    /// Copies a batch of the library to the bytes from `at` on.
    pub(crate) fn put(&mut self, at: usize, batch: &RxBatch) -> Result<(), Error> {
        self.check(at, batch.device_bytes() + batch.linear_bytes())?;
        match self {
            Self::Foreign(foreign) => {
                let out = foreign.bytes_mut().get_mut(at..).unwrap_or_default();
                batch.copy_to(out)?;
            }
            Self::Own(view) => match view.source().memory() {
                Some(memory) => {
                    batch.gather_into(memory, view.offset() + at)?;
                }
                None => {
                    let mut bytes = vec![0; batch.device_bytes() + batch.linear_bytes()];
                    batch.copy_to(&mut bytes)?;
                    view.source().copy_in(view.offset() + at, &bytes)?;
                }
            },
        }
        Ok(())
    }
}

/// One piece of a batch.
#[pyclass(frozen, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Frag {
    batch: Py<Batch>,
    layout: Layout,
}

#[pymethods]
impl Frag {
    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.bytes
    }

    /// The place of the first byte in the bound memory; None for bytes in host memory.
    #[getter]
    fn offset(&self) -> Option<usize> {
        self.layout.place.map(|(_, offset)| offset)
    }

    /// The id of the binding; None for bytes in host memory.
    #[getter]
    fn dmabuf_id(&self) -> Option<u32> {
        self.layout.place.map(|(id, _)| id.0)
    }

    /// Whether the bytes are in device memory.
    #[getter]
    fn is_device(&self) -> bool {
        self.layout.place.is_some()
    }

    /// Returns the bytes as a tensor of uint8, without a copy. The batch must not be released yet.
    fn tensor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Tensor>> {
        let batch = self.batch.get();
        let Layout { at, bytes, .. } = self.layout;
        let view = batch.with(py, |state| batch.keep(state)?.part(at, bytes))?;
        Tensor::make(py, view)
    }

    fn __len__(&self) -> usize {
        self.layout.bytes
    }

    fn __repr__(&self) -> String {
        match self.layout.place {
            Some((_, offset)) => format!("<Frag {} bytes at {offset}>", self.layout.bytes),
            None => format!("<Frag {} bytes in host memory>", self.layout.bytes),
        }
    }
}

/// Refuses a maximum of 0 bytes.
pub(crate) fn check_max(max_bytes: Option<usize>) -> PyResult<usize> {
    match max_bytes {
        Some(0) => Err(PyValueError::new_err(
            "max_bytes is 0; give 1 or more, or None",
        )),
        Some(bytes) => Ok(bytes),
        None => Ok(usize::MAX),
    }
}
