//! Bindings of memory.

use devmem_uapi::DmabufId;

use super::nic::Nic;
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

    /// Returns whether the memory is bound to `nic`.
    pub(crate) fn is_on(&self, nic: &Nic) -> bool {
        match (self, nic) {
            (Self::User(tx), Nic::User(nic)) => tx.is_on(nic),
            (Self::Kernel(tx), Nic::Kernel(nic)) => tx.is_on(nic),
            _ => false,
        }
    }

    /// Returns the number of incomplete sends from the memory; 0 in a child of fork(2).
    pub(crate) fn in_flight(&self) -> usize {
        match each!(self, tx => tx.check()) {
            Ok(()) => each!(self, tx => tx.in_flight()),
            Err(_forked) => 0,
        }
    }
}
