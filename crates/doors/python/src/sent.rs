//! Sends in progress, and what tells when one can be repeated.

use std::os::fd::AsRawFd;

use devmem_tcp::{Completions, SendId, SendSignal};
use pyo3::prelude::*;

use crate::error::Error;
use crate::released::released;
use crate::repr;
use crate::wait::{Handle, Limit, Time, TimedWait, Timeout};

/// A send from bound memory: its bytes must not change until it is complete.
#[pyclass(frozen, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) id: Option<SendId>,
    pub(crate) bytes: usize,
    pub(crate) completions: Handle<Completions>,
    pub(crate) time: Time,
}

#[pymethods]
impl Sent {
    /// The number of bytes that were queued: all of them, or fewer if the stream has a timeout.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// Waits until the peer has acknowledged the bytes and the NIC has finished with them: they may change now. Sends
    /// complete in order.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let Some(id) = self.id else {
            return Ok(());
        };
        let mut timed = TimedWait::new(Timeout::new(timeout)?, self.time);
        Ok(timed.wait(py, &self.completions, |completions, limit| {
            limit_completions(completions, limit);
            Ok(completions.wait(id)?)
        })?)
    }

    /// Returns whether the send is complete. Never waits.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(id) = self.id else {
            return Ok(true);
        };
        let done = self
            .completions
            .with(py, |completions| completions.is_complete(id))?;
        Ok(done.map_err(Error::from)?)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = match self.done(py) {
            Ok(true) => "complete",
            Ok(false) => "in flight",
            Err(_) => "failed",
        };
        format!("<Sent {}, {state}>", repr::count(self.bytes, "byte"))
    }
}

/// A file descriptor with an edge when a call that would have blocked can be repeated.
#[pyclass(frozen, module = "devmem_tcp._native", name = "_Signal")]
#[derive(Debug)]
pub(crate) struct Signal(pub(crate) SendSignal);

#[pymethods]
impl Signal {
    /// Arms it for one edge: before each attempt.
    fn arm(&self, py: Python<'_>) {
        released(py, || self.0.arm());
    }

    fn fileno(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

pub(crate) fn limit_completions(completions: &mut Completions, limit: Limit) {
    let time = match limit {
        Limit::Never => std::time::Duration::ZERO,
        Limit::For(time) => time,
    };
    completions.set_timeout(Some(time));
}
