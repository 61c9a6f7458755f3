//! How https servers are verified, and how this client shows who it is.

use std::path::PathBuf;

use devmem_tcp::{Errno, ErrorKind};
use devmem_transfer::load::{HttpRequest, TlsError, TlsOptions};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;

use crate::error::Error;

/// How https servers are verified.
#[derive(FromPyObject)]
pub(crate) struct Tls {
    #[pyo3(item)]
    cacert: Option<PathBuf>,
    #[pyo3(item)]
    cert: Option<PathBuf>,
    #[pyo3(item)]
    key: Option<PathBuf>,
    #[pyo3(item)]
    verify: bool,
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

    /// Adds it to a request.
    pub(crate) fn add_to(self, request: HttpRequest) -> Result<HttpRequest, Error> {
        let is_default = self.cacert.is_none() && self.cert.is_none() && self.key.is_none();
        if is_default && self.verify {
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
            TlsError::Read { source, .. } => of_read(source, error.to_string()),
            _ => Self::of_load(ErrorKind::InvalidInput, Errno::EINVAL.0, error.to_string()),
        }
    }
}

/// Returns the error of a file that cannot be read.
pub(crate) fn of_read(source: &std::io::Error, text: String) -> Error {
    let kind = match source.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidInput,
    };
    let errno = source.raw_os_error().unwrap_or(Errno::EINVAL.0);
    Error::of_load(kind, errno, text)
}
