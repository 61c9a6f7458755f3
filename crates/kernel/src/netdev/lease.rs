//! queue-create: queues of a netkit that are leased from a NIC, for a pod that may bind memory to them (Linux 7.1).
//!
//! A lease lasts as long as the netkit. The kernel tells it at the NIC's end only: a pod sees a queue of its netkit, and not whose it is.

use devmem_uapi::{Errno, IfIndex, netdev as uapi};

use super::requests::{Netdev, QUEUE_NAMES};
use super::{KernelRxQueueId, LeaseEnd, QueueUser};
use crate::errors::{Cause, Facts, Operation, cause};
use crate::netlink::attr::Attributes;
use crate::netlink::{GenericSocket, NetlinkError, Request};

/// Why a queue could not be leased: the kernel's answer, the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseError {
    /// The NIC.
    pub interface: String,
    /// Its queue.
    pub queue: KernelRxQueueId,
    /// The netkit.
    pub to: String,
    /// The errno that the kernel returned; `EOPNOTSUPP` if it does not know leases.
    pub errno: Errno,
    /// The kernel's extended-ack message, if there was one.
    pub kernel: Option<String>,
    /// The cause and the remedy.
    pub cause: Box<Cause>,
}

/// Prints one line; the hint is in [`LeaseError::cause`].
impl std::fmt::Display for LeaseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            interface,
            queue,
            to,
            errno,
            kernel,
            cause,
        } = self;
        write!(
            f,
            "lease queue {queue} of {interface} to {to}: {errno}: {cause}"
        )?;
        match kernel {
            Some(words) if !cause.message.contains(words.as_str()) => {
                write!(f, " (kernel: {words})")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for LeaseError {}

impl Netdev {
    /// Makes a queue of `to`, a netkit of this network namespace, and leases it from RX queue `queue` of this NIC. Returns the
    /// netkit's number of it. The lease ends with the netkit.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` before Linux 7.1; `EBUSY` if the queue is leased or bound already; `EPERM` without CAP_NET_ADMIN in the
    /// initial user namespace.
    pub fn lease_queue(
        &mut self,
        queue: KernelRxQueueId,
        to: &Self,
    ) -> Result<KernelRxQueueId, LeaseError> {
        let made = GenericSocket::open(uapi::FAMILY_NAME).and_then(|mut socket| {
            let what = format!("lease queue {queue} of {} to {}", self.name, to.name);
            if !socket.family().has(uapi::CMD_QUEUE_CREATE) {
                return Err(NetlinkError::new(&what, rustix::io::Errno::OPNOTSUPP));
            }
            let request = create_request(&socket, to.index, self.index, queue);
            socket.get(&what, request, |reply| reply.u32(uapi::A_QUEUE_ID))
        });
        made.map(KernelRxQueueId)
            .map_err(|error| self.explain_lease(queue, &to.name, error))
    }

    /// Leases as [`lease_queue`](Self::lease_queue) does, to a netkit by its name.
    ///
    /// # Errors
    ///
    /// As [`lease_queue`](Self::lease_queue).
    pub fn lease_queue_to(
        &mut self,
        queue: KernelRxQueueId,
        to: &str,
    ) -> Result<KernelRxQueueId, LeaseError> {
        match Self::by_name(to) {
            Ok(netkit) => self.lease_queue(queue, &netkit),
            Err(error) => Err(self.explain_lease(queue, to, error)),
        }
    }

    fn explain_lease(
        &mut self,
        queue: KernelRxQueueId,
        to: &str,
        error: NetlinkError,
    ) -> LeaseError {
        let errno = Errno(error.errno.raw_os_error());
        let facts = Facts {
            other_interface: Some(to.to_owned()),
            ..self.facts(&[queue], &error)
        };
        LeaseError {
            interface: self.name.clone(),
            queue,
            to: to.to_owned(),
            errno,
            cause: Box::new(cause(Operation::Lease, errno, &facts)),
            kernel: error.text,
        }
    }

    /// Returns whether this kernel can lease queues (Linux 7.1 and later).
    pub fn can_lease(&self) -> bool {
        self.socket.family().has(uapi::CMD_QUEUE_CREATE)
    }

    /// Lists the RX queues of this NIC that are leased, and to whom.
    ///
    /// # Errors
    ///
    /// As [`queues`](Self::queues).
    pub fn leases(&mut self) -> Result<Vec<(KernelRxQueueId, LeaseEnd)>, NetlinkError> {
        let queues = self.rx_queues()?.into_iter();
        Ok(queues
            .filter_map(|(queue, user)| match user {
                Some(QueueUser::Lease(Some(end))) => Some((queue, end)),
                _ => None,
            })
            .collect())
    }
}

/// Encodes a request to make a queue of `to` that is leased from `queue` of `from`.
fn create_request(
    socket: &GenericSocket,
    to: IfIndex,
    from: IfIndex,
    queue: KernelRxQueueId,
) -> Request {
    socket
        .command(uapi::CMD_QUEUE_CREATE, QUEUE_NAMES)
        .u32(uapi::A_QUEUE_IFINDEX, to.0)
        .u32(uapi::A_QUEUE_TYPE, uapi::QUEUE_TYPE_RX)
        .nested(uapi::A_QUEUE_LEASE, |lease| {
            lease
                .u32(uapi::A_LEASE_IFINDEX, from.0)
                .nested(uapi::A_LEASE_QUEUE, |leased| {
                    leased
                        .u32(uapi::A_QUEUE_ID, queue.0)
                        .u32(uapi::A_QUEUE_TYPE, uapi::QUEUE_TYPE_RX)
                })
        })
}

/// Reads the nest of a lease in a reply; `None` if something is missing.
pub(super) fn parse_end(lease: Attributes<'_>) -> Option<LeaseEnd> {
    let queue = lease.nested(uapi::A_LEASE_QUEUE)?;
    let netns = lease.find(uapi::A_LEASE_NETNS_ID);
    Some(LeaseEnd {
        ifindex: lease.u32(uapi::A_LEASE_IFINDEX)?,
        queue: KernelRxQueueId(queue.u32(uapi::A_QUEUE_ID)?),
        netns: netns.and_then(|id| Some(i32::from_ne_bytes(id.value.try_into().ok()?))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::CauseKind;

    #[test]
    fn a_request_for_a_lease_names_both_ends() {
        let socket = GenericSocket::open(uapi::FAMILY_NAME).expect("Linux 6.3 and later have it");
        let request = create_request(&socket, IfIndex(8), IfIndex(4), KernelRxQueueId(15));
        // The attributes follow the header of the family.
        let attributes = request.reply();
        assert_eq!(attributes.u32(uapi::A_QUEUE_IFINDEX), Some(8));
        assert_eq!(
            attributes.u32(uapi::A_QUEUE_TYPE),
            Some(uapi::QUEUE_TYPE_RX)
        );
        let lease = attributes.nested(uapi::A_QUEUE_LEASE).expect("a lease");
        let end = LeaseEnd {
            ifindex: 4,
            queue: KernelRxQueueId(15),
            netns: None,
        };
        assert_eq!(parse_end(lease), Some(end));
    }

    #[test]
    fn a_kernel_without_leases_is_named_as_too_old() {
        let mut lo = Netdev::by_name("lo").expect("lo is in the netdev family");
        let to = Netdev::by_name("lo").expect("lo is in the netdev family");
        let refused = lo.lease_queue(KernelRxQueueId(1), &to).unwrap_err();
        match lo.can_lease() {
            false => {
                assert_eq!(refused.cause.kind, CauseKind::KernelTooOld, "{refused}");
                assert!(refused.cause.message.contains("7.1"), "{refused}");
            }
            true => assert_ne!(refused.cause.kind, CauseKind::KernelTooOld, "{refused}"),
        }
    }

    #[test]
    fn an_end_without_a_queue_or_with_a_short_namespace_is_read_as_far_as_it_goes() {
        let none = Request::new(0, 0, &[]).u32(uapi::A_LEASE_IFINDEX, 4);
        assert_eq!(parse_end(none.reply()), None);
        let short = Request::new(0, 0, &[])
            .u32(uapi::A_LEASE_IFINDEX, 4)
            .nested(uapi::A_LEASE_QUEUE, |queue| queue.u32(uapi::A_QUEUE_ID, 2))
            .attribute(uapi::A_LEASE_NETNS_ID, &[1, 2]);
        let end = parse_end(short.reply()).expect("an end");
        assert_eq!((end.queue, end.netns), (KernelRxQueueId(2), None));
        assert_eq!(end.to_string(), "queue 2 of interface 4");
    }
}
