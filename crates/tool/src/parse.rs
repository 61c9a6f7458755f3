//! Command line arguments shared by several commands: addresses, links, impairments, MTUs.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;
use devmem_tcp::link;
use nic::Impairment;
use serde::Serialize;

use crate::output::{Failure, print_json};
use crate::size::Size;
use crate::terminal::tell_table;

/// Maximum length of an interface name: `IFNAMSIZ` minus the NUL (linux include/uapi/linux/if.h).
const MAX_INTERFACE_NAME: usize = 15;
/// Minimum MTU of IPv4 (RFC 791 3.2).
const MIN_MTU_V4: u16 = 576;
/// Minimum MTU of IPv6 (RFC 8200 5).
const MIN_MTU_V6: u16 = 1280;
/// Maximum MTU of a TAP: the largest packet minus the Ethernet header (linux drivers/net/tun.c).
const MAX_MTU: u16 = 65_521;

/// Arguments for the format of the result.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// Print one JSON object to stdout at the end
    #[arg(long)]
    pub json: bool,
}

impl OutputArgs {
    /// Prints the report of a run: a table for people, and the JSON if it was requested.
    ///
    /// # Errors
    ///
    /// Stdout cannot be written.
    pub fn print(self, report: &(impl fmt::Display + Serialize)) -> Result<(), Failure> {
        tell_table(report);
        match self.json {
            true => print_json(report),
            false => Ok(()),
        }
    }
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address of a host.
    pub address: IpAddr,
    /// Length of the network prefix in bits.
    pub len: u8,
}

impl FromStr for Prefix {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let parsed = text.parse::<link::Prefix>();
        parsed
            .map(Self::from)
            .map_err(|error| Failure::usage(error.reason()).with_remedy_of(error.remedy()))
    }
}

impl From<link::Prefix> for Prefix {
    fn from(prefix: link::Prefix) -> Self {
        Self {
            address: prefix.address(),
            len: prefix.len(),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl Prefix {
    /// Returns whether `other` is in the same network.
    pub fn contains(&self, other: IpAddr) -> bool {
        let shared = match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        shared >= u32::from(self.len)
    }

    /// Returns an address close to this one, for the other end of a link: 10.77.0.1 for 10.77.0.2.
    #[must_use]
    pub fn neighbour(&self) -> Self {
        let low_bits = match self.address {
            IpAddr::V4(address) => address.octets()[3] & 3,
            IpAddr::V6(address) => address.octets()[15] & 3,
        };
        // 1 and 2 are neighbours, as are 0 and 1, and 3 and 2: never an address with the low bits 0, which may be the network's.
        let flipped: u8 = if [1, 2].contains(&low_bits) { 3 } else { 1 };
        let address = match self.address {
            IpAddr::V4(address) => IpAddr::V4((address.to_bits() ^ u32::from(flipped)).into()),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() ^ u128::from(flipped)).into()),
        };
        Self { address, ..*self }
    }
}

/// Parses the value of `--impair`.
///
/// # Errors
///
/// A usage error that names the invalid part.
pub fn parse_impairment(text: &str) -> Result<Impairment, Failure> {
    text.parse().map_err(|error| {
        Failure::usage(format!("--impair: {error}"))
            .with_remedy("`devmem-tcp wire --help` lists the impairments")
    })
}

/// Checks that an MTU (bytes of the largest IP packet) is within the bounds of a link with `address`.
///
/// # Errors
///
/// A usage error with the bounds.
pub fn check_mtu(mtu: u16, address: IpAddr) -> Result<(), Failure> {
    let (least, version) = match address {
        IpAddr::V4(_) => (MIN_MTU_V4, "IPv4"),
        IpAddr::V6(_) => (MIN_MTU_V6, "IPv6"),
    };
    match (least..=MAX_MTU).contains(&mtu) {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "--mtu {mtu}: {least} to {MAX_MTU} for {version}"
        ))),
    }
}

/// Converts the size given by `option` to `usize`.
///
/// # Errors
///
/// A usage error if it does not fit.
pub fn to_usize(option: &str, size: Size) -> Result<usize, Failure> {
    usize::try_from(size.0).map_err(|_| {
        Failure::usage(format!(
            "{option} {size}: more than this machine can address"
        ))
    })
}

/// Checks that the two ends of a link have different addresses in the same network.
///
/// # Errors
///
/// A usage error that names the conflict.
pub fn check_pair(ours: Prefix, peers: Prefix) -> Result<(), Failure> {
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

/// Returns whether the kernel accepts `name` as the name of an interface.
pub fn is_interface_name(name: &str) -> bool {
    (1..=MAX_INTERFACE_NAME).contains(&name.len())
        && !name.contains(|c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace())
}

/// Checks the interface name given by `option`.
///
/// # Errors
///
/// A usage error if the kernel does not accept the name.
pub fn check_interface_name(option: &str, name: &str) -> Result<(), Failure> {
    match is_interface_name(name) {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{option} {name:?} is not the name of an interface"
        ))),
    }
}

/// Parses `tap:NAME` and returns the name.
///
/// # Errors
///
/// A usage error if `text` has another form.
pub fn parse_tap(option: &str, text: &str) -> Result<String, Failure> {
    let name = text.strip_prefix("tap:");
    let name = name.filter(|name| is_interface_name(name));
    name.map(str::to_owned).ok_or_else(|| {
        Failure::usage(format!("{option} {text:?} is not a link"))
            .with_remedy("write tap:NAME, the interface's name of at most 15 bytes")
    })
}
