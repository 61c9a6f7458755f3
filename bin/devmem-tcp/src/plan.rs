//! What a run will do: the command line, judged. Nothing past this file sees unchecked text.

mod demo;
pub mod lab;
mod link;
mod nic;
mod recv;
mod send;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ::nic::Impairment;
use netmem::NiovSize;

use crate::args;
use crate::output::Failure;
use crate::pattern::RepeatingPattern;
use crate::size::Size;

pub use demo::DemoPlan;
pub use link::LinkPlan;
pub use nic::{GvnicPlan, WirePort};
pub use recv::{Destination, KernelPlan, RecvPlan};
pub use send::{Input, SendPlan};
pub use wire::{WireEnd, WirePlan};

/// Longest interface name: `IFNAMSIZ` less its NUL (linux include/uapi/linux/if.h).
const MAX_INTERFACE_NAME: usize = 15;
/// Smallest MTUs that every link must carry: RFC 791 3.2 and RFC 8200 5.
const MIN_MTU: [(bool, u16); 2] = [(false, 576), (true, 1280)];
/// The TAP driver's largest MTU is that of its largest packet less the Ethernet header (linux drivers/net/tun.c).
const MAX_MTU: u16 = 65_521;
/// Connections at once; each costs the sender a thread.
const MAX_CONNECTIONS: u16 = 1024;
/// Queues that can be bound.
const MAX_QUEUES: u16 = 64;
/// Device memory unless told otherwise: ours, and the kernel's, where udmabuf has a limit.
const MEM_SIZE: Size = Size(256 << 20);
const KERNEL_MEM_SIZE: Size = Size(64 << 20);
/// The defaults of `--mtu` and `--impair`.
const MTU: u16 = 1500;
const UNIMPAIRED: &str = "none";
/// The least memory that a queue can work with: posted buffers for a super-packet, and as much again on the way.
const MIN_NIOVS_PER_QUEUE: usize = 8;
const MIN_BYTES_PER_QUEUE: usize = 256 << 10;

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address of a host.
    pub address: IpAddr,
    /// Leading bits that name its network.
    pub len: u8,
}

impl FromStr for Prefix {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::usage(format!("{text:?} is not an address with a prefix length"))
                .with_remedy("write it like 10.77.0.2/24 or fd77::2/64")
        };
        let (address, len) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let len: u8 = len.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if len > longest || address.is_unspecified() || address.is_multicast() {
            return Err(wrong());
        }
        Ok(Self { address, len })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl Prefix {
    /// Tells whether `other` is in the same network.
    fn contains(&self, other: IpAddr) -> bool {
        let shared = match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        shared >= u32::from(self.len)
    }
}

/// The NIC and its memory.
#[derive(Clone, Debug)]
pub struct NicPlan {
    /// Largest IP packet.
    pub mtu: u16,
    /// RX queues bound to device memory.
    pub queues: u16,
    /// Size of one net_iov.
    pub niov: NiovSize,
    /// Device memory to bind, in bytes.
    pub mem_bytes: usize,
    /// What is wrong with the link.
    pub impairment: Impairment,
    /// Payload bytes of every packet that stay in host memory.
    pub linear_bytes: usize,
}

impl NicPlan {
    fn new(args: &args::NicArgs, linear: u16, ipv6: bool) -> Result<Self, Failure> {
        let args::NicArgs {
            mtu,
            queues,
            niov,
            mem_size,
            impair,
        } = args;
        check_mtu(*mtu, ipv6)?;
        if !(1..=MAX_QUEUES).contains(queues) {
            return Err(Failure::usage(format!(
                "--queues {queues}: 1 to {MAX_QUEUES}"
            )));
        }
        let niov = parse_niov(*niov)?.unwrap_or_default();
        let mem_size = mem_size.unwrap_or(MEM_SIZE);
        let mem_bytes = to_usize("--mem-size", mem_size)?;
        let least =
            usize::from(*queues) * (MIN_NIOVS_PER_QUEUE * niov.bytes()).max(MIN_BYTES_PER_QUEUE);
        if !mem_bytes.is_multiple_of(niov.bytes()) || mem_bytes < least {
            let size = Size(niov.bytes() as u64);
            return Err(Failure::usage(format!(
                "--mem-size {mem_size}: with net_iovs of {size} it must be a multiple of that, and for {queues} queues at least {}",
                Size(least as u64)
            )));
        }
        let impairment = parse_impairment(impair)?;
        Ok(Self {
            mtu: *mtu,
            queues: *queues,
            niov,
            mem_bytes,
            impairment,
            linear_bytes: usize::from(linear),
        })
    }
}

fn parse_niov(niov: Option<Size>) -> Result<Option<NiovSize>, Failure> {
    let Some(niov) = niov else { return Ok(None) };
    let niov = NiovSize::new(to_usize("--niov", niov)?);
    niov.map(Some)
        .map_err(|error| Failure::usage(format!("--niov: {error}")))
}

fn parse_impairment(text: &str) -> Result<Impairment, Failure> {
    text.parse().map_err(|error| {
        Failure::usage(format!("--impair: {error}"))
            .with_remedy("`devmem-tcp wire --help` has the list")
    })
}

fn check_mtu(mtu: u16, ipv6: bool) -> Result<(), Failure> {
    for (version_6, least) in MIN_MTU {
        if version_6 == ipv6 && !(least..=MAX_MTU).contains(&mtu) {
            let version = if ipv6 { "IPv6" } else { "IPv4" };
            return Err(Failure::usage(format!(
                "--mtu {mtu}: {least} to {MAX_MTU} for {version}"
            )));
        }
    }
    Ok(())
}

fn to_usize(option: &str, size: Size) -> Result<usize, Failure> {
    usize::try_from(size.0).map_err(|_| {
        Failure::usage(format!(
            "{option} {size}: more than this machine can address"
        ))
    })
}

fn check_connections(connections: u16) -> Result<u16, Failure> {
    if (1..=MAX_CONNECTIONS).contains(&connections) {
        Ok(connections)
    } else {
        Err(Failure::usage(format!(
            "--connections {connections}: 1 to {MAX_CONNECTIONS}"
        )))
    }
}

/// Two ends of a link must be able to talk.
fn check_pair(ours: Prefix, peers: Prefix) -> Result<(), Failure> {
    if ours.address == peers.address {
        return Err(Failure::usage(format!(
            "both ends have the address {}",
            ours.address
        )));
    }
    if !ours.contains(peers.address) || !peers.contains(ours.address) {
        return Err(Failure::usage(format!(
            "{ours} and {peers} are not in the same network"
        )));
    }
    Ok(())
}

fn check_period(validate: Option<u16>) -> Result<(), Failure> {
    let periods = RepeatingPattern::PERIODS;
    match validate {
        Some(n) if !periods.contains(&n) => Err(Failure::usage(format!(
            "--validate {n}: {} to {}, the length of the pattern",
            periods.start(),
            periods.end()
        ))),
        _ => Ok(()),
    }
}

/// Tells whether the kernel would take it for the name of an interface.
fn is_interface_name(name: &str) -> bool {
    (1..=MAX_INTERFACE_NAME).contains(&name.len())
        && !name.contains(|c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace())
}

fn check_interface_name(option: &str, name: &str) -> Result<(), Failure> {
    match is_interface_name(name) {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{option} {name:?} is not the name of an interface"
        ))),
    }
}

/// Reads `tap:NAME`.
fn parse_tap(option: &str, text: &str) -> Result<String, Failure> {
    let name = text.strip_prefix("tap:");
    let name = name.filter(|name| is_interface_name(name));
    name.map(str::to_owned).ok_or_else(|| {
        Failure::usage(format!("{option} {text:?} is not a link"))
            .with_remedy("write tap:NAME, the interface's name of at most 15 bytes")
    })
}
