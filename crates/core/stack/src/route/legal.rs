//! Addresses that an interface may have, and routers that it may use.

use std::net::{IpAddr, Ipv4Addr};

use thiserror::Error;

/// Why a configuration of addresses is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The prefix is longer than the address.
    #[error("{ip}/{prefix_len}: the prefix is longer than the address, which has {max} bits")]
    PrefixTooLong {
        /// The address.
        ip: IpAddr,
        /// The requested prefix length.
        prefix_len: u8,
        /// Maximum prefix length of the family.
        max: u8,
    },
    /// The address cannot be the address of a host.
    #[error("{ip} is {kind}, which no interface can have")]
    NotUnicast {
        /// The address.
        ip: IpAddr,
        /// What it is.
        kind: &'static str,
    },
    /// The address names the network, not a host in it.
    #[error("{ip} is the address of the network {ip}/{prefix_len} itself, not of a host in it")]
    Network {
        /// The address.
        ip: IpAddr,
        /// Length of its on-link prefix.
        prefix_len: u8,
    },
    /// The address is the broadcast address of its network.
    #[error("{ip} is the broadcast address of its network of /{prefix_len}")]
    Broadcast {
        /// The address.
        ip: IpAddr,
        /// Length of its on-link prefix.
        prefix_len: u8,
    },
    /// The gateway cannot be the address of a host.
    #[error("gateway {gateway} is {kind}")]
    GatewayNotUnicast {
        /// The gateway.
        gateway: IpAddr,
        /// What it is.
        kind: &'static str,
    },
    /// The gateway is the interface's own address.
    #[error("gateway {gateway} is an address of this interface")]
    GatewayIsOurs {
        /// The gateway.
        gateway: IpAddr,
    },
    /// The gateway is not on the link.
    #[error("gateway {gateway} is in no prefix of this interface")]
    GatewayOffLink {
        /// The gateway.
        gateway: IpAddr,
    },
}

impl AddressError {
    /// Returns what to do about it.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::PrefixTooLong { .. } => "give a shorter one",
            Self::NotUnicast { .. } => "give the address of one host",
            Self::Network { .. } | Self::Broadcast { .. } => {
                "give another address of it, or the right prefix length"
            }
            Self::GatewayNotUnicast { .. } | Self::GatewayIsOurs { .. } => {
                "give the address of the router"
            }
            Self::GatewayOffLink { .. } => {
                "give a gateway inside one of them, or the address with the prefix length /32 (IPv6: /128) if the router is on the \
                 link but outside of its network"
            }
        }
    }
}

/// Checks that an interface may have the address `ip` in a network with this prefix length.
///
/// # Errors
/// The address is not that of one host: loopback, multicast, unspecified, reserved, that of the network, or its broadcast
/// address.
pub fn check_address(ip: IpAddr, prefix_len: u8) -> Result<(), AddressError> {
    let max = bits(ip);
    if prefix_len > max {
        return Err(AddressError::PrefixTooLong {
            ip,
            prefix_len,
            max,
        });
    }
    if let Some(kind) = not_unicast(ip) {
        return Err(AddressError::NotUnicast { ip, kind });
    }
    // Two addresses need no third one for the network (RFC 3021 2.1, RFC 6164 4).
    if prefix_len + 1 >= max {
        return Ok(());
    }
    match host_part(ip, prefix_len) {
        // In IPv6 it is the anycast address of all routers of the network (RFC 4291 2.6.1).
        HostPart::Zeros => Err(AddressError::Network { ip, prefix_len }),
        HostPart::Ones if ip.is_ipv4() => Err(AddressError::Broadcast { ip, prefix_len }),
        HostPart::Ones | HostPart::Mixed => Ok(()),
    }
}

/// Checks that `gateway` can be the router of an interface; whether it is on the link is not checked.
pub(super) fn check_router(gateway: IpAddr) -> Result<(), AddressError> {
    match not_unicast(gateway) {
        Some(kind) => Err(AddressError::GatewayNotUnicast { gateway, kind }),
        None => Ok(()),
    }
}

/// Checks that `gateway` is a host of a network with this prefix length.
pub(super) fn check_router_in(gateway: IpAddr, prefix_len: u8) -> Result<(), AddressError> {
    let kind = match check_address(gateway, prefix_len) {
        // That of IPv6 stands for any router of the network.
        Err(AddressError::Network { ip, .. }) if ip.is_ipv4() => "the address of the network",
        Err(AddressError::Broadcast { .. }) => "the broadcast address of the network",
        _ => return Ok(()),
    };
    Err(AddressError::GatewayNotUnicast { gateway, kind })
}

/// Returns the number of bits of an address of this family.
pub(super) fn bits(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Returns whether `ip` can be the address of one host on a network.
pub(crate) fn is_unicast(ip: IpAddr) -> bool {
    not_unicast(ip).is_none()
}

/// Returns what an address is that cannot be that of one host on a network.
fn not_unicast(ip: IpAddr) -> Option<&'static str> {
    if ip.is_unspecified() {
        return Some("the unspecified address");
    }
    if ip.is_loopback() {
        return Some("a loopback address");
    }
    if ip.is_multicast() {
        return Some("a multicast address");
    }
    match ip {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some("the broadcast address"),
        // 0.0.0.0/8 is "this network" and 240.0.0.0/4 reserved (RFC 6890 2.2.2).
        IpAddr::V4(v4) if v4.octets()[0] == 0 || v4.octets()[0] >= 240 => {
            Some("a reserved address")
        }
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("an IPv4 address inside IPv6"),
        _ => None,
    }
}

/// The bits of an address behind its prefix.
enum HostPart {
    Zeros,
    Ones,
    Mixed,
}

fn host_part(ip: IpAddr, prefix_len: u8) -> HostPart {
    let (host, mask) = match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
            ((v4.to_bits() & mask).into(), mask.into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
            (v6.to_bits() & mask, mask)
        }
    };
    match host {
        0 => HostPart::Zeros,
        _ if host == mask => HostPart::Ones,
        _ => HostPart::Mixed,
    }
}
