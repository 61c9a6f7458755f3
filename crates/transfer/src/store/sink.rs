//! What a storer stores in.

use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

use client::dial::CancelCheck;
use client::nbd::{SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES};
use devmem_tcp::{Netdev, Stream};

use super::error::{Operation, StoreError};
use super::nbd::NbdSession;
use super::nvme::{NvmeSession, QueueLimits};
use super::session::{Acknowledge, Session};

use crate::load::{LoadError, NbdExport, NvmeNamespace, Origin};

/// An export of an NBD server, or a namespace of an NVMe subsystem. Cloning it is cheap.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Sink {
    /// An export of an NBD server.
    Nbd(NbdExport),
    /// A namespace of an NVMe subsystem.
    Nvme(NvmeNamespace),
}

impl From<&NbdExport> for Sink {
    fn from(export: &NbdExport) -> Self {
        Self::Nbd(export.clone())
    }
}

impl From<&NvmeNamespace> for Sink {
    fn from(namespace: &NvmeNamespace) -> Self {
        Self::Nvme(namespace.clone())
    }
}

impl From<&Sink> for Sink {
    fn from(sink: &Sink) -> Self {
        sink.clone()
    }
}

impl From<&Sink> for crate::load::Source {
    fn from(sink: &Sink) -> Self {
        match sink {
            Sink::Nbd(export) => export.into(),
            Sink::Nvme(namespace) => namespace.into(),
        }
    }
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nbd(export) => export.url().fmt(f),
            Self::Nvme(namespace) => namespace.url().fmt(f),
        }
    }
}

impl Sink {
    /// Opens what a URL names. `cancel_check` is called at least every 100 ms.
    ///
    /// # Errors
    /// The host is not found or does not answer, or does not have it; [`StoreError::NoSink`] for a file of an HTTP server.
    pub fn open_cancellable(
        nic: &Netdev,
        origin: &Origin,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Self, StoreError> {
        match origin {
            Origin::Nbd(url) => Ok(Self::Nbd(NbdExport::open_cancellable(
                nic,
                url.clone(),
                cancel_check,
            )?)),
            Origin::Nvme(url) => {
                let namespace = NvmeNamespace::open_cancellable(nic, url.clone(), cancel_check)?;
                Ok(Self::Nvme(namespace))
            }
            Origin::Http(request) => Err(StoreError::NoSink {
                url: request.url().to_string(),
            }),
        }
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Nbd(export) => export.size(),
            Self::Nvme(namespace) => namespace.size(),
        }
    }

    /// Returns the size of a block: every range must start and end at a multiple of it, or end with all bytes.
    pub fn block_bytes(&self) -> u64 {
        match self {
            Self::Nbd(export) => export.block_bytes(),
            Self::Nvme(namespace) => namespace.block_bytes(),
        }
    }

    /// Returns the addresses of the server, in the order in which they are tried.
    pub fn addresses(&self) -> &[SocketAddr] {
        match self {
            Self::Nbd(export) => export.addresses(),
            Self::Nvme(namespace) => namespace.addresses(),
        }
    }

    /// Returns whether the server refuses writes.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Nbd(export) => export.is_read_only(),
            Self::Nvme(namespace) => namespace.is_read_only(),
        }
    }

    /// Returns how many of `wanted` connections may be used.
    pub(crate) fn usable_connections(&self, wanted: usize) -> usize {
        match self {
            Self::Nbd(export) if export.takes_many_connections() => wanted,
            Self::Nbd(_) => 1,
            Self::Nvme(namespace) => wanted.min(namespace.limits().queues),
        }
    }

    /// Returns whether the server has an operation.
    pub(crate) fn has(&self, operation: Operation) -> bool {
        match (self, operation) {
            (_, Operation::Write) => true,
            (Self::Nbd(export), Operation::Flush) => export.has(SEND_FLUSH),
            (Self::Nbd(export), Operation::WriteZeroes) => export.has(SEND_WRITE_ZEROES),
            (Self::Nbd(export), Operation::Trim) => export.has(SEND_TRIM),
            (Self::Nvme(_), Operation::Flush) => true,
            (Self::Nvme(namespace), Operation::WriteZeroes) => namespace.limits().writes_zeroes,
            (Self::Nvme(namespace), Operation::Trim) => namespace.limits().deallocates,
        }
    }

    /// Returns whether a write can be on storage when it is acknowledged.
    pub(crate) fn has_durable_writes(&self) -> bool {
        match self {
            Self::Nbd(export) => export.has(SEND_FUA),
            // Every controller has it (NVM Command Set, "Write", FUA).
            Self::Nvme(_) => true,
        }
    }

    /// Returns the protocol's name of an operation.
    pub(crate) fn name_of(&self, operation: Operation) -> &'static str {
        match (self, operation) {
            (Self::Nbd(_), Operation::Write) => "NBD_CMD_WRITE",
            (Self::Nbd(_), Operation::Flush) => "NBD_CMD_FLUSH",
            (Self::Nbd(_), Operation::WriteZeroes) => "NBD_CMD_WRITE_ZEROES",
            (Self::Nbd(_), Operation::Trim) => "NBD_CMD_TRIM",
            (Self::Nvme(_), Operation::Write) => "command Write",
            (Self::Nvme(_), Operation::Flush) => "command Flush",
            (Self::Nvme(_), Operation::WriteZeroes) => "command Write Zeroes",
            (Self::Nvme(_), Operation::Trim) => "command Dataset Management",
        }
    }

    /// Returns the size whose multiples the server serves fastest.
    pub(crate) fn preferred_bytes(&self) -> u64 {
        match self {
            Self::Nbd(export) => export.preferred_bytes(),
            Self::Nvme(namespace) => namespace.block_bytes(),
        }
    }

    /// Returns the longest payload, a multiple of the block.
    pub(crate) fn max_bytes(&self) -> u64 {
        match self {
            Self::Nbd(export) => export.max_bytes(),
            Self::Nvme(namespace) => namespace.max_bytes(),
        }
    }

    /// Tells the server that this client is there, when that is due.
    pub(crate) fn keep_alive(&self) {
        match self {
            Self::Nbd(_) => {}
            Self::Nvme(namespace) => namespace.keep_alive(Instant::now()),
        }
    }

    /// Makes a connection that takes up to `window` requests at a time, and a flush.
    pub(crate) fn connect(
        &self,
        nic: &Netdev,
        window: usize,
        acknowledge: Acknowledge,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<(Stream, Box<dyn Session>), LoadError> {
        match self {
            Self::Nbd(export) => {
                let (stream, is_structured) = export.dial(nic, cancel_check)?;
                let host = export.url().host();
                let session = NbdSession::new(host, is_structured, acknowledge, window);
                Ok((stream, Box::new(session)))
            }
            Self::Nvme(namespace) => {
                let queue = namespace.dial(nic, window.saturating_add(1), cancel_check)?;
                let queue_limits = QueueLimits::of(&queue);
                let (host, limits) = (namespace.url().host(), *namespace.limits());
                let session =
                    NvmeSession::new(host, limits, &queue_limits, acknowledge, queue.membership);
                Ok((queue.stream, Box::new(session)))
            }
        }
    }
}
