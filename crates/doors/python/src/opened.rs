//! A checkpoint that is opened for a load: its NIC, the memory that is bound for it, and what it has.

use std::path::PathBuf;
use std::time::Duration;

use devmem_tcp::{BoundRx, Errno, ErrorKind};
use devmem_transfer::load::{
    CancelCheck, Checkpoint, HttpRequest, Loader, Origin, SelectionError, StreamFailure,
};
use pyo3::prelude::*;

use crate::device::Device;
use crate::error::Error;
use crate::load::{Headers, Secrets, Tls, bind_for, checked_limit, loader, nic_for};
use crate::netdev::Netdev;

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
    #[pyo3(item)]
    headers: Option<Headers>,
    #[pyo3(item)]
    headers_file: Option<PathBuf>,
    #[pyo3(item)]
    user: Option<String>,
    #[pyo3(item)]
    password: Option<String>,
    #[pyo3(item)]
    password_file: Option<PathBuf>,
    #[pyo3(item)]
    cacert: Option<PathBuf>,
    #[pyo3(item)]
    cert: Option<PathBuf>,
    #[pyo3(item)]
    key: Option<PathBuf>,
    #[pyo3(item)]
    verify: bool,
}

impl Options {
    /// Checks the choices.
    ///
    /// # Errors
    /// One of them is wrong.
    pub(crate) fn check(self, py: Python<'_>, url: &str) -> PyResult<Asked> {
        let idle_limit = checked_limit(self.connections, self.idle_limit)?;
        let nic = self.nic.map(|nic| nic.get().get(py)).transpose()?;
        let device = Device::named(&self.device)?;
        let secrets = Secrets {
            headers: self.headers.map_or_else(Vec::new, Headers::into_pairs),
            headers_file: self.headers_file,
            user: self.user,
            password: self.password,
            password_file: self.password_file,
        };
        let tls = Tls {
            cacert: self.cacert,
            cert: self.cert,
            key: self.key,
            verify: self.verify,
        };
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
    pub(crate) fn open(self, cancel_check: &mut CancelCheck<'_>) -> Result<Opened, Error> {
        let origin = Origin::Http(self.request.clone());
        let nic = nic_for(self.nic, &origin, cancel_check)?;
        let bound = bind_for(&nic, self.bind, &origin, self.device)?;
        let loader = loader(&nic, self.connections, self.idle_limit);
        Ok(Opened {
            checkpoint: Checkpoint::open_cancellable(&loader, self.request, cancel_check)?,
            loader,
            device: self.device,
            idle_limit: self.idle_limit,
            bound,
        })
    }
}

impl From<SelectionError> for Error {
    fn from(error: SelectionError) -> Self {
        let (kind, errno) = (ErrorKind::InvalidInput, Errno::EINVAL.0);
        Self::of_load(kind, errno, error.to_string(), error.remedy())
    }
}

impl From<StreamFailure<Error>> for Error {
    fn from(failure: StreamFailure<Error>) -> Self {
        match failure {
            StreamFailure::Load(error) => error.into(),
            StreamFailure::Memory(error) => error,
            other => Self::of_load(
                ErrorKind::OutOfResources,
                Errno::ENOMEM.0,
                other.to_string(),
                other.remedy(),
            ),
        }
    }
}
