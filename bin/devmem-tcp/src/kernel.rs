//! A NIC of the kernel for `recv` and `send`: its memory, its address, its queues.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use anyhow::Context;
use devmem_linux::netif::Interface;
use devmem_tcp::{Dmabuf, Netdev, NiovSize, RxQueueId};

use crate::plan::{KernelPlan, LinkPlan};
use tool::output::{Failure, note};

/// The heap that every machine with dma-heaps has.
const HEAP: &str = "system";

/// Makes device memory that a NIC can reach; of large pieces where a net_iov is larger than a page.
///
/// # Errors
///
/// What the exporter refused.
pub fn memory(bytes: usize, niov: Option<NiovSize>) -> Result<Dmabuf, Failure> {
    if niov.is_some_and(|niov| niov.bytes() > rustix::param::page_size()) {
        // Huge pages if some are reserved; the kernel says if these are not large enough.
        return Ok(Dmabuf::memfd(bytes).context("get device memory")?);
    }
    let made = devmem_tcp::udmabuf(bytes).or_else(|refused| {
        let memory = devmem_tcp::dma_heap(HEAP, bytes).map_err(|_| refused)?;
        note(format_args!(
            "device memory of the dma-heap {HEAP}: there is no udmabuf of that size"
        ));
        Ok::<_, devmem_tcp::DeviceMemoryError>(memory)
    });
    Ok(made.context("get device memory")?)
}

/// Returns where to listen: the address that was asked for, or the NIC's first, an IPv4 one if it has one.
///
/// # Errors
///
/// It has none.
pub fn local(nic: &Netdev, link: &LinkPlan, port: u16) -> Result<SocketAddr, Failure> {
    let addresses = nic.addresses();
    let global = |ip: &&IpAddr| match ip {
        IpAddr::V4(_) => true,
        // It would need its interface with it.
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    let v4 = || addresses.iter().find(|ip| ip.is_ipv4());
    let first = v4().or_else(|| addresses.iter().find(global));
    let address = link.address.or(first.copied()).ok_or_else(|| {
        let name = nic.interface().unwrap_or_default();
        Failure::failed(format!("{name} has no address")).with_remedy(format!(
            "ip address add ADDR/LEN dev {name}, or --addr names one"
        ))
    })?;
    Ok(SocketAddr::new(address, port))
}

/// Returns the queues to bind on a NIC that somebody has set up.
///
/// # Errors
///
/// It has no such queues.
pub fn prepared_queues(nic: &Netdev, plan: &KernelPlan) -> Result<Vec<RxQueueId>, Failure> {
    let name = nic.interface().unwrap_or_default();
    let there = devmem_linux::netdev::Netdev::by_name(name)?.rx_queues()?;
    let there = u32::try_from(there.len()).unwrap_or(u32::MAX);
    let wanted = u32::from(plan.queues);
    let first = plan.first_queue.or_else(|| there.checked_sub(wanted));
    let last = first.and_then(|first| first.checked_add(wanted));
    let queues = first.zip(last).filter(|(_, end)| *end <= there);
    let queues = queues.and_then(|(first, end)| {
        let numbers = (first..end).map(|queue| u16::try_from(queue).map(RxQueueId));
        numbers.collect::<Result<Vec<_>, _>>().ok()
    });
    queues.ok_or_else(|| {
        Failure::failed(format!(
            "{name} has {there} RX queues, not those that --queues and --first-queue say"
        ))
    })
}

/// Says what would be changed about a NIC, as commands on stdout.
///
/// # Errors
///
/// It cannot be prepared.
pub fn dry_run(nic: &Netdev, local: SocketAddr, queues: u16) -> Result<(), Failure> {
    let commands = nic.plan_receive(local).queues(queues).commands()?;
    let mut stdout = std::io::stdout().lock();
    for command in commands {
        writeln!(stdout, "{command}").context("write to stdout")?;
    }
    Ok(())
}

/// Returns the largest IP packet of an interface; 0 if it does not say.
pub fn mtu(name: &str) -> u16 {
    let facts = Interface::by_name(name).and_then(|mut interface| interface.facts());
    facts.map_or(0, |facts| u16::try_from(facts.mtu).unwrap_or(u16::MAX))
}
