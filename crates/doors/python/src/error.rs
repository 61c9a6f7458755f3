//! Errors of the library as exceptions of Python.

use std::io;

use devmem_tcp::{
    AcceptError, BindError, BindTxError, CompletionError, ConnectError, CopyError,
    DeviceMemoryError, DmabufError, Errno, ErrorKind, Forked, GatherError, GeometryError,
    LinkSpecError, ListenError, OpenError, RecvError, ReleaseError, SendError, SetupError,
    ShutdownError, cuda::GpuError, text::PrintableLines, vulkan::VulkanError,
};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// Why a call failed. It can be made without Python's lock.
#[derive(Debug)]
pub(crate) enum Error {
    /// The library refused, or what it called.
    Library {
        kind: &'static str,
        is_timeout: bool,
        errno: i32,
        text: String,
    },
    /// An argument has a wrong value.
    Value(String),
    /// Memory cannot be shown as asked for.
    Buffer(String),
    /// Python raised it.
    Python(PyErr),
}

impl Error {
    pub(crate) fn value(text: impl Into<String>) -> Self {
        Self::Value(text.into())
    }

    pub(crate) fn buffer(text: impl Into<String>) -> Self {
        Self::Buffer(text.into())
    }

    /// The object was closed before.
    pub(crate) fn closed(what: &str) -> Self {
        Self::Library {
            kind: "Closed",
            is_timeout: false,
            errno: Errno::EBADF.0,
            text: format!("the {what} is closed"),
        }
    }

    /// Whether the call did nothing because it would have had to wait.
    pub(crate) fn would_block_now(&self) -> bool {
        matches!(
            self,
            Self::Library {
                kind: "WouldBlock",
                ..
            }
        )
    }

    /// Whether the time that the call had is over.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::Library {
                is_timeout: true,
                ..
            }
        )
    }

    /// An error of the library. Its text may have some from outside, and tracebacks go to terminals: what a terminal would obey is
    /// escaped.
    pub(crate) fn library(kind: ErrorKind, errno: i32, text: String) -> Self {
        Self::Library {
            kind: name_of(kind),
            is_timeout: kind == ErrorKind::TimedOut,
            errno,
            text: PrintableLines(text).to_string(),
        }
    }
}

/// The name by which `_errors.py` finds the class; a kind that it does not list becomes a `DevmemError`.
fn name_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::WouldBlock => "WouldBlock",
        ErrorKind::TimedOut => "TimedOut",
        ErrorKind::InvalidInput => "InvalidInput",
        ErrorKind::NotFound => "NotFound",
        ErrorKind::PermissionDenied => "PermissionDenied",
        ErrorKind::Unsupported => "Unsupported",
        ErrorKind::NotSetUp => "NotSetUp",
        ErrorKind::InUse => "InUse",
        ErrorKind::AddrInUse => "AddrInUse",
        ErrorKind::OutOfResources => "OutOfResources",
        ErrorKind::ConnectionRefused => "ConnectionRefused",
        ErrorKind::ConnectionReset => "ConnectionReset",
        ErrorKind::ConnectionAborted => "ConnectionAborted",
        ErrorKind::BrokenPipe => "BrokenPipe",
        ErrorKind::HostUnreachable => "HostUnreachable",
        ErrorKind::NetworkUnreachable => "NetworkUnreachable",
        ErrorKind::Misplaced => "Misplaced",
        ErrorKind::DataLost => "DataLost",
        ErrorKind::Forked => "Forked",
        _ => "Other",
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        match error {
            Error::Library {
                kind, errno, text, ..
            } => Python::attach(|py| raised(py, kind, errno, &text).unwrap_or_else(|error| error)),
            Error::Value(text) => PyValueError::new_err(PrintableLines(text).to_string()),
            Error::Buffer(text) => PyBufferError::new_err(PrintableLines(text).to_string()),
            Error::Python(error) => error,
        }
    }
}

impl From<PyErr> for Error {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

/// Returns the exception of the package.
fn raised(py: Python<'_>, kind: &str, errno: i32, text: &str) -> PyResult<PyErr> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        PyModule::import(py, "devmem_tcp._errors").map(Bound::unbind)
    })?;
    let remedy = text.split_once('\n').map(|(_, remedy)| {
        let lines: Vec<_> = remedy.lines().map(str::trim).collect();
        lines.join("\n")
    });
    let make = module.bind(py).getattr("make")?;
    Ok(PyErr::from_value(make.call1((kind, errno, text, remedy))?))
}

macro_rules! from_library {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::library(error.kind(), error.errno().0, error.to_string())
            }
        }
    )*};
}

from_library!(
    AcceptError,
    BindError,
    BindTxError,
    CompletionError,
    ConnectError,
    DeviceMemoryError,
    Forked,
    GatherError,
    LinkSpecError,
    ListenError,
    OpenError,
    RecvError,
    ReleaseError,
    SendError,
    SetupError,
    ShutdownError,
);

impl From<DmabufError> for Error {
    fn from(error: DmabufError) -> Self {
        DeviceMemoryError::from(error).into()
    }
}

impl From<CopyError> for Error {
    fn from(error: CopyError) -> Self {
        GatherError::from(error).into()
    }
}

impl From<GeometryError> for Error {
    fn from(error: GeometryError) -> Self {
        Self::Value(error.to_string())
    }
}

impl From<GpuError> for Error {
    fn from(error: GpuError) -> Self {
        DeviceMemoryError::from(error).into()
    }
}

impl From<VulkanError> for Error {
    fn from(error: VulkanError) -> Self {
        DeviceMemoryError::from(error).into()
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| {
            let kind = ErrorKind::of(inner)?;
            let send = inner.downcast_ref::<SendError>().map(SendError::errno);
            let recv = inner.downcast_ref::<RecvError>().map(RecvError::errno);
            let forked = inner.downcast_ref::<Forked>().map(Forked::errno);
            Some((kind, send.or(recv).or(forked).unwrap_or(Errno::EIO)))
        });
        if let Some((kind, errno)) = inner {
            return Self::library(kind, errno.0, error.to_string());
        }
        let (kind, errno) = match error.kind() {
            io::ErrorKind::WouldBlock => (ErrorKind::WouldBlock, Errno::EAGAIN),
            io::ErrorKind::TimedOut => (ErrorKind::TimedOut, Errno::EAGAIN),
            io::ErrorKind::NotConnected => (ErrorKind::NotConnected, Errno::ENOTCONN),
            io::ErrorKind::InvalidInput => (ErrorKind::InvalidInput, Errno::EINVAL),
            _ => (ErrorKind::Other, Errno::EIO),
        };
        let errno = error.raw_os_error().unwrap_or(errno.0);
        Self::library(kind, errno, error.to_string())
    }
}
