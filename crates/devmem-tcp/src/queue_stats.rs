//! Counters of RX queues, and of the transmit side.

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
    /// The queue's page pool; `None` in the kernel.
    pub pool: Option<PoolStats>,
}

/// Counters of the page pool of an RX queue, in net_iovs (in host pages for a queue without device memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Taken from the bound memory, now.
    pub held: u64,
    /// Of those, in use now: posted, in a packet, or lent to the program.
    pub in_use: u64,
    /// Returned to the pool so far.
    pub recycled: u64,
}

impl PoolStats {
    fn of(stats: netmem::PoolStats) -> Self {
        Self {
            held: stats.held,
            in_use: stats.outstanding,
            recycled: stats.recycle_cached + stats.recycle_ring,
        }
    }

    fn add(self, other: Self) -> Self {
        Self {
            held: self.held + other.held,
            in_use: self.in_use + other.in_use,
            recycled: self.recycled + other.recycled,
        }
    }
}

/// Counters of the transmit side of a user-space NIC since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxStats {
    /// Packets sent on the link; a super-packet counts once.
    pub packets: u64,
    /// Frames sent on the link: more than packets if the NIC cuts super-packets, because the link does not.
    pub frames: u64,
    /// How often the link was busy, so that a packet had to wait.
    pub busy: u64,
}

impl TxStats {
    pub(crate) fn of_nic(nic: &Nic) -> Self {
        let nic::TxStats {
            packets,
            frames,
            busy,
            ..
        } = nic.tx_stats();
        Self {
            packets,
            frames,
            busy,
        }
    }

    pub(crate) fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            frames: self.frames + other.frames,
            busy: self.busy + other.busy,
        }
    }
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
                pool,
            } = other;
            sum.packets += packets;
            sum.bytes += bytes;
            sum.split_packets = sum.split_packets.zip(split_packets).map(|(a, b)| a + b);
            sum.direct_bytes += direct_bytes;
            sum.direct_copied_bytes += direct_copied_bytes;
            sum.pool = sum.pool.zip(pool).map(|(a, b)| a.add(b));
        }
        some
    }

    pub(crate) fn of_nic(nic: &Nic) -> Vec<Self> {
        let queues = (0..nic.rx_queue_count()).map(RxQueueId);
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
                    pool: nic.pool_stats(queue).map(PoolStats::of),
                })
            })
            .collect()
    }
}
