//! Bindings of memory.

use devmem_uapi::{DmabufId, Errno};

use crate::error::{Error, ErrorKind, Remedy};
use crate::net_iov_count::NetIovCount;
use crate::{kernel, user};

/// Memory bound to RX queues. Dropping it unbinds.
pub(crate) enum Rx {
    User(user::Rx),
    Kernel(kernel::Rx),
}

/// Counter of the net_iovs of a binding, which also works after unbinding.
pub(crate) enum NetIovs {
    User(user::NetIovs),
    Kernel(kernel::NetIovs),
}

/// Memory bound for sending. Dropping it unbinds.
pub(crate) enum Tx {
    User(user::Tx),
    Kernel(kernel::Tx),
}

/// Memory bound as a target, which only a NIC in user space has. Dropping it unbinds.
pub(crate) use user::Target;

impl Rx {
    pub(crate) fn id(&self) -> DmabufId {
        each!(self, rx => rx.id())
    }

    pub(crate) fn net_iovs(&self) -> NetIovs {
        match self {
            Self::User(rx) => NetIovs::User(rx.net_iovs()),
            Self::Kernel(rx) => NetIovs::Kernel(rx.net_iovs()),
        }
    }
}

impl NetIovs {
    pub(crate) fn count(&self) -> NetIovCount {
        each!(self, net_iovs => net_iovs.count())
    }
}

impl Tx {
    pub(crate) fn id(&self) -> DmabufId {
        each!(self, tx => tx.id())
    }

    /// The error for a stream of another NIC.
    pub(crate) fn is_elsewhere(&self) -> Error {
        let id = self.id();
        let reason = format!("dma-buf {id} is bound to another NIC than the stream's");
        Error::new(ErrorKind::InvalidInput, Errno::ENODEV, reason)
            .with_remedy(Remedy::BindToStreamsNic)
    }

    /// Returns the number of incomplete sends from the memory; 0 in a child of fork(2).
    pub(crate) fn in_flight(&self) -> usize {
        match each!(self, tx => tx.check()) {
            Ok(()) => each!(self, tx => tx.in_flight()),
            Err(_forked) => 0,
        }
    }
}

/// The refusal of a target by a NIC of the kernel.
pub(super) fn kernel_places_nothing() -> Error {
    let reason = "a NIC of the kernel receives into the memory that is bound to its queues, and nowhere else";
    let refusal = Error::new(ErrorKind::Unsupported, Errno::EOPNOTSUPP, reason);
    refusal.with_remedy(Remedy::GatherInstead)
}
