//! What a program waits for on a stream.

use devmem_uapi::Errno;
use rustix::event::PollFlags;
use stack::Readiness;

use crate::error::{Error, ErrorKind, Remedy};
use crate::signals::TaskSignal;

/// Most keys that one [`Poller::wait_ready`](crate::Poller::wait_ready) returns.
pub(crate) const READY_MAX: usize = 256;

/// What to wait for on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// A receive returns data, the end of the stream, or an error.
    Receive,
    /// A send queues at least one byte, or fails.
    Send,
    /// A send is complete, or its connection has failed.
    Complete,
}

impl Interest {
    pub(crate) const fn readiness(self) -> Readiness {
        match self {
            Self::Receive => TaskSignal::Receive,
            Self::Send => TaskSignal::Send,
            Self::Complete => TaskSignal::Complete,
        }
        .interest()
    }

    /// poll(2) reports POLLERR, which completions set, without being asked for it.
    pub(crate) const fn poll_flags(self) -> PollFlags {
        match self {
            Self::Receive => PollFlags::IN,
            Self::Send => PollFlags::OUT,
            Self::Complete => PollFlags::empty(),
        }
    }
}

/// The refusal of a stream that a poller cannot wait for.
pub(crate) fn elsewhere() -> Error {
    let refusal = Error::new(
        ErrorKind::InvalidInput,
        Errno::EINVAL,
        "a watched stream is on another shard than the poller, or on another NIC",
    );
    refusal.with_remedy(Remedy::PollerOfItsShard)
}
