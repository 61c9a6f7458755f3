//! The cable of one run: a TAP, or a veth pair into the sender's network namespace.

use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use devmem_linux::netif::Interface;
use devmem_linux::netns::NetNs;
use devmem_linux::tap::TapOptions;
use nic::{VnetFd, VnetHeaderLen};

use super::sender::{PREFIX, RECEIVER, SENDER};

/// Name of the TAP.
pub const TAP: &str = "dmbench";

/// Makes a TAP with offloads on and sets up the kernel's end of it for the sender; `napi` as the library has it on this
/// kernel, or not. It goes away with the fd.
pub fn open_tap(mtu: u16, napi: bool) -> Result<VnetFd> {
    let options = TapOptions {
        napi: napi && Interface::kernel_has_big_tcp()?,
        ..TapOptions::new(TAP)
    };
    let tap = options.open()?;
    tap.set_up_interface(mtu, &[(IpAddr::V4(SENDER), PREFIX)])?;
    let fd = tap
        .into_queues()
        .pop()
        .context("a TAP with one queue has one descriptor")?;
    Ok(VnetFd::new(fd, VnetHeaderLen::Ten))
}

/// Has the interfaces that are made from now on leave what they receive to `cpu` (receive packet steering), or to whoever
/// brings it.
pub fn steer_receiving(cpu: Option<usize>) -> Result<()> {
    // Linux 6.4 on: Documentation/admin-guide/sysctl/net.rst, of each network namespace.
    const MASK: &str = "/proc/sys/net/core/rps_default_mask";
    let mask = cpu.map_or_else(|| "0".to_owned(), mask_of);
    fs::write(MASK, &mask).with_context(|| format!("write {mask} to {MASK}"))
}

/// Writes a mask of one processor as the kernel reads it: 32 bits a group, the highest first.
fn mask_of(cpu: usize) -> String {
    format!("{:x}", 1u32 << (cpu % 32)) + &",0".repeat(cpu / 32)
}

/// A veth pair, one end here and set up, the other in the sender's namespace.
#[derive(Debug)]
pub struct Veth {
    here: Option<Interface>,
}

impl Veth {
    /// Makes the pair; `longest`: bytes of the sender's super-packets, if not the kernel's default.
    pub fn new(sender: &NetNs, mtu: u16, longest: Option<usize>) -> Result<Self> {
        let (mut here, there) = Interface::create_veth_pair("dmbench0", "dmbench1")?;
        let moved = there.move_to(sender.as_fd());
        here.set_mtu(mtu.into())?;
        here.add_address(IpAddr::V4(RECEIVER), PREFIX)?;
        here.set_up()?;
        let veth = Self { here: Some(here) };
        moved?;
        sender.run(|| {
            let mut there = Interface::by_name("dmbench1")?;
            there.set_mtu(mtu.into())?;
            there.add_address(IpAddr::V4(SENDER), PREFIX)?;
            if let Some(bytes) = longest {
                there.set_gso_ipv4_max_size(u32::try_from(bytes)?)?;
            }
            anyhow::Ok(there.set_up()?)
        })??;
        Ok(veth)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        if let Some(here) = self.here.take() {
            // The sender's namespace, when it goes, takes the pair along: then there is nothing to delete.
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
