//! The links of `bench exchange`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use devmem_linux::helper::Helper;
use devmem_tcp::Netdev;
use tool::peer::Peer;
use tool::signals::StopFlag;

use crate::network::{FAR_VETH, VETH};
use crate::sender::RECEIVER;

/// MTU of all links.
pub const MTU: u16 = 1500;

/// A link between the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Link {
    /// A TAP for each rank; the kernel forwards packets
    Tap,
    /// A UNIX socket for each rank; a cable process forwards packets
    Unix,
    /// A UNIX socket between the ranks, which let each other read what they are about to send
    Shared,
    /// The same, with what they send copied to memory of the wire, as without asking for more
    Copied,
    /// A veth pair between two network namespaces: for the kernel's stacks, or with a packet socket at each end
    Veth,
}

/// One of the two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Connects, sends, and measures the time
    Active,
    /// Listens
    Passive,
}

/// Makes the kernel forward packets between the interfaces of this network namespace.
///
/// # Errors
///
/// The setting cannot be changed.
pub fn forward_packets() -> Result<()> {
    const SETTING: &str = "/proc/sys/net/ipv4/ip_forward";
    fs::write(SETTING, "1").with_context(|| format!("write 1 to {SETTING}"))
}

/// Opens the NIC of a rank. With a TAP, the kernel's end is the router to the other rank.
///
/// # Errors
///
/// As `NetdevBuilder::open`.
pub fn open_nic(link: Link, side: Side, socket: Option<&Path>) -> Result<Netdev> {
    let host = match side {
        Side::Active => 1,
        Side::Passive => 2,
    };
    let builder = match (link, socket) {
        (Link::Tap, _) => Netdev::builder(format!("tap:dmrank{host}"))?
            .address(&format!("10.78.{host}.2/24"))?
            .peer_address(&format!("10.78.{host}.1/24"))?
            .gateway([10, 78, host, 1].into()),
        (Link::Unix, Some(socket)) => {
            let nic = Netdev::builder(format!("unix:{}", socket.display()))?;
            nic.address(&format!("10.78.0.{host}/24"))?
        }
        (Link::Shared | Link::Copied, Some(socket)) => {
            let end = match side {
                Side::Active => "unix",
                Side::Passive => "unix-listen",
            };
            let nic = Netdev::builder(format!("{end}:{}", socket.display()))?;
            let nic = nic.address(&format!("10.78.0.{host}/24"))?;
            match link {
                Link::Shared => nic.share_send_memory(),
                _ => nic,
            }
        }
        (Link::Unix | Link::Shared | Link::Copied, None) => bail!("the link has no socket"),
        (Link::Veth, _) => {
            let end = match side {
                Side::Active => FAR_VETH,
                Side::Passive => VETH,
            };
            // Beside the addresses of the kernel's stacks.
            Netdev::builder(format!("packet:{end}"))?.address(&format!("10.78.0.{host}/24"))?
        }
    };
    Ok(builder.mtu(MTU).open()?)
}

/// Returns the address for the kernel's sockets to listen on.
pub fn kernels_address() -> SocketAddr {
    SocketAddr::new(RECEIVER.into(), 0)
}

/// The cable between two UNIX sockets: a process that works like `devmem-tcp wire`.
#[derive(Debug)]
pub struct Cable {
    _process: Peer,
}

impl Cable {
    /// Starts the process on `cpu`, with sockets in `folder`; returns when it listens.
    ///
    /// # Errors
    ///
    /// The process failed.
    pub fn start(folder: &Path, cpu: usize, stop: &StopFlag) -> Result<Self> {
        let mut command = Helper::this_program();
        command.args([
            "__cable",
            "--cpu",
            &cpu.to_string(),
            "--mtu",
            &MTU.to_string(),
        ]);
        let ends = [Side::Active, Side::Passive].map(|side| end_of(folder, side));
        let process = Peer::start_cable("cable", &mut command, &ends, stop);
        let process = process.map_err(|failure| anyhow!("{failure}"))?;
        Ok(Self { _process: process })
    }
}

/// Returns the path of the socket at one end of the cable.
pub fn end_of(folder: &Path, side: Side) -> PathBuf {
    folder.join(match side {
        Side::Active => "active",
        Side::Passive => "passive",
    })
}
