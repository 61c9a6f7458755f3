//! What a loader loads from.

use devmem_tcp::{Netdev, Stream};

use super::dial;
use super::error::LoadError;
use super::http::{HttpFile, HttpSession};
use super::nbd::NbdExport;
use super::session::Session;

/// A source of bytes at offsets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// A file of an HTTP server.
    Http(HttpFile),
    /// An export of an NBD server.
    Nbd(NbdExport),
}

impl From<&HttpFile> for Source {
    fn from(file: &HttpFile) -> Self {
        Self::Http(file.clone())
    }
}

impl From<&NbdExport> for Source {
    fn from(export: &NbdExport) -> Self {
        Self::Nbd(export.clone())
    }
}

impl Source {
    /// Returns the number of bytes, if the server tells.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Http(file) => file.size(),
            Self::Nbd(export) => Some(export.size()),
        }
    }

    /// Returns whether several connections may be used.
    pub(crate) fn takes_many_connections(&self) -> bool {
        match self {
            Self::Http(file) => file.serves_ranges(),
            Self::Nbd(export) => export.takes_many_connections(),
        }
    }

    /// Returns the longest piece that can be requested, and the number that every range must be a multiple of.
    pub(crate) fn piece_limits(&self) -> (u64, u64) {
        match self {
            Self::Http(_) => (u64::MAX, 1),
            Self::Nbd(export) => (export.max_bytes(), export.block_bytes()),
        }
    }

    /// Makes a connection that can request pieces, `window` of them at a time.
    pub(crate) fn connect(
        &self,
        nic: &Netdev,
        window: usize,
    ) -> Result<(Stream, Box<dyn Session>), LoadError> {
        match self {
            Self::Http(file) => {
                let stream = dial::connect(nic, file.addresses())?;
                Ok((stream, Box::new(HttpSession::new(file, window))))
            }
            Self::Nbd(export) => export.connect(nic, window),
        }
    }
}
