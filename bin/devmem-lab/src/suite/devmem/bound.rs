//! Device memory that is bound to queues of our NIC, and the flow rules that lead connections to them.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use devmem_linux::dmabuf::DmabufFd;
use devmem_linux::errors::CauseKind;
use devmem_linux::ethtool::{
    DataSplit, Ethtool, MAIN_CONTEXT, NTUPLE, RingsChange, RuleAction, TcpFlow,
};
use devmem_linux::netdev::{BindError, BoundRx, KernelRxQueueId, Netdev};

use crate::suite::nic::nic;
use crate::suite::row::Skip;

/// Bytes bound: more than the buffers of a ring (1,024 of 4 KiB), within udmabuf's default limit of 64 MiB.
pub const MEMORY_BYTES: usize = 32 << 20;

/// Exporter of the bound memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmabufKind {
    /// Pages of a memfd.
    Udmabuf,
    /// /dev/dma_heap/system.
    Heap,
}

/// Allocates device memory.
///
/// # Errors
///
/// The exporter refused.
pub fn memory(kind: DmabufKind) -> anyhow::Result<DmabufFd> {
    Ok(match kind {
        DmabufKind::Udmabuf => DmabufFd::udmabuf(MEMORY_BYTES)?,
        DmabufKind::Heap => DmabufFd::heap("system", MEMORY_BYTES)?,
    })
}

/// Steering of our NIC: some queues reserved for device memory, and flow rules to them. Dropping it removes both.
#[derive(Debug)]
pub struct Steering {
    ethtool: Ethtool,
    rules: Vec<u32>,
}

impl Steering {
    /// Removes all queues from `first` on from RSS, and turns header split and flow rules on.
    ///
    /// # Errors
    ///
    /// The driver refused.
    pub fn new(first: u32) -> anyhow::Result<Self> {
        let mut ethtool = Ethtool::by_name(nic())?;
        let split = RingsChange {
            data_split: Some(DataSplit::Enabled),
            ..RingsChange::default()
        };
        ethtool.set_rings(split)?;
        ethtool.set_feature(NTUPLE, true)?;
        let entries = ethtool.rss()?.table.len();
        let table: Vec<u32> = (0..first).cycle().take(entries).collect();
        ethtool.set_rss_table(MAIN_CONTEXT, &table)?;
        Ok(Self {
            ethtool,
            rules: Vec::new(),
        })
    }

    /// Adds a flow rule for the destination `to` to a queue.
    ///
    /// # Errors
    ///
    /// The driver refused.
    pub fn lead(&mut self, to: SocketAddr, queue: u32) -> anyhow::Result<()> {
        let flow = TcpFlow {
            ipv6: to.is_ipv6(),
            source: None,
            source_port: None,
            destination: Some(to.ip()),
            destination_port: Some(to.port()),
        };
        self.rules.push(
            self.ethtool
                .insert_rule(&flow, RuleAction::Queue(KernelRxQueueId(queue)))?,
        );
        Ok(())
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        for rule in &self.rules {
            let _ = self.ethtool.delete_rule(*rule);
        }
        let _ = self.ethtool.reset_rss_table();
    }
}

/// Memory, and its binding to queues of our NIC.
#[derive(Debug)]
pub struct Bound {
    /// The binding.
    pub rx: BoundRx,
    /// The memory.
    pub memory: DmabufFd,
}

impl Bound {
    /// Allocates memory and binds it.
    ///
    /// # Errors
    ///
    /// The exporter or the kernel refused.
    pub fn new(kind: DmabufKind, queues: &[u32]) -> anyhow::Result<Self> {
        let memory = memory(kind)?;
        Ok(Self {
            rx: bind(&memory, queues)?,
            memory,
        })
    }
}

/// Binds memory to queues of our NIC.
///
/// # Errors
///
/// The kernel refused.
pub fn bind(memory: &DmabufFd, queues: &[u32]) -> anyhow::Result<BoundRx> {
    let queues: Vec<KernelRxQueueId> = queues.iter().copied().map(KernelRxQueueId).collect();
    let bound = Netdev::by_name(nic())?.bind_rx(memory.as_fd(), &queues);
    bound.map_err(unless_unsupported)
}

/// Returns the error of a row for a refused binding: the row is skipped if the kernel or its driver cannot bind at all.
pub fn unless_unsupported(refused: BindError) -> anyhow::Error {
    match refused.cause.kind {
        CauseKind::DriverCannot | CauseKind::KernelTooOld => Skip(refused.to_string()).into(),
        _ => refused.into(),
    }
}

/// Skips the row if the kernel cannot bind memory for receiving. Header split is as before afterwards.
///
/// # Errors
///
/// The kernel refused.
pub fn require_rx(queue: u32) -> anyhow::Result<()> {
    let mut ethtool = Ethtool::by_name(nic())?;
    let before = RingsChange {
        data_split: ethtool.rings()?.data_split,
        ..RingsChange::default()
    };
    drop(Steering::new(1)?);
    let bound = Bound::new(DmabufKind::Udmabuf, &[queue]).map(drop);
    ethtool.set_rings(before)?;
    bound
}
