//! Bytes of files, exports and namespaces, loaded to tensors and arrays.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use devmem_tcp::{BoundRx, Netdev as Nic};
use devmem_transfer::load::{
    CancelCheck, Landed, LoadError, Loader, Origin, Part, Source as Remote,
};
use pyo3::prelude::*;

use crate::device::Device;
use crate::error::Error;
use crate::interrupt::interruptible;
use crate::load::{Headers, Secrets, Tls, bind_for, checked_limit, loader, nic_for};
use crate::netdev::Netdev;
use crate::source::Source;
use crate::target::Target;
use crate::tensor::{Tensor, memory_of};
use crate::view::View;

/// Memory is allocated in pages.
const PAGE_BYTES: usize = 4096;

/// Loads `nbytes` from `at` on of what `url` names, by default all that is behind it: a file ("http:", "https:", "s3:"), an export of an NBD
/// server ("nbd:"), or a namespace of an NVMe subsystem ("nvme://HOST/SUBNQN?nsid=1"). Returns a tensor of bytes on `device`: "cpu",
/// "cuda:N", "hip:N" or "vulkan:N". Of exports and namespaces, whole blocks are loaded.
///
/// `nic`, `bind`, `connections`, `idle_limit` and, for files, `headers`, `headers_file`, `user`, `password`, `password_file`, `cacert`,
/// `cert`, `key` and `verify` are those of `load_safetensors`.
#[pyfunction]
#[pyo3(signature = (
    url, nic=None, *, at=0, nbytes=None, device="cpu", bind=None, connections=None, idle_limit=30.0, headers=None, headers_file=None,
    user=None, password=None, password_file=None, cacert=None, cert=None, key=None, verify=true
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(crate) fn load<'py>(
    py: Python<'py>,
    url: &str,
    nic: Option<&Bound<'py, Netdev>>,
    at: u64,
    nbytes: Option<usize>,
    device: &str,
    bind: Option<usize>,
    connections: Option<usize>,
    idle_limit: f64,
    headers: Option<Headers>,
    headers_file: Option<PathBuf>,
    user: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    verify: bool,
) -> PyResult<Bound<'py, Tensor>> {
    let secrets = Secrets {
        headers: headers.map_or_else(Vec::new, Headers::into_pairs),
        headers_file,
        user,
        password,
        password_file,
    };
    let tls = Tls {
        cacert,
        cert,
        key,
        verify,
    };
    tls.warn(py)?;
    let device = Device::named(device)?;
    let way = Way {
        nic: nic.map(|nic| nic.get().get(py)).transpose()?,
        origin: secrets.origin(tls, url)?,
        bind,
        connections,
        idle_limit: checked_limit(connections, idle_limit)?,
    };
    let (memory, nbytes) = interruptible(py, |cancel_check| {
        let opened = way.open(device, cancel_check)?;
        let nbytes = match nbytes {
            Some(nbytes) => nbytes,
            None => opened.bytes_behind(at)?,
        };
        opened.check(at, nbytes)?;
        let memory = device.alloc(whole_pages(nbytes)?)?;
        let part = Part {
            source: at..at.saturating_add(nbytes as u64),
            memory: memory.clone(),
            offset: 0,
        };
        opened.load(part, cancel_check)?;
        Ok((memory, nbytes))
    })?;
    let source = Source::device(memory, Vec::new())?;
    Tensor::make(py, View::of_bytes(source, 0, nbytes)?)
}

/// Loads as many bytes from `at` on of what `url` names as fill `out`: a tensor, a Dmabuf, or a writable array or buffer. Returns their
/// number. A tensor of device memory gets them without a copy by the CPU; otherwise as `load`.
#[pyfunction]
#[pyo3(signature = (
    out, url, nic=None, *, at=0, bind=None, connections=None, idle_limit=30.0, headers=None, headers_file=None, user=None, password=None,
    password_file=None, cacert=None, cert=None, key=None, verify=true
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(crate) fn load_into(
    py: Python<'_>,
    out: &Bound<'_, PyAny>,
    url: &str,
    nic: Option<&Bound<'_, Netdev>>,
    at: u64,
    bind: Option<usize>,
    connections: Option<usize>,
    idle_limit: f64,
    headers: Option<Headers>,
    headers_file: Option<PathBuf>,
    user: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    verify: bool,
) -> PyResult<usize> {
    let secrets = Secrets {
        headers: headers.map_or_else(Vec::new, Headers::into_pairs),
        headers_file,
        user,
        password,
        password_file,
    };
    let tls = Tls {
        cacert,
        cert,
        key,
        verify,
    };
    tls.warn(py)?;
    let way = Way {
        nic: nic.map(|nic| nic.get().get(py)).transpose()?,
        origin: secrets.origin(tls, url)?,
        bind,
        connections,
        idle_limit: checked_limit(connections, idle_limit)?,
    };
    let mut target = Target::of(out)?;
    interruptible(py, |cancel_check| {
        let opened = way.open(target.device(), cancel_check)?;
        let source = at..at.saturating_add(target.len() as u64);
        let view = match &target {
            Target::Own(view) => memory_of(view),
            Target::Foreign(_) => None,
        };
        match view {
            Some((memory, range)) => {
                let (memory, offset) = (memory.clone(), range.start);
                let part = Part {
                    source,
                    memory,
                    offset,
                };
                opened.load(part, cancel_check)?;
            }
            None => opened.copy(source, &mut target, cancel_check)?,
        }
        Ok(target.len())
    })
}

/// How bytes are reached.
struct Way {
    nic: Option<Nic>,
    origin: Origin,
    bind: Option<usize>,
    connections: Option<usize>,
    idle_limit: Duration,
}

/// What a URL names, opened.
struct Opened {
    // Before the NIC of the loader.
    _bound: Option<BoundRx>,
    loader: Loader,
    remote: Remote,
}

impl Way {
    /// Opens what the URL names. Payload is received into memory of `device` where its place cannot be named.
    fn open(self, device: Device, cancel_check: &mut CancelCheck<'_>) -> Result<Opened, Error> {
        let Self {
            nic,
            origin,
            bind,
            connections,
            idle_limit,
        } = self;
        let nic = nic_for(nic, &origin, cancel_check)?;
        let bound = bind_for(&nic, bind, &origin, device)?;
        let loader = loader(&nic, connections, idle_limit);
        let remote = loader.open(&origin, cancel_check)?;
        Ok(Opened {
            _bound: bound,
            loader,
            remote,
        })
    }
}

impl Opened {
    /// Returns the number of bytes from `at` on.
    fn bytes_behind(&self, at: u64) -> Result<usize, Error> {
        let size = self.remote.size().ok_or_else(|| {
            Error::value("the server does not tell how many bytes there are\n  name them: nbytes=")
        })?;
        let bytes = size.checked_sub(at);
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or_else(|| Error::value(format!("at={at}: the source has {size} bytes")))
    }

    /// Checks that the source has so many bytes, before there is memory for them.
    fn check(&self, at: u64, nbytes: usize) -> Result<(), Error> {
        let end = at.saturating_add(nbytes as u64);
        match self.remote.size() {
            Some(size) if end > size => Err(LoadError::PastEnd { end, size }.into()),
            _ => Ok(()),
        }
    }

    fn load(&self, part: Part, cancel_check: &mut CancelCheck<'_>) -> Result<(), Error> {
        let loaded = self
            .loader
            .load(self.remote.clone(), &[part], &mut |_| cancel_check());
        Ok(loaded.map(drop)?)
    }

    /// Copies `range` to memory that no NIC writes to.
    fn copy(
        &self,
        range: std::ops::Range<u64>,
        target: &mut Target,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<(), Error> {
        let mut failed = None;
        let mut take = |landed: Landed<'_>| {
            let put = match landed {
                Landed::Frags { at, batch } => target.put(place(at, range.start), batch),
                Landed::Bytes { at, bytes } => target.put_bytes(place(at, range.start), bytes),
                Landed::Zeros { at, len } => target.zero(place(at, range.start), len),
            };
            put.map_err(|error| {
                failed = Some(error);
                io::ErrorKind::Other.into()
            })
        };
        let ranges = std::slice::from_ref(&range);
        let delivered = self
            .loader
            .deliver(self.remote.clone(), ranges, &mut take, &mut |_| {
                cancel_check()
            });
        match (delivered, failed) {
            (Err(LoadError::Caller(_)), Some(error)) => Err(error),
            (delivered, _) => Ok(delivered.map(drop)?),
        }
    }
}

/// Returns the size of memory for `nbytes`.
fn whole_pages(nbytes: usize) -> Result<usize, Error> {
    let pages = nbytes.max(1).checked_next_multiple_of(PAGE_BYTES);
    pages.ok_or_else(|| Error::value(format!("nbytes={nbytes}: no memory is so large")))
}

/// Returns the place of a byte of the source.
fn place(at: u64, start: u64) -> usize {
    usize::try_from(at.saturating_sub(start)).unwrap_or(usize::MAX)
}
