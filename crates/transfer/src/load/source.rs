//! What a loader loads from.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use client::dial::CancelCheck;
use client::http::{ConnectionAttempt, HttpFile};
use client::nbd::NbdExport;
use client::nvme::NvmeNamespace;
use client::{ConnectionKey, LoadError, Pool, Transport};
use devmem_tcp::Netdev;

use super::http::{HttpSession, Volume};
use super::nbd::NbdSession;
use super::nvme::NvmeSession;
use super::partial::FileVersion;
use super::session::Session;
use crate::parallel::Window;

/// Length of a piece of a file, by default: each has a head, and its first packet is copied to its place.
const HTTP_PIECE_BYTES: u64 = 16 << 20;
/// Length of a piece of an export, by default. Servers read a piece whole before they send it: while they read one of 16 MiB they send
/// nothing for milliseconds, and its bytes have left the cache before they are sent.
const NBD_PIECE_BYTES: u64 = 1 << 20;
/// Length of the first piece of an export, at least. qemu-nbd allocates memory for each request. glibc's malloc(3) returns such a block to
/// the kernel until it has freed a larger one once (mallopt(3), `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`), and page faults
/// take more of the server's time then than its reads and sends. After one request of this length it keeps the memory of up to 16 of 1 MiB.
const NBD_FIRST_BYTES: u64 = 4 << 20;
/// Length of a command to an NVMe controller, by default: headers are 0.002 % of the bytes then.
const NVME_PIECE_BYTES: u64 = 1 << 20;
/// Commands in flight on a queue, by default.
const NVME_DEPTH: usize = 32;

/// Lengths of the pieces of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceLengths {
    /// Longest one that can be requested.
    pub(crate) longest: u64,
    /// Every range must be a multiple of it.
    pub(crate) block: u64,
    /// Length if none is set.
    pub(crate) usual: u64,
    /// Length of the first one, at least.
    pub(crate) first: u64,
    /// Requests in flight on one connection, if no number is set.
    pub(crate) window: Window,
}

/// A source of bytes at offsets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// A file of an HTTP server.
    Http(HttpFile),
    /// Files of HTTP servers side by side: those of a checkpoint.
    Files(Volume),
    /// An export of an NBD server.
    Nbd(NbdExport),
    /// A namespace of an NVMe subsystem.
    Nvme(NvmeNamespace),
}

/// A connection that can request pieces.
pub(crate) type Opened = (Transport, Box<dyn Session>);

/// By which rules connections are made and used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Most requests in flight on one connection.
    pub(crate) window: usize,
    /// How long to wait for a proxy and for the handshake of TLS.
    pub(crate) limit: Duration,
}

/// A connection that can request pieces, or soon can.
pub(crate) enum NewConnection<'a> {
    Open(Transport, Box<dyn Session>),
    Connecting(Box<Connecting<'a>>),
}

/// A connection to an HTTP server that is being made.
#[derive(Debug)]
pub(crate) struct Connecting<'a> {
    attempt: ConnectionAttempt<'a>,
    files: Volume,
    key: ConnectionKey,
    window: usize,
}

impl Connecting<'_> {
    /// Returns the outcome, `None` while there is none. Never waits.
    pub(crate) fn poll(&mut self) -> Option<Result<Opened, LoadError>> {
        let outcome = self.attempt.poll()?;
        Some(outcome.map(|transport| (transport, self.session())))
    }

    fn session(&self) -> Box<dyn Session> {
        Box::new(HttpSession::new(&self.files, self.key.clone(), self.window))
    }
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

impl From<&NvmeNamespace> for Source {
    fn from(namespace: &NvmeNamespace) -> Self {
        Self::Nvme(namespace.clone())
    }
}

impl Source {
    /// Returns the number of bytes, if the server tells.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Http(file) => file.size(),
            Self::Files(files) => files.size(),
            Self::Nbd(export) => Some(export.size()),
            Self::Nvme(namespace) => Some(namespace.size()),
        }
    }

    /// Returns the URL, after redirects and without user and password.
    pub fn url(&self) -> String {
        match self {
            Self::Http(file) => file.place(),
            Self::Files(files) => files.place(),
            Self::Nbd(export) => export.url().to_string(),
            Self::Nvme(namespace) => namespace.url().to_string(),
        }
    }

    /// Returns the addresses of the server, or of the proxy, in the order in which they are tried.
    pub fn addresses(&self) -> &[SocketAddr] {
        match self {
            Self::Http(file) => file.addresses(),
            Self::Files(files) => files.addresses(),
            Self::Nbd(export) => export.addresses(),
            Self::Nvme(namespace) => namespace.addresses(),
        }
    }

    /// Returns whether the bytes come by https, and the CPU decrypts them in host memory.
    pub fn is_encrypted(&self) -> bool {
        match self {
            Self::Http(file) => file.is_encrypted(),
            Self::Files(files) => files.is_encrypted(),
            Self::Nbd(_) | Self::Nvme(_) => false,
        }
    }

    /// Returns whether the server serves ranges; if not, it sends the whole file over one connection.
    pub fn serves_ranges(&self) -> bool {
        match self {
            Self::Http(file) => file.serves_ranges(),
            Self::Files(files) => files.serves_ranges(),
            Self::Nbd(_) | Self::Nvme(_) => true,
        }
    }

    /// Returns what `range` of it is recognised by, for a [`PartialFile`](super::PartialFile).
    pub fn version(&self, range: Range<u64>) -> FileVersion {
        let validator = match self {
            Self::Http(file) => file.version().map(str::to_owned),
            _ => None,
        };
        FileVersion {
            size: self.size(),
            validator,
            range,
        }
    }

    /// Returns how many of `wanted` connections may be used.
    pub(crate) fn usable_connections(&self, wanted: usize) -> usize {
        match self {
            Self::Http(_) | Self::Files(_) if self.serves_ranges() => wanted,
            Self::Nbd(export) if export.takes_many_connections() => wanted,
            Self::Http(_) | Self::Files(_) | Self::Nbd(_) => 1,
            Self::Nvme(namespace) => wanted.min(namespace.limits().queues),
        }
    }

    /// Tells the server that this client is there, when that is due.
    pub(crate) fn keep_alive(&self) {
        match self {
            Self::Http(_) | Self::Files(_) | Self::Nbd(_) => {}
            Self::Nvme(namespace) => namespace.keep_alive(Instant::now()),
        }
    }

    /// Returns the lengths of pieces.
    pub(crate) fn piece_lengths(&self) -> PieceLengths {
        match self {
            Self::Http(_) | Self::Files(_) => PieceLengths {
                longest: u64::MAX,
                block: 1,
                usual: HTTP_PIECE_BYTES,
                first: 0,
                window: Window::ENOUGH,
            },
            Self::Nbd(export) => PieceLengths {
                longest: export.max_bytes(),
                block: export.block_bytes(),
                usual: NBD_PIECE_BYTES,
                first: NBD_FIRST_BYTES,
                window: Window::ENOUGH,
            },
            Self::Nvme(namespace) => PieceLengths {
                longest: namespace.max_bytes(),
                block: namespace.block_bytes(),
                usual: NVME_PIECE_BYTES,
                first: 0,
                window: Window::of(NVME_DEPTH),
            },
        }
    }

    /// Begins a connection that can request the piece that starts at `at`, and others. Waits, unless `cancel_check` cancels it, for
    /// servers that negotiate.
    ///
    /// # Errors
    /// The server does not answer, or has changed.
    pub(crate) fn begin<'a>(
        &self,
        nic: &'a Netdev,
        rules: Rules,
        at: u64,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<NewConnection<'a>, LoadError> {
        let Rules { window, limit } = rules;
        let files = match self {
            Self::Http(file) => Volume::of(file),
            Self::Files(files) => files.clone(),
            Self::Nbd(export) => {
                let (stream, is_structured) = export.dial(nic, cancel_check)?;
                let session = NbdSession::new(export.url().host(), is_structured, window);
                return Ok(NewConnection::Open(
                    Transport::Tcp(Box::new(stream)),
                    Box::new(session),
                ));
            }
            Self::Nvme(namespace) => {
                let queue = namespace.dial(nic, window, cancel_check)?;
                let window = window.min(queue.depth);
                let (host, limits) = (namespace.url().host(), *namespace.limits());
                let session =
                    NvmeSession::new(host, limits, queue.digests, window, queue.membership);
                let transport = Transport::Tcp(Box::new(queue.stream));
                return Ok(NewConnection::Open(transport, Box::new(session)));
            }
        };
        let placed = files.file_at(at).ok_or(LoadError::Unasked { at })?;
        let (location, pool) = (placed.file.location(), placed.file.pool());
        let key = location.connection_key();
        let kept = pool.take(nic, &key);
        let connecting = Connecting {
            attempt: ConnectionAttempt::new(nic, &location, limit),
            files: files.clone(),
            key,
            window,
        };
        Ok(match kept {
            Some(transport) => NewConnection::Open(transport, connecting.session()),
            None => NewConnection::Connecting(Box::new(connecting)),
        })
    }

    /// Returns the connections that wait for another load, if any may.
    pub(crate) fn pool(&self) -> Option<&Pool> {
        match self {
            Self::Http(file) => Some(file.pool()),
            Self::Files(files) => files.pool(),
            Self::Nbd(_) | Self::Nvme(_) => None,
        }
    }
}
