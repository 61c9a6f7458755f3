//! The local address of a socket, and the addresses that it covers: one, those of a family, or all.

use std::net::{IpAddr, SocketAddr};

/// A local address as in bind(2): the unspecified address covers all local addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindAddr {
    /// Address and port. The unspecified IPv4 address covers IPv4; the unspecified IPv6 address covers both families.
    pub address: SocketAddr,
    /// The unspecified IPv6 address covers IPv6 only.
    #[doc(alias = "IPV6_V6ONLY")]
    pub v6_only: bool,
    /// Other listeners with this option may have the same address; each connection goes to one of them.
    #[doc(alias = "SO_REUSEPORT")]
    pub reuse_port: bool,
}

impl From<SocketAddr> for BindAddr {
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            v6_only: false,
            reuse_port: false,
        }
    }
}

impl BindAddr {
    /// Returns whether both cover a common address (linux net/ipv4/inet_connection_sock.c
    /// `inet_rcv_saddr_equal`, wildcards matching). Ports are not compared.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.scope(), other.scope());
        match (ours, theirs) {
            (Scope::One(ip), scope) | (scope, Scope::One(ip)) => scope.takes(ip),
            (Scope::Ipv4, Scope::Ipv6) | (Scope::Ipv6, Scope::Ipv4) => false,
            _ => true,
        }
    }

    /// Returns whether it covers `ip`.
    pub fn takes(&self, ip: IpAddr) -> bool {
        self.scope().takes(ip)
    }

    pub(crate) fn scope(&self) -> Scope {
        match self.address.ip() {
            ip if !ip.is_unspecified() => Scope::One(ip),
            IpAddr::V4(_) => Scope::Ipv4,
            IpAddr::V6(_) if self.v6_only => Scope::Ipv6,
            IpAddr::V6(_) => Scope::Both,
        }
    }
}

/// The local addresses that a [`BindAddr`] covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    One(IpAddr),
    Ipv4,
    Ipv6,
    Both,
}

impl Scope {
    pub(crate) fn takes(self, ip: IpAddr) -> bool {
        match self {
            Self::One(one) => one == ip,
            Self::Ipv4 => ip.is_ipv4(),
            Self::Ipv6 => ip.is_ipv6(),
            Self::Both => true,
        }
    }

    /// Returns how specific it is. The most specific listener gets a connection (linux net/ipv4/inet_hashtables.c
    /// `compute_score`).
    pub(crate) fn closeness(self) -> u8 {
        match self {
            Self::One(_) => 2,
            Self::Ipv4 | Self::Ipv6 => 1,
            Self::Both => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(text: &str) -> BindAddr {
        let (text, v6_only) = match text.strip_suffix(" only") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let ip: IpAddr = text.parse().unwrap();
        BindAddr {
            v6_only,
            ..SocketAddr::new(ip, 80).into()
        }
    }

    #[test]
    fn addresses_are_in_each_others_way_as_in_linux() {
        let all = ["0.0.0.0", "::", ":: only", "10.0.0.1", "2001:db8::1"];
        let in_the_way = [
            ("0.0.0.0", "::"),
            ("0.0.0.0", "10.0.0.1"),
            ("::", ":: only"),
            ("::", "10.0.0.1"),
            ("::", "2001:db8::1"),
            (":: only", "2001:db8::1"),
        ];
        for a in all {
            for b in all {
                let expected =
                    a == b || in_the_way.contains(&(a, b)) || in_the_way.contains(&(b, a));
                assert_eq!(bound(a).overlaps(&bound(b)), expected, "{a} and {b}");
            }
        }
        assert!(!bound("10.0.0.2").overlaps(&bound("10.0.0.1")));
    }
}
