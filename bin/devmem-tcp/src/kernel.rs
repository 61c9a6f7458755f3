//! A NIC of the kernel for `recv` and `send`: memory, address and queues.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context;
use devmem_linux::doctor::{CheckState, Doctor};
use devmem_tcp::{Dmabuf, Netdev, NiovSize, RxQueueId, choice::Purpose};

use crate::plan::{KernelPlan, LinkPlan};
use tool::memory::{MEM_SIZE, MemoryKind};
use tool::output::{Failure, note, print_line};

/// The heap that exists on all machines with dma-heaps.
const HEAP: &str = "system";

/// Allocates device memory that a kernel NIC can access: of the given kind, otherwise ordinary memory, in large pieces if a
/// net_iov is larger than a page.
///
/// # Errors
///
/// The refusal of the exporter.
pub fn memory(
    kind: Option<MemoryKind>,
    bytes: usize,
    niov: Option<NiovSize>,
) -> Result<Dmabuf, Failure> {
    if let Some(kind) = kind {
        return kind.allocate(bytes, MEM_SIZE);
    }
    let got = || format!("get device memory for {MEM_SIZE}");
    if niov.is_some_and(|niov| niov.bytes() > rustix::param::page_size()) {
        // Uses huge pages, if any are reserved. The library explains what is missing if the pages are too small.
        return Ok(Dmabuf::memfd(bytes).with_context(got)?);
    }
    let made = devmem_tcp::memory::udmabuf(bytes).or_else(|refused| {
        let memory = devmem_tcp::memory::dma_heap(HEAP, bytes).map_err(|_| refused)?;
        note(format_args!(
            "using device memory of the dma-heap {HEAP}: udmabuf cannot provide this size"
        ));
        Ok::<_, devmem_tcp::Error>(memory)
    });
    Ok(made.with_context(got)?)
}

/// Refuses an interface that does not support device memory, before memory for it is made.
///
/// # Errors
///
/// Its driver does not support it.
pub fn check_support(name: &str, purpose: Purpose) -> Result<(), Failure> {
    let doctor = Doctor::examine(Some(name)).with_context(|| format!("examine {name}"))?;
    let (check, what) = match purpose {
        Purpose::Receive => ("bind_rx", "receive into"),
        Purpose::Send => ("bind_tx", "send from"),
    };
    let mut checks = doctor.nics.iter().flat_map(|nic| &nic.checks);
    match checks.find(|found| found.name == check && found.state == CheckState::Missing) {
        None => Ok(()),
        Some(missing) => {
            let text = format!("{name} cannot {what} device memory: {}", missing.found);
            Err(Failure::unsupported(text).with_remedy(format!(
                "`devmem-tcp doctor {name}` lists what it lacks; without --backend kernel our stack runs on any machine"
            )))
        }
    }
}

/// Returns the address to listen on: the requested one, or the NIC's first, preferably IPv4.
///
/// # Errors
///
/// If the NIC has no address.
pub fn local(nic: &Netdev, link: &LinkPlan, port: u16) -> Result<SocketAddr, Failure> {
    address(nic, link.address, &nic.addresses()).map(|ip| SocketAddr::new(ip, port))
}

/// Returns the address to connect to `server` from, with port 0: the NIC's first of its IP version.
///
/// # Errors
///
/// If the NIC has no such address.
pub fn local_to(nic: &Netdev, server: &SocketAddr) -> Result<SocketAddr, Failure> {
    let mut addresses = nic.addresses();
    addresses.retain(|ip| ip.is_ipv4() == server.is_ipv4());
    address(nic, None, &addresses).map(|ip| SocketAddr::new(ip, 0))
}

/// Returns the requested address, or the first of `addresses`, preferably IPv4.
fn address(
    nic: &Netdev,
    requested: Option<IpAddr>,
    addresses: &[IpAddr],
) -> Result<IpAddr, Failure> {
    let global = |ip: &&IpAddr| match ip {
        IpAddr::V4(_) => true,
        // A link-local address is valid only with its interface.
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    let v4 = || addresses.iter().find(|ip| ip.is_ipv4());
    let first = v4().or_else(|| addresses.iter().find(global));
    requested.or(first.copied()).ok_or_else(|| {
        let name = nic.interface().unwrap_or_default();
        Failure::failed(format!("{name} has no address")).with_remedy(format!(
            "ip address add ADDR/LEN dev {name}, or give an address with --addr"
        ))
    })
}

/// Returns the queues from `first` on, of a NIC that an agent has set up.
///
/// # Errors
///
/// If the NIC does not have these queues.
pub fn named_queues(
    nic: &Netdev,
    plan: &KernelPlan,
    first: u32,
) -> Result<Vec<RxQueueId>, Failure> {
    let name = nic.interface().unwrap_or_default();
    let there = devmem_linux::netdev::Netdev::by_name(name)?.rx_queues()?;
    let there = u32::try_from(there.len()).unwrap_or(u32::MAX);
    let wanted = u32::from(plan.queues);
    let end = first.checked_add(wanted).filter(|end| *end <= there);
    let queues = end.and_then(|end| {
        let numbers = (first..end).map(|queue| u16::try_from(queue).map(RxQueueId));
        numbers.collect::<Result<Vec<_>, _>>().ok()
    });
    queues.ok_or_else(|| {
        Failure::failed(format!(
            "{name} has {there} RX queues, which do not include those of --queues and --first-queue"
        ))
    })
}

/// Prints the planned changes to a NIC, as commands on stdout.
///
/// # Errors
///
/// If the NIC cannot be set up.
pub fn dry_run(nic: &Netdev, local: SocketAddr, queues: u16) -> Result<(), Failure> {
    let commands = nic.plan_receive(local).queues(queues).commands()?;
    for command in commands {
        print_line(command)?;
    }
    Ok(())
}
