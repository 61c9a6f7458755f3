//! Errors of a store.

use std::fmt;
use std::io;
use std::ops::Range;

use client::{Cause, Remedy};
use devmem_tcp::Error;

use crate::load::LoadError;
use crate::parallel::ranges::Overlap;

/// What a request asks a server to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Write bytes that follow.
    Write,
    /// Write zeros, which are not sent.
    WriteZeroes,
    /// Discard bytes: what is read there afterwards is undefined.
    Trim,
    /// Bring all acknowledged writes to storage.
    Flush,
}

impl StoreError {
    /// Returns whether the server has refused to write zeros by itself, although it says that it can: storage below it may be unable to.
    pub(super) fn refuses_zeros(&self) -> bool {
        /// `NBD_EINVAL` and `NBD_ENOTSUP` (the section "Error values").
        const REFUSALS: [u32; 2] = [22, 95];
        let Self::Server {
            operation, errno, ..
        } = self
        else {
            return false;
        };
        *operation == Operation::WriteZeroes && REFUSALS.contains(errno)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::WriteZeroes => "write zeros to",
            Self::Trim => "trim",
            Self::Flush => "flush",
        })
    }
}

/// Why bytes were not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No connection to the export could be made.
    #[error(transparent)]
    Export(#[from] LoadError),
    /// The URL names nothing that takes bytes.
    #[error("{url}: an HTTP server takes no bytes")]
    NoSink {
        /// The URL.
        url: String,
    },
    /// The server does not allow writes.
    #[error("{export} is read-only")]
    ReadOnly {
        /// The URL.
        export: String,
    },
    /// The server does not have this operation.
    #[error("the server of {export} has no {lacking}")]
    Lacks {
        /// The URL.
        export: String,
        /// The operation.
        lacking: &'static str,
        /// What to do.
        remedy: Remedy,
    },
    /// The bytes do not fit into the export.
    #[error("bytes up to {end} of {export} were to be written, and it has {size}")]
    PastEnd {
        /// The URL.
        export: String,
        /// End of the range.
        end: u64,
        /// Size of the export.
        size: u64,
    },
    /// A range does not start and end at multiples of the export's block.
    #[error(
        "bytes {start} to {end} do not start and end at multiples of {block}, the block of the export"
    )]
    Unaligned {
        /// First byte.
        start: u64,
        /// End.
        end: u64,
        /// Size of a block.
        block: u64,
    },
    /// Two parts contain the same byte of the export.
    #[error(
        "the parts {} to {} and {} to {} of the export overlap",
        .first.start, .first.end, .second.start, .second.end
    )]
    Overlap {
        /// One range of the export.
        first: Range<u64>,
        /// The other.
        second: Range<u64>,
    },
    /// A part is outside of the memory.
    #[error("{len} bytes from {offset} on are not in a memory of {size} bytes")]
    OutsideMemory {
        /// Offset of the part in memory.
        offset: usize,
        /// Its length.
        len: u64,
        /// Size of the memory.
        size: usize,
    },
    /// The memory for chunks has no room for one piece.
    #[error("a memory of {size} bytes has no room for a piece of {piece} bytes")]
    NoRoom {
        /// Size of the memory.
        size: usize,
        /// Length of a piece.
        piece: u64,
    },
    /// The memory cannot be bound for sending.
    #[error("bind the memory for sending: {0}")]
    Bind(Error),
    /// The checksum of bytes in the memory could not be computed.
    #[error("compute the digest of data in the memory: {0}")]
    Digest(Error),
    /// The NIC refused to send.
    #[error("send from the memory: {0}")]
    Send(Error),
    /// The server could not do what was requested.
    #[error(
        "{host} cannot {operation}{}: {}",
        at(*.start, *.end),
        io::Error::from_raw_os_error(.errno.cast_signed())
    )]
    Server {
        /// The host.
        host: String,
        /// What was requested.
        operation: Operation,
        /// First byte of the request.
        start: u64,
        /// Its end.
        end: u64,
        /// The server's errno.
        errno: u32,
    },
    /// An NVMe controller could not do what was requested.
    #[error("{host} cannot {operation}{}: {status}", at(*.start, *.end))]
    Nvme {
        /// The host.
        host: String,
        /// What was requested.
        operation: Operation,
        /// First byte of the request.
        start: u64,
        /// Its end.
        end: u64,
        /// The status of the command, as text.
        status: String,
        /// What to do.
        remedy: Remedy,
    },
    /// The connections broke too often in a row.
    #[error(
        "gave up after {attempts} attempts, when {acknowledged} of {total} bytes were acknowledged: {cause}"
    )]
    GaveUp {
        /// Failures in a row without progress.
        attempts: u32,
        /// The last failure.
        cause: Cause,
        /// Bytes that the server has acknowledged, and not lost.
        acknowledged: u64,
        /// Bytes to store.
        total: u64,
    },
    /// The caller ended the store.
    #[error("the store was cancelled; {acknowledged} of {total} bytes were acknowledged")]
    Cancelled {
        /// Bytes that the server has acknowledged.
        acknowledged: u64,
        /// Bytes to store.
        total: u64,
    },
    /// The NIC has not finished with its sends: the bytes must not be changed yet.
    #[error("the NIC does not complete its sends ({outcome})")]
    Incomplete {
        /// How the store ended.
        outcome: String,
    },
    /// The source of the bytes failed.
    #[error(transparent)]
    Caller(io::Error),
    /// The connections cannot be waited for.
    #[error("wait for the connections: {0}")]
    Wait(io::Error),
}

impl StoreError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        let remedy = match self {
            Self::Export(error) => return error.remedy(),
            Self::NoSink { .. } => "write nbd://HOST/EXPORT or nvme://HOST/SUBNQN",
            Self::ReadOnly { .. } => {
                "start its server without the option that makes it so: qemu-nbd and nbdkit have --read-only and -r; or end the write \
                 protection of the namespace"
            }
            Self::Lacks { remedy, .. } | Self::Nvme { remedy, .. } => return Some(remedy.clone()),
            Self::PastEnd { .. } => "make the export larger",
            Self::Unaligned { .. } => "move or pad them: the server writes whole blocks only",
            Self::NoRoom { .. } => "give more memory, or shorter pieces",
            Self::Bind(error) | Self::Digest(error) | Self::Send(error) => {
                return error.remedy().map(Remedy::Library);
            }
            Self::Server {
                operation, errno, ..
            } => of_errno(*operation, *errno)?,
            Self::GaveUp { cause, .. } => {
                return Some(cause.remedy_or("store all bytes again when the server is back"));
            }
            Self::Overlap { .. }
            | Self::OutsideMemory { .. }
            | Self::Cancelled { .. }
            | Self::Incomplete { .. }
            | Self::Caller(_)
            | Self::Wait(_) => return None,
        };
        Some(remedy.into())
    }
}

impl From<Overlap> for StoreError {
    fn from(Overlap { first, second }: Overlap) -> Self {
        Self::Overlap { first, second }
    }
}

/// Returns the range of a request; a flush has none.
fn at(start: u64, end: u64) -> String {
    match start == end {
        true => String::new(),
        false => format!(" bytes {start} to {end}"),
    }
}

/// Returns the remedy for an error of the server (the section "Error values").
fn of_errno(operation: Operation, errno: u32) -> Option<&'static str> {
    Some(match errno {
        // EINVAL, ENOTSUP
        22 | 95 if operation == Operation::Flush => {
            "all bytes are written, but perhaps not on storage: the server offers to flush, and refuses it; run `sync` there"
        }
        // EPERM
        1 => "the server forbids it: look for a read-only option or filter there",
        // EIO
        5 => "look at the server's log and at its disk (`dmesg` there)",
        // ENOMEM
        12 => "use fewer connections or shorter pieces, or give the server more memory",
        // EINVAL, EOVERFLOW
        22 | 75 => {
            "use shorter pieces, of whole blocks; of an export that ends with a part of a block, the server may refuse that part"
        }
        // ENOSPC
        28 => "make room where the server keeps the export, and store all bytes again",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_gave_up_says_how_far_it_came_and_what_helps_against_the_cause() {
        let gave_up = |cause| StoreError::GaveUp {
            attempts: 8,
            cause,
            acknowledged: 1,
            total: 2,
        };
        let plain = gave_up("the server shuts down".into());
        let text = plain.to_string();
        assert!(text.ends_with("1 of 2 bytes were acknowledged: the server shuts down"));
        let again = "store all bytes again when the server is back";
        assert_eq!(plain.remedy(), Some(again.into()));
        let known = Cause::from("no answer").with_remedy("start it");
        assert_eq!(gave_up(known).remedy(), Some("start it".into()));
    }
}
