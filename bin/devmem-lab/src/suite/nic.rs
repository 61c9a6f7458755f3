//! Our NIC in a guest: its name, and settings that several rows change.

use std::sync::OnceLock;

use anyhow::Context as _;
use devmem_linux::ethtool::Ethtool;
use devmem_linux::netif::Interface;
use lab::job::Job;

use super::row::{Skip, program};

/// Our NIC in a guest with two.
pub const NIC: &str = "eth1";

/// Returns the name of our NIC: the only one, or the one that is not the peer's.
pub fn nic() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("DEVMEM_TEST_NIC").unwrap_or_else(|_| NIC.to_owned()))
}

/// Skips the row if the driver cannot switch a feature.
///
/// # Errors
///
/// [`Skip`].
pub fn require_feature(name: &str) -> anyhow::Result<()> {
    match has_feature(name)? {
        true => Ok(()),
        false => Err(Skip(format!("this driver cannot switch {name}")).into()),
    }
}

/// Returns whether the driver can switch a feature, by its name in the kernel.
///
/// # Errors
///
/// The features cannot be read.
pub fn has_feature(name: &str) -> anyhow::Result<bool> {
    let feature = Ethtool::by_name(NIC)?.feature(name)?;
    Ok(feature.is_some_and(|feature| feature.changeable && !feature.fixed))
}

/// Adds the IPv6 addresses again, which an interface loses when it goes down.
///
/// # Errors
///
/// This is not a guest of the lab, or the kernel refused.
pub fn restore_addresses() -> anyhow::Result<()> {
    let job = Job::read()?;
    let ours = job
        .nics
        .iter()
        .find(|nic| nic.name == NIC)
        .context("the job has no such NIC")?;
    let mut interface = Interface::by_name(NIC)?;
    for (address, prefix) in &ours.addresses {
        interface.add_address(*address, *prefix)?;
    }
    Ok(())
}

/// Runs `work` while the kernel merges no packets of the NIC.
///
/// GRO merges a packet with all payload in host memory into a packet with payload in device memory, and recvmsg returns
/// `ENODEV` for the merged packet (linux net/ipv4/tcp.c `tcp_recvmsg_dmabuf`). Whether it does depends on which packets one
/// poll of the driver finds. A NIC without linear bytes has no such packets.
pub fn without_gro<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    program(&["ethtool", "-K", nic(), "gro", "off"])?;
    let done = work();
    program(&["ethtool", "-K", nic(), "gro", "on"])?;
    done
}
