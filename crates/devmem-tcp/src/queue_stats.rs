//! Counters of RX queues.

use nic::{Nic, RxQueueStats};
use steer::RxQueueId;

/// Counters of one RX queue since the NIC was opened; for an interface of the kernel since its driver was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// The queue.
    pub queue: RxQueueId,
    /// Received packets; a super-packet counts once.
    pub packets: u64,
    /// Bytes of these packets: of payload in user space, as the driver counts them in the kernel.
    pub bytes: u64,
    /// Packets with payload in the memory of the queue, which is device memory if some is bound. `None` if the driver does not
    /// count them.
    pub split_packets: Option<u64>,
    /// Payload bytes that were received where [`place_next`](crate::RecvHalf::place_next) wants them; always 0 in the kernel.
    pub direct_bytes: u64,
    /// Of those, bytes that the NIC copied there, because it had expected another packet.
    pub direct_copied_bytes: u64,
}

impl QueueStats {
    /// Adds the counters of the queues of two shards.
    pub(crate) fn add_all(mut some: Vec<Self>, others: Vec<Self>) -> Vec<Self> {
        for (sum, other) in some.iter_mut().zip(others) {
            let Self {
                queue: _,
                packets,
                bytes,
                split_packets,
                direct_bytes,
                direct_copied_bytes,
            } = other;
            sum.packets += packets;
            sum.bytes += bytes;
            sum.split_packets = sum.split_packets.zip(split_packets).map(|(a, b)| a + b);
            sum.direct_bytes += direct_bytes;
            sum.direct_copied_bytes += direct_copied_bytes;
        }
        some
    }

    pub(crate) fn of_nic(nic: &Nic) -> Vec<Self> {
        let queues = (0..nic.channels().rx).map(RxQueueId);
        queues
            .filter_map(|queue| {
                let RxQueueStats {
                    packets,
                    bytes,
                    split,
                    direct_bytes,
                    direct_copied_bytes,
                    ..
                } = nic.queue_stats(queue)?;
                Some(Self {
                    queue,
                    packets,
                    bytes,
                    split_packets: Some(split),
                    direct_bytes,
                    direct_copied_bytes,
                })
            })
            .collect()
    }
}
