//! The network of `bench lossy`: one bad cable to the receiver's host, which both senders use.
//!
//! ```text
//! our stack -- TAP "dmours" -- kernel, routes -- TAP "dmcable" -- devmem-tcp wire -- TAP "dmfar" -- kernel receiver
//!                              kernel sender /
//! ```
//!
//! Our packets take one hop more than the kernel's, through a router that is idle but for them.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use devmem_tcp::{Netdev, NetdevBuilder};

use super::super::receiver::ReceiverProcess;
use super::super::sender::{PREFIX, RECEIVER, SENDER};

/// Our stack's address, in the upper half of the cable's network: the kernel answers for it on the cable (proxy ARP).
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 130);
/// The kernel's address on the TAP between it and our stack.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 129);
/// Prefix length of the upper half.
const OUR_PREFIX: u8 = PREFIX + 1;

/// Lets this network namespace route between our stack and the cable.
pub fn allow_routing() -> Result<()> {
    set("ip_forward", "1")?;
    set("conf/all/proxy_arp", "1")
}

/// Sets a sysctl of IPv4 of this network namespace.
fn set(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/ipv4/{name}");
    fs::write(&path, value).with_context(|| format!("write {value} to {path}"))
}

/// Returns the NIC of our stack, to be opened.
pub fn our_nic(mtu: u16) -> Result<NetdevBuilder> {
    let nic = Netdev::builder("tap:dmours")?
        .address(&format!("{OURS}/{OUR_PREFIX}"))?
        .peer_address(&format!("{ROUTER}/{OUR_PREFIX}"))?;
    Ok(nic.gateway(ROUTER.into()).mtu(mtu))
}

/// A cable between this host and the receiver's: `devmem-tcp wire` in a process of its own.
#[derive(Debug)]
pub struct Cable {
    child: Child,
}

impl Cable {
    /// Joins the two hosts; returns when they are.
    pub fn new(receiver: &ReceiverProcess, impairment: &str, mtu: u16) -> Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(program);
        command.args(["wire", "--impair", impairment, "--mtu", &mtu.to_string()]);
        command.args(["--a", "tap:dmcable", "--a-addr"]);
        command.arg(format!("{SENDER}/{PREFIX}"));
        command.args(["--b", "tap:dmfar", "--b-addr"]);
        command.arg(format!("{RECEIVER}/{PREFIX}"));
        command.args(["--b-netns", &format!("pid:{}", receiver.id())]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().context("start the cable")?;
        let mut cable = Self { child };
        cable.wait_until_joined()?;
        // Answers for somebody else wait for up to 0.8 s otherwise.
        set("neigh/dmcable/proxy_delay", "0")?;
        Ok(cable)
    }

    fn wait_until_joined(&mut self) -> Result<()> {
        let stderr = self.child.stderr.as_mut().context("it was piped")?;
        let mut says = BufReader::new(stderr);
        let mut line = String::new();
        says.read_line(&mut line).context("listen to the cable")?;
        if !line.contains("are joined") {
            says.read_to_string(&mut line)
                .context("listen to the cable")?;
            bail!("the cable failed: {}", line.trim());
        }
        Ok(())
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // The TAPs go with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
