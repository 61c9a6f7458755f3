//! Listening sockets.

use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::closing::{Closing, Open};
use crate::error::Error;
use crate::repr;
use crate::stream::Stream;
use crate::wait::{Handle, Limit, Time, TimedWait, Timeout};

/// A stream, with host and port of its peer.
type Accepted = (Open<Stream>, (String, u16));

/// A listening socket. Iterating accepts.
#[pyclass(frozen, extends = Closing, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Listener {
    listener: Handle<devmem_tcp::Listener>,
    timeout: Mutex<Timeout>,
    time: Time,
}

impl Listener {
    pub(crate) fn new(listener: devmem_tcp::Listener, time: Time) -> Self {
        Self {
            listener: Handle::new(listener, "listener"),
            timeout: Mutex::new(Timeout::FOREVER),
            time,
        }
    }

    fn accept_within(&self, py: Python<'_>, timeout: Timeout) -> Result<Accepted, Error> {
        let mut timed = TimedWait::new(timeout, self.time);
        let (stream, peer) = timed.wait(py, &self.listener, |listener, limit| {
            match limit {
                Limit::Never => listener.set_nonblocking(true),
                Limit::For(time) => listener.set_timeout(Some(time)),
            }
            Ok(listener.accept()?)
        })?;
        let peer = (peer.ip().to_string(), peer.port());
        Ok((Open(Stream::new(stream, self.time)), peer))
    }

    fn timeout(&self) -> Timeout {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Listener {
    /// Waits for the next connection; returns its stream, and host and port of its peer.
    fn accept(&self, py: Python<'_>) -> PyResult<Accepted> {
        Ok(self.accept_within(py, self.timeout())?)
    }

    /// Accepts without waiting; None if no connection is pending.
    fn try_accept(&self, py: Python<'_>) -> PyResult<Option<Accepted>> {
        match self.accept_within(py, Timeout::new(Some(0.0))?) {
            Ok(accepted) => Ok(Some(accepted)),
            Err(error) if error.would_block_now() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets how long `accept` waits, in seconds: None waits for ever, 0 never.
    fn settimeout(&self, seconds: Option<f64>) -> PyResult<()> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = Timeout::new(seconds)?;
        Ok(())
    }

    /// Returns how long `accept` waits, in seconds.
    fn gettimeout(&self) -> Option<f64> {
        self.timeout().seconds()
    }

    /// The address that it listens on: host and port.
    fn getsockname(&self, py: Python<'_>) -> PyResult<(String, u16)> {
        let address = self.listener.with(py, |listener| listener.local_addr())?;
        let address = address.map_err(Error::from)?;
        Ok((address.ip().to_string(), address.port()))
    }

    /// A file descriptor that is readable while a connection is pending.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let fd = self.listener.with(py, |listener| {
            listener.readiness_fd().map(|fd| fd.as_raw_fd())
        })?;
        Ok(fd.map_err(Error::from)?)
    }

    /// Whether the listener is in the virtual time of a `Netdev.pair`, where a task cannot wait for it.
    #[getter]
    fn is_virtual(&self) -> bool {
        self.time == Time::Virtual
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.listener.is_closed()
    }

    /// Closes it: further connections are refused, accepted ones stay open.
    fn close(&self, py: Python<'_>) {
        self.listener.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let address = self.listener.with(py, |listener| listener.local_addr());
        let state = address.and_then(|address| Ok(format!("on {}", address?)));
        repr::of_handle("Listener", state)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Accepted> {
        self.accept(py)
    }

    fn __aiter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let aio = slf.py().import("devmem_tcp.aio")?;
        aio.getattr("Listener")?
            .call1((slf,))?
            .call_method0("__aiter__")
    }
}
