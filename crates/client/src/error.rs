//! Errors of a load.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use devmem_tcp::{Error, RecvError, memory::NoRoom};

use crate::cause::Cause;
use crate::remedy::Remedy;
use crate::tls::TlsError;
use crate::url::UrlError;

/// Why parts cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// A part is longer than the rest of its memory.
    #[error(
        "bytes {} to {} of the source do not fit at offset {offset} of a memory of {size} bytes",
        .range.start, .range.end
    )]
    DoesNotFit {
        /// The range of the source.
        range: Range<u64>,
        /// Offset of its place.
        offset: usize,
        /// Size of the memory.
        size: usize,
    },
    /// Two parts contain the same byte of the source.
    #[error(
        "the parts {} to {} and {} to {} of the source overlap",
        .first.start, .first.end, .second.start, .second.end
    )]
    Overlap {
        /// One range of the source.
        first: Range<u64>,
        /// The other.
        second: Range<u64>,
    },
}

impl PartError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::DoesNotFit { .. } => None,
            Self::Overlap { .. } => Some("load the bytes once, and copy them".into()),
        }
    }
}

/// Why a load failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The URL is not one that can be loaded.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The parts are impossible.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The host has no address that the NIC can reach.
    #[error("{host} has no address: {error}")]
    Resolve {
        /// Name of the host.
        host: String,
        /// The resolver's error.
        error: io::Error,
    },
    /// The NIC has no address of the IP version of the host's address.
    #[error("{host} has an address of {}, and the NIC has none", version(.address))]
    NoFamily {
        /// Name of the host.
        host: String,
        /// Its first address.
        address: IpAddr,
    },
    /// The kernel has no interface for connections to the host.
    #[error(transparent)]
    Route(Error),
    /// No connection could be made.
    #[error("connect to {address}: {error}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// The error.
        error: Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    TlsSetUp(#[from] TlsError),
    /// The server of an https URL does not prove who it is, or does not speak TLS as this client does.
    #[error("{host}: {problem}")]
    Tls {
        /// The server.
        host: String,
        /// The refusal.
        problem: String,
        /// What to do.
        remedy: Remedy,
    },
    /// A proxy refuses to connect to the server of an https URL.
    #[error("the proxy {proxy} does not connect to {host}: it answers {status} {reason}{details}")]
    Tunnel {
        /// The URL of the proxy.
        proxy: String,
        /// Host and port of the server.
        host: String,
        /// Status of its answer.
        status: u16,
        /// Its text.
        reason: String,
        /// What the proxy says about it, with a colon before; may be empty.
        details: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The server answered with an error.
    #[error("{url} answers {status} {reason}{details}")]
    Status {
        /// The URL, without secrets, and how it was reached: by a redirect, through a proxy.
        url: String,
        /// Status of the response (RFC 9110 15).
        status: u16,
        /// Its text.
        reason: String,
        /// What the server says about it, with a colon before; may be empty.
        details: String,
        /// What helps, if anything is known to.
        remedy: Option<Remedy>,
    },
    /// The server redirects to a place that cannot be asked.
    #[error("{from} redirects to {to}: {error}")]
    Redirect {
        /// The URL, without secrets.
        from: String,
        /// The place.
        to: String,
        /// What is wrong with it.
        error: UrlError,
    },
    /// The server's response makes no sense.
    #[error("{host} sent an invalid response: {problem}")]
    Invalid {
        /// The URL or the host.
        host: String,
        /// The mismatch.
        problem: Cause,
    },
    /// The connection broke before its first request.
    #[error("{host}: {problem}")]
    Broken {
        /// The host.
        host: String,
        /// The failure.
        problem: Cause,
    },
    /// An NBD server refuses the export.
    #[error("{host} refuses: {problem}")]
    NbdRefused {
        /// The host.
        host: String,
        /// The refusal.
        problem: Cause,
    },
    /// An NBD server could not read.
    #[error(
        "{host} cannot read its export at byte {at}: {}",
        io::Error::from_raw_os_error(.errno.cast_signed())
    )]
    NbdRead {
        /// The host.
        host: String,
        /// Start of the request.
        at: u64,
        /// The server's errno.
        errno: u32,
    },
    /// An NVMe controller refuses this host or its commands, or this host cannot use its namespace.
    #[error("{host} refuses: {problem}")]
    NvmeRefused {
        /// The host.
        host: String,
        /// The refusal.
        problem: String,
        /// What to do.
        remedy: Remedy,
    },
    /// An NVMe controller could not read.
    #[error("{host} cannot read its namespace at byte {at}: {status}")]
    NvmeRead {
        /// The host.
        host: String,
        /// Start of the command's data.
        at: u64,
        /// The status of the command, as text.
        status: String,
        /// What to do.
        remedy: Remedy,
    },
    /// A range does not start and end at multiples of the source's block, or end with the source.
    #[error(
        "bytes {} to {} do not start and end at multiples of {block}, the block of the source",
        .range.start, .range.end
    )]
    Unaligned {
        /// The range.
        range: Range<u64>,
        /// Size of a block.
        block: u64,
        /// The whole blocks that it lies in, up to the end of the source.
        blocks: Range<u64>,
    },
    /// The file is not the one that was opened.
    #[error("{url} has changed since it was opened: {problem}")]
    Changed {
        /// The URL, without secrets.
        url: String,
        /// What is different.
        problem: String,
    },
    /// The source has too few bytes.
    #[error("bytes up to {end} were requested, and the source has {size}")]
    PastEnd {
        /// End of the requested range.
        end: u64,
        /// Size of the source.
        size: u64,
    },
    /// The server sent payload that was not requested.
    #[error("byte {at} of the source was received and not requested")]
    Unasked {
        /// Offset in the source.
        at: u64,
    },
    /// The connections broke too often in a row.
    #[error("gave up after {attempts} attempts: {cause}")]
    GaveUp {
        /// Failures in a row without a whole piece.
        attempts: u32,
        /// The last failure.
        cause: Cause,
    },
    /// This process may not use as much host memory as a description has.
    #[error("read the description of the checkpoint: {0}")]
    NoRoom(NoRoom),
    /// The caller ended the load.
    #[error("the load was cancelled")]
    Cancelled,
    /// The payload could not be copied to its place.
    #[error("copy to the place of the payload: {0}")]
    Gather(Error),
    /// The checksum of bytes in memory could not be computed.
    #[error("compute the checksum of the memory: {0}")]
    Digest(Error),
    /// The receiver of the payload failed.
    #[error(transparent)]
    Caller(io::Error),
    /// The NIC refused to receive.
    #[error("receive: {0}")]
    Recv(RecvError),
    /// The NIC refused to send.
    #[error("send a request: {0}")]
    Send(Error),
    /// The connections cannot be waited for.
    #[error("wait for the connections: {0}")]
    Wait(io::Error),
}

impl LoadError {
    /// Returns the error of a host whose list of addresses is empty.
    pub fn no_address(host: &str) -> Self {
        Self::Resolve {
            host: host.to_owned(),
            error: io::ErrorKind::AddrNotAvailable.into(),
        }
    }

    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::Url(error) => return error.remedy(),
            Self::Part(error) => return error.remedy(),
            Self::TlsSetUp(error) => return error.remedy(),
            Self::Redirect { error, .. } => return error.remedy(),
            Self::Status { remedy, .. } => return remedy.clone(),
            Self::Route(error)
            | Self::Gather(error)
            | Self::Digest(error)
            | Self::Send(error)
            | Self::Connect { error, .. } => return error.remedy().map(Remedy::Library),
            Self::Recv(error) => return error.remedy().map(Remedy::Library),
            Self::Resolve { host, .. } => {
                format!("`getent ahosts {host}` asks the same resolver").into()
            }
            Self::NoFamily { .. } => Remedy::Library(devmem_tcp::Remedy::GiveAddress),
            Self::Tunnel { remedy, .. } => (*remedy).into(),
            Self::Tls { remedy, .. }
            | Self::NvmeRefused { remedy, .. }
            | Self::NvmeRead { remedy, .. } => remedy.clone(),
            Self::Invalid { problem, .. } => problem.remedy_or(
                "check that the URL is that of a server of this kind; then the server, or a proxy before it, is faulty",
            ),
            Self::Broken { problem, .. } => problem
                .remedy_or("check that a server of this kind listens there; its log may say more"),
            Self::NbdRefused { host, problem } => {
                problem.remedy_or(format!("`nbdinfo --list nbd://{host}` lists the exports"))
            }
            Self::NbdRead { at, .. } => {
                format!("the server's log says why; bytes 0 to {at} can be read without the place")
                    .into()
            }
            Self::Unaligned { blocks, .. } => {
                format!("widen the range to {} to {}", blocks.start, blocks.end).into()
            }
            Self::Changed { .. } => "load it again; if it says so every time, several servers with different copies answer: name one of \
                                     them by its address"
                .into(),
            Self::PastEnd { .. } => "shorten the range".into(),
            Self::GaveUp { cause, .. } => {
                cause.remedy_or("load again when the server works; its log may say what is wrong")
            }
            Self::NoRoom(_)
            | Self::Unasked { .. }
            | Self::Cancelled
            | Self::Caller(_)
            | Self::Wait(_) => return None,
        })
    }

    /// Returns why there is no connection, if another attempt may make one.
    ///
    /// # Errors
    /// Any other error.
    pub fn into_breakage(self) -> Result<Cause, Self> {
        match self {
            Self::Connect { address, error } => {
                Ok(Cause::of(&error).during(format_args!("connect to {address}")))
            }
            Self::Broken { host, problem } => Ok(problem.during(host)),
            error => Err(error),
        }
    }
}

impl From<NoRoom> for LoadError {
    fn from(error: NoRoom) -> Self {
        Self::NoRoom(error)
    }
}

impl From<RecvError> for LoadError {
    fn from(error: RecvError) -> Self {
        Self::Recv(error)
    }
}

fn version(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}
