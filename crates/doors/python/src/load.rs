//! Checkpoints: tensors of a safetensors file on a stock server, loaded to their places in device memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use devmem_tcp::{BoundRx, Dmabuf as Memory, Errno, ErrorKind, Netdev as Nic};
use devmem_transfer::load::{
    CancelCheck, Checkpoint, CheckpointError, HttpRequest, LoadError, Loader, Metadata, Origin,
    Remedy, SecretError, Tensor as Placed, TlsError, TlsOptions, Url, UrlError, password_of,
    read_secret,
};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::interrupt::interruptible;
use crate::netdev::Netdev;
use crate::source::Source;
use crate::sums;
use crate::tensor::Tensor;
use crate::view::View;

/// Bytes that a NIC in user space receives into, if the caller does not say.
const BIND_BYTES: usize = 64 << 20;

/// Loads the tensors of the safetensors file, or of the shards of the `*.index.json`, at `url` (http, https or s3) over `nic`, with range
/// requests over several connections. Returns them by name; they share one memory on `device`: "cpu", "cuda:N", "hip:N" or
/// "vulkan:N". Without `nic`, the kernel's sockets are used, on the interface of the route to the server, and payload passes through
/// host memory.
///
/// The bytes of https servers are decrypted by the CPU in host memory, and copied to their place. The server is verified by the certificates of the system, or of
/// `SSL_CERT_FILE` and `SSL_CERT_DIR`, or by those of the PEM file `cacert` alone. `cert` is a PEM file with a certificate of this client, and `key` that of its private
/// key, if it is another one; they are shown to the origin of `url` alone. With `verify=False` any certificate is accepted, with a warning.
///
/// The call binds `bind` bytes to the NIC for its own time: 64 MiB in user space by default, none with a NIC of the
/// kernel. With 0 it uses what the caller has bound for `nic.plan_receive((address, 0))`; without a binding payload passes
/// through host memory. `headers` are fields of each request, a dict or pairs of name and value, and `headers_file` names a file with further ones,
/// one a line. `password`, or the first line of `password_file`, is sent for `user` or the user of the URL. The environment may have them, too:
/// DEVMEM_HEADERS, DEVMEM_USER, DEVMEM_PASSWORD, and for s3 what Amazon's tools use. The proxy of the environment is used
/// (http_proxy, https_proxy, all_proxy, no_proxy). `connections` is the largest number of them: 4 by default, and 16 while the files of a checkpoint are opened. A server
/// that brings less than 4 KiB in `idle_limit` seconds is asked again, on another connection. A type that this package has no name for becomes bytes. The result
/// also has `metadata`, the texts that the writers of the files have added (`__metadata__`), and `entries`: for each tensor the names of its type and its shape, as
/// in the file.
///
/// With `checksums=True` the bytes of each file are compared with the checksum that its server has (the fields x-goog-hash and x-amz-checksum-*): DataLostError, if they
/// differ, and NotSupportedError, if there is none to compare, or an index names only some tensors of a file.
#[pyfunction]
#[pyo3(signature = (
    url, nic=None, *, device="cpu", bind=None, connections=None, idle_limit=30.0, headers=None, headers_file=None, user=None,
    password=None, password_file=None, cacert=None, cert=None, key=None, verify=true, checksums=false
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
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    verify: bool,
    checksums: bool,
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
    let tls = Tls {
        cacert,
        cert,
        key,
        verify,
    };
    tls.warn(py)?;
    let request = tls.add_to(secrets.request(url)?)?;
    let (memory, tensors, metadata) = interruptible(py, |cancel_check| {
        let origin = Origin::Http(request.clone());
        let nic = nic_for(nic, &origin, cancel_check)?;
        let _bound = bind_for(&nic, bind, &origin, device)?;
        let loader = loader(&nic, connections, idle_limit);
        let checkpoint = Checkpoint::open_cancellable(&loader, request, cancel_check)?;
        let memory = device.alloc(checkpoint.memory_bytes())?;
        checkpoint.load(&loader, &memory, &mut |_| cancel_check())?;
        if checksums {
            sums::check(&checkpoint, &loader, &memory, cancel_check)?;
        }
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
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Nic, Error> {
    match nic {
        Some(nic) => Ok(nic),
        None => Ok(origin.kernel_nic(cancel_check)?),
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
        let place = (tensor.place.start, tensor.place.len());
        let view = view_of(&source, place, &tensor, &tensor.shape)?;
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
    pub(crate) fn request(self, url: &str) -> Result<HttpRequest, Error> {
        let request = match url.parse().map_err(of_url)? {
            Origin::Http(request) => request,
            // Not http: an error that says so.
            _ => HttpRequest::new(url.parse::<Url>().map_err(of_url)?),
        };
        self.shown_in(request)
    }

    /// Returns what a URL names. Only requests of HTTP show secrets; an NBD server or an NVMe controller takes none.
    pub(crate) fn origin(self, tls: Tls, url: &str) -> Result<Origin, Error> {
        match url.parse().map_err(of_url)? {
            Origin::Http(request) => tls.add_to(self.shown_in(request)?).map(Origin::Http),
            _ if self.is_given() || tls.is_given() => Err(Error::value(
                "headers, user, password, certificates and verify are for http, https and s3",
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

/// How https servers are verified.
pub(crate) struct Tls {
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) verify: bool,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            cacert: None,
            cert: None,
            key: None,
            verify: true,
        }
    }
}

impl Tls {
    /// Warns of servers that are not verified.
    pub(crate) fn warn(&self, py: Python<'_>) -> PyResult<()> {
        let text = c"verify=False: https servers are not verified; whoever is on the way can read the requests and send other bytes";
        match self.verify {
            true => Ok(()),
            false => PyErr::warn(py, &py.get_type::<PyUserWarning>(), text, 1),
        }
    }

    fn is_given(&self) -> bool {
        let is_named = self.cacert.is_some() || self.cert.is_some() || self.key.is_some();
        is_named || !self.verify
    }

    /// Adds it to a request.
    pub(crate) fn add_to(self, request: HttpRequest) -> Result<HttpRequest, Error> {
        if !self.is_given() {
            return Ok(request);
        }
        let mut options = TlsOptions::new();
        match (self.cacert, self.verify) {
            (Some(_), false) => {
                let text = "cacert: nothing is verified with verify=False";
                return Err(Error::value(text.to_owned()));
            }
            (Some(file), true) => options = options.authorities(file),
            (None, false) => options = options.without_verification(),
            (None, true) => {}
        }
        match (self.cert, self.key) {
            (Some(certificate), key) => {
                let key = key.unwrap_or_else(|| certificate.clone());
                options = options.identity(certificate, key);
            }
            (None, Some(_)) => return Err(Error::value("key: there is no cert".to_owned())),
            (None, None) => {}
        }
        Ok(request.tls(options.client()?))
    }
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        match &error {
            TlsError::Read { error: cause, .. } => of_read(cause, error.to_string()),
            _ => invalid(error.to_string(), error.remedy()),
        }
    }
}

/// Returns the error of a file that cannot be read.
fn of_read(source: &std::io::Error, text: String) -> Error {
    let kind = match source.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidInput,
    };
    let errno = source.raw_os_error().unwrap_or(Errno::EINVAL.0);
    Error::of_load(kind, errno, text, None)
}

/// Returns the error of an argument of a load.
fn invalid(reason: String, remedy: Option<Remedy>) -> Error {
    Error::of_load(ErrorKind::InvalidInput, Errno::EINVAL.0, reason, remedy)
}

impl From<SecretError> for Error {
    fn from(error: SecretError) -> Self {
        match &error {
            SecretError::Read { error: cause, .. } => of_read(cause, error.to_string()),
            _ => invalid(error.to_string(), error.remedy()),
        }
    }
}

/// Binds `bytes`, or as many as are usual for the NIC and the server, for connections from the NIC's first address, for the time of
/// a load.
pub(crate) fn bind_for(
    nic: &Nic,
    bytes: Option<usize>,
    origin: &Origin,
    device: Device,
) -> Result<Option<BoundRx>, Error> {
    // What the CPU must decrypt is received in host memory.
    let is_encrypted = matches!(origin, Origin::Http(request) if request.url().is_https());
    let bytes = bytes.unwrap_or(match nic.interface() {
        None if !is_encrypted => BIND_BYTES,
        _ => 0,
    });
    let Some(address) = nic.addresses().first().copied().filter(|_| bytes > 0) else {
        return Ok(None);
    };
    let memory = device.alloc(bytes)?;
    let setup = nic.plan_receive(SocketAddr::new(address, 0)).apply()?;
    // The binding keeps the settings.
    Ok(Some(nic.bind_rx(&memory, setup.queues())?))
}

/// Returns the view of a tensor: `bytes` of the memory from `offset` on, of which the dimensions are `shape`. A type that has no name here becomes bytes.
pub(crate) fn view_of(
    source: &Source,
    (offset, bytes): (usize, usize),
    tensor: &Placed,
    shape: &[u64],
) -> Result<View, Error> {
    let bytes = View::of_bytes(source.clone(), offset, bytes)?;
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
    let shape = shape.iter().map(|extent| i64::try_from(*extent));
    let shape: Vec<_> = shape.collect::<Result<_, _>>().map_err(too_large)?;
    bytes.shaped(Dtype::named(name)?, Some(&shape))
}

fn of_url(error: UrlError) -> Error {
    invalid(error.to_string(), error.remedy())
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
        Self::of_load(kind, errno.0, error.to_string(), error.remedy())
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        let (kind, errno) = verdict(&error);
        Self::of_load(kind, errno.0, error.to_string(), error.remedy())
    }
}

/// Returns kind and errno of a load's error.
pub(crate) fn verdict(error: &LoadError) -> (ErrorKind, Errno) {
    match error {
        LoadError::Url(_) | LoadError::PastEnd { .. } | LoadError::Unaligned { .. } => {
            (ErrorKind::InvalidInput, Errno::EINVAL)
        }
        LoadError::Connect { error, .. } => (error.kind(), error.errno()),
        LoadError::Route(source) => (source.kind(), source.errno()),
        LoadError::Recv(source) => (source.kind(), source.errno()),
        LoadError::Send(source) => (source.kind(), source.errno()),
        LoadError::Gather(source) => (source.kind(), source.errno()),
        LoadError::NoRoom(_) => (ErrorKind::OutOfResources, Errno::ENOMEM),
        LoadError::Resolve { .. } | LoadError::NoFamily { .. } => {
            (ErrorKind::HostUnreachable, Errno::EHOSTUNREACH)
        }
        LoadError::TlsSetUp(_) => (ErrorKind::InvalidInput, Errno::EINVAL),
        // The server has not proved who it is, or asks who this client is.
        LoadError::Tls { .. } => (ErrorKind::PermissionDenied, Errno::EACCES),
        LoadError::Status { status, .. } | LoadError::Tunnel { status, .. } => match status {
            401 | 403 | 407 => (ErrorKind::PermissionDenied, Errno::EACCES),
            404 | 410 => (ErrorKind::NotFound, Errno::ENOENT),
            _ => (ErrorKind::Other, Errno::EIO),
        },
        _ => (ErrorKind::Other, Errno::EIO),
    }
}
