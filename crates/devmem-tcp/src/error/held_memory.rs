//! Who holds the memory that a connection receives into.

use std::fmt;

use devmem_uapi::DmabufId;

/// The holders of the memory that a connection receives into, when little of it is free: the peer may not send more then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldMemory {
    /// The binding.
    pub dmabuf: DmabufId,
    /// All net_iovs of the memory; on a NIC with several shards, of the part of the connection's shard.
    pub net_iovs: usize,
    /// What is counted in the next fields.
    pub unit: HeldUnit,
    /// What this connection has lent to the program, in batches and frags that it has not released or dropped.
    pub lent: usize,
    /// What other connections have lent.
    pub lent_by_others: usize,
    /// What holds bytes that have arrived, and that the program has not received; 0 with a NIC of the kernel, which does not tell.
    pub unread: usize,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldUnit {
    /// Net_iovs: with a NIC in user space.
    NetIovs,
    /// Frags, each of which occupies a net_iov or a part of one: with a NIC of the kernel.
    Frags,
}

impl HeldMemory {
    pub(crate) fn of_stack(holders: stack::MemoryHolders) -> Self {
        let stack::MemoryHolders {
            dmabuf,
            niovs,
            lent,
            lent_by_others,
            unread,
        } = holders;
        Self {
            dmabuf,
            net_iovs: niovs,
            unit: HeldUnit::NetIovs,
            lent,
            lent_by_others,
            unread,
        }
    }
}

impl fmt::Display for HeldMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            dmabuf,
            net_iovs,
            unit,
            lent,
            lent_by_others,
            unread,
        } = self;
        let all = lent + lent_by_others;
        match unit {
            HeldUnit::NetIovs => write!(
                f,
                "{all} of {net_iovs} net_iovs of dma-buf {dmabuf} are lent to the program"
            )?,
            HeldUnit::Frags => write!(
                f,
                "{all} frags are lent to the program, and nearly all of the {net_iovs} net_iovs of dma-buf {dmabuf} are in use"
            )?,
        }
        if *lent_by_others > 0 {
            write!(
                f,
                ", {lent} by this connection and {lent_by_others} by others"
            )?;
        }
        if *unread > 0 {
            write!(f, "; {unread} hold bytes that it has not received")?;
        }
        Ok(())
    }
}
