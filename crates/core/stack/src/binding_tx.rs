//! bind-tx: dma-bufs that programs send from.
//!
//! The NIC does not change: a binding gives the memory an id, under which sends name ranges of it. Ids are shared with
//! receive bindings, as in the kernel; an id of the wrong kind is refused.

use std::net::IpAddr;

use devmem_uapi::{DmabufId, Errno, IfIndex};
use netmem::{Dmabuf, GeometryError, TxMemory};
use thiserror::Error;

use crate::Stack;
use crate::binding::Bindings;
use crate::route::Routes;
use crate::socket::error::{SendError, UnknownBinding};

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
    #[error("there is no interface {ifindex}; this stack's is {ours}")]
    UnknownInterface {
        /// The requested interface.
        ifindex: IfIndex,
        /// The interface of this stack.
        ours: IfIndex,
    },
    /// The NIC does not transmit memory that the stack cannot read.
    #[error(
        "the NIC does not transmit from device memory (netmem-tx is off); switch it on, or send from host memory"
    )]
    Unsupported,
    /// The size of the dma-buf is not a multiple of the page size.
    #[error("the dma-buf is not made of whole pages: {0}")]
    Geometry(#[from] GeometryError),
    /// Every id is in use.
    #[error("every dma-buf id is in use; unbind some")]
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
}

/// A dma-buf that is bound for sending.
#[derive(Debug)]
pub(crate) struct TxBinding {
    ifindex: IfIndex,
    pub(crate) memory: TxMemory,
}

impl BindTx {
    /// Checks the request in the order of the kernel (linux net/core/netdev-genl.c `netdev_nl_bind_tx_doit`).
    fn validate(&self, ours: IfIndex, netmem_tx: bool) -> Result<(), BindTxError> {
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

impl Bindings {
    /// Returns the binding `id` if packets to `remote` leave through its interface (linux net/core/devmem.c
    /// `net_devmem_get_binding`).
    pub(crate) fn tx(
        &self,
        id: DmabufId,
        egress: &EgressRoutes<'_>,
        remote: IpAddr,
    ) -> Result<&TxBinding, SendError> {
        let Some(binding) = self.sending.get(&id) else {
            return Err(match self.is_receiving(id) {
                true => SendError::ReceiveBinding { dmabuf: id },
                false => SendError::UnknownBinding { dmabuf: id },
            });
        };
        let EgressRoutes { routes, ifindex } = *egress;
        // Local addresses are reached through the same NIC, which supports device memory, unlike the kernel's loopback.
        routes.route(remote).map_err(SendError::NoRoute)?;
        if ifindex != binding.ifindex {
            return Err(SendError::OtherDevice {
                dmabuf: id,
                bound: binding.ifindex,
                egress: ifindex,
            });
        }
        Ok(binding)
    }
}

/// Routes of this stack, and the interface that they lead through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EgressRoutes<'a> {
    pub(crate) routes: &'a Routes,
    pub(crate) ifindex: IfIndex,
}

impl Stack {
    /// Binds a dma-buf for sending: [`SendMsg::device`](crate::SendMsg::device) may name ranges of it.
    ///
    /// # Errors
    /// [`BindTxError`]. Nothing has changed then.
    pub fn bind_tx(&mut self, request: BindTx) -> Result<DmabufId, BindTxError> {
        let netmem_tx = self.nic.features().netmem_tx;
        request.validate(self.network.ifindex, netmem_tx)?;
        let bindings = &mut self.memory.bindings;
        let id = bindings.next_id().ok_or(BindTxError::NoId)?;
        let BindTx { ifindex, dmabuf } = request;
        let memory = TxMemory::new(&dmabuf, id)?;
        if let Some(engine) = dmabuf.copy_engine() {
            let prepared = self.nic.prepare_tx(engine);
            prepared.map_err(|error| BindTxError::Staging(error.to_string()))?;
        }
        bindings.insert_tx(id, TxBinding { ifindex, memory });
        Ok(id)
    }

    /// Removes a binding. Sends that are in progress continue; the memory is freed when the last of them is complete.
    ///
    /// # Errors
    /// [`UnknownBinding`].
    pub fn unbind_tx(&mut self, id: DmabufId) -> Result<(), UnknownBinding> {
        self.memory
            .bindings
            .sending
            .remove(&id)
            .map(drop)
            .ok_or(UnknownBinding(id))
    }

    /// Returns the number of sends from a binding that are not complete, of all sockets including closed ones; `None`
    /// for an id that is not bound for sending. At 0 the program may change all of the memory.
    pub fn sends_in_flight(&self, id: DmabufId) -> Option<usize> {
        self.memory
            .bindings
            .sending
            .get(&id)
            .map(|binding| binding.memory.in_flight())
    }

    /// Returns the ids of the bindings for sending.
    pub fn tx_bindings(&self) -> impl Iterator<Item = DmabufId> + '_ {
        self.memory.bindings.sending.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::MacAddr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn bindings() -> Bindings {
        let mut bindings = Bindings::default();
        let memory = TxMemory::new(&Dmabuf::anonymous(4096).unwrap(), DmabufId(1)).unwrap();
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
            "dma-buf 1 is bound to interface 1, but the route to the peer leaves by interface 2; bind it there, too, or \
             send from host memory"
        );
        let refused = send(1, "10.9.0.2").unwrap_err();
        assert_eq!(refused.errno(), Errno::EHOSTUNREACH);
    }

    #[test]
    fn receive_and_send_bindings_share_the_ids() {
        let bindings = bindings();
        assert_eq!(bindings.next_id(), Some(DmabufId(2)));
    }
}
