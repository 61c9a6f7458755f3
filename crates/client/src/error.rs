//! Errors of a load. `Display` writes the reason, then the remedy on lines below.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use devmem_tcp::{Error, RecvError, memory::NoRoom};

use crate::cause::Cause;
use crate::cause::displays_remedy;
use crate::remedy::Remedy;
use crate::tls::TlsError;
use crate::url::UrlError;

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

    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::DoesNotFit { .. } => None,
            Self::Overlap { .. } => Some("load the bytes once, and copy them".into()),
        }
    }
}

displays_remedy!(PartError);

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
    /// TLS cannot be set up.
    TlsSetUp(#[from] TlsError),
    /// The server of an https URL does not prove who it is, or does not speak TLS as this client does.
    Tls {
        /// The server.
        host: String,
        /// The refusal.
        problem: String,
        /// What to do.
        remedy: Remedy,
    },
    /// A proxy refuses to connect to the server of an https URL.
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
    Redirect {
        /// The URL, without secrets.
        from: String,
        /// The place.
        to: String,
        /// What is wrong with it.
        source: UrlError,
    },
    /// The server's response makes no sense.
    Invalid {
        /// The URL or the host.
        host: String,
        /// The mismatch.
        problem: Cause,
    },
    /// The connection broke before its first request.
    Broken {
        /// The host.
        host: String,
        /// The failure.
        problem: Cause,
    },
    /// An NBD server refuses the export.
    NbdRefused {
        /// The host.
        host: String,
        /// The refusal.
        problem: Cause,
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
        remedy: Remedy,
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
        remedy: Remedy,
    },
    /// A range does not start and end at multiples of the source's block, or end with the source.
    Unaligned {
        /// The range.
        range: Range<u64>,
        /// Size of a block.
        block: u64,
        /// The whole blocks that it lies in, up to the end of the source.
        blocks: Range<u64>,
    },
    /// The file is not the one that was opened.
    Changed {
        /// The URL, without secrets.
        url: String,
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
        cause: Cause,
    },
    /// This process may not use as much host memory as a description has.
    NoRoom(#[from] NoRoom),
    /// The caller ended the load.
    Cancelled,
    /// The payload could not be copied to its place.
    Gather(Error),
    /// The checksum of bytes in memory could not be computed.
    Digest(Error),
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
    /// Returns the error of a host whose list of addresses is empty.
    pub fn no_address(host: &str) -> Self {
        Self::Resolve {
            host: host.to_owned(),
            source: io::ErrorKind::AddrNotAvailable.into(),
        }
    }

    /// Returns the reason, in one line.
    #[expect(clippy::too_many_lines, reason = "an arm for each variant")]
    pub fn reason(&self) -> String {
        match self {
            Self::Url(error) => error.reason(),
            Self::Part(error) => error.reason(),
            Self::Resolve { host, source } => format!("{host} has no address: {source}"),
            Self::NoFamily { host, address } => {
                let version = version(address);
                format!("{host} has an address of {version}, and the NIC has none")
            }
            Self::Route(error) => error.reason().to_owned(),
            Self::Connect { address, source } => {
                format!("connect to {address}: {}", source.reason())
            }
            Self::TlsSetUp(error) => error.reason(),
            Self::Broken { host, problem } => format!("{host}: {problem}"),
            Self::Tls { host, problem, .. } => format!("{host}: {problem}"),
            Self::NbdRefused { host, problem } => format!("{host} refuses: {problem}"),
            Self::NvmeRefused { host, problem, .. } => format!("{host} refuses: {problem}"),
            Self::GaveUp { attempts, cause } => {
                format!("gave up after {attempts} attempts: {cause}")
            }
            Self::NoRoom(error) => format!("read the description of the checkpoint: {error}"),
            Self::Cancelled => "the load was cancelled".to_owned(),
            Self::Gather(error) => format!("copy to the place of the payload: {}", error.reason()),
            Self::Digest(error) => {
                format!("compute the checksum of the memory: {}", error.reason())
            }
            Self::Caller(error) => error.to_string(),
            Self::Recv(error) => format!("receive: {}", error.reason()),
            Self::Send(error) => format!("send a request: {}", error.reason()),
            Self::Wait(error) => format!("wait for the connections: {error}"),
            Self::Tunnel {
                proxy,
                host,
                status,
                reason,
                details,
                ..
            } => format!(
                "the proxy {proxy} does not connect to {host}: it answers {status} {reason}{details}"
            ),
            Self::Status {
                url,
                status,
                reason,
                details,
                ..
            } => format!("{url} answers {status} {reason}{details}"),
            Self::Redirect { from, to, source } => {
                format!("{from} redirects to {to}: {}", source.reason())
            }
            Self::Invalid { host, problem } => {
                format!("{host} sent an invalid response: {problem}")
            }
            Self::NbdRead { host, at, errno } => {
                let error = io::Error::from_raw_os_error(errno.cast_signed());
                format!("{host} cannot read its export at byte {at}: {error}")
            }
            Self::NvmeRead {
                host, at, status, ..
            } => format!("{host} cannot read its namespace at byte {at}: {status}"),
            Self::Unaligned { range, block, .. } => format!(
                "bytes {} to {} do not start and end at multiples of {block}, the block of the source",
                range.start, range.end
            ),
            Self::Changed { url, problem } => {
                format!("{url} has changed since it was opened: {problem}")
            }
            Self::PastEnd { end, size } => {
                format!("bytes up to {end} were requested, and the source has {size}")
            }
            Self::Unasked { at } => {
                format!("byte {at} of the source was received and not requested")
            }
        }
    }

    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::Url(error) => return error.remedy(),
            Self::Part(error) => return error.remedy(),
            Self::TlsSetUp(error) => return error.remedy(),
            Self::Redirect { source, .. } => return source.remedy(),
            Self::Status { remedy, .. } => return remedy.clone(),
            Self::Route(error)
            | Self::Gather(error)
            | Self::Digest(error)
            | Self::Send(error)
            | Self::Connect { source: error, .. } => return error.remedy().map(Remedy::Library),
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
            Self::Connect { address, source } => {
                Ok(Cause::of(&source).during(format_args!("connect to {address}")))
            }
            Self::Broken { host, problem } => Ok(problem.during(host)),
            error => Err(error),
        }
    }
}

displays_remedy!(LoadError);

fn version(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}
