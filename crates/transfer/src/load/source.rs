//! What a loader loads from.

use std::net::SocketAddr;

use devmem_tcp::{Netdev, Stream};

use super::dial::{self, GoOn};
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

    /// Returns the URL, after redirects and without user and password.
    pub fn url(&self) -> String {
        match self {
            Self::Http(file) => file.request().url().to_string(),
            Self::Nbd(export) => export.url().to_string(),
        }
    }

    /// Returns the addresses of the server, or of the proxy, in the order in which they are tried.
    pub fn addresses(&self) -> &[SocketAddr] {
        match self {
            Self::Http(file) => file.addresses(),
            Self::Nbd(export) => export.addresses(),
        }
    }

    /// Returns whether the server serves ranges; if not, it sends the whole file over one connection.
    pub fn serves_ranges(&self) -> bool {
        match self {
            Self::Http(file) => file.serves_ranges(),
            Self::Nbd(_) => true,
        }
    }

    /// Returns the CRC-32C of all bytes, if the server sends it.
    pub fn crc32c(&self) -> Option<u32> {
        match self {
            Self::Http(file) => file.crc32c(),
            Self::Nbd(_) => None,
        }
    }

    /// Returns whether several connections may be used.
    pub(crate) fn takes_many_connections(&self) -> bool {
        match self {
            Self::Http(_) => self.serves_ranges(),
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

    /// Makes a connection that can request pieces, `window` of them at a time, while `go_on` says so.
    pub(crate) fn connect(
        &self,
        nic: &Netdev,
        window: usize,
        go_on: &mut GoOn<'_>,
    ) -> Result<(Stream, Box<dyn Session>), LoadError> {
        match self {
            Self::Http(file) => {
                let stream = dial::connect(nic, file.addresses(), go_on)?;
                Ok((stream, Box::new(HttpSession::new(file, window))))
            }
            Self::Nbd(export) => export.connect(nic, window, go_on),
        }
    }
}
