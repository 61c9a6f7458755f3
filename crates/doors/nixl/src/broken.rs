//! Why the connections to a peer ended.

use std::io;

use crate::raw::gpu::NotCopied;
use crate::record::{Fault, Violation};
use crate::status::Status;

/// Why the connections to a peer ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("its process has ended, or has closed its agent")]
    Ended,
    #[error("a connection failed: {0}")]
    Connection(io::Error),
    #[error("nothing answered at any of its addresses ({0})")]
    Unreachable(String),
    #[error(
        "memory was deregistered or freed with a transfer going on; wait for transfers, or release them, before"
    )]
    Memory,
    #[error("cannot copy from the memory of its process: {error}")]
    Uncopied {
        /// The transfer whose piece it is.
        transfer: u64,
        error: io::Error,
    },
    #[error("{0}")]
    Gpu(io::Error),
    #[error("it broke the protocol: {0}; use the same release on both sides")]
    Protocol(#[from] Violation),
    #[error("{}", told(.0))]
    Told(Fault),
}

fn told(fault: &Fault) -> &'static str {
    match fault {
        Fault::Stranger => {
            "another agent is at its address: it was restarted; load its new metadata"
        }
        Fault::Version => {
            "it has another version of the protocol; use the same release on both sides"
        }
        Fault::Region => {
            "it says that a range is not registered there; load its metadata after it has registered memory"
        }
        Fault::Memory => {
            "it could not copy from the memory of this process, which was freed with a transfer going on"
        }
        Fault::Protocol => {
            "it says that this side broke the protocol; use the same release on both sides"
        }
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EFAULT) => Self::Memory,
            None if error.get_ref().is_some_and(|it| it.is::<NotCopied>()) => Self::Gpu(error),
            _ => Self::Connection(error),
        }
    }
}

impl Broken {
    /// Returns how the transfers end that were going on.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Ended | Self::Connection(_) | Self::Unreachable(_) => Status::RemoteDisconnect,
            Self::Told(Fault::Stranger) => Status::RemoteDisconnect,
            Self::Told(Fault::Version) => Status::Mismatch,
            Self::Told(Fault::Region) => Status::NotAllowed,
            Self::Memory
            | Self::Gpu(_)
            | Self::Uncopied { .. }
            | Self::Protocol(_)
            | Self::Told(Fault::Protocol | Fault::Memory) => Status::Backend,
        }
    }

    /// Returns what the peer is told, if it is there to be told.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Protocol(violation) => Some(violation.fault()),
            Self::Uncopied { .. } => Some(Fault::Memory),
            _ => None,
        }
    }
}
