//! What NVMe subsystems a host has.

use devmem_tcp::text::PrintableLines;
use devmem_transfer::load::{Cause, NvmeListed, NvmeNamespace, NvmeSubsystem, Origin, shown};
use pyo3::prelude::*;

use crate::error::Error;
use crate::interrupt::interruptible;
use crate::load::{Secrets, Tls, nic_for};
use crate::netdev::Netdev;
use crate::remedy;

/// The beginning of the URLs of subsystems.
const SCHEME: &str = "nvme";

/// An NVMe subsystem of a host.
#[pyclass(frozen, get_all, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Subsystem {
    /// The URL that names it.
    url: String,
    /// Its active namespaces.
    namespaces: Vec<Py<Namespace>>,
    /// Why they are not known; None if they are.
    problem: Option<String>,
}

/// A namespace of an NVMe subsystem.
#[pyclass(frozen, get_all, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Namespace {
    /// The URL by which it is loaded and stored.
    url: String,
    /// Its number in the subsystem.
    nsid: u32,
    /// Its size; None if it has blocks that cannot be loaded.
    nbytes: Option<u64>,
    /// The size of a block: what is loaded or stored starts and ends at multiples of it.
    block_bytes: Option<u64>,
    /// Whether it refuses writes.
    is_read_only: bool,
}

#[pymethods]
impl Subsystem {
    fn __repr__(&self) -> String {
        let count = crate::repr::count(self.namespaces.len(), "namespace");
        format!("<Subsystem {}, {count}>", self.url)
    }
}

#[pymethods]
impl Namespace {
    fn __repr__(&self) -> String {
        let Self {
            url,
            nbytes,
            is_read_only,
            ..
        } = self;
        let size = nbytes.map_or("unusable blocks".to_owned(), |bytes| {
            format!("{bytes} bytes")
        });
        let state = if *is_read_only { ", read-only" } else { "" };
        format!("<Namespace {url}, {size}{state}>")
    }
}

/// Lists the NVMe subsystems that the host of `url` ("nvme://HOST") names, or the one that `url` names, with their namespaces and the
/// sizes of those. Without `nic`, the kernel's sockets are used.
#[pyfunction]
#[pyo3(signature = (url, nic=None))]
pub(crate) fn list_subsystems(
    py: Python<'_>,
    url: &str,
    nic: Option<&Bound<'_, Netdev>>,
) -> PyResult<Vec<Subsystem>> {
    let origin = match url.get(..SCHEME.len()) {
        Some(scheme) if scheme.eq_ignore_ascii_case(SCHEME) => {
            Some(Secrets::default().origin(Tls::default(), url)?)
        }
        _ => None,
    };
    let Some(origin @ Origin::Nvme(named)) = &origin else {
        let text = format!("{:?} is not nvme://HOST", shown(url));
        return Err(Error::value(text).into());
    };
    let nic = nic.map(|nic| nic.get().get(py)).transpose()?;
    let listed = interruptible(py, |cancel_check| {
        let nic = nic_for(nic, origin, cancel_check)?;
        Ok(NvmeNamespace::list(&nic, named, cancel_check)?)
    })?;
    let subsystems = listed.into_iter();
    subsystems.map(|it| Subsystem::of(py, it)).collect()
}

/// Returns a reason, and the remedy on a line below it.
fn text_of(cause: &Cause) -> String {
    let remedy = cause.remedy().map(remedy::of_load);
    let remedy = remedy.map_or_else(String::new, |remedy| format!("\n  {remedy}"));
    PrintableLines(format!("{}{remedy}", cause.reason())).to_string()
}

impl Subsystem {
    fn of(py: Python<'_>, listed: NvmeSubsystem) -> PyResult<Self> {
        let NvmeSubsystem { url, namespaces } = listed;
        let (namespaces, problem) = match namespaces {
            Ok(namespaces) => (namespaces, None),
            Err(cause) => (Vec::new(), Some(text_of(&cause))),
        };
        let namespaces = namespaces.into_iter().map(|it| {
            let NvmeListed {
                nsid,
                bytes,
                block_bytes,
                is_read_only,
            } = it;
            let namespace = Namespace {
                url: url.with_nsid(nsid).to_string(),
                nsid,
                nbytes: bytes,
                block_bytes,
                is_read_only,
            };
            Py::new(py, namespace)
        });
        Ok(Self {
            namespaces: namespaces.collect::<PyResult<_>>()?,
            url: url.to_string(),
            problem,
        })
    }
}
