//! Whose network stack, and over what.

use std::net::IpAddr;

use clap::{Args, ValueEnum};

/// The default of `--link`.
pub const DEFAULT_LINK: &str = "tap:dm0";

/// Where connections come from or go to.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// Whose TCP/IP stack: ours on a TAP interface, the kernel's on a NIC that supports device memory, or whichever --if
    /// allows [default: auto with --if, user without]
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub backend: Option<BackendChoice>,
    /// The interface of the kernel, for --backend kernel and auto
    #[arg(long = "if", id = "interface", value_name = "NAME")]
    pub interface: Option<String>,
    /// The cable of the user backend: tap:NAME, or unix:PATH to an emulated NIC (see `devmem-tcp nic`)
    #[arg(long, value_name = "LINK", default_value = DEFAULT_LINK)]
    pub link: String,
    /// Our address with its prefix length, IPv4 or IPv6 [default: 10.77.0.2/24]. With the kernel's stack it is one of
    /// its own, with or without length [default: the interface's first]
    #[arg(long, value_name = "ADDR/LEN")]
    pub addr: Option<String>,
    /// Give the kernel's end of the TAP this address, and set it up
    #[arg(long, value_name = "ADDR/LEN")]
    pub peer_addr: Option<String>,
    /// The router to everybody who is not in our network
    #[arg(long, value_name = "ADDR")]
    pub gateway: Option<IpAddr>,
}

/// What `--backend` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// Our TCP/IP stack in this process, on a TAP interface
    User,
    /// The kernel's, on the NIC that --if names
    Kernel,
    /// The kernel's if --if names a NIC that can, else ours; says which and why
    Auto,
}
