//! Why the connections to a peer ended.

use std::error::Error;
use std::io;

use devmem_tcp::RecvError;

use crate::raw::gpu::NotCopied;
use crate::record::{Fault, Violation};
use crate::status::{Status, text_of};

/// Why the connections to a peer ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("its process has ended, or has closed its agent")]
    Ended,
    #[error("a connection failed: {}", text_of(.0))]
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
    #[error("payload did not arrive in memory of the GPU, which require=device asks for: {}", text_of(.0))]
    Misplaced(io::Error),
    #[error("it broke the protocol: {0}; use the same release on both sides")]
    Protocol(Violation),
    #[error("{}", of_fault(.0))]
    Fault(Fault),
}

impl From<Violation> for Broken {
    fn from(violation: Violation) -> Self {
        Self::Protocol(violation)
    }
}

fn of_fault(fault: &Fault) -> &'static str {
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
        Fault::Gpu => "it could not put payload into memory of its GPU; a line of its log says why",
        Fault::Protocol => {
            "it says that this side broke the protocol; use the same release on both sides"
        }
    }
}

fn is_misplaced(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let received = error.downcast_ref::<RecvError>();
    matches!(received, Some(RecvError::Misplaced { .. }))
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        let inner = error.get_ref();
        match error.raw_os_error() {
            Some(libc::EFAULT) => Self::Memory,
            None if inner.is_some_and(|it| it.is::<NotCopied>()) => Self::Gpu(error),
            None if inner.is_some_and(is_misplaced) => Self::Misplaced(error),
            _ => Self::Connection(error),
        }
    }
}

impl Broken {
    /// Returns how the transfers end that were going on.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Ended | Self::Connection(_) | Self::Unreachable(_) => Status::RemoteDisconnect,
            Self::Fault(Fault::Stranger) => Status::RemoteDisconnect,
            Self::Fault(Fault::Version) => Status::Mismatch,
            Self::Fault(Fault::Region) => Status::NotAllowed,
            Self::Memory
            | Self::Gpu(_)
            | Self::Misplaced(_)
            | Self::Uncopied { .. }
            | Self::Protocol(_)
            | Self::Fault(Fault::Protocol | Fault::Memory | Fault::Gpu) => Status::Backend,
        }
    }

    /// Returns what the peer is told, if it is there to be told.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Protocol(violation) => Some(violation.fault()),
            Self::Uncopied { .. } => Some(Fault::Memory),
            Self::Gpu(_) | Self::Misplaced(_) => Some(Fault::Gpu),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_on_this_side_is_no_lost_connection_and_the_peer_is_told() {
        let misplaced = RecvError::Misplaced {
            bytes: 1000,
            cause: None,
        };
        let broken = Broken::from(io::Error::from(misplaced));
        assert_eq!(broken.status(), Status::Backend);
        assert_eq!(broken.fault(), Some(Fault::Gpu));
        assert!(broken.to_string().contains("1000 bytes"), "{broken}");
        let reset = Broken::from(io::Error::from(io::ErrorKind::ConnectionReset));
        assert_eq!(reset.status(), Status::RemoteDisconnect);
        assert_eq!(reset.fault(), None);
    }
}
