//! The receiving NIC of `demo` and `recv`: opened, bound, listening, and given back.

use std::net::SocketAddr;

use anyhow::Context;
use devmem_tcp::{BoundRx, Dmabuf, Listener, Netdev, NetdevBuilder, Setup};

use crate::output::Failure;
use crate::plan::NicPlan;
use crate::report::RunReport;
use crate::transfer::{Task, Totals, Transfer};

/// A NIC with device memory bound to it and a listening socket. The fields are undone in their order.
#[derive(Debug)]
pub struct Receiver {
    listener: Listener,
    bound: BoundRx,
    setup: Setup,
    memory: Dmabuf,
    nic: Netdev,
}

impl Receiver {
    /// Opens the NIC, binds memory to its queues, listens.
    ///
    /// # Errors
    ///
    /// What the library refused, with its remedy.
    pub fn open(
        builder: NetdevBuilder,
        plan: &NicPlan,
        local: SocketAddr,
    ) -> Result<Self, Failure> {
        let nic = builder
            .mtu(plan.mtu)
            // Queue 0 keeps to host memory.
            .rx_queues(plan.queues + 1)
            .linear_bytes(plan.linear_bytes)
            .impair(plan.impairment)
            .open()?;
        let memory = Dmabuf::anonymous(plan.mem_bytes).context("get device memory")?;
        let setup = nic.plan_receive(local).queues(plan.queues).apply()?;
        let bound = nic.bind_rx_sized(&memory, setup.queues(), plan.niov)?;
        let listener = nic.listen(local)?;
        Ok(Self {
            listener,
            bound,
            setup,
            memory,
            nic,
        })
    }

    /// The NIC, for other uses beside.
    pub fn nic(&self) -> Netdev {
        self.nic.clone()
    }

    /// Takes connections and receives from them until all have ended.
    ///
    /// # Errors
    ///
    /// A destination that cannot be written, or what [`Task::watch`] says.
    pub fn run(&mut self, task: Task<'_>) -> Result<Totals, Failure> {
        Transfer::new(self.memory.clone(), task).run(&mut self.listener)
    }

    /// Gives everything back, and notes what the NIC and its memory have to say.
    pub fn finish(self, report: &mut RunReport) {
        let Self {
            listener,
            bound,
            setup,
            memory,
            nic,
        } = self;
        drop(listener);
        report.mem_bytes = memory.size() as u64;
        report.page_kind = memory.page_kind().to_string();
        report.niov_bytes = bound.niov_size().bytes() as u64;
        let count = bound.unbind().net_iovs();
        report.net_iovs_total = count.total as u64;
        report.net_iovs_home = count.home as u64;
        drop(setup);
        let drops = nic.drops().into_iter();
        report.drops = drops
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect();
    }
}
