//! Local addresses, on-link prefixes and routes.
//!
//! A destination is in an on-link prefix, or behind a router: the longest prefix decides, of an address or of a route. If an
//! IPv6 address is configured, the interface also has a link-local address made from the MAC address (RFC 4291 appendix A).
//! Addresses and routes are configured, also while the stack runs. An address that another station may have is tentative: it
//! counts as that of another host (see [`Claims`](crate::claims::Claims)).

mod legal;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;
use wire::MacAddr;

pub(crate) use legal::is_unicast;
pub use legal::{AddressError, check_address};
use legal::{bits, check_router, check_router_in};

/// How a local address is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressState {
    /// Not yet: another station may have it.
    Tentative,
    /// For everything.
    Preferred,
    /// For what already uses it, and where there is no other (RFC 4862 5.5.4).
    Deprecated,
}

/// A local address with the length of its on-link prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address {
    ip: IpAddr,
    prefix_len: u8,
    state: AddressState,
}

/// A route to a network, or to hosts on the link that no prefix of an address covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkRoute {
    /// An address of the network.
    pub network: IpAddr,
    /// Length of its prefix.
    pub prefix_len: u8,
    /// The host on the link that forwards to it; `None`: it is on the link.
    pub router: Option<IpAddr>,
}

impl NetworkRoute {
    /// Returns the route to all networks of a family behind `router`.
    pub fn default_through(router: IpAddr) -> Self {
        let network = match router {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Self {
            network,
            prefix_len: 0,
            router: Some(router),
        }
    }

    fn covers(&self, ip: IpAddr) -> bool {
        common_prefix(self.network, ip) >= Some(self.prefix_len)
    }
}

/// A local address that may be removed while the stack runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedAddress {
    /// The address.
    pub ip: IpAddr,
    /// Length of its on-link prefix.
    pub prefix_len: u8,
    /// New connections use another address if there is one (RFC 4862 5.5.4).
    pub is_deprecated: bool,
    /// Routes that are there as long as the address is.
    pub routes: Vec<NetworkRoute>,
}

impl LeasedAddress {
    /// Returns an address without routes.
    pub fn new(ip: IpAddr, prefix_len: u8) -> Self {
        Self {
            ip,
            prefix_len,
            is_deprecated: false,
            routes: Vec::new(),
        }
    }
}

/// Why packets cannot be sent to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RouteError {
    /// Neither an on-link prefix nor a gateway covers the address.
    #[error(
        "no route to {0}: it is in no on-link prefix, and no route through a gateway of its family covers it"
    )]
    NoRoute(IpAddr),
    /// The address does not belong to a single host.
    #[error("{0} is not a unicast address: TCP speaks to single hosts only")]
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

/// A route, and the local address that it ends with.
#[derive(Debug, Clone, Copy)]
struct Via {
    route: NetworkRoute,
    /// `None`: it stays.
    of: Option<IpAddr>,
}

/// Addresses, prefixes and routes of the interface.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    addresses: Vec<Address>,
    /// Of two that are as good, the first one is used: those that stay are before those that end with an address.
    vias: Vec<Via>,
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
        let mut routes = Self::default();
        for &(ip, prefix_len) in configured {
            check_address(ip, prefix_len)?;
            routes.push(ip, prefix_len, AddressState::Preferred);
        }
        routes.add_link_local(mac);
        for &gateway in gateways {
            let route = NetworkRoute::default_through(gateway);
            routes.check_via(&route, &[])?;
            routes.vias.push(Via { route, of: None });
        }
        Ok(routes)
    }

    /// Adds a local address with its routes, or changes them.
    pub(crate) fn add(&mut self, mac: MacAddr, leased: &LeasedAddress) -> Result<(), AddressError> {
        let LeasedAddress {
            ip,
            prefix_len,
            is_deprecated,
            ref routes,
        } = *leased;
        check_address(ip, prefix_len)?;
        let mut checked = Self::default();
        checked.push(ip, prefix_len, AddressState::Preferred);
        checked.add_link_local(mac);
        for route in routes {
            checked.check_via(route, routes)?;
        }
        self.remove(ip);
        let state = match is_deprecated {
            true => AddressState::Deprecated,
            false => AddressState::Preferred,
        };
        self.push(ip, prefix_len, state);
        self.add_link_local(mac);
        let via = |route: &NetworkRoute| Via {
            route: *route,
            of: Some(ip),
        };
        self.vias.extend(routes.iter().map(via));
        Ok(())
    }

    /// Removes a local address, and the routes that were added with it.
    pub(crate) fn remove(&mut self, ip: IpAddr) {
        self.addresses.retain(|address| address.ip != ip);
        self.vias.retain(|via| via.of != Some(ip));
    }

    fn push(&mut self, ip: IpAddr, prefix_len: u8, state: AddressState) {
        self.addresses.push(Address {
            ip,
            prefix_len,
            state,
        });
    }

    /// Adds the link-local address that an interface with IPv6 needs (RFC 4291 2.8), unless there is one.
    fn add_link_local(&mut self, mac: MacAddr) {
        let mut v6 = self
            .addresses
            .iter()
            .filter(|it| it.ip.is_ipv6())
            .peekable();
        if v6.peek().is_some() && !v6.any(|address| is_link_local(address.ip)) {
            self.push(link_local(mac).into(), 64, AddressState::Preferred);
        }
    }

    /// Checks that the router of a route is a host on the link: in a prefix of an address, covered by one of the routes `beside`
    /// it, or anywhere if an address has no network beside itself, as clouds assign them.
    fn check_via(&self, route: &NetworkRoute, beside: &[NetworkRoute]) -> Result<(), AddressError> {
        let Some(gateway) = route.router else {
            return Ok(());
        };
        check_router(gateway)?;
        let is_ours = |address: &Address| address.ip == gateway;
        if self.addresses.iter().any(is_ours) {
            return Err(AddressError::GatewayIsOurs { gateway });
        }
        let around = self.addresses.iter().filter(|it| it.covers(gateway));
        for Address { prefix_len, .. } in around {
            check_router_in(gateway, *prefix_len)?;
        }
        let is_near = |address: &Address| {
            let is_alone = address.prefix_len == bits(address.ip) && !is_link_local(address.ip);
            address.covers(gateway) || is_alone && address.ip.is_ipv4() == gateway.is_ipv4()
        };
        let is_on_link = |it: &NetworkRoute| it.router.is_none() && it.covers(gateway);
        match self.addresses.iter().any(is_near) || beside.iter().any(is_on_link) {
            true => Ok(()),
            false => Err(AddressError::GatewayOffLink { gateway }),
        }
    }

    /// Makes all addresses tentative.
    pub(crate) fn doubt_all(&mut self) {
        for address in &mut self.addresses {
            address.state = AddressState::Tentative;
        }
    }

    /// Ends the doubt about an address, which is used from now on.
    pub(crate) fn trust(&mut self, ip: IpAddr) {
        let doubted = |it: &&mut Address| it.ip == ip && it.state == AddressState::Tentative;
        for address in self.addresses.iter_mut().filter(doubted) {
            address.state = AddressState::Preferred;
        }
    }

    pub(crate) fn has_any_local(&self) -> bool {
        self.any_local
    }

    /// Sets whether packets to any unicast address are accepted, or only those to local addresses.
    pub(crate) fn with_any_local(self, any_local: bool) -> Self {
        Self { any_local, ..self }
    }

    /// Returns whether a program may use `ip` as its local address.
    pub(crate) fn may_bind(&self, ip: IpAddr) -> bool {
        self.is_ours(ip) || self.any_local && is_unicast(ip)
    }

    /// Iterates over the local addresses in use, including the link-local one.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.in_use().map(|address| address.ip)
    }

    /// Iterates over the local addresses, also those that are tentative.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(|address| address.ip)
    }

    fn in_use(&self) -> impl Iterator<Item = &Address> {
        let is_used = |address: &&Address| address.state != AddressState::Tentative;
        self.addresses.iter().filter(is_used)
    }

    /// Returns whether `ip` is a local address.
    pub(crate) fn is_ours(&self, ip: IpAddr) -> bool {
        self.in_use().any(|address| address.ip == ip)
    }

    /// Returns whether `ip` is that of a host on the link: it is in a prefix of an address, or a route says so.
    pub(crate) fn is_on_link(&self, ip: IpAddr) -> bool {
        let by_route = |Via { route, .. }: &Via| match route.router {
            Some(router) => router == ip,
            None => route.covers(ip),
        };
        self.addresses.iter().any(|address| address.covers(ip)) || self.vias.iter().any(by_route)
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

    /// Returns the host on the link to which packets for `destination` are sent: the longest prefix decides, and of two that are
    /// equal that of an address, then the route that was added first.
    pub(crate) fn next_hop(&self, destination: IpAddr) -> Result<IpAddr, RouteError> {
        let is_router = |via: &Via| via.route.router == Some(destination);
        if self.is_ours(destination) || self.vias.iter().any(is_router) {
            return Ok(destination);
        }
        let covering = |address: &&Address| address.covers(destination);
        let near = self.addresses.iter().filter(covering);
        let mut best = near
            .map(|it| (it.prefix_len, destination))
            .max_by_key(|it| it.0);
        for Via { route, .. } in &self.vias {
            let is_better = best.is_none_or(|(len, _)| route.prefix_len > len);
            if is_better && route.covers(destination) {
                best = Some((route.prefix_len, route.router.unwrap_or(destination)));
            }
        }
        best.map(|(_, next_hop)| next_hop)
            .ok_or(RouteError::NoRoute(destination))
    }

    /// Chooses a source address: the same scope first, then one that is not deprecated, then the longest common prefix (RFC 6724
    /// 5, rules 2, 3 and 8).
    fn source(&self, destination: IpAddr) -> Option<IpAddr> {
        let fit = |address: &Address| {
            let common = common_prefix(address.ip, destination)?;
            let same_scope = is_link_local(address.ip) == is_link_local(destination);
            let is_preferred = address.state == AddressState::Preferred;
            Some((same_scope, is_preferred, common))
        };
        self.in_use()
            .filter_map(|address| Some((address.ip, fit(address)?)))
            .max_by_key(|(_, fit)| *fit)
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

impl Address {
    /// Returns whether `ip` is in the on-link prefix of this address.
    fn covers(&self, ip: IpAddr) -> bool {
        common_prefix(self.ip, ip) >= Some(self.prefix_len)
    }
}

pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Checks that `gateway` can be the router of an interface with the address `ip`: a host on its link.
///
/// # Errors
/// As for the configuration of a stack.
pub fn check_gateway(ip: IpAddr, prefix_len: u8, gateway: IpAddr) -> Result<(), AddressError> {
    let any = MacAddr([2, 0, 0, 0, 0, 1]);
    Routes::new(any, &[(ip, prefix_len)], &[gateway]).map(|_| ())
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
