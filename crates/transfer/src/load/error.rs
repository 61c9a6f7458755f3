//! Errors of a load.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use devmem_tcp::{Error, RecvError, memory::NoRoom};

use super::tls::TlsError;
use super::url::UrlError;
use crate::parallel::ranges::Overlap;

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
        "the parts {} to {} and {} to {} of the source overlap: load the bytes once, and copy them",
        .first.start, .first.end, .second.start, .second.end
    )]
    Overlap {
        /// One range of the source.
        first: Range<u64>,
        /// The other.
        second: Range<u64>,
    },
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
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The parts are impossible.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The host has no address that the NIC can reach.
    #[error("{host} has no address: {source}\n  `getent ahosts {host}` asks the same resolver")]
    Resolve {
        /// Name of the host.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The NIC has no address of the IP version of the host's address.
    #[error("{host} has an address of {}, and the NIC has none\n  give it one: --addr, or NetdevBuilder::address", version(.address))]
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
    #[error("connect to {address}: {source}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// The error.
        source: Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    TlsSetUp(#[from] TlsError),
    /// The server of an https URL does not prove who it is, or does not speak TLS as this client does.
    #[error("{host}: {problem}\n  {remedy}")]
    Tls {
        /// The server.
        host: String,
        /// The refusal.
        problem: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A proxy refuses to connect to the server of an https URL.
    #[error(
        "the proxy {proxy} does not connect to {host}: it answers {status} {reason}{said}\n  {remedy}"
    )]
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
        said: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The server answered with an error.
    #[error("{url} answers {status} {reason}{said}{remedy}")]
    Status {
        /// The URL, without secrets, and how it was reached: by a redirect, through a proxy.
        url: String,
        /// Status of the response (RFC 9110 15).
        status: u16,
        /// Its text.
        reason: String,
        /// What the server says about it, with a colon before; may be empty.
        said: String,
        /// What helps, on a line below; may be empty.
        remedy: String,
    },
    /// The server redirects to a place that cannot be asked.
    #[error("{from} redirects to {to}: {source}")]
    Redirect {
        /// The URL, without secrets.
        from: String,
        /// The place.
        to: String,
        /// What is wrong with it.
        source: UrlError,
    },
    /// The server's response makes no sense.
    #[error(
        "{host} sent an invalid response: {problem}{}",
        unless_told(.problem, "check that the URL is that of a server of this kind; then the server, or a proxy before it, is faulty")
    )]
    Invalid {
        /// The URL or the host.
        host: String,
        /// The mismatch.
        problem: String,
    },
    /// The connection broke before its first request.
    #[error("{host}: {problem}{}", unless_told(.problem, "check that a server of this kind listens there; its log may say more"))]
    Broken {
        /// The host.
        host: String,
        /// The failure.
        problem: String,
    },
    /// An NBD server refuses the export.
    #[error("{host} refuses: {problem}{}", unless_told(.problem, &format!("`nbdinfo --list nbd://{host}` lists the exports")))]
    NbdRefused {
        /// The host.
        host: String,
        /// The refusal.
        problem: String,
    },
    /// An NBD server could not read.
    #[error(
        "{host} cannot read its export at byte {at}: {}\n  the server's log says why; --range avoids the place: 0-{at} ends before it",
        io::Error::from_raw_os_error((*.errno).cast_signed())
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
    #[error("{host} refuses: {problem}\n  {remedy}")]
    NvmeRefused {
        /// The host.
        host: String,
        /// The refusal.
        problem: String,
        /// What to do.
        remedy: &'static str,
    },
    /// An NVMe controller could not read.
    #[error("{host} cannot read its namespace at byte {at}: {status}\n  {remedy}")]
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
    /// A range does not start and end at multiples of the source's block, or end with the source.
    #[error(
        "bytes {} to {} do not start and end at multiples of {block}, the block of the source\n  widen the range to {} to {}",
        .range.start, .range.end, .blocks.start, .blocks.end
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
    #[error(
        "{url} has changed since it was opened: {problem}\n  load it again; if it says so every time, several servers with \
         different copies answer: name one of them by its address"
    )]
    Changed {
        /// The URL, without secrets.
        url: String,
        /// What is different.
        problem: String,
    },
    /// The source has too few bytes.
    #[error("bytes up to {end} were requested, and the source has {size}\n  shorten the range")]
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
    #[error("gave up after {attempts} attempts: {cause}{}", unless_told(.cause, "load again when the server works; its log may say what is wrong"))]
    GaveUp {
        /// Failures in a row without a whole piece.
        attempts: u32,
        /// The last failure.
        cause: String,
    },
    /// This process may not use as much host memory as a description has.
    #[error("read the description of the checkpoint: {0}")]
    NoRoom(#[from] NoRoom),
    /// The caller ended the load.
    #[error("the load was cancelled")]
    Cancelled,
    /// The payload could not be copied to its place.
    #[error("copy to the place of the payload: {0}")]
    Gather(Error),
    /// The receiver of the payload failed.
    #[error(transparent)]
    Caller(io::Error),
    /// The NIC refused to receive.
    #[error("receive: {0}")]
    Recv(#[from] RecvError),
    /// The NIC refused to send.
    #[error("send a request: {0}")]
    Send(Error),
    /// The connections cannot be waited for.
    #[error("wait for the connections: {0}")]
    Wait(io::Error),
}

/// Returns a remedy on a line below, unless `cause` has one.
fn unless_told(cause: &str, remedy: &str) -> String {
    match cause.contains('\n') {
        true => String::new(),
        false => format!("\n  {remedy}"),
    }
}

fn version(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}
