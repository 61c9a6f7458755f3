//! bind-tx: dma-bufs that programs send from.
//!
//! The NIC does not change: a binding gives the memory an id, under which sends name ranges of it. Ids are shared with
//! receive bindings, as in the kernel; an id of the wrong kind is refused.

use devmem_uapi::{Errno, IfIndex};
use netmem::{Dmabuf, FragSource, GeometryError};
use thiserror::Error;

use crate::route::Routes;

/// A request to bind a dma-buf for sending. It needs no privilege and no queue.
#[derive(Debug, Clone)]
pub struct BindTx {
    /// The interface through which the memory may be sent.
    pub ifindex: IfIndex,
    /// The memory.
    pub dmabuf: Dmabuf,
}

/// Why a [`BindTx`] was refused; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BindTxError {
    /// The interface is not that of this stack.
    #[error("there is no interface {ifindex}: this stack's is {ours}")]
    UnknownInterface {
        /// The requested interface.
        ifindex: IfIndex,
        /// The interface of this stack.
        ours: IfIndex,
    },
    /// The NIC does not transmit memory that the stack cannot read.
    #[error("the NIC does not transmit from device memory (netmem-tx is off)")]
    Unsupported,
    /// The size of the dma-buf is not a multiple of the page size.
    #[error("the dma-buf is not made of whole pages: {0}")]
    Geometry(#[from] GeometryError),
    /// Every id is in use.
    #[error("every dma-buf id is in use")]
    NoId,
    /// There is no host memory through which payload of a device could be sent.
    #[error("no host memory to stage the device's payload in: {0}")]
    Staging(String),
}

impl BindTxError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::UnknownInterface { .. } => Errno::ENODEV,
            Self::Unsupported => Errno::EOPNOTSUPP,
            Self::Geometry(_) => Errno::EINVAL,
            Self::NoId => Errno::ENOSPC,
            Self::Staging(_) => Errno::ENOMEM,
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Unsupported => Some("switch it on, or send from host memory"),
            Self::NoId => Some("unbind some"),
            Self::UnknownInterface { .. } | Self::Geometry(_) | Self::Staging(_) => None,
        }
    }
}

/// A dma-buf that is bound for sending.
#[derive(Debug)]
pub(crate) struct TxBinding {
    pub(crate) ifindex: IfIndex,
    pub(crate) memory: FragSource,
}

impl BindTx {
    /// Checks the request in the order of the kernel (linux net/core/netdev-genl.c `netdev_nl_bind_tx_doit`).
    pub(crate) fn validate(&self, ours: IfIndex, netmem_tx: bool) -> Result<(), BindTxError> {
        let Self { ifindex, dmabuf: _ } = self;
        if *ifindex != ours {
            return Err(BindTxError::UnknownInterface {
                ifindex: *ifindex,
                ours,
            });
        }
        if netmem_tx {
            Ok(())
        } else {
            Err(BindTxError::Unsupported)
        }
    }
}

/// Routes of this stack, and the interface that they lead through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EgressRoutes<'a> {
    pub(crate) routes: &'a Routes,
    pub(crate) ifindex: IfIndex,
}

#[cfg(test)]
mod tests {
    use super::super::Bindings;
    use super::*;
    use std::net::IpAddr;

    use devmem_uapi::DmabufId;
    use wire::MacAddr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn bindings() -> Bindings {
        let mut bindings = Bindings::default();
        let memory = FragSource::new(&Dmabuf::anonymous(4096).unwrap(), DmabufId(1)).unwrap();
        bindings.insert_tx(
            DmabufId(1),
            TxBinding {
                ifindex: IfIndex(1),
                memory,
            },
        );
        bindings
    }

    #[test]
    fn a_route_by_another_interface_is_enodev_and_none_is_ehostunreach() {
        let routes =
            Routes::new(MacAddr([2, 0, 0, 0, 0, 1]), &[(ip("10.0.0.1"), 24)], &[]).unwrap();
        let bindings = bindings();
        let send = |egress, remote| {
            let egress = EgressRoutes {
                routes: &routes,
                ifindex: IfIndex(egress),
            };
            bindings.tx(DmabufId(1), &egress, ip(remote)).map(drop)
        };
        assert_eq!(send(1, "10.0.0.2"), Ok(()));
        assert_eq!(send(1, "10.0.0.1"), Ok(()), "our own address");
        let refused = send(2, "10.0.0.2").unwrap_err();
        assert_eq!(refused.errno(), Errno::ENODEV);
        assert_eq!(
            refused.to_string(),
            "dma-buf 1 is bound to interface 1, but the route to the peer leaves by interface 2"
        );
        let remedy = "bind it there, too, or send from host memory";
        assert_eq!(refused.remedy(), Some(remedy));
        let refused = send(1, "10.9.0.2").unwrap_err();
        assert_eq!(refused.errno(), Errno::EHOSTUNREACH);
    }

    #[test]
    fn receive_and_send_bindings_share_the_ids() {
        let bindings = bindings();
        assert_eq!(bindings.next_id(), Some(DmabufId(2)));
    }
}
