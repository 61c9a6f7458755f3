//! Errors of the library as exceptions of Python.

use std::io;

use devmem_tcp::{
    BindError, Errno, ErrorKind, RecvError,
    cuda::GpuError,
    memory::{CopyError, DmabufError, GeometryError},
    text::PrintableLines,
    vulkan::VulkanError,
};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

use crate::remedy::{self, words};

/// Why a call failed. It can be made without Python's lock.
#[derive(Debug)]
pub(crate) enum Error {
    /// The library refused, or what it called.
    Library {
        kind: &'static str,
        is_timeout: bool,
        errno: i32,
        reason: String,
        remedy: Option<String>,
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
            reason: format!("the {what} is closed"),
            remedy: None,
        }
    }

    /// The object was made by the process `owner`, of which this one is a fork.
    pub(crate) fn forked(owner: u32) -> Self {
        Self::Library {
            kind: "Forked",
            is_timeout: false,
            errno: Errno::EOWNERDEAD.0,
            reason: format!("the NIC belongs to process {owner}, of which this one is a fork"),
            remedy: Some("open a NIC in this process, or fork before opening it".to_owned()),
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

    /// An error of a load. It may have text from outside, and tracebacks go to terminals: what a terminal would obey is escaped.
    pub(crate) fn of_load(
        kind: ErrorKind,
        errno: i32,
        reason: String,
        remedy: Option<devmem_transfer::load::Remedy>,
    ) -> Self {
        let reason = PrintableLines(reason).to_string();
        Self::new(kind, errno, reason, remedy.as_ref().map(remedy::of_load))
    }

    /// A text cannot be resolved to an address.
    pub(crate) fn not_an_address(error: &io::Error) -> Self {
        let remedy = "write it as 10.77.0.1:5201 or [fd77::1]:5201".to_owned();
        let reason = format!("not an address: {error}");
        let errno = error.raw_os_error().unwrap_or(Errno::EINVAL.0);
        Self::new(ErrorKind::InvalidInput, errno, reason, Some(remedy))
    }

    /// The peer has not answered in time.
    pub(crate) fn no_answer() -> Self {
        let reason = "the peer did not answer".to_owned();
        let remedy =
            "check that the peer runs and that packets reach it: ping, and a capture on the link";
        let errno = Errno::ETIMEDOUT.0;
        Self::new(ErrorKind::TimedOut, errno, reason, Some(remedy.to_owned()))
    }

    fn new(kind: ErrorKind, errno: i32, reason: String, remedy: Option<String>) -> Self {
        Self::Library {
            kind: name_of(kind),
            is_timeout: kind == ErrorKind::TimedOut,
            errno,
            reason,
            remedy,
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
                kind,
                errno,
                reason,
                remedy,
                ..
            } => Python::attach(|py| {
                raised(py, kind, errno, reason, remedy).unwrap_or_else(|error| error)
            }),
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

/// Returns the exception of the package. Its text has the remedy, too, on further lines.
fn raised(
    py: Python<'_>,
    kind: &str,
    errno: i32,
    reason: String,
    remedy: Option<String>,
) -> PyResult<PyErr> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        PyModule::import(py, "devmem_tcp._errors").map(Bound::unbind)
    })?;
    let mut text = reason;
    for line in remedy.iter().flat_map(|remedy| remedy.lines()) {
        text.push_str("\n  ");
        text.push_str(line);
    }
    let make = module.bind(py).getattr("make")?;
    Ok(PyErr::from_value(make.call1((kind, errno, text, remedy))?))
}

macro_rules! from_library {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                let remedy = error.remedy().map(words);
                let reason = PrintableLines(error.reason()).to_string();
                Self::new(error.kind(), error.errno().0, reason, remedy)
            }
        }
    )*};
}

from_library!(devmem_tcp::Error, BindError, RecvError);

macro_rules! by_the_library {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                devmem_tcp::Error::from(error).into()
            }
        }
    )*};
}

by_the_library!(CopyError, DmabufError, GpuError, VulkanError, io::Error);

impl From<GeometryError> for Error {
    fn from(error: GeometryError) -> Self {
        Self::Value(format!("{error}: {}", error.remedy()))
    }
}
