//! Checkpoints: tensors of a safetensors file on a stock server, loaded to their places in device memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use devmem_tcp::{BoundRx, Dmabuf as Memory, Errno, ErrorKind, Netdev as Nic};
use devmem_transfer::load::{
    Checkpoint, CheckpointError, GoOn, HttpRequest, LoadError, Loader, Metadata, Origin,
    SecretError, Tensor as Placed, Url, UrlError, password_of, read_secret,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::interrupt::interruptible;
use crate::netdev::Netdev;
use crate::source::Source;
use crate::tensor::Tensor;
use crate::view::View;

/// Bytes that a NIC in user space receives into, if the caller does not say.
const BIND_BYTES: usize = 64 << 20;

/// Loads the tensors of the safetensors file, or of the shards of the `*.index.json`, at `url` (http or s3) over `nic`, with range
/// requests over several connections. Returns them by name; they share one memory on `device`: "cpu", "cuda:N", "hip:N" or
/// "vulkan:N". Without `nic`, the kernel's sockets are used, on the interface of the route to the server, and payload passes through
/// host memory.
///
/// The call binds `bind` bytes to the NIC for its own time: 64 MiB in user space by default, none with a NIC of the
/// kernel. With 0 it uses what the caller has bound for `nic.plan_receive((address, 0))`; without a binding payload passes
/// through host memory. `headers` are fields of each request, a dict or pairs of name and value, and `headers_file` names a file with further ones,
/// one a line. `password`, or the first line of `password_file`, is sent for `user` or the user of the URL. The environment may have them, too:
/// DEVMEM_HEADERS, DEVMEM_USER, DEVMEM_PASSWORD, and for s3 what Amazon's tools use. The proxy of the environment is used
/// (http_proxy, all_proxy, no_proxy). `connections` is the largest number of them: 4 by default, and 16 while the files of a checkpoint are opened. A server
/// that brings less than 4 KiB in `idle_limit` seconds is asked again, on another connection. A type that this package has no name for becomes bytes. The result
/// also has `metadata`, the texts that the writers of the files have added (`__metadata__`), and `entries`: for each tensor the names of its type and its shape, as
/// in the file.
#[pyfunction]
#[pyo3(signature = (
    url, nic=None, *, device="cpu", bind=None, connections=None, idle_limit=30.0, headers=None, headers_file=None, user=None,
    password=None, password_file=None
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(crate) fn load_safetensors<'py>(
    py: Python<'py>,
    url: &str,
    nic: Option<&Bound<'py, Netdev>>,
    device: &str,
    bind: Option<usize>,
    connections: Option<usize>,
    idle_limit: f64,
    headers: Option<Headers>,
    headers_file: Option<PathBuf>,
    user: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
) -> PyResult<Bound<'py, PyAny>> {
    let idle_limit = checked_limit(connections, idle_limit)?;
    let nic = nic.map(|nic| nic.get().get(py)).transpose()?;
    let device = Device::named(device)?;
    let secrets = Secrets {
        headers: headers.map_or_else(Vec::new, Headers::into_pairs),
        headers_file,
        user,
        password,
        password_file,
    };
    let request = secrets.request(url)?;
    let (memory, tensors, metadata) = interruptible(py, |go_on| {
        let nic = nic_for(nic, &Origin::Http(request.clone()), go_on)?;
        let _bound = bind_for(&nic, bind, device)?;
        let loader = loader(&nic, connections, idle_limit);
        let checkpoint = Checkpoint::open_while(&loader, request, go_on)?;
        let memory = device.alloc(checkpoint.memory_bytes())?;
        checkpoint.load(&loader, &memory, &mut |_| go_on())?;
        let tensors = checkpoint.tensors().to_vec();
        Ok((memory, tensors, checkpoint.metadata().to_vec()))
    })?;
    tensors_of(py, memory, tensors, metadata)
}

/// Checks the settings of a load or a store, and returns its limit of time.
pub(crate) fn checked_limit(connections: Option<usize>, idle_limit: f64) -> PyResult<Duration> {
    if connections == Some(0) {
        return Err(Error::value("connections=0: at least one is needed".to_owned()).into());
    }
    let idle_limit = Duration::try_from_secs_f64(idle_limit)
        .ok()
        .filter(|limit| !limit.is_zero());
    let is_wrong = || Error::value("idle_limit: a positive number of seconds is needed".to_owned());
    Ok(idle_limit.ok_or_else(is_wrong)?)
}

/// Returns the NIC, or the kernel's interface of the route to a server.
pub(crate) fn nic_for(
    nic: Option<Nic>,
    origin: &Origin,
    go_on: &mut GoOn<'_>,
) -> Result<Nic, Error> {
    match nic {
        Some(nic) => Ok(nic),
        None => Ok(origin.kernel_nic(go_on)?),
    }
}

pub(crate) fn loader(nic: &Nic, connections: Option<usize>, idle_limit: Duration) -> Loader {
    let loader = Loader::new(nic).idle_limit(idle_limit);
    match connections {
        Some(connections) => loader.connections(connections),
        None => loader,
    }
}

/// Returns the tensors in `memory` as an object of Python.
fn tensors_of<'py>(
    py: Python<'py>,
    memory: Memory,
    tensors: Vec<Placed>,
    metadata: Vec<Metadata>,
) -> PyResult<Bound<'py, PyAny>> {
    let source = Source::device(memory, Vec::new())?;
    let (all, entries, texts) = (PyDict::new(py), PyDict::new(py), PyDict::new(py));
    for tensor in tensors {
        let view = view_of(&source, &tensor)?;
        let shape = PyTuple::new(py, &tensor.shape)?;
        entries.set_item(&tensor.name, (&tensor.dtype, shape))?;
        all.set_item(tensor.name, Tensor::make(py, view)?)?;
    }
    for (name, text) in metadata.into_iter().filter_map(|of| of.texts).flatten() {
        texts.set_item(name, text)?;
    }
    let class = py.import("devmem_tcp._tensors")?.getattr("Tensors")?;
    class.call1((all, texts, entries))
}

/// Fields of requests.
#[derive(FromPyObject)]
pub(crate) enum Headers {
    Map(BTreeMap<String, String>),
    Pairs(Vec<(String, String)>),
}

impl Headers {
    pub(crate) fn into_pairs(self) -> Vec<(String, String)> {
        match self {
            Self::Map(map) => map.into_iter().collect(),
            Self::Pairs(pairs) => pairs,
        }
    }
}

/// What an HTTP server needs to see.
#[derive(Default)]
pub(crate) struct Secrets {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) headers_file: Option<PathBuf>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
}

impl Secrets {
    /// Returns the request for a URL.
    fn request(self, url: &str) -> Result<HttpRequest, Error> {
        let request = match url.parse().map_err(of_url)? {
            Origin::Http(request) => request,
            // Not http: an error that says so.
            _ => HttpRequest::new(url.parse::<Url>().map_err(of_url)?),
        };
        self.shown_in(request)
    }

    /// Returns what a URL names. Only requests of HTTP show secrets; an NBD server or an NVMe controller takes none.
    pub(crate) fn origin(self, url: &str) -> Result<Origin, Error> {
        match url.parse().map_err(of_url)? {
            Origin::Http(request) => self.shown_in(request).map(Origin::Http),
            _ if self.is_given() => Err(Error::value(
                "headers, user and password are for http and s3",
            )),
            origin => Ok(origin),
        }
    }

    fn is_given(&self) -> bool {
        let Self {
            headers,
            headers_file,
            user,
            password,
            password_file,
        } = self;
        let is_named = headers_file.is_some() || password_file.is_some();
        !headers.is_empty() || is_named || user.is_some() || password.is_some()
    }

    fn shown_in(self, request: HttpRequest) -> Result<HttpRequest, Error> {
        let mut headers = self.headers.iter();
        let with_headers =
            headers.try_fold(request, |request, (name, value)| request.field(name, value));
        let mut request = with_headers.map_err(of_url)?;
        if let Some(file) = &self.headers_file {
            let text = read_secret(file)?;
            request = request.fields_of(&text, &file.to_string_lossy())?;
        }
        let of_file = self.password_file.as_deref().map(read_secret).transpose()?;
        let of_file = of_file.as_deref().map(password_of);
        if let Some(password) = self.password.as_deref().or(of_file) {
            request = request.with_password(self.user.as_deref(), password)?;
        }
        let request = request.secrets_from_env(self.user.as_deref())?;
        request.proxy_from_env().map_err(of_url)
    }
}

impl From<SecretError> for Error {
    fn from(error: SecretError) -> Self {
        match &error {
            SecretError::Read { source, .. } => {
                let kind = match source.kind() {
                    std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                    std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                    _ => ErrorKind::InvalidInput,
                };
                let errno = source.raw_os_error().unwrap_or(Errno::EINVAL.0);
                Self::of_load(kind, errno, error.to_string())
            }
            _ => Self::of_load(ErrorKind::InvalidInput, Errno::EINVAL.0, error.to_string()),
        }
    }
}

/// Binds `bytes`, or as many as are usual for the NIC, for connections from its first address, for the time of a load.
pub(crate) fn bind_for(
    nic: &Nic,
    bytes: Option<usize>,
    device: Device,
) -> Result<Option<BoundRx>, Error> {
    let bytes = bytes.unwrap_or(match nic.interface() {
        None => BIND_BYTES,
        Some(_) => 0,
    });
    let Some(address) = nic.addresses().first().copied().filter(|_| bytes > 0) else {
        return Ok(None);
    };
    let memory = device.alloc(bytes)?;
    let setup = nic.plan_receive(SocketAddr::new(address, 0)).apply()?;
    // The binding keeps the settings.
    Ok(Some(nic.bind_rx(&memory, setup.queues())?))
}

fn view_of(source: &Source, tensor: &Placed) -> Result<View, Error> {
    let bytes = View::of_bytes(source.clone(), tensor.place.start, tensor.place.len())?;
    let name = match tensor.dtype.as_str() {
        "F64" => "float64",
        "F32" => "float32",
        "F16" => "float16",
        "BF16" => "bfloat16",
        "I64" => "int64",
        "I32" => "int32",
        "I16" => "int16",
        "I8" => "int8",
        "U64" => "uint64",
        "U32" => "uint32",
        "U16" => "uint16",
        "U8" => "uint8",
        "BOOL" => "bool",
        "C64" => "complex64",
        "F8_E4M3" => "float8_e4m3fn",
        "F8_E5M2" => "float8_e5m2",
        "F8_E4M3FNUZ" => "float8_e4m3fnuz",
        "F8_E5M2FNUZ" => "float8_e5m2fnuz",
        "F8_E8M0" => "float8_e8m0fnu",
        _ => return Ok(bytes),
    };
    let too_large = |_error| Error::value(format!("the shape of {} is too large", tensor.name));
    let shape = tensor.shape.iter().map(|extent| i64::try_from(*extent));
    let shape: Vec<_> = shape.collect::<Result<_, _>>().map_err(too_large)?;
    bytes.shaped(Dtype::named(name)?, Some(&shape))
}

fn of_url(error: UrlError) -> Error {
    Error::of_load(ErrorKind::InvalidInput, Errno::EINVAL.0, error.to_string())
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        let (kind, errno) = match &error {
            CheckpointError::Load(load) => verdict(load),
            CheckpointError::Header { .. }
            | CheckpointError::Index { .. }
            | CheckpointError::Missing { .. } => (ErrorKind::InvalidInput, Errno::EINVAL),
            CheckpointError::TooLarge | CheckpointError::Limit { .. } => {
                (ErrorKind::OutOfResources, Errno::ENOMEM)
            }
            _ => (ErrorKind::Other, Errno::EIO),
        };
        Self::of_load(kind, errno.0, error.to_string())
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        let (kind, errno) = verdict(&error);
        Self::of_load(kind, errno.0, error.to_string())
    }
}

/// Returns kind and errno of a load's error.
pub(crate) fn verdict(error: &LoadError) -> (ErrorKind, Errno) {
    match error {
        LoadError::Url(_) | LoadError::PastEnd { .. } | LoadError::Unaligned { .. } => {
            (ErrorKind::InvalidInput, Errno::EINVAL)
        }
        LoadError::Connect { source, .. } => (source.kind(), source.errno()),
        LoadError::Route(source) => (source.kind(), source.errno()),
        LoadError::Recv(source) => (source.kind(), source.errno()),
        LoadError::Send(source) => (source.kind(), source.errno()),
        LoadError::Gather(source) => (source.kind(), source.errno()),
        LoadError::NoRoom(_) => (ErrorKind::OutOfResources, Errno::ENOMEM),
        LoadError::Resolve { .. } | LoadError::NoFamily { .. } => {
            (ErrorKind::HostUnreachable, Errno::EHOSTUNREACH)
        }
        LoadError::Status { status, .. } => match status {
            401 | 403 | 407 => (ErrorKind::PermissionDenied, Errno::EACCES),
            404 | 410 => (ErrorKind::NotFound, Errno::ENOENT),
            _ => (ErrorKind::Other, Errno::EIO),
        },
        _ => (ErrorKind::Other, Errno::EIO),
    }
}
