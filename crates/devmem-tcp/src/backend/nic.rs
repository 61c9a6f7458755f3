//! NICs.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use netmem::{Dmabuf, NiovSize};
use nic::LinkState;
use stack::AddressConflict;
use steer::RxQueueId;

use super::binding::{Rx, Target, Tx, kernel_places_nothing};
use super::listening::Listening;
use super::prepared::Prepared;
use super::socket::Socket;
use crate::connect::ConnectOptions;
use crate::error::{BindError, Error, Forked};
use crate::flows::Flows;
use crate::queue_stats::{QueueStats, TxStats};
use crate::syn_data::SynData;
use crate::{kernel, user};

/// Connections that may wait to be accepted; Linux' SOMAXCONN is 4096 (include/linux/socket.h).
const BACKLOG: usize = 4096;

/// A NIC with its TCP/IP stack.
#[derive(Clone, Debug)]
pub(crate) enum Nic {
    User(user::Nic),
    Kernel(Arc<kernel::Nic>),
}

impl Nic {
    /// Returns this NIC; fails in a child of fork(2) of the process that opened it.
    fn here(&self) -> Result<&Self, Forked> {
        self.check()?;
        Ok(self)
    }

    /// Fails in a child of fork(2), for calls that do something else first.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        each!(self, nic => nic.check())
    }

    /// Returns whether both are the same NIC, or the same shard of it.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::User(one), Self::User(other)) => one.is_same(other),
            (Self::Kernel(one), Self::Kernel(other)) => one.is_same(other),
            _ => false,
        }
    }

    /// Returns whether `tx` is bound to this NIC.
    pub(crate) fn has(&self, tx: &Tx) -> bool {
        match (self, tx) {
            (Self::User(nic), Tx::User(tx)) => tx.is_on(nic),
            (Self::Kernel(nic), Tx::Kernel(tx)) => tx.is_on(nic),
            _ => false,
        }
    }

    /// Returns the name of the kernel's interface.
    pub(crate) fn interface(&self) -> Option<&str> {
        match self {
            Self::User(_) => None,
            Self::Kernel(nic) => Some(nic.name()),
        }
    }

    /// Returns each shard as a NIC.
    pub(crate) fn shards(&self) -> Vec<Self> {
        match self {
            Self::User(nic) => nic.each().map(Self::User).collect(),
            Self::Kernel(_) => vec![self.clone()],
        }
    }
}

/// What is made from a NIC.
impl Nic {
    pub(crate) fn bind_rx(
        &self,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        niov_size: Option<NiovSize>,
    ) -> Result<(Rx, NiovSize), BindError> {
        Ok(match self.here()? {
            Self::User(nic) => {
                let (rx, size) = nic.bind_rx(memory, queues, niov_size)?;
                (Rx::User(rx), size)
            }
            Self::Kernel(nic) => {
                let (rx, size) = nic.bind_rx(memory, queues, niov_size)?;
                (Rx::Kernel(rx), size)
            }
        })
    }

    pub(crate) fn bind_tx(&self, memory: &Dmabuf) -> Result<Tx, Error> {
        Ok(match self.here()? {
            Self::User(nic) => Tx::User(nic.bind_tx(memory)?),
            Self::Kernel(nic) => Tx::Kernel(nic.bind_tx(memory)?),
        })
    }

    pub(crate) fn bind_target(&self, memory: &Dmabuf) -> Result<Target, Error> {
        match self.here()? {
            Self::User(nic) => nic.bind_target(memory),
            Self::Kernel(_) => Err(kernel_places_nothing()),
        }
    }

    pub(crate) fn listen(&self, address: SocketAddr) -> Result<Listening, Error> {
        Ok(match self.here()? {
            Self::User(nic) => Listening::User(nic.listen(address, BACKLOG)?),
            Self::Kernel(nic) => Listening::Kernel(nic.listen(address, BACKLOG)?),
        })
    }

    pub(crate) fn begin_connect(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Socket, Error> {
        each!(self.here()?, nic => Ok(nic.begin_connect(address, options)?.into()))
    }

    pub(crate) fn begin_with_data(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
        data: SynData<'_>,
    ) -> Result<(Socket, usize), Error> {
        each!(self.here()?, nic => {
            let (socket, taken) = nic.begin_with_data(address, options, data)?;
            Ok((socket.into(), taken))
        })
    }
}

/// Settings and counters.
impl Nic {
    /// Returns the settings of a receiver: for an interface of the kernel as commands, else as text.
    pub(crate) fn commands(&self, flows: &Flows, queues: u16) -> Result<Vec<String>, Error> {
        match self.here()? {
            Self::User(_) => Ok(flows.settings(queues)),
            Self::Kernel(nic) => nic.commands(flows, queues),
        }
    }

    pub(crate) fn prepare(
        &self,
        flows: &Flows,
        queues: u16,
    ) -> Result<(Prepared, Vec<RxQueueId>), Error> {
        Ok(match self.here()? {
            Self::User(nic) => {
                let (prepared, queues) = nic.prepare(flows, queues)?;
                (Prepared::User(prepared), queues)
            }
            Self::Kernel(nic) => {
                let (prepared, queues) = nic.prepare(flows, queues)?;
                (Prepared::Kernel(prepared), queues)
            }
        })
    }

    pub(crate) fn is_in_virtual_time(&self) -> bool {
        matches!(self.here(), Ok(Self::User(nic)) if nic.is_in_virtual_time())
    }

    pub(crate) fn close(&self, at_most: Duration) -> bool {
        match self.here() {
            Ok(Self::User(nic)) => nic.close(at_most),
            Ok(Self::Kernel(_)) | Err(_) => true,
        }
    }

    pub(crate) fn queue_stats(&self) -> Vec<QueueStats> {
        self.here()
            .map(|nic| each!(nic, nic => nic.queue_stats()))
            .unwrap_or_default()
    }

    pub(crate) fn tx_stats(&self) -> Option<TxStats> {
        match self.here() {
            Ok(Self::User(nic)) => Some(nic.tx_stats()),
            Ok(Self::Kernel(_)) | Err(_) => None,
        }
    }

    pub(crate) fn drops(&self) -> Vec<(&'static str, u64)> {
        self.here()
            .map(|nic| each!(nic, nic => nic.drops()))
            .unwrap_or_default()
    }

    pub(crate) fn crossed_frames(&self) -> u64 {
        match self.here() {
            Ok(Self::User(nic)) => nic.crossed_frames(),
            Ok(Self::Kernel(_)) | Err(_) => 0,
        }
    }

    pub(crate) fn address_conflicts(&self) -> Vec<AddressConflict> {
        match self.here() {
            Ok(Self::User(nic)) => nic.address_conflicts(),
            Ok(Self::Kernel(_)) | Err(_) => Vec::new(),
        }
    }

    pub(crate) fn link_state(&self) -> LinkState {
        self.here()
            .map_or(LinkState::Gone, |nic| each!(nic, nic => nic.link_state()))
    }

    pub(crate) fn mtu(&self) -> u16 {
        self.here()
            .map(|nic| each!(nic, nic => nic.mtu()))
            .unwrap_or_default()
    }

    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.here()
            .map(|nic| each!(nic, nic => nic.addresses()))
            .unwrap_or_default()
    }
}
