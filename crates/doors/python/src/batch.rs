//! What one receive has returned, and the tensors over it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_tcp::RxBatch;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::batch_state::{Layout, Run, Runs, State, was_released};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::raw::HostBytes;
use crate::released::released;
use crate::repr;
use crate::source::Source;
use crate::target::Target;
use crate::tensor::{Shape, Tensor};
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
    fn keep<'a>(&self, state: &'a mut State) -> Result<&'a Runs, Error> {
        if let State::Lent(batch) = state {
            let shared = Runs::of(batch)?;
            if let State::Lent(batch) = std::mem::replace(state, State::Shared(shared)) {
                self.spares.put(batch);
            }
        }
        match state {
            State::Shared(shared) => Ok(shared),
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
            device => {
                let source = Source::device(device.alloc(bytes.max(1))?, Vec::new())?;
                state.copy_to(&source, 0)?;
                source
            }
        };
        View::of_bytes(source, 0, bytes)
    }
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
            let views = self.keep(state)?.runs.iter().map(Run::view);
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
            let shared = self.keep(state)?;
            if let [run] = &shared.runs[..] {
                let view = run.view()?;
                if view.is_aligned(dtype) {
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
        Tensor::numpy(&self.tensor(py, dtype, shape)?)
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

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = self.with(py, |state| {
            let (bytes, frags) = (state.bytes()?, state.frags()?.len());
            let (bytes, frags) = (repr::count(bytes, "byte"), repr::count(frags, "frag"));
            let place = match state {
                State::Lent(_) => "lent",
                State::Shared(_) => "kept by tensors",
                State::Released => "released",
            };
            Ok(format!("{bytes} in {frags}, {place}"))
        });
        format!("<Batch {}>", state.as_deref().unwrap_or("released"))
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

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
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
