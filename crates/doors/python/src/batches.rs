//! Loops that receive.

use std::sync::{Mutex, PoisonError};

use devmem_tcp::RecvError;
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::error::Error;
use crate::stream::Stream;

/// Receives up to the end of the stream in batches of at most `max_bytes`, and releases each: the loop of a program in Rust,
/// which the benchmark compares with that of a program in Python. Returns the number of bytes.
#[pyfunction]
pub(crate) fn _receive_all(
    py: Python<'_>,
    stream: &Bound<'_, Stream>,
    max_bytes: usize,
) -> PyResult<usize> {
    let stream = stream.get();
    let mut batch = stream.spares().take();
    let received = stream.recv.with(py, |half| {
        half.set_timeout(None);
        let mut total = 0;
        loop {
            match half.recv_at_most(&mut batch, max_bytes)? {
                0 => return Ok::<_, RecvError>(total),
                bytes => total += bytes,
            }
            batch.release()?;
        }
    })?;
    stream.spares().put(batch);
    Ok(received.map_err(Error::from)?)
}

/// Iterator over the batches of a stream.
#[pyclass(frozen, module = "devmem_tcp._native", name = "_Batches")]
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) stream: Py<Stream>,
    /// Released before the next receive: its memory may be all that there is.
    pub(crate) last: Mutex<Option<Py<Batch>>>,
}

#[pymethods]
impl Batches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<Batch>>> {
        let take = || {
            self.last
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
        };
        if let Some(last) = take() {
            last.get().end(py)?;
        }
        let stream = self.stream.get();
        let batch = Py::new(
            py,
            stream.receive_batch(py, usize::MAX, &mut stream.timed_wait())?,
        )?;
        if !batch.get().has_bytes(py)? {
            return Ok(None);
        }
        let last = batch.clone_ref(py);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        Ok(Some(batch))
    }
}
