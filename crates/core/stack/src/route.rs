//! Local addresses, on-link prefixes and gateways.
//!
//! With one interface, a destination is either in an on-link prefix or reached through a gateway. If an
//! IPv6 address is configured, the interface also has a link-local address made from the MAC address (RFC
//! 4291 appendix A). There is no duplicate address detection (RFC 4862 5.4), and router advertisements are
//! ignored: addresses and gateways are configured, also while the stack runs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;
use wire::MacAddr;

/// A local address with the length of its on-link prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address {
    ip: IpAddr,
    prefix_len: u8,
}

/// A local address that may be removed while the stack runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentAddress {
    /// The address.
    pub ip: IpAddr,
    /// Length of its on-link prefix.
    pub prefix_len: u8,
    /// A gateway that is used as long as the address is there, unless another one is configured.
    pub gateway: Option<IpAddr>,
}

/// Why a configuration of addresses is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The prefix is longer than the address.
    #[error("{ip}/{prefix_len}: the prefix is longer than the address; give at most /{max}")]
    PrefixTooLong {
        /// The address.
        ip: IpAddr,
        /// The requested prefix length.
        prefix_len: u8,
        /// Maximum prefix length of the family.
        max: u8,
    },
    /// The address cannot be the address of a host.
    #[error(
        "{ip}: unspecified, loopback, multicast and broadcast addresses cannot be an \
         interface's own; give a unicast address"
    )]
    NotUnicast {
        /// The address.
        ip: IpAddr,
    },
    /// The gateway is not on the link.
    #[error(
        "gateway {gateway} is in no prefix of this interface; give a gateway inside one of them"
    )]
    GatewayOffLink {
        /// The gateway.
        gateway: IpAddr,
    },
}

/// Why packets cannot be sent to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RouteError {
    /// Neither an on-link prefix nor a gateway covers the address.
    #[error(
        "no route to {0}: it is in no on-link prefix and no gateway of its family is configured"
    )]
    NoRoute(IpAddr),
    /// The address does not belong to a single host.
    #[error("{0} is not a unicast address; TCP speaks to single hosts only")]
    NotUnicast(IpAddr),
}

/// Source address and next hop of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    /// The local source address.
    pub(crate) source: IpAddr,
    /// The host on the link that the frame is sent to.
    pub(crate) next_hop: IpAddr,
}

/// Kind of destination of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A local address.
    Ours,
    /// Broadcast, or a multicast group of which this host is a member.
    Group,
    /// Another host.
    Other,
}

/// Addresses, prefixes and gateways of the interface.
#[derive(Debug)]
pub(crate) struct Routes {
    addresses: Vec<Address>,
    gateways: Vec<IpAddr>,
    /// Gateways that end with a local address, which is the first of the two. They are used if there is no other.
    lent_gateways: Vec<(IpAddr, IpAddr)>,
    /// Every unicast address counts as local, except source addresses of received packets.
    any_local: bool,
}

impl Routes {
    /// Checks a configuration, and returns its routes.
    pub(crate) fn new(
        mac: MacAddr,
        configured: &[(IpAddr, u8)],
        gateways: &[IpAddr],
    ) -> Result<Self, AddressError> {
        let mut addresses = Vec::with_capacity(configured.len() + 1);
        for &(ip, prefix_len) in configured {
            let max = if ip.is_ipv4() { 32 } else { 128 };
            if prefix_len > max {
                return Err(AddressError::PrefixTooLong {
                    ip,
                    prefix_len,
                    max,
                });
            }
            if !is_unicast(ip) {
                return Err(AddressError::NotUnicast { ip });
            }
            addresses.push(Address { ip, prefix_len });
        }
        let has_link_local = |address: &Address| is_link_local(address.ip);
        if addresses.iter().any(|address| address.ip.is_ipv6())
            && !addresses.iter().any(has_link_local)
        {
            addresses.push(Address {
                ip: link_local(mac).into(),
                prefix_len: 64,
            });
        }
        let routes = Self {
            addresses,
            gateways: gateways.to_vec(),
            lent_gateways: Vec::new(),
            any_local: false,
        };
        for &gateway in gateways {
            if !routes.is_on_link(gateway) {
                return Err(AddressError::GatewayOffLink { gateway });
            }
        }
        Ok(routes)
    }

    /// Adds a local address, and a gateway on the link that goes with it.
    pub(crate) fn add(&mut self, mac: MacAddr, lent: LentAddress) -> Result<(), AddressError> {
        let LentAddress {
            ip,
            prefix_len,
            gateway,
        } = lent;
        let checked = Self::new(mac, &[(ip, prefix_len)], gateway.as_slice())?;
        self.remove(ip);
        for address in checked.addresses {
            // The second one is the link-local address that IPv6 needs.
            if !self.is_ours(address.ip) {
                self.addresses.push(address);
            }
        }
        self.lent_gateways
            .extend(gateway.map(|gateway| (ip, gateway)));
        Ok(())
    }

    /// Removes a local address, and the gateway that was added with it.
    pub(crate) fn remove(&mut self, ip: IpAddr) {
        self.addresses.retain(|address| address.ip != ip);
        self.lent_gateways.retain(|(of, _)| *of != ip);
    }

    /// Sets whether packets to any unicast address are accepted, or only those to local addresses.
    pub(crate) fn has_any_local(&self) -> bool {
        self.any_local
    }

    pub(crate) fn with_any_local(self, any_local: bool) -> Self {
        Self { any_local, ..self }
    }

    /// Returns whether a program may use `ip` as its local address.
    pub(crate) fn may_bind(&self, ip: IpAddr) -> bool {
        self.is_ours(ip) || self.any_local && is_unicast(ip)
    }

    /// Iterates over the local addresses, including the link-local one.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(|address| address.ip)
    }

    /// Returns whether `ip` is a local address.
    pub(crate) fn is_ours(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip)
    }

    /// Returns whether `ip` is in an on-link prefix.
    pub(crate) fn is_on_link(&self, ip: IpAddr) -> bool {
        self.addresses
            .iter()
            .any(|address| common_prefix(address.ip, ip) >= Some(address.prefix_len))
    }

    /// Returns the kind of destination of a received packet.
    pub(crate) fn destination(&self, ip: IpAddr) -> Destination {
        if self.is_ours(ip) {
            return Destination::Ours;
        }
        let group = match ip {
            IpAddr::V4(v4) => {
                v4.is_broadcast() || v4.is_multicast() || self.is_subnet_broadcast(v4)
            }
            IpAddr::V6(v6) => v6.is_multicast(),
        };
        if group {
            Destination::Group
        } else if self.may_bind(ip) {
            Destination::Ours
        } else {
            Destination::Other
        }
    }

    /// Returns whether `ip` is not valid as the source of a packet from the link (RFC 1122 3.2.1.3, RFC 4291 2.5).
    pub(crate) fn is_martian_source(&self, ip: IpAddr) -> bool {
        !is_unicast(ip)
            || self.is_ours(ip)
            || matches!(ip, IpAddr::V4(v4) if self.is_subnet_broadcast(v4))
    }

    /// Returns the route to `destination`, with the local address to use as the source.
    pub(crate) fn route(&self, destination: IpAddr) -> Result<Route, RouteError> {
        if !is_unicast(destination) || self.destination(destination) == Destination::Group {
            return Err(RouteError::NotUnicast(destination));
        }
        let next_hop = self.next_hop(destination)?;
        let source = self
            .source(destination)
            .ok_or(RouteError::NoRoute(destination))?;
        Ok(Route { source, next_hop })
    }

    /// Returns the host on the link to which packets for `destination` are sent.
    pub(crate) fn next_hop(&self, destination: IpAddr) -> Result<IpAddr, RouteError> {
        if self.is_on_link(destination) {
            return Ok(destination);
        }
        let same_family = |gateway: &&IpAddr| gateway.is_ipv4() == destination.is_ipv4();
        let lent = self.lent_gateways.iter().map(|(_, gateway)| gateway);
        self.gateways
            .iter()
            .chain(lent)
            .find(same_family)
            .copied()
            .ok_or(RouteError::NoRoute(destination))
    }

    /// Chooses a source address: the same scope first, then the longest common prefix (RFC 6724 5,
    /// rules 2 and 8).
    fn source(&self, destination: IpAddr) -> Option<IpAddr> {
        self.addresses()
            .filter_map(|ip| Some((ip, common_prefix(ip, destination)?)))
            .max_by_key(|&(ip, common)| (is_link_local(ip) == is_link_local(destination), common))
            .map(|(ip, _)| ip)
    }

    fn is_subnet_broadcast(&self, ip: Ipv4Addr) -> bool {
        self.addresses.iter().any(|address| match address.ip {
            // Prefixes of 31 and 32 bits have no broadcast address (RFC 3021 2.1).
            IpAddr::V4(ours) if address.prefix_len < 31 => {
                let host_bits = u32::MAX.checked_shr(address.prefix_len.into()).unwrap_or(0);
                ip.to_bits() == ours.to_bits() | host_bits
            }
            _ => false,
        })
    }
}

/// Returns whether `ip` can be the address of one host on a network.
pub(crate) fn is_unicast(ip: IpAddr) -> bool {
    let bad = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    match ip {
        // 0.0.0.0/8 is "this network" and 240.0.0.0/4 reserved, broadcast included (RFC 6890
        // 2.2.2).
        IpAddr::V4(v4) => !(bad || v4.octets()[0] == 0 || v4.octets()[0] >= 240),
        IpAddr::V6(v6) => !(bad || v6.to_ipv4_mapped().is_some()),
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns the link-local address of an interface: fe80::/64 and the modified EUI-64 of its MAC
/// address.
pub(crate) fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(0xfe80_u128 << 112 | u128::from(id))
}

/// Returns the number of leading bits that two addresses have in common; `None` for different families.
fn common_prefix(a: IpAddr, b: IpAddr) -> Option<u8> {
    let bits = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return None,
    };
    Some(bits as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([0x02, 0, 0, 0xaa, 0xbb, 0xcc]);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn routes(gateways: &[IpAddr]) -> Routes {
        let addresses = [
            (ip("10.77.0.2"), 24),
            (ip("192.168.9.1"), 30),
            (ip("2001:db8::2"), 64),
        ];
        Routes::new(MAC, &addresses, gateways).unwrap()
    }

    #[test]
    fn on_link_needs_no_gateway_and_the_rest_goes_to_the_one_of_its_family() {
        let routes = routes(&[ip("10.77.0.1"), ip("fe80::1")]);
        let v4 = |destination, next_hop| Route {
            source: ip(destination),
            next_hop: ip(next_hop),
        };
        assert_eq!(
            routes.route(ip("10.77.0.9")),
            Ok(v4("10.77.0.2", "10.77.0.9"))
        );
        assert_eq!(
            routes.route(ip("192.168.9.2")),
            Ok(v4("192.168.9.1", "192.168.9.2"))
        );
        assert_eq!(
            routes.route(ip("8.8.8.8")).unwrap().next_hop,
            ip("10.77.0.1")
        );
        assert_eq!(
            routes.route(ip("2001:db8::9")),
            Ok(v4("2001:db8::2", "2001:db8::9"))
        );
        assert_eq!(
            routes.route(ip("2001:4860::1")),
            Ok(v4("2001:db8::2", "fe80::1"))
        );
    }

    #[test]
    fn without_a_gateway_there_is_no_route() {
        let routes = routes(&[]);
        assert_eq!(
            routes.route(ip("8.8.8.8")),
            Err(RouteError::NoRoute(ip("8.8.8.8")))
        );
        assert_eq!(
            routes.route(ip("2001:4860::1")),
            Err(RouteError::NoRoute(ip("2001:4860::1")))
        );
        let only_v4 = Routes::new(MAC, &[(ip("10.77.0.2"), 24)], &[]).unwrap();
        assert_eq!(
            only_v4.route(ip("fe80::1")),
            Err(RouteError::NoRoute(ip("fe80::1")))
        );
    }

    #[test]
    fn a_link_local_destination_is_reached_from_the_link_local_address() {
        let routes = routes(&[]);
        let ours = ip("fe80::ff:feaa:bbcc");
        assert_eq!(IpAddr::from(link_local(MAC)), ours);
        assert!(routes.is_ours(ours));
        assert_eq!(
            routes.route(ip("fe80::7")),
            Ok(Route {
                source: ours,
                next_hop: ip("fe80::7")
            })
        );
    }

    #[test]
    fn destinations_are_distinguished() {
        let routes = routes(&[]);
        for (text, expected) in [
            ("10.77.0.2", Destination::Ours),
            ("10.77.0.255", Destination::Group),
            ("192.168.9.3", Destination::Group),
            ("255.255.255.255", Destination::Group),
            ("224.0.0.1", Destination::Group),
            ("ff02::1", Destination::Group),
            ("10.77.0.3", Destination::Other),
            ("127.0.0.1", Destination::Other),
            ("2001:db8::3", Destination::Other),
        ] {
            assert_eq!(routes.destination(ip(text)), expected, "{text}");
        }
    }

    #[test]
    fn sources_that_cannot_be_are_martians() {
        let routes = routes(&[]);
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "10.77.0.255",
            "10.77.0.2",
            "240.0.0.1",
            "::",
            "::1",
            "ff02::1",
            "2001:db8::2",
            "::ffff:10.0.0.1",
        ] {
            assert!(routes.is_martian_source(ip(text)), "{text}");
        }
        for text in ["10.77.0.1", "8.8.8.8", "fe80::1", "2001:db8::1"] {
            assert!(!routes.is_martian_source(ip(text)), "{text}");
        }
    }

    #[test]
    fn speaking_to_groups_is_refused() {
        let routes = routes(&[ip("10.77.0.1")]);
        for text in [
            "10.77.0.255",
            "224.0.0.1",
            "255.255.255.255",
            "0.0.0.0",
            "ff02::1",
            "127.0.0.1",
        ] {
            assert_eq!(
                routes.route(ip(text)),
                Err(RouteError::NotUnicast(ip(text))),
                "{text}"
            );
        }
    }

    #[test]
    fn bad_configurations_are_refused_with_the_fact() {
        let new = |addresses: &[(IpAddr, u8)], gateways: &[IpAddr]| {
            Routes::new(MAC, addresses, gateways).unwrap_err()
        };
        let too_long = AddressError::PrefixTooLong {
            ip: ip("10.0.0.1"),
            prefix_len: 33,
            max: 32,
        };
        assert_eq!(new(&[(ip("10.0.0.1"), 33)], &[]), too_long);
        assert_eq!(
            new(&[(ip("224.0.0.1"), 24)], &[]),
            AddressError::NotUnicast {
                ip: ip("224.0.0.1")
            }
        );
        let off_link = AddressError::GatewayOffLink {
            gateway: ip("10.1.0.1"),
        };
        assert_eq!(new(&[(ip("10.0.0.1"), 24)], &[ip("10.1.0.1")]), off_link);
        assert_eq!(
            off_link.to_string(),
            "gateway 10.1.0.1 is in no prefix of this interface; give a gateway inside one of them"
        );
    }

    #[test]
    fn a_prefix_of_zero_bits_makes_everything_on_link() {
        let routes = Routes::new(MAC, &[(ip("10.0.0.1"), 0)], &[]).unwrap();
        assert_eq!(routes.route(ip("8.8.8.8")).unwrap().next_hop, ip("8.8.8.8"));
        assert_eq!(
            routes.destination(ip("255.255.255.255")),
            Destination::Group
        );
    }
}
