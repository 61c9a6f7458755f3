//! `devmem-tcp lease`: the agent of a machine, which leases queues of a NIC to pods and takes them back.

use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use devmem_linux::netif::{self, Interface};
use devmem_linux::netns::NetNs;
use devmem_linux::nic_setup::{NicSetup, RestoreReport};
use serde::Serialize;

use crate::plan::{LeasePlan, PodPlan};
use tool::output::{Failure, note, print_json, print_line};
use tool::signals::StopFlag;

/// Time between two looks at the netkits and at signals.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The result. The field names are those of the JSON and must not change.
#[derive(Debug, Serialize)]
struct Report {
    /// The NIC.
    interface: String,
    /// Each pod.
    pods: Vec<PodReport>,
    /// The changes, as commands.
    changes: Vec<String>,
}

/// A pod with its leases.
#[derive(Debug, Serialize)]
struct PodReport {
    /// Its network namespace.
    netns: String,
    /// Its interface.
    interface: String,
    /// Its address.
    address: IpAddr,
    /// The end of the netkit that stays.
    netkit: String,
    /// Each leased queue.
    leases: Vec<LeaseReport>,
}

/// A lease.
#[derive(Debug, Serialize)]
struct LeaseReport {
    /// The queue of the NIC.
    queue: u32,
    /// The pod's number of it.
    pod_queue: u32,
}

/// Makes the leases, waits, and undoes them.
///
/// # Errors
///
/// A step failed, and those before it were undone; or a setting could not be restored.
pub fn run(plan: &LeasePlan) -> Result<(), Failure> {
    let LeasePlan {
        request,
        pods,
        dry_run,
        form,
    } = plan;
    let planned = NicSetup::plan(request).map_err(devmem_tcp::Error::from)?;
    if *dry_run {
        for command in planned.commands() {
            print_line(command)?;
        }
        return Ok(());
    }
    let namespaces = pods.iter().map(|pod| NetNs::open(&pod.netns));
    let namespaces = namespaces.collect::<Result<Vec<_>, _>>()?;
    let stop = StopFlag::install().context("install signal handlers")?;
    for warning in planned.warnings() {
        note(format_args!("warning: {warning}"));
    }
    let setup = planned.apply().map_err(devmem_tcp::Error::from)?;
    // Not kept: a namespace would live as long as this process, and the end of its pod not be seen.
    for (pod, namespace) in pods.iter().zip(namespaces) {
        place(pod, &namespace)?;
    }
    let report = Report::of(plan, &setup);
    match form.json {
        true => print_json(&report)?,
        false => report.tell(),
    }
    if let Some(warning) = pods.iter().find_map(|pod| not_forwarding(pod.address)) {
        note(warning);
    }
    wait(pods, &stop)?;
    take_back(setup)
}

/// Moves the peer of the netkit into the pod and gives it the address and its route, and this machine the route to it. All of it ends with
/// the netkit.
fn place(pod: &PodPlan, namespace: &NetNs) -> Result<(), Failure> {
    let PodPlan {
        netns,
        interface,
        address,
        lease,
    } = pod;
    Interface::by_name(&lease.peer)?.move_to(namespace.as_fd())?;
    let placed = namespace.run(|| {
        let mut peer = Interface::by_name(&lease.peer)?;
        peer.rename(interface)?;
        peer.add_address(*address, bits(*address))?;
        peer.set_up()?;
        peer.add_default_route(*address)
    })?;
    placed.with_context(|| format!("set up {interface} in the pod {netns}"))?;
    let mut ours = Interface::by_name(&lease.netkit)?;
    ours.set_up()?;
    Ok(ours.add_route(*address, bits(*address))?)
}

/// Returns the length of the prefix of one address.
fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl Report {
    fn of(plan: &LeasePlan, setup: &NicSetup) -> Self {
        let pods = plan.pods.iter().map(|pod| PodReport {
            netns: pod.netns.clone(),
            interface: pod.interface.clone(),
            address: pod.address,
            netkit: pod.lease.netkit.clone(),
            leases: leases(setup, &pod.lease.netkit),
        });
        Self {
            interface: setup.interface().to_owned(),
            pods: pods.collect(),
            changes: setup.changes(),
        }
    }

    fn tell(&self) {
        for command in &self.changes {
            note(format_args!("set up until the end of the run: {command}"));
        }
        for pod in &self.pods {
            for LeaseReport { queue, pod_queue } in &pod.leases {
                note(format_args!(
                    "queue {queue} of {} is queue {pod_queue} of {} in the pod {}, at {}",
                    self.interface, pod.interface, pod.netns, pod.address
                ));
            }
        }
    }
}

fn leases(setup: &NicSetup, netkit: &str) -> Vec<LeaseReport> {
    let leases = setup.leases().iter();
    let leases = leases.filter(|lease| lease.netkit == netkit);
    leases
        .map(|lease| LeaseReport {
            queue: lease.queue.0,
            pod_queue: lease.leased.0,
        })
        .collect()
}

/// Returns a warning if this machine does not pass packets on to the pod.
fn not_forwarding(pod: IpAddr) -> Option<String> {
    let (file, setting) = match pod {
        IpAddr::V4(_) => ("/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        IpAddr::V6(_) => (
            "/proc/sys/net/ipv6/conf/all/forwarding",
            "net.ipv6.conf.all.forwarding",
        ),
    };
    let is_off = fs::read_to_string(file).is_ok_and(|text| text.trim() == "0");
    is_off.then(|| {
        format!(
            "packets do not reach the pod: this machine does not forward; sysctl -w {setting}=1"
        )
    })
}

/// Waits for a signal, or until the namespaces of all pods have ended, each of which removes both ends of its netkit.
fn wait(pods: &[PodPlan], stop: &StopFlag) -> Result<(), Failure> {
    let mut there: Vec<_> = pods.iter().collect();
    while !stop.is_set() && !there.is_empty() {
        let netkits = netif::netkits()?;
        there.retain(|pod| {
            let netkit = &pod.lease.netkit;
            let is_there = netkits.iter().any(|(_, name)| name == netkit);
            if !is_there {
                let netns = &pod.netns;
                note(format_args!(
                    "the pod {netns} has ended, and its leases with it"
                ));
            }
            is_there
        });
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Removes the netkits and restores the NIC.
fn take_back(setup: NicSetup) -> Result<(), Failure> {
    let interface = setup.interface().to_owned();
    let report = setup.restore();
    let RestoreReport { left, failed, .. } = &report;
    for what in left {
        note(format_args!("left {what}: another program has changed it"));
    }
    match &failed[..] {
        [] => {
            note(format_args!("{interface} has its queues back"));
            Ok(())
        }
        failed => {
            let words = failed.iter().map(|(what, why)| format!("{what}: {why}"));
            let words = words.collect::<Vec<_>>().join("; ");
            let text = format!("{interface} is not restored: {words}");
            Err(Failure::failed(text).with_remedy("`devmem-tcp restore` tries again"))
        }
    }
}
