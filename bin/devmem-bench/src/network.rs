//! The link of one run: a TAP, or a veth pair to the sender's network namespace.

use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use devmem_linux::netif::Interface;
use devmem_linux::netns::NetNs;
use devmem_linux::probe;
use devmem_linux::tap::TapOptions;
use nic::VnetFd;

use crate::row::Packets;
use crate::sender::{PREFIX, RECEIVER, SENDER};
use tool::output::Failure;

/// Name of the TAP.
pub const TAP: &str = "dmbench";

/// Name of the end of a veth pair in this network namespace.
pub const VETH: &str = "dmbench0";

/// Returns the error of a machine without TAPs before anything is measured: a run takes minutes.
///
/// # Errors
///
/// What such a machine lacks.
pub fn require_tap() -> Result<(), Failure> {
    match probe::tap_in_namespace() {
        probe::Verdict::Works => Ok(()),
        missing => Err(Failure::unsupported(missing)),
    }
}

/// Creates a TAP with offloads and sets up the kernel's end of it for the sender. As in the library, the TAP has NAPI if it
/// is used with large super-packets. The interface is removed with the file descriptor.
pub fn open_tap(mtu: u16, packets: Packets) -> Result<VnetFd> {
    let options = TapOptions {
        napi: packets != Packets::Legacy && Interface::kernel_has_big_tcp()?,
        ..TapOptions::new(TAP)
    };
    let tap = options.open()?;
    // Nothing is restored of an interface that was just made.
    drop(tap.set_up_interface(mtu, &[(IpAddr::V4(SENDER), PREFIX)])?);
    let fd = tap
        .into_queues()
        .pop()
        .context("a TAP with one queue has one descriptor")?;
    Ok(VnetFd::Queue(fd))
}

/// Makes interfaces that are created from now on process received packets on `cpu` (receive packet steering); with `None`,
/// on the processor that sent them.
///
/// # Errors
///
/// The kernel has no such setting: before Linux 6.4. It has nothing to restore then, so that `None` succeeds.
pub fn steer_receiving(cpu: Option<usize>) -> Result<()> {
    // Per network namespace: Documentation/admin-guide/sysctl/net.rst.
    const MASK: &str = "/proc/sys/net/core/rps_default_mask";
    let mask = cpu.map_or_else(|| "0".to_owned(), mask_of);
    let written = fs::write(MASK, &mask);
    if cpu.is_none() {
        return Ok(());
    }
    written.with_context(|| format!("write {mask} to {MASK}"))
}

/// Returns a mask of one processor in the kernel's format: groups of 32 bits, the highest first.
fn mask_of(cpu: usize) -> String {
    format!("{:x}", 1u32 << (cpu % 32)) + &",0".repeat(cpu / 32)
}

/// What receives at the end of a veth pair in this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearEnd {
    /// The kernel, which has the receiver's address.
    Kernel,
    /// A packet socket: the kernel has no address there.
    Bare,
}

/// Name of the other end.
pub const FAR_VETH: &str = "dmbench1";

/// A veth pair: one end in this network namespace, the other in the sender's.
#[derive(Debug)]
pub struct Veth {
    here: Option<Interface>,
}

impl Veth {
    /// Creates the pair. `longest` is the maximum size of the sender's super-packets in bytes, by default the kernel's.
    pub fn new(sender: &NetNs, near: NearEnd, mtu: u16, longest: Option<usize>) -> Result<Self> {
        let (mut here, there) = Interface::create_veth_pair(VETH, FAR_VETH)?;
        let moved = there.move_to(sender.as_fd());
        here.set_mtu(mtu.into())?;
        if near == NearEnd::Kernel {
            here.add_address(IpAddr::V4(RECEIVER), PREFIX)?;
        }
        here.set_up()?;
        let veth = Self { here: Some(here) };
        moved?;
        sender.run(|| {
            let mut there = Interface::by_name(FAR_VETH)?;
            there.set_mtu(mtu.into())?;
            there.add_address(IpAddr::V4(SENDER), PREFIX)?;
            if let Some(bytes) = longest {
                there.set_gso_max_size(u32::try_from(bytes)?)?;
            }
            anyhow::Ok(there.set_up()?)
        })??;
        Ok(veth)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        if let Some(here) = self.here.take() {
            // Fails if the sender's namespace was removed first, and the pair with it.
            let _ = here.delete();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_a_group_for_every_thirty_two_processors() {
        let masks = [0, 5, 31, 32, 70].map(mask_of);
        assert_eq!(masks, ["1", "20", "80000000", "1,0", "40,0,0"]);
    }
}
