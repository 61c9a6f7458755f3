//! The modules and the NICs of a guest.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use devmem_linux::netif::{Interface, interfaces};
use devmem_linux::netns::{self, NetNs};
use rustix::system::finit_module;

use super::wait::{POLL_INTERVAL, wait_for};
use crate::job::{GuestNic, Job, PEER_NETNS};

/// `MODULE_INIT_COMPRESSED_FILE` (linux include/uapi/linux/module.h): the kernel unpacks it.
const COMPRESSED: i32 = 4;
/// Maximum time until a NIC has a carrier.
const CARRIER_LIMIT: Duration = Duration::from_secs(5);

/// Loads the driver of the NICs and sets up all NICs; the namespaces must exist.
///
/// # Errors
///
/// A module cannot be loaded, or a NIC cannot be set up.
pub fn load_driver_and_set_up(job: &Job) -> anyhow::Result<()> {
    load_modules(job)?;
    set_up_nics(job)
}

/// Loads all modules: the first one, and at the same time the others, in order. Unpacking takes most of the time.
pub fn load_modules(job: &Job) -> anyhow::Result<()> {
    let load_all = |modules: &[String]| -> anyhow::Result<()> {
        modules.iter().try_for_each(|module| {
            load(Path::new(module)).with_context(|| format!("load {module}"))
        })
    };
    let (first, others) = job.modules.split_at(job.modules.len().min(1));
    thread::scope(|scope| {
        let others = scope.spawn(|| load_all(others));
        load_all(first)?;
        others.join().map_err(|_| anyhow!("the thread panicked"))?
    })
}

/// Sets up all NICs, and waits for their carriers.
pub fn set_up_nics(job: &Job) -> anyhow::Result<()> {
    let peer = match job.nics.iter().any(|nic| nic.peer) {
        true => Some(NetNs::open(PEER_NETNS)?),
        false => None,
    };
    for nic in &job.nics {
        set_up(nic, peer.as_ref()).with_context(|| format!("set up {}", nic.name))?;
    }
    for nic in job.nics.iter().filter(|nic| !nic.peer) {
        wait_for_carrier(&nic.name);
    }
    Ok(())
}

fn load(module: &Path) -> anyhow::Result<()> {
    let plain = module
        .extension()
        .is_some_and(|extension| extension == "ko");
    let flags = if plain { 0 } else { COMPRESSED };
    match finit_module(File::open(module)?, c"", flags) {
        // EEXIST: built in, or already loaded.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Creates a named network namespace, as `ip netns add` does.
pub fn make_netns(name: &str) -> anyhow::Result<()> {
    let place = PathBuf::from("/run/netns").join(name);
    fs::create_dir_all("/run/netns")?;
    File::create(&place)?;
    let made = thread::spawn(move || -> anyhow::Result<()> {
        netns::enter_new()?;
        rustix::mount::mount_bind("/proc/thread-self/ns/net", &place)?;
        Ok(())
    });
    made.join().map_err(|_| anyhow!("the thread panicked"))?
}

/// Sets name, namespace, addresses and MTU of a NIC, and waits for its carrier.
fn set_up(nic: &GuestNic, peer: Option<&NetNs>) -> anyhow::Result<()> {
    let name = wait_for("the NIC", || find_by_mac(nic.mac))?;
    if name != nic.name {
        return Err(anyhow!("the kernel has renamed it to {name}"));
    }
    match peer.filter(|_| nic.peer) {
        Some(netns) => {
            Interface::by_name(&name)?.move_to(netns.as_fd())?;
            netns.run(|| configure(nic))?
        }
        None => configure(nic),
    }
}

fn configure(nic: &GuestNic) -> anyhow::Result<()> {
    let mut interface = Interface::by_name(&nic.name)?;
    interface.set_mtu(u32::from(nic.mtu))?;
    interface.quiet_ipv6();
    interface.set_up()?;
    for (address, prefix) in &nic.addresses {
        interface.add_address(*address, *prefix)?;
    }
    Ok(())
}

fn find_by_mac(mac: [u8; 6]) -> Option<String> {
    let all = interfaces().ok()?;
    all.into_iter().map(|(_, name, _)| name).find(|name| {
        let facts = Interface::by_name(name).and_then(|mut interface| interface.facts());
        facts.is_ok_and(|facts| facts.mac == Some(mac))
    })
}

/// Waits until the link of a NIC is up, for a bounded time, because the wire may have no other end.
fn wait_for_carrier(name: &str) {
    let path = format!("/sys/class/net/{name}/carrier");
    let start = Instant::now();
    let up = || fs::read_to_string(&path).is_ok_and(|text| text.trim() == "1");
    while !up() && start.elapsed() < CARRIER_LIMIT {
        thread::sleep(POLL_INTERVAL);
    }
}
