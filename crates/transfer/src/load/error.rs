//! Errors of a load. `Display` prints the reason, then the remedy on lines below.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use devmem_tcp::{Error, RecvError, Remedy, memory::NoRoom};

use super::http::UrlError;
use crate::parallel::ranges::Overlap;
use crate::parallel::{Breakage, write_error};

/// Why parts cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// A part is longer than the rest of its memory.
    DoesNotFit {
        /// The range of the source.
        range: Range<u64>,
        /// Offset of its place.
        offset: usize,
        /// Size of the memory.
        size: usize,
    },
    /// Two parts contain the same byte of the source.
    Overlap {
        /// One range of the source.
        first: Range<u64>,
        /// The other.
        second: Range<u64>,
    },
}

impl PartError {
    /// Returns the reason, in one line.
    pub fn reason(&self) -> String {
        match self {
            Self::DoesNotFit {
                range,
                offset,
                size,
            } => format!(
                "bytes {} to {} of the source do not fit at offset {offset} of a memory of {size} bytes",
                range.start, range.end
            ),
            Self::Overlap { first, second } => format!(
                "the parts {} to {} and {} to {} of the source overlap",
                first.start, first.end, second.start, second.end
            ),
        }
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::DoesNotFit { .. } => None,
            Self::Overlap { .. } => Some("load the bytes once, and copy them".into()),
        }
    }
}

impl fmt::Display for PartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_error(f, &self.reason(), self.remedy())
    }
}

impl From<Overlap> for PartError {
    fn from(Overlap { first, second }: Overlap) -> Self {
        Self::Overlap { first, second }
    }
}

/// Why a load failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The URL is not one that can be loaded.
    Url(#[from] UrlError),
    /// The parts are impossible.
    Part(#[from] PartError),
    /// The host has no address that the NIC can reach.
    Resolve {
        /// Name of the host.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The NIC has no address of the IP version of the host's address.
    NoFamily {
        /// Name of the host.
        host: String,
        /// Its first address.
        address: IpAddr,
    },
    /// The kernel has no interface for connections to the host.
    Route(Error),
    /// No connection could be made.
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// The error.
        source: Error,
    },
    /// The server answered with an error.
    Status {
        /// Host and port.
        host: String,
        /// Status of the response (RFC 9110 15).
        status: u16,
        /// Its text.
        reason: String,
    },
    /// The server's response makes no sense.
    Invalid {
        /// Host and port.
        host: String,
        /// The mismatch.
        problem: String,
    },
    /// The connection broke before its first request.
    Broken {
        /// The host.
        host: String,
        /// The failure.
        problem: Breakage,
    },
    /// An NBD server refuses the export.
    NbdRefused {
        /// The host.
        host: String,
        /// The refusal.
        problem: String,
    },
    /// An NBD server could not read.
    NbdRead {
        /// The host.
        host: String,
        /// Start of the request.
        at: u64,
        /// The server's errno.
        errno: u32,
    },
    /// An NVMe controller refuses this host or its commands, or this host cannot use its namespace.
    NvmeRefused {
        /// The host.
        host: String,
        /// The refusal.
        problem: String,
        /// What to do.
        remedy: &'static str,
    },
    /// An NVMe controller could not read.
    NvmeRead {
        /// The host.
        host: String,
        /// Start of the command's data.
        at: u64,
        /// The status of the command, as text.
        status: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A range does not start and end at multiples of the source's block.
    Unaligned {
        /// First byte.
        start: u64,
        /// End.
        end: u64,
        /// Size of a block.
        block: u64,
    },
    /// The file is not the one that was opened.
    Changed {
        /// Host and port.
        host: String,
        /// What is different.
        problem: String,
    },
    /// The source has too few bytes.
    PastEnd {
        /// End of the requested range.
        end: u64,
        /// Size of the source.
        size: u64,
    },
    /// The server sent payload that was not requested.
    Unasked {
        /// Offset in the source.
        at: u64,
    },
    /// The connections broke too often in a row.
    GaveUp {
        /// Failures in a row without a whole piece.
        attempts: u32,
        /// The last failure.
        cause: Breakage,
    },
    /// This process may not use as much host memory as a description has.
    NoRoom(#[from] NoRoom),
    /// The caller ended the load.
    Cancelled,
    /// The payload could not be copied to its place.
    Gather(Error),
    /// The receiver of the payload failed.
    Caller(io::Error),
    /// The NIC refused to receive.
    Recv(#[from] RecvError),
    /// The NIC refused to send.
    Send(Error),
    /// The connections cannot be waited for.
    Wait(io::Error),
}

impl LoadError {
    /// Returns the reason, in one line.
    pub fn reason(&self) -> String {
        match self {
            Self::Url(error) => error.reason(),
            Self::Part(error) => error.reason(),
            Self::Resolve { host, source } => format!("{host} has no address: {source}"),
            Self::NoFamily { host, address } => format!(
                "{host} has an address of {}, and the NIC has none",
                version(address)
            ),
            Self::Route(error) => error.reason().to_owned(),
            Self::Connect { address, source } => {
                format!("connect to {address}: {}", source.reason())
            }
            Self::Status {
                host,
                status,
                reason,
            } => format!("{host} answers {status} {reason}"),
            Self::Invalid { host, problem } => {
                format!("{host} sent an invalid response: {problem}")
            }
            Self::Broken { host, problem } => format!("{host}: {problem}"),
            Self::NbdRefused { host, problem } | Self::NvmeRefused { host, problem, .. } => {
                format!("{host} refuses: {problem}")
            }
            Self::NvmeRead {
                host, at, status, ..
            } => format!("{host} cannot read its namespace at byte {at}: {status}"),
            Self::NbdRead { host, at, errno } => format!(
                "{host} cannot read its export at byte {at}: {}",
                io::Error::from_raw_os_error(errno.cast_signed())
            ),
            Self::Unaligned { start, end, block } => format!(
                "bytes {start} to {end} do not start and end at multiples of {block}, the block of the source"
            ),
            Self::Changed { host, problem } => {
                format!("the file on {host} has changed since it was opened: {problem}")
            }
            Self::PastEnd { end, size } => {
                format!("bytes up to {end} were requested, and the source has {size}")
            }
            Self::Unasked { at } => {
                format!("byte {at} of the source was received and not requested")
            }
            Self::GaveUp { attempts, cause } => {
                format!("gave up after {attempts} attempts: {cause}")
            }
            Self::NoRoom(error) => format!("read the description of the checkpoint: {error}"),
            Self::Cancelled => "the load was cancelled".to_owned(),
            Self::Gather(error) => format!("copy to the place of the payload: {}", error.reason()),
            Self::Caller(error) => error.to_string(),
            Self::Recv(error) => format!("receive: {}", error.reason()),
            Self::Send(error) => format!("send a request: {}", error.reason()),
            Self::Wait(error) => format!("wait for the connections: {error}"),
        }
    }

    /// Returns why there is no connection, if another attempt may make one.
    ///
    /// # Errors
    /// Any other error.
    pub(crate) fn into_breakage(self) -> Result<Breakage, Self> {
        match self {
            Self::Connect { .. } | Self::Broken { .. } => {
                Ok(Breakage::new(self.reason(), self.remedy()))
            }
            error => Err(error),
        }
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::Url(error) => return error.remedy(),
            Self::Part(error) => return error.remedy(),
            Self::Recv(error) => return error.remedy(),
            Self::Route(error)
            | Self::Connect { source: error, .. }
            | Self::Gather(error)
            | Self::Send(error) => return error.remedy(),
            Self::Status { status, .. } => return of_status(*status).map(Remedy::from),
            Self::Resolve { host, .. } => {
                format!("`getent ahosts {host}` asks the same resolver").into()
            }
            Self::NoFamily { .. } => Remedy::GiveAddress,
            Self::Invalid { .. } => {
                "check that the URL is that of a server of this kind; then the server, or a proxy before it, is faulty".into()
            }
            Self::Broken { problem, .. } => problem.remedy().cloned().unwrap_or_else(|| {
                "check that a server of this kind listens there; its log may say more".into()
            }),
            Self::NbdRefused { host, .. } => {
                format!("`nbdinfo --list nbd://{host}` lists the exports").into()
            }
            Self::NvmeRefused { remedy, .. } | Self::NvmeRead { remedy, .. } => (*remedy).into(),
            Self::NbdRead { .. } => {
                "the server's log says why; another --range avoids the place".into()
            }
            Self::Unaligned { .. } => "widen the range".into(),
            Self::Changed { .. } => "load it again".into(),
            Self::PastEnd { .. } => "shorten the range".into(),
            Self::GaveUp { cause, .. } => cause.remedy().cloned().unwrap_or_else(|| {
                "load again when the server works; its log may say what is wrong".into()
            }),
            Self::NoRoom(error) => error.remedy().into(),
            Self::Unasked { .. } | Self::Cancelled | Self::Caller(_) | Self::Wait(_) => return None,
        })
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_error(f, &self.reason(), self.remedy())
    }
}

fn version(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}

/// Returns what to do about the status of a response.
fn of_status(status: u16) -> Option<&'static str> {
    Some(match status {
        401 => "add credentials: an Authorization header, or user:password@ in the URL",
        403 => "add credentials, or a new URL if this one was signed: signatures expire",
        407 => "put user:password@ into the URL of the proxy",
        404 | 410 => "check the path of the URL",
        416 => "the file is shorter than the requested range",
        408 | 429 | 500..=599 => {
            "the server is busy or broken: load again later; its log may say why"
        }
        _ => return None,
    })
}
