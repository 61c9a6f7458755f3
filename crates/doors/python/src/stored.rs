//! Bytes of tensors and arrays, stored in exports and namespaces.

use std::io;
use std::ops::Range;

use devmem_tcp::{Dmabuf as Memory, Errno, ErrorKind, memory::CpuAccess};
use devmem_transfer::load::{CancelCheck, Origin};
use devmem_transfer::store::{
    Durability, Filled, Part, Sink, StoreError, Stored as Outcome, Storer,
};
use pyo3::prelude::*;

use crate::error::Error;
use crate::interrupt::interruptible;
use crate::load::{Secrets, Tls, checked_limit, verdict};
use crate::netdev::Netdev;
use crate::raw::{Foreign, Use};
use crate::repr;
use crate::tensor::memory_of;
use crate::view::View;

/// Bytes of host memory that the bytes of arrays pass through: at least those of a request, of which many are in flight.
const CHUNK_BYTES: std::ops::RangeInclusive<usize> = 4 << 20..=64 << 20;
/// Memory is allocated in pages.
const PAGE_BYTES: usize = 4096;

/// What a store has done.
#[pyclass(frozen, get_all, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Stored {
    /// The number of bytes, all of which the server has acknowledged.
    nbytes: u64,
    /// How many requests were repeated, because a connection broke.
    repeated: u64,
    /// Whether the bytes are on storage, and not only in the memory of the server: a flush followed them, or each write was durable.
    durable: bool,
    /// The time, in seconds.
    seconds: f64,
}

#[pymethods]
impl Stored {
    fn __repr__(&self) -> String {
        let bytes = repr::count(usize::try_from(self.nbytes).unwrap_or(usize::MAX), "byte");
        let state = if self.durable {
            "durable"
        } else {
            "in memory of the server"
        };
        format!("<Stored {bytes}, {state}>")
    }
}

/// Stores the bytes of `data` from `at` on in an export of an NBD server ("nbd:") or a namespace of an NVMe subsystem
/// ("nvme://HOST/SUBNQN?nsid=1"), in whole blocks. A tensor of device memory is sent from where it lies, and must not be changed
/// meanwhile; arrays and buffers are copied once.
///
/// `durability` says when the bytes are on storage: "flush", when the call returns, if the server can flush; "fua", when each write
/// is acknowledged; "none", some time later. Up to `connections` connections are used, 4 by default. A server that does nothing for
/// `idle_limit` seconds is asked again, on another connection.
#[pyfunction]
#[pyo3(signature = (data, url, nic, *, at=0, durability="flush", connections=None, idle_limit=30.0))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(crate) fn store(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    url: &str,
    nic: &Bound<'_, Netdev>,
    at: u64,
    durability: &str,
    connections: Option<usize>,
    idle_limit: f64,
) -> PyResult<Stored> {
    let idle_limit = checked_limit(connections, idle_limit)?;
    let durability = durability_named(durability)?;
    let origin = Secrets::default().origin(Tls::default(), url)?;
    let nic = nic.get().get(py)?;
    let given = Given::of(data)?;
    let storer = Storer::new(&nic)
        .durability(durability)
        .idle_limit(idle_limit);
    let storer = match connections {
        Some(connections) => storer.connections(connections),
        None => storer,
    };
    let outcome = interruptible(py, |cancel_check| {
        given.store(&storer, &nic, &origin, at, cancel_check)
    })?;
    Ok(Stored {
        nbytes: outcome.bytes,
        repeated: outcome.repeated,
        durable: outcome.flushes > 0 || durability == Durability::EachWrite,
        seconds: outcome.elapsed.as_secs_f64(),
    })
}

fn durability_named(name: &str) -> Result<Durability, Error> {
    match name {
        "flush" => Ok(Durability::Flush),
        "fua" => Ok(Durability::EachWrite),
        "none" => Ok(Durability::None),
        _ => Err(Error::value(format!(
            "durability='{name}': write \"flush\", \"fua\" or \"none\""
        ))),
    }
}

/// What is stored.
enum Given {
    /// Memory that is sent from where it is.
    Device(View),
    /// Memory of another library, which is copied.
    Host(Foreign),
}

impl Given {
    fn of(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        match View::of_device(data)?.filter(|view| memory_of(view).is_some()) {
            Some(view) => Ok(Self::Device(view)),
            None => Foreign::of(data, Use::Read).map(Self::Host),
        }
    }

    fn store(
        &self,
        storer: &Storer,
        nic: &devmem_tcp::Netdev,
        origin: &Origin,
        at: u64,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Outcome, Error> {
        let sink = Sink::open_cancellable(nic, origin, cancel_check)?;
        let range = |len: usize| at..at.saturating_add(len as u64);
        match self {
            Self::Device(view) => {
                let Some((memory, place)) = memory_of(view) else {
                    return Err(Error::closed("memory"));
                };
                make_visible(memory)?;
                let part = Part {
                    target: range(place.len()),
                    offset: place.start,
                };
                Ok(storer.store(&sink, memory, &[part], &mut |_| cancel_check())?)
            }
            Self::Host(bytes) => {
                let bytes = bytes.bytes();
                let room = bytes.len().clamp(*CHUNK_BYTES.start(), *CHUNK_BYTES.end());
                let memory = Memory::memfd(room.next_multiple_of(PAGE_BYTES))?;
                let mut fill = |target: Range<u64>, place: Range<usize>| {
                    // The requested part of the bytes.
                    let start = usize::try_from(target.start - at).unwrap_or(usize::MAX);
                    let part = bytes.get(start..).and_then(|rest| rest.get(..place.len()));
                    let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
                    let copied = memory.copy_in(place.start, part);
                    copied.map(|()| Filled::Bytes).map_err(io::Error::other)
                };
                let ranges = [range(bytes.len())];
                let stored =
                    storer.store_from(&sink, &memory, &ranges, &mut fill, &mut |_| cancel_check());
                Ok(stored?)
            }
        }
    }
}

/// What the CPU has written becomes visible to the device.
fn make_visible(memory: &Memory) -> Result<(), Error> {
    match memory.exporter().is_some() && memory.cpu_address().is_some() {
        true => Ok(memory.cpu_view(CpuAccess::Write)?.end()?),
        false => Ok(()),
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let (kind, errno) = match &error {
            StoreError::Export(load) => verdict(load),
            StoreError::NoSink { .. }
            | StoreError::PastEnd { .. }
            | StoreError::Unaligned { .. }
            | StoreError::OutsideMemory { .. } => (ErrorKind::InvalidInput, Errno::EINVAL),
            StoreError::ReadOnly { .. } => (ErrorKind::PermissionDenied, Errno::EACCES),
            StoreError::Lacks { .. } => (ErrorKind::Unsupported, Errno::EOPNOTSUPP),
            StoreError::NoRoom { .. } => (ErrorKind::OutOfResources, Errno::ENOMEM),
            StoreError::Bind(source) | StoreError::Send(source) | StoreError::Digest(source) => {
                (source.kind(), source.errno())
            }
            _ => (ErrorKind::Other, Errno::EIO),
        };
        Self::of_load(kind, errno.0, error.to_string(), error.remedy())
    }
}
