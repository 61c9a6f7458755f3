//! The receiving NIC of `demo` and `recv`: opens it, binds memory, listens, and restores it at the end.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use devmem_tcp::{
    BoundRx, Dmabuf, LinkState, Listener, NetIovCount, Netdev, NetdevBuilder, Setup, Unbound,
};

use crate::kernel;
use crate::plan::{KernelPlan, NicPlan};
use crate::report::{QueueRow, RunReport};
use tool::output::{Failure, note};
use tool::receive::{Task, Totals, Transfer};
use tool::undelivered::Undelivered;

/// Time limit for the kernel to release unused memory, for which it checks once per second.
const LETTING_GO: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A NIC with device memory bound to it and a listening socket. The fields are dropped in their order.
#[derive(Debug)]
pub struct Receiver {
    listener: Listener,
    bound: BoundRx,
    /// `None` if the NIC was already set up.
    setup: Option<Setup>,
    memory: Dmabuf,
    nic: Netdev,
}

impl Receiver {
    /// Opens the NIC, binds memory to its queues, and listens.
    ///
    /// # Errors
    ///
    /// The error of the library, with its remedy.
    pub fn open(
        builder: NetdevBuilder,
        plan: &NicPlan,
        local: SocketAddr,
    ) -> Result<Self, Failure> {
        let nic = with_mtu(builder, plan.mtu)
            // Queue 0 receives into host memory.
            .rx_queues(plan.queues + 1)
            .linear_bytes(plan.linear_bytes)
            .impair(plan.impairment)
            .open()?;
        let memory = plan.memory.allocate(plan.mem_bytes)?;
        let setup = nic.plan_receive(local).queues(plan.queues).apply()?;
        let bound = nic.bind_rx_sized(&memory, setup.queues(), plan.niov)?;
        let listener = nic.listen(local)?;
        Ok(Self {
            listener,
            bound,
            setup: Some(setup),
            memory,
            nic,
        })
    }

    /// Sets a NIC of the kernel up unless it is already, binds memory to its queues, and listens.
    ///
    /// # Errors
    ///
    /// The error of the library or the kernel, with its remedy. The settings of the NIC are restored then.
    pub fn on_kernel(nic: Netdev, plan: &KernelPlan, local: SocketAddr) -> Result<Self, Failure> {
        let memory = kernel::memory(plan.memory, plan.mem_bytes, plan.niov)?;
        let (setup, queues) = if plan.no_setup {
            (None, kernel::prepared_queues(&nic, plan)?)
        } else {
            let setup = nic.plan_receive(local).queues(plan.queues).apply()?;
            for command in setup.changes() {
                note(format_args!("set up until the end of the run: {command}"));
            }
            let queues = setup.queues().to_vec();
            (Some(setup), queues)
        };
        let bound = match plan.niov {
            Some(niov) => nic.bind_rx_sized(&memory, &queues, niov)?,
            None => nic.bind_rx(&memory, &queues)?,
        };
        let listener = nic.listen(local)?;
        Ok(Self {
            listener,
            bound,
            setup,
            memory,
            nic,
        })
    }

    /// Returns the address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener
            .local_addr()
            .expect("a listener has an address")
    }

    /// Returns the NIC, for further uses.
    pub fn nic(&self) -> Netdev {
        self.nic.clone()
    }

    /// Accepts connections and receives from them until all have ended.
    ///
    /// # Errors
    ///
    /// A write error of the destination, or the error of [`Task::watch`].
    pub fn run<'a>(&'a mut self, task: Task<'a>) -> Result<Totals, Failure> {
        Transfer::new(&self.bound, task).run(&mut self.listener)
    }

    /// Unbinds the memory, restores the NIC, and adds their counters to the report.
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
        let count = when_home(&nic, &bound.unbind());
        report.net_iovs_total = count.total as u64;
        report.net_iovs_home = count.home as u64;
        restore(setup);
        report.mtu = nic.mtu();
        report.rx_queues = nic.queue_stats().into_iter().map(QueueRow::from).collect();
        report.undelivered = Undelivered::of(nic.drops());
    }
}

/// Looks from time to time whether the link of a NIC still exists.
#[derive(Debug)]
pub struct LinkWatch {
    nic: Netdev,
    last: Instant,
}

impl LinkWatch {
    /// Time between two looks.
    const INTERVAL: Duration = Duration::from_millis(100);

    /// Returns a watch of the link of `nic`.
    pub fn new(nic: Netdev) -> Self {
        Self {
            nic,
            last: Instant::now(),
        }
    }

    /// Fails if the link, named `name`, can never carry a packet again: the run would wait for ever.
    ///
    /// # Errors
    ///
    /// The interface of the link was removed.
    pub fn check(&mut self, name: &str) -> Result<(), Failure> {
        if self.last.elapsed() < Self::INTERVAL {
            return Ok(());
        }
        self.last = Instant::now();
        match self.nic.link_state() {
            LinkState::Up | LinkState::Down => Ok(()),
            LinkState::Gone => Err(Failure::failed(format!(
                "the interface of {name} was removed, or moved to another network namespace"
            ))
            .with_remedy("start again when `ip link` lists it")),
        }
    }
}

/// Sets the MTU, if one was requested.
pub fn with_mtu(builder: NetdevBuilder, mtu: Option<u16>) -> NetdevBuilder {
    match mtu {
        Some(mtu) => builder.mtu(mtu),
        None => builder,
    }
}

/// Returns the counts of net_iovs after unbinding. Waits for the kernel, which takes a moment to release them.
fn when_home(nic: &Netdev, unbound: &Unbound) -> NetIovCount {
    let start = Instant::now();
    loop {
        let count = unbound.net_iovs();
        let may_change = nic.interface().is_some() && start.elapsed() < LETTING_GO;
        if count.home == count.total || !may_change {
            return count;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Restores the NIC and prints what could not be restored.
fn restore(setup: Option<Setup>) {
    let Some(setup) = setup else { return };
    let report = setup.restore();
    for left in &report.left {
        note(format_args!("left {left}: another program has changed it"));
    }
    for (what, why) in &report.failed {
        note(format_args!(
            "could not restore {what}: {why}; `devmem-tcp restore` tries again"
        ));
    }
}
