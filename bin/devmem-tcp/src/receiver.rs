//! The receiving NIC of `demo`, `recv`, `load` and `store`: opens it, binds memory, listens, and restores it at the end.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_tcp::link::LinkKind;
use devmem_tcp::{
    BindOptions, BoundRx, Dmabuf, LinkState, Listener, Netdev, NetdevBuilder, ReceivePlan, Setup,
    Unbound, stats::NetIovCount,
};

use crate::kernel;
use crate::plan::{KernelPlan, NicPlan};
use crate::report::{QueueRow, RunReport};
use crate::unused::Unused;
use tool::memory::MEM_SIZE;
use tool::output::{Failure, note};
use tool::receive::{Task, Totals, Transfer};
use tool::signals::StopFlag;
use tool::spread::Spread;
use tool::undelivered::Undelivered;

/// Longest wait for unused memory to be released.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A NIC with device memory bound to its queues. The fields are dropped in their order.
#[derive(Debug)]
pub struct BoundNic {
    bound: BoundRx,
    /// `None` if the queues were named.
    setup: Option<Setup>,
    memory: Dmabuf,
    nic: Netdev,
}

impl BoundNic {
    /// Opens a NIC of ours and binds memory to its queues, for TCP to `local`.
    ///
    /// # Errors
    ///
    /// The error of the library, with its remedy.
    pub fn open(
        builder: NetdevBuilder,
        plan: &NicPlan,
        local: SocketAddr,
        stop: &StopFlag,
    ) -> Result<Self, Failure> {
        let nic = open_nic(builder, plan, stop)?;
        let memory = plan.memory.allocate(plan.mem_bytes, MEM_SIZE)?;
        Self::bind(nic, memory, plan, local)
    }

    /// Binds memory to the queues of a NIC of ours, for TCP to `local`; port 0 is any port.
    ///
    /// # Errors
    ///
    /// The error of the library, with its remedy.
    pub fn bind(
        nic: Netdev,
        memory: Dmabuf,
        plan: &NicPlan,
        local: SocketAddr,
    ) -> Result<Self, Failure> {
        let setup = nic.plan_receive(local).queues(plan.queues).apply()?;
        let bound = nic.bind_rx_with(
            &memory,
            setup.queues(),
            BindOptions::new().niov_size(plan.niov),
        )?;
        Ok(Self {
            bound,
            setup: Some(setup),
            memory,
            nic,
        })
    }

    /// Sets a NIC of the kernel up for `receive` unless it is already, and binds memory to its queues.
    ///
    /// # Errors
    ///
    /// The error of the library or the kernel, with its remedy. The settings of the NIC are restored then.
    pub fn on_kernel(
        nic: Netdev,
        memory: Dmabuf,
        plan: &KernelPlan,
        receive: ReceivePlan,
    ) -> Result<Self, Failure> {
        let (setup, queues) = match plan.first_queue {
            Some(first) => (None, kernel::named_queues(&nic, plan, first)?),
            None => {
                let setup = receive.queues(plan.queues).apply()?;
                for command in setup.changes() {
                    note(format_args!("set up until the end of the run: {command}"));
                }
                for unseen in setup.unseen() {
                    note(format_args!(
                        "the agent must have set on the NIC, which cannot be checked from here: {unseen}"
                    ));
                }
                let queues = setup.queues().to_vec();
                (Some(setup), queues)
            }
        };
        let bound = match plan.niov {
            Some(niov) => nic.bind_rx_with(&memory, &queues, BindOptions::new().niov_size(niov))?,
            None => nic.bind_rx(&memory, &queues)?,
        };
        Ok(Self {
            bound,
            setup,
            memory,
            nic,
        })
    }

    /// Unbinds the memory and restores the NIC. Returns the NIC, the memory, and how many of its net_iovs came back.
    pub fn finish(self) -> Unused {
        let Self {
            bound,
            setup,
            memory,
            nic,
        } = self;
        let niov_bytes = bound.niov_size().bytes() as u64;
        let net_iovs = when_home(&bound.unbind());
        restore(setup);
        Unused {
            nic,
            memory,
            niov_bytes,
            net_iovs,
        }
    }
}

/// A NIC with device memory bound to it and a listening socket. The fields are dropped in their order.
#[derive(Debug)]
pub struct Receiver {
    listener: Listener,
    bound: BoundNic,
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
        stop: &StopFlag,
    ) -> Result<Self, Failure> {
        let bound = BoundNic::open(builder, plan, local, stop)?;
        let listener = bound.nic.listen(local)?;
        Ok(Self { listener, bound })
    }

    /// Sets a NIC of the kernel up unless it is already, binds memory to its queues, and listens.
    ///
    /// # Errors
    ///
    /// The error of the library or the kernel, with its remedy. The settings of the NIC are restored then.
    pub fn on_kernel(nic: Netdev, plan: &KernelPlan, local: SocketAddr) -> Result<Self, Failure> {
        let receive = nic.plan_receive(local);
        let memory = kernel::memory(plan.memory, plan.mem_bytes, plan.niov)?;
        let bound = BoundNic::on_kernel(nic, memory, plan, receive)?;
        let listener = bound.nic.listen(local)?;
        Ok(Self { listener, bound })
    }

    /// Returns the address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener
            .local_addr()
            .expect("a listener has an address")
    }

    /// Returns the NIC, for further uses.
    pub fn nic(&self) -> Netdev {
        self.bound.nic.clone()
    }

    /// Accepts connections and receives from them until all have ended.
    ///
    /// # Errors
    ///
    /// A write error of the destination, or the error of [`Task::watch`].
    pub fn run<'a>(&'a mut self, task: Task<'a>) -> Result<Totals, Failure> {
        Transfer::new(&self.bound.bound, task).run(&mut self.listener)
    }

    /// Unbinds the memory, restores the NIC, and adds their counters to the report.
    pub fn finish(self, report: &mut RunReport) {
        let Self { listener, bound } = self;
        drop(listener);
        let Unused {
            nic,
            memory,
            niov_bytes,
            net_iovs,
        } = bound.finish();
        report.mem_bytes = memory.size() as u64;
        report.page_kind = memory.page_kind().to_string();
        report.niov_bytes = niov_bytes;
        report.net_iovs_total = net_iovs.total as u64;
        report.net_iovs_home = net_iovs.home as u64;
        report.mtu = nic.mtu();
        report.rx_queues = nic.queue_stats().into_iter().map(QueueRow::from).collect();
        report.spread = Spread::of(&nic);
        report.undelivered = Undelivered::of(nic.drops());
    }
}

/// What may end for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    /// An interface of the kernel.
    Interface,
    /// A wire to another NIC.
    Wire,
}

impl Medium {
    fn of(nic: &Netdev, link: &LinkKind) -> Self {
        match (nic.interface(), link) {
            (Some(_), _) => Self::Interface,
            (None, LinkKind::Tap(_) | LinkKind::Packet(_) | LinkKind::Macvtap(_)) => {
                Self::Interface
            }
            (None, LinkKind::Unix(_) | LinkKind::UnixListen(_) | LinkKind::Memory(_)) => Self::Wire,
        }
    }
}

/// Looks from time to time whether the link of a NIC still exists.
#[derive(Debug)]
pub struct LinkWatch {
    nic: Netdev,
    medium: Medium,
    last: Instant,
    was_gone: bool,
}

impl LinkWatch {
    /// Time between two looks.
    const INTERVAL: Duration = Duration::from_millis(100);

    /// Returns a watch of `nic`; `link` is that of a NIC in user space.
    pub fn new(nic: Netdev, link: &LinkKind) -> Self {
        Self {
            medium: Medium::of(&nic, link),
            nic,
            last: Instant::now(),
            was_gone: false,
        }
    }

    /// To be called while no connection is open. Fails if the link, named `name`, can never carry a packet again: the run would wait for
    /// ever. Only at the second look, so that a connection from before is accepted in between.
    ///
    /// # Errors
    ///
    /// The interface of the link was removed, or the other end of the wire has left.
    pub fn check(&mut self, name: &str) -> Result<(), Failure> {
        if self.last.elapsed() < Self::INTERVAL {
            return Ok(());
        }
        self.last = Instant::now();
        match self.nic.link_state() {
            LinkState::Up | LinkState::Down => return Ok(()),
            LinkState::Gone if !std::mem::replace(&mut self.was_gone, true) => return Ok(()),
            LinkState::Gone => {}
        }
        let (end, remedy) = match self.medium {
            Medium::Wire => (
                format!("the other end of {name} has left"),
                "start again when it is back",
            ),
            Medium::Interface => (
                format!(
                    "the interface of {name} was removed, or moved to another network namespace"
                ),
                "start again when `ip link` lists it",
            ),
        };
        Err(Failure::failed(end).with_remedy(remedy))
    }
}

/// Looks from time to time whether another station uses an address of a NIC.
#[derive(Debug)]
pub struct AddressWatch {
    nic: Netdev,
    last: Instant,
    reported: usize,
}

impl AddressWatch {
    /// Returns a watch of `nic`.
    pub fn new(nic: Netdev) -> Self {
        Self {
            nic,
            last: Instant::now(),
            reported: 0,
        }
    }

    /// Returns a line for each conflict since the last look.
    pub fn lines(&mut self) -> Vec<String> {
        if self.last.elapsed() < LinkWatch::INTERVAL {
            return Vec::new();
        }
        self.last = Instant::now();
        let all = self.nic.address_conflicts();
        let new = all.iter().skip(self.reported).map(ToString::to_string);
        let lines = new.collect();
        self.reported = all.len();
        lines
    }
}

/// Opens a NIC of ours.
///
/// # Errors
///
/// The link is not available.
pub fn open_nic(
    builder: NetdevBuilder,
    plan: &NicPlan,
    stop: &StopFlag,
) -> Result<Netdev, Failure> {
    let builder = with_mtu(builder, plan.mtu)
        // Queue 0 receives into host memory.
        .rx_queues(plan.queues + 1)
        .linear_bytes(plan.linear_bytes)
        .impair(plan.impairment);
    open_until_signal(builder, stop)
}

/// Opens a NIC of ours, which may wait for an address. A signal ends the process meanwhile: nothing has to be restored.
///
/// # Errors
///
/// The link is not available.
pub fn open_until_signal(builder: NetdevBuilder, stop: &StopFlag) -> Result<Netdev, Failure> {
    let opened = stop.or_exit(|| builder.open());
    Ok(opened.context("watch for signals")??)
}

/// Sets the MTU, if one was requested.
pub fn with_mtu(builder: NetdevBuilder, mtu: Option<u16>) -> NetdevBuilder {
    match mtu {
        Some(mtu) => builder.mtu(mtu),
        None => builder,
    }
}

/// Returns the counts of net_iovs after unbinding. Waits a moment for those that are still in use: the kernel releases them once a
/// second, and a device may be copying a packet that came after the last connection, as a repeated segment does.
fn when_home(unbound: &Unbound) -> NetIovCount {
    let start = Instant::now();
    loop {
        let count = unbound.net_iovs();
        if count.home == count.total || start.elapsed() >= RELEASE_LIMIT {
            return count;
        }
        thread::sleep(POLL_INTERVAL);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_link_that_is_gone_says_what_has_ended_whatever_its_name() {
        let link = LinkKind::Memory("link-watch".to_owned());
        let open = |host: u8| Netdev::user(link.to_string(), &format!("10.77.0.{host}/24"));
        let (ours, peer) = (open(1).expect("a wire"), open(2).expect("its other end"));
        let mut watch = LinkWatch::new(ours, &link);
        drop(peer);
        let failure = loop {
            match watch.check("packet:looks-like-an-interface") {
                Ok(()) => thread::sleep(POLL_INTERVAL),
                Err(failure) => break failure,
            }
        };
        let text = failure.to_string();
        assert!(text.starts_with("the other end of packet:"), "{text}");

        let kernels = Netdev::kernel("lo").expect("the loopback interface");
        assert_eq!(Medium::of(&kernels, &link), Medium::Interface);
    }
}
