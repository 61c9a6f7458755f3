//! Tensors of a checkpoint in the order in which they come.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use devmem_tcp::BoundRx;
use devmem_transfer::load::{Arrived, Checkpoint as Files, NextTensor, Share, TensorStream};
use pyo3::prelude::*;
use rustix::event::EventfdFlags;

use crate::closing::Closing;
use crate::error::Error;
use crate::load::view_of;
use crate::source::Source;
use crate::tensor::Tensor;
use crate::wait::{Handle, Limit, Time, TimedWait, Timeout};

/// A file descriptor that is readable when there may be something to take (eventfd(2)).
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(crate) fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = rustix::event::eventfd(0, flags).map_err(std::io::Error::from)?;
        Ok(Self(Arc::new(fd)))
    }

    pub(crate) fn ring(&self) {
        // Full: it is readable anyway.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// What counts against the bound on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Tensors that were not taken.
    UntilTaken,
    /// Tensors that are held, too.
    Held,
}

/// Memory that counts until this is collected.
#[pyclass(frozen, module = "devmem_tcp._native", name = "_Share")]
#[derive(Debug)]
pub(crate) struct Counting {
    _share: Arc<Share>,
}

/// Tensors of a checkpoint, and what loads them.
#[pyclass(frozen, extends = Closing, module = "devmem_tcp._native", name = "_Arrivals")]
#[derive(Debug)]
pub(crate) struct Arrivals {
    stream: Handle<Streaming>,
    files: Arc<Files>,
    bell: Bell,
    counted: Counted,
    /// Number of the last memory, and its share.
    memory: Mutex<(u64, Weak<Share>)>,
}

#[derive(Debug)]
struct Streaming {
    // First: it ends before memory is unbound.
    tensors: TensorStream<Error>,
    _bound: Option<BoundRx>,
}

/// A tensor: its name, itself, the number of its memory, what counts that, and whether it is the last one of it.
type Taken<'py> = (String, Bound<'py, Tensor>, u64, Counting, bool);

#[derive(IntoPyObject)]
pub(crate) enum Outcome<'py> {
    Tensor(Taken<'py>),
    /// All have come.
    End(bool),
}

impl Arrivals {
    pub(crate) fn new(
        tensors: TensorStream<Error>,
        bound: Option<BoundRx>,
        files: Arc<Files>,
        bell: Bell,
        counted: Counted,
    ) -> Self {
        let streaming = Streaming {
            tensors,
            _bound: bound,
        };
        Self {
            stream: Handle::new(streaming, "load"),
            files,
            bell,
            counted,
            memory: Mutex::new((0, Weak::new())),
        }
    }

    fn taken<'py>(&self, py: Python<'py>, arrived: Arrived) -> PyResult<Taken<'py>> {
        let Arrived {
            selected,
            memory,
            offset,
            share,
            is_last,
            ..
        } = arrived;
        let number = self.number_of(&share);
        let source = match self.counted {
            Counted::UntilTaken => Source::device(memory, Vec::new())?,
            Counted::Held => Source::counted(memory, Arc::clone(&share))?,
        };
        // Selected from these.
        let tensor = &self.files.tensors()[selected.tensor];
        let bytes = usize::try_from(selected.bytes)?;
        let view = view_of(&source, (offset, bytes), tensor, &selected.shape)?;
        let counting = Counting { _share: share };
        let name = tensor.name.clone();
        Ok((name, Tensor::make(py, view)?, number, counting, is_last))
    }

    /// Numbers the memories. Tensors in one come together, if those of a window share one.
    fn number_of(&self, share: &Arc<Share>) -> u64 {
        let mut last = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::ptr::eq(last.1.as_ptr(), Arc::as_ptr(share)) {
            *last = (last.0 + 1, Arc::downgrade(share));
        }
        last.0
    }
}

#[pymethods]
impl Arrivals {
    /// Takes the next tensor, and waits for it `timeout` seconds. Returns its name, the tensor, the number of its memory, what counts that, and whether
    /// it is the last one of it; None if none has come, True when all have.
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Outcome<'py>>> {
        let mut timed = TimedWait::new(Timeout::new(timeout)?, Time::Real);
        let next = timed.wait(py, &self.stream, |it, limit| {
            let limit = match limit {
                Limit::Never => Duration::ZERO,
                Limit::For(limit) => limit,
            };
            match it.tensors.next(limit) {
                Ok(NextTensor::NotYet) => Err(Error::no_answer()),
                outcome => Ok(outcome),
            }
        });
        match next {
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(error.into()),
            Ok(Ok(NextTensor::Tensor(arrived))) => {
                Ok(Some(Outcome::Tensor(self.taken(py, arrived)?)))
            }
            Ok(Ok(NextTensor::NotYet)) => Ok(None),
            Ok(Ok(NextTensor::End)) => Ok(Some(Outcome::End(true))),
            Ok(Err(failure)) => Err(Error::from(failure).into()),
        }
    }

    /// How many bytes of the tensors are in place, and how many they have in all.
    fn progress(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        Ok(self.stream.with(py, |it| it.tensors.progress())?)
    }

    /// A file descriptor that is readable when there may be a tensor: read 8 bytes of it, then take what is there.
    fn fileno(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    /// Ends the load. Tensors that were taken stay.
    fn close(&self, py: Python<'_>) {
        self.stream.close(py);
    }
}
