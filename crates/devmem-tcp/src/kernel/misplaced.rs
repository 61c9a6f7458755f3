//! Why bytes arrived in host memory although device memory is bound.

use devmem_linux::netdev::QueueKind;
use devmem_linux::socket::incoming_napi;
use steer::RxQueueId;

use super::socket::Socket;
use crate::error::Misplacement;

impl Socket {
    /// Finds the reason from the current settings. `split`: the bytes arrived through a bound queue, with the headers.
    pub(super) fn misplacement(&self, split: bool) -> Misplacement {
        let interface = self.nic.name().to_owned();
        let (dmabuf, queues) = match self.nic.known().bound.last() {
            Some((dmabuf, queues)) => (Some(*dmabuf), queues.clone()),
            None => (None, Vec::new()),
        };
        let mixed = "`set_placement(Placement::Mixed)` delivers them";
        let (reason, hint) = if split {
            (
                "the NIC put them into host memory with the headers".to_owned(),
                format!("some headers are longer than the NIC can split off; {mixed}"),
            )
        } else if dmabuf.is_none() {
            (
                format!("this program has bound no device memory to {interface}"),
                "call `Netdev::bind_rx` before the first byte arrives".to_owned(),
            )
        } else if let Some(drift) = self.nic.drift() {
            let again = "set up again".to_owned();
            let hint = drift
                .command
                .map_or(again, |command| format!("restore the setting: {command}"));
            (drift.what, hint)
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
                format!("`plan_receive` steers it; `ethtool -n {interface}` lists the rules"),
            )
        } else {
            (
                "the flow was not steered to a bound queue when they arrived".to_owned(),
                format!("bind and steer before the peer connects; {mixed}"),
            )
        };
        Misplacement {
            interface,
            dmabuf,
            reason,
            hint,
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
