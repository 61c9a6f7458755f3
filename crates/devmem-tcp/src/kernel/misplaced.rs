//! Why bytes arrived in host memory although device memory is bound.

use devmem_linux::netdev::QueueKind;
use devmem_linux::socket::incoming_napi;
use steer::RxQueueId;

use super::socket::Socket;
use crate::error::{Misplacement, Remedy};

impl Socket {
    /// Finds the reason from the current settings. `split`: the bytes arrived through a bound queue, with the headers.
    pub(super) fn misplacement(&self, split: bool) -> Misplacement {
        let interface = self.nic.name().to_owned();
        let (dmabuf, queues) = match self.nic.known().bound.last() {
            Some((dmabuf, queues)) => (Some(*dmabuf), queues.clone()),
            None => (None, Vec::new()),
        };
        let (reason, remedy) = if split {
            (
                "the NIC left them with the headers, which are longer than it can split off"
                    .to_owned(),
                Remedy::DeliverFromHostMemory,
            )
        } else if dmabuf.is_none() {
            (
                format!("this program has bound no device memory to {interface}"),
                Remedy::BindBeforeConnecting,
            )
        } else if let Some(drift) = self.nic.drift() {
            let remedy = drift.command.map_or("set up again".into(), |command| {
                format!("restore the setting: {command}").into()
            });
            (drift.what, remedy)
        } else if let Some(queue) = self
            .queue_id()
            .filter(|queue| !queues.iter().any(|q| q.0 == *queue))
        {
            let bound: Vec<_> = queues.iter().map(ToString::to_string).collect();
            (
                format!(
                    "the flow arrives on queue {queue} and is not steered to queue {}",
                    bound.join(", ")
                ),
                format!("`ethtool -n {interface}` lists the rules that steer flows to queues")
                    .into(),
            )
        } else {
            (
                "the flow was not steered to a bound queue when they arrived".to_owned(),
                Remedy::BindBeforeConnecting,
            )
        };
        Misplacement {
            interface,
            dmabuf,
            reason,
            remedy,
        }
    }

    /// Returns the RX queue on which the connection's packets arrive, if the driver reports it.
    pub(crate) fn queue(&self) -> Option<RxQueueId> {
        Some(RxQueueId(u16::try_from(self.queue_id()?).ok()?))
    }

    /// Returns the kernel's number of that queue.
    pub(super) fn queue_id(&self) -> Option<u32> {
        let napi = incoming_napi(self.fd())?;
        let queues = self.nic.netdev().ok()?.queues().ok()?;
        let ours = queues
            .iter()
            .find(|queue| queue.kind == QueueKind::Rx && queue.napi == Some(napi));
        ours.map(|queue| queue.id)
    }
}
