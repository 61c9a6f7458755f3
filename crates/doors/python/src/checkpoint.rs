//! Opened checkpoints: tensors of safetensors files on a stock server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use devmem_tcp::Dmabuf as Memory;
use devmem_transfer::load::{
    Checkpoint as Files, Loader, Selected, Sharing, StreamSettings, TensorStream,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrivals::{Arrivals, Bell, Counted};
use crate::closing::{Closing, Open};
use crate::device::Device;
use crate::error::Error;
use crate::interrupt::interruptible;
use crate::opened::{Opened, Options};
use crate::released::released;
use crate::wait::Handle;

/// Bytes that are loaded ahead, if the caller has set no bound.
const AHEAD_BYTES: u64 = 1 << 30;
/// Device memory is allocated in pages.
const PAGE_BYTES: u64 = 4096;
/// How much longer room is waited for that other processes have to make.
const SHARED_PATIENCE: u32 = 10;

/// Opens the checkpoint at a URL: the first call of every load. `options` are the arguments of load_safetensors, by their names.
#[pyfunction]
pub(crate) fn _open_safetensors(
    py: Python<'_>,
    url: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<Open<Checkpoint>> {
    let options: Options = options.extract()?;
    let asked = options.check(py, url)?;
    let opened = interruptible(py, |cancel_check| asked.open(cancel_check))?;
    let Opened {
        checkpoint,
        loader,
        device,
        idle_limit,
        bound,
    } = opened;
    Ok(Open(Checkpoint {
        files: Arc::new(checkpoint),
        device,
        idle_limit,
        load: Handle::new((loader, bound), "checkpoint"),
    }))
}

/// An opened checkpoint.
#[pyclass(frozen, extends = Closing, module = "devmem_tcp._native", name = "_Checkpoint")]
#[derive(Debug)]
pub(crate) struct Checkpoint {
    files: Arc<Files>,
    device: Device,
    idle_limit: Duration,
    /// What one load takes.
    load: Handle<(Loader, Option<devmem_tcp::BoundRx>)>,
}

impl Checkpoint {
    fn take(&self, py: Python<'_>) -> Result<(Loader, Option<devmem_tcp::BoundRx>), Error> {
        self.load
            .take(py)
            .ok_or_else(|| Error::closed("checkpoint"))
    }
}

#[pymethods]
impl Checkpoint {
    /// The names of its tensors, in the order of the files; of each the name of its type and its shape.
    #[getter]
    fn entries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let entries = PyDict::new(py);
        for tensor in self.files.tensors() {
            let shape = PyTuple::new(py, &tensor.shape)?;
            entries.set_item(&tensor.name, (&tensor.dtype, shape))?;
        }
        Ok(entries)
    }

    /// What the writers of the files have added to them.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        let texts = self.files.metadata().iter();
        for (name, text) in texts.filter_map(|of| of.texts.as_ref()).flatten() {
            all.set_item(name, text)?;
        }
        Ok(all)
    }

    /// Begins to load tensors: names, and of each the part of its first dimensions. The checkpoint is closed then.
    ///
    /// `memory_limit`, in bytes, counts tensors that are requested, wait to be taken, or are held; without it those that are held do not count. With `in_files`
    /// they are in memory with file descriptors, several of them in one, and room is waited for longer: other processes have to make it.
    fn start(
        &self,
        py: Python<'_>,
        wanted: Vec<(String, Vec<(u64, u64)>)>,
        memory_limit: Option<u64>,
        merge_gap: u64,
        in_files: bool,
    ) -> PyResult<Open<Arrivals>> {
        let selected = self.select(wanted)?;
        let largest = selected.iter().map(|it| it.memory_bytes(merge_gap)).max();
        let ahead = largest
            .unwrap_or(0)
            .saturating_add(PAGE_BYTES)
            .max(AHEAD_BYTES);
        let mut settings = StreamSettings::new(memory_limit.unwrap_or(ahead));
        settings.merge_gap = merge_gap;
        settings.patience = self.idle_limit;
        if in_files {
            settings.sharing = Sharing::Windows;
            settings.patience = self.idle_limit.saturating_mul(SHARED_PATIENCE);
        }
        let device = self.device;
        let alloc = move |bytes| -> Result<Memory, Error> {
            match in_files {
                true => Ok(Memory::shared_memfd(bytes)?),
                false => device.alloc(bytes),
            }
        };
        let bell = Bell::new()?;
        let ring = bell.clone();
        let (loader, bound) = self.take(py)?;
        let files = Arc::clone(&self.files);
        let stream = released(py, || {
            TensorStream::start(loader, files, selected, settings, alloc, move || {
                ring.ring()
            })
        });
        let stream = stream.map_err(Error::from)?;
        let counted = match memory_limit {
            Some(_) => Counted::Held,
            None => Counted::UntilTaken,
        };
        let files = Arc::clone(&self.files);
        Ok(Open(Arrivals::new(stream, bound, files, bell, counted)))
    }

    /// Gives up the connections. Tensors stay.
    fn close(&self, py: Python<'_>) {
        self.load.close(py);
    }
}

impl Checkpoint {
    /// Returns what is wanted, each tensor once.
    fn select(&self, wanted: Vec<(String, Vec<(u64, u64)>)>) -> PyResult<Vec<Selected>> {
        let mut numbers = HashMap::with_capacity(wanted.len());
        for (number, tensor) in self.files.tensors().iter().enumerate() {
            numbers.insert(tensor.name.as_str(), number);
        }
        let mut selected = Vec::with_capacity(wanted.len());
        for (name, bounds) in &wanted {
            // The second time it is not there any more.
            let number = numbers.remove(name.as_str()).ok_or_else(|| {
                let text = format!("the checkpoint has no tensor {name:?}, or it is wanted twice");
                Error::value(text)
            })?;
            let bounds: Vec<_> = bounds.iter().map(|(start, end)| *start..*end).collect();
            selected.push(self.files.select(number, &bounds).map_err(Error::from)?);
        }
        Ok(selected)
    }
}
