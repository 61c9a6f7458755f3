//! Options of the network stack and its link.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::TcpArgs;

/// The default of `--link`.
pub const DEFAULT_LINK: &str = "tap:dm0";

/// The stack, its link and its addresses.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// TCP/IP stack: ours on a TAP interface, the kernel's on a NIC that supports device memory, or the kernel's if --if
    /// supports it [default: auto with --if, user without]
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub backend: Option<BackendChoice>,
    /// Interface of the kernel, for --backend kernel and auto
    #[arg(long = "if", id = "interface", value_name = "NAME")]
    pub interface: Option<String>,
    /// Write nothing to the interface of --if, which an agent has set up, as in a pod: find the queues that it has prepared, and check
    /// what can be seen (see `devmem-tcp lease`)
    #[arg(long, alias = "no-setup", requires = "interface", group = "agents")]
    pub configured: bool,
    /// As --configured, for a program without privileges: the broker that listens at PATH binds the memory to the queues (see `devmem-tcp
    /// broker`)
    #[arg(long, value_name = "PATH", requires = "interface", group = "agents")]
    pub broker: Option<PathBuf>,
    /// Link of the user backend: tap:NAME, packet:NAME for an Ethernet interface of this machine (with a second MAC
    /// address, or, as packet:NAME,ports=A-B, with TCP ports A to B of the interface's own address), macvtap:NAME for a macvtap
    /// interface over it (macvtap:NAME,mode=M: bridge, private, vepa, passthru), or unix:PATH to an emulated NIC (see `devmem-tcp nic`)
    #[arg(long, value_name = "LINK", default_value = DEFAULT_LINK)]
    pub link: String,
    /// Our address with its prefix length, IPv4 or IPv6 [default: 10.77.0.2/24], or auto on packet:NAME and macvtap:NAME: an IPv4
    /// address from a DHCP server, and an IPv6 address in the prefix of a router. No other station, nor this machine, may use it. With the kernel's stack: an address of the interface, with or without prefix length
    /// [default: its first]
    #[arg(long, value_name = "ADDR/LEN")]
    pub addr: Option<String>,
    /// Add this address to the kernel's end of the TAP, and bring that up
    #[arg(long, value_name = "ADDR/LEN")]
    pub peer_addr: Option<String>,
    /// Router to all other networks, in the network of --addr, or anywhere on the link if that is ADDR/32 (IPv6: ADDR/128)
    #[arg(long, value_name = "ADDR")]
    pub gateway: Option<IpAddr>,
    /// Shards of our NIC, 1 to 64: stacks that receive at the same time on different cores, each with a queue of the link and an equal
    /// part of the device memory. Each connection is on one of them. Not on unix:PATH, and not with --capture
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,
    #[command(flatten)]
    pub tcp: TcpArgs,
}

/// Values of `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// Our TCP/IP stack in this process, on a TAP interface
    User,
    /// The kernel's stack, on the NIC that --if names
    Kernel,
    /// The kernel's stack if the NIC of --if supports device memory, else ours; prints the choice and its reason
    Auto,
    /// The kernel's sockets on any interface, without privileges and without device memory on the way; for load
    Sockets,
}
