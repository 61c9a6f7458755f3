//! A checkpoint that is opened for a load: its NIC, the memory that is bound for it, and what it has.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use devmem_tcp::BoundRx;
use devmem_transfer::load::{Checkpoint, CheckpointError, GoOn, HttpRequest, Loader, Origin};
use pyo3::prelude::*;

use crate::device::Device;
use crate::error::Error;
use crate::netdev::Netdev;
use crate::released::attached;
use crate::request::Secrets;
use crate::tls::Tls;

/// How often a load looks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes that a NIC in user space receives into, if the caller does not say.
const BIND_BYTES: usize = 64 << 20;

/// How a checkpoint is loaded.
#[derive(Debug)]
pub(crate) struct Asked {
    request: HttpRequest,
    /// `None`: the kernel's interface of the route to the server.
    nic: Option<devmem_tcp::Netdev>,
    device: Device,
    bind: Option<usize>,
    connections: Option<usize>,
    idle_limit: Duration,
}

/// An opened checkpoint.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) loader: Loader,
    pub(crate) device: Device,
    pub(crate) idle_limit: Duration,
    /// Bound for the time of the load.
    pub(crate) bound: Option<BoundRx>,
}

/// Looks for signals of Python during a call without its lock.
#[derive(Debug)]
pub(crate) struct Signals {
    looked: Instant,
    /// What a handler has raised.
    raised: Option<PyErr>,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self {
            looked: Instant::now(),
            raised: None,
        }
    }

    /// Looks, not more often than is useful. A handler that raises an exception ends the call.
    pub(crate) fn look(&mut self) -> ControlFlow<()> {
        if self.looked.elapsed() < SIGNAL_CHECK_INTERVAL {
            return ControlFlow::Continue(());
        }
        self.looked = Instant::now();
        match attached(|py| py.check_signals()) {
            Some(Err(error)) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
            Some(Ok(())) | None => ControlFlow::Continue(()),
        }
    }

    /// Returns the outcome of the call.
    ///
    /// # Errors
    /// What a handler has raised, before the error that follows from it.
    pub(crate) fn outcome<T>(self, outcome: Result<T, Error>) -> PyResult<T> {
        match self.raised {
            Some(raised) => Err(raised),
            None => Ok(outcome?),
        }
    }
}

/// The choices of a caller.
#[derive(FromPyObject)]
pub(crate) struct Options {
    #[pyo3(item)]
    nic: Option<Py<Netdev>>,
    #[pyo3(item)]
    device: String,
    #[pyo3(item)]
    bind: Option<usize>,
    #[pyo3(item)]
    connections: Option<usize>,
    #[pyo3(item)]
    idle_limit: f64,
}

impl Options {
    /// Checks the choices.
    ///
    /// # Errors
    /// One of them is wrong.
    pub(crate) fn check(
        self,
        py: Python<'_>,
        url: &str,
        secrets: Secrets,
        tls: Tls,
    ) -> PyResult<Asked> {
        let idle_limit = checked_limit(self.connections, self.idle_limit)?;
        let nic = self.nic.map(|nic| nic.get().get(py)).transpose()?;
        let device = Device::named(&self.device)?;
        tls.warn(py)?;
        Ok(Asked {
            request: tls.add_to(secrets.request(url)?)?,
            nic,
            device,
            bind: self.bind,
            connections: self.connections,
            idle_limit,
        })
    }
}

impl Asked {
    /// Opens the checkpoint, and binds memory for its load.
    pub(crate) fn open(self, look: &mut GoOn<'_>) -> Result<Opened, Error> {
        let nic = match self.nic {
            Some(nic) => nic,
            None => {
                let found = Origin::Http(self.request.clone()).kernel_nic(look);
                found.map_err(CheckpointError::from)?
            }
        };
        let bind = self.bind.unwrap_or(match nic.interface() {
            // What the CPU must decrypt is received in host memory.
            None if !self.request.url().is_https() => BIND_BYTES,
            _ => 0,
        });
        let bound = bind_for(&nic, bind, self.device)?;
        let loader = Loader::new(&nic).idle_limit(self.idle_limit);
        let loader = match self.connections {
            Some(connections) => loader.connections(connections),
            None => loader,
        };
        Ok(Opened {
            checkpoint: Checkpoint::open_while(&loader, self.request, look)?,
            loader,
            device: self.device,
            idle_limit: self.idle_limit,
            bound,
        })
    }
}

/// Checks the settings of a load, and returns its limit of time.
fn checked_limit(connections: Option<usize>, idle_limit: f64) -> PyResult<Duration> {
    if connections == Some(0) {
        return Err(Error::value("connections=0: at least one is needed".to_owned()).into());
    }
    let idle_limit = Duration::try_from_secs_f64(idle_limit)
        .ok()
        .filter(|limit| !limit.is_zero());
    let is_wrong = || Error::value("idle_limit: a positive number of seconds is needed".to_owned());
    Ok(idle_limit.ok_or_else(is_wrong)?)
}

/// Binds `bytes` for connections from the NIC's first address, for the time of a load.
fn bind_for(
    nic: &devmem_tcp::Netdev,
    bytes: usize,
    device: Device,
) -> Result<Option<BoundRx>, Error> {
    let Some(address) = nic.addresses().first().copied().filter(|_| bytes > 0) else {
        return Ok(None);
    };
    let memory = device.alloc(bytes)?;
    let setup = nic.plan_receive(SocketAddr::new(address, 0)).apply()?;
    // The binding keeps the settings.
    Ok(Some(nic.bind_rx(&memory, setup.queues())?))
}
