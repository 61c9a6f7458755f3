//! Settings for receiving, and memory that is bound to a NIC.

use std::sync::{Arc, Mutex, PoisonError};

use devmem_tcp::{BindOptions, Dmabuf as Memory, RxQueueId, memory::CpuAccess};
use pyo3::prelude::*;

use crate::closing::{Closing, Open};
use crate::error::Error;
use crate::netdev::Netdev;
use crate::released::released;
use crate::repr;
use crate::tensor::{Dmabuf, niov_size, view_of};
use crate::wait::Handle;

/// The settings that receiving at an address needs; nothing changes until `apply` or `bind`.
#[pyclass(frozen, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct ReceivePlan {
    pub(crate) nic: Py<Netdev>,
    pub(crate) local: std::net::SocketAddr,
    pub(crate) queues: u16,
}

impl ReceivePlan {
    fn plan(&self, py: Python<'_>) -> Result<devmem_tcp::ReceivePlan, Error> {
        let nic = self.nic.get().get(py)?;
        Ok(nic.plan_receive(self.local).queues(self.queues))
    }

    fn set_up(&self, py: Python<'_>) -> PyResult<Setup> {
        let plan = self.plan(py)?;
        let setup = released(py, || plan.apply().map_err(Error::from))?;
        let queues = setup.queues().iter().map(|queue| queue.0).collect();
        Ok(Setup {
            setup: Handle::new(setup, "set-up"),
            queues,
        })
    }
}

#[pymethods]
impl ReceivePlan {
    /// The changes: commands of ethtool for an interface of the kernel.
    fn commands(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let plan = self.plan(py)?;
        Ok(released(py, || plan.commands().map_err(Error::from))?)
    }

    /// Makes the changes. They are undone when the result and all bindings of its queues are closed or collected.
    fn apply(&self, py: Python<'_>) -> PyResult<Open<Setup>> {
        Ok(Open(self.set_up(py)?))
    }

    /// Makes the changes, and binds `memory` to the queues. Closing the result undoes both.
    #[pyo3(signature = (memory, niov_size=None))]
    fn bind(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, Dmabuf>,
        niov_size: Option<usize>,
    ) -> PyResult<Open<BoundRx>> {
        let setup = self.set_up(py)?;
        let bound = self
            .nic
            .get()
            .bind_rx(py, memory, setup.queues.clone(), niov_size);
        // The binding keeps the settings.
        setup.close(py);
        bound
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.plan(py)?.to_string())
    }

    fn __repr__(&self) -> String {
        let queues = repr::count(self.queues.into(), "queue");
        format!("<ReceivePlan {}, {queues}>", self.local)
    }
}

/// Settings that were made.
#[pyclass(frozen, extends = Closing, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Setup {
    setup: Handle<devmem_tcp::Setup>,
    queues: Vec<u16>,
}

#[pymethods]
impl Setup {
    /// The queues to bind memory to.
    #[getter]
    fn queues(&self) -> Vec<u16> {
        self.queues.clone()
    }

    /// The changes that were made to an interface of the kernel, as commands.
    fn changes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.setup.with(py, |setup| setup.changes())?)
    }

    /// What the agent of an interface opened with `configured` must have set where it cannot be checked from here.
    fn unseen(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.setup.with(py, |setup| setup.unseen())?)
    }

    /// Gives up the settings: they are undone when no binding needs them.
    fn close(&self, py: Python<'_>) {
        self.setup.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = self.setup.with(py, |_setup| ());
        let queues = |()| format!("queues {:?}", self.queues);
        repr::of_handle("Setup", state.map(queues))
    }
}

/// Memory that is bound to RX queues: payload lands in it. It is unbound when this is closed or collected: keep it.
#[pyclass(frozen, extends = Closing, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct BoundRx {
    bound: Handle<devmem_tcp::BoundRx>,
    memory: Py<Dmabuf>,
    id: u32,
}

impl BoundRx {
    pub(crate) fn bind(
        nic: &Netdev,
        memory: &Bound<'_, Dmabuf>,
        queues: Vec<u16>,
        niov_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let py = memory.py();
        let nic = nic.get(py)?;
        let size = niov_size(niov_bytes)?;
        view_of(memory.as_super()).source().check_writable()?;
        let bytes = Dmabuf::memory(memory)?;
        let queues: Vec<_> = queues.into_iter().map(RxQueueId).collect();
        let bound = released(py, || match size {
            None => nic.bind_rx(&bytes, &queues).map_err(Error::from),
            Some(size) => nic
                .bind_rx_with(&bytes, &queues, BindOptions::new().niov_size(size))
                .map_err(Error::from),
        })?;
        Ok(Self {
            id: bound.id().0,
            bound: Handle::new(bound, "binding"),
            memory: memory.clone().unbind(),
        })
    }
}

#[pymethods]
impl BoundRx {
    /// The id of the binding, which each frag has.
    #[getter]
    fn id(&self) -> u32 {
        self.id
    }

    /// The memory that is bound.
    #[getter]
    fn memory(&self, py: Python<'_>) -> Py<Dmabuf> {
        self.memory.clone_ref(py)
    }

    /// How many net_iovs the memory has, and how many are free: not posted, not in a packet, and not lent.
    #[getter]
    fn net_iovs(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let count = self.bound.with(py, |bound| bound.net_iovs())?;
        Ok((count.total, count.home))
    }

    /// Unbinds. Frags and tensors stay valid.
    fn close(&self, py: Python<'_>) {
        self.bound.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = self.bound.with(py, |bound| {
            let count = bound.net_iovs();
            let (id, free, total) = (self.id, count.home, count.total);
            format!("id {id}, {free} of {total} net_iovs free")
        });
        repr::of_handle("BoundRx", state)
    }
}

/// Memory that is bound for sending. It is unbound when this is closed or collected: keep it.
#[pyclass(frozen, extends = Closing, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct BoundTx {
    /// Shared with a send in progress.
    bound: Mutex<Option<Arc<devmem_tcp::BoundTx>>>,
    memory: Py<Dmabuf>,
    bytes: Memory,
}

impl BoundTx {
    pub(crate) fn bind(nic: &Netdev, memory: &Bound<'_, Dmabuf>) -> PyResult<Self> {
        let py = memory.py();
        let nic = nic.get(py)?;
        let bytes = Dmabuf::memory(memory)?;
        let bound = released(py, || nic.bind_tx(&bytes).map_err(Error::from))?;
        Ok(Self {
            bound: Mutex::new(Some(Arc::new(bound))),
            memory: memory.clone().unbind(),
            bytes,
        })
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.bytes
    }

    /// The lock is held for a moment only, so Python's lock is not released.
    pub(crate) fn get(&self, _py: Python<'_>) -> Result<Arc<devmem_tcp::BoundTx>, Error> {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        bound.clone().ok_or_else(|| Error::closed("binding"))
    }

    /// What the CPU has written through tensors becomes visible to the device.
    pub(crate) fn make_visible(&self, py: Python<'_>) -> Result<(), Error> {
        if self.bytes.exporter().is_none() || self.bytes.cpu_address().is_none() {
            return Ok(());
        }
        released(py, || Ok(self.bytes.cpu_view(CpuAccess::Write)?.end()?))
    }
}

#[pymethods]
impl BoundTx {
    /// The id of the binding.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.id().0)
    }

    /// The memory that is bound.
    #[getter]
    #[pyo3(name = "memory")]
    fn bound_memory(&self, py: Python<'_>) -> Py<Dmabuf> {
        self.memory.clone_ref(py)
    }

    /// The number of incomplete sends from the memory, over all streams. At 0, all of it may be changed.
    #[getter]
    fn in_flight(&self, py: Python<'_>) -> PyResult<usize> {
        let bound = self.get(py)?;
        Ok(released(py, || bound.in_flight()))
    }

    /// Unbinds. Sends that are queued go on.
    fn close(&self, py: Python<'_>) {
        let bound = self
            .bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        released(py, || drop(bound));
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = self.get(py).map(|bound| {
            let in_flight = released(py, || bound.in_flight());
            format!("id {}, {in_flight} in flight", bound.id().0)
        });
        repr::of_handle("BoundTx", state)
    }
}
