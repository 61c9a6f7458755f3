//! Routes through an interface without a router, as to and from a pod.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;

use super::{interface::Interface, rtnetlink};
use crate::netlink::NetlinkError;

impl Interface {
    /// Adds a route to `destination` through this interface, which must be up. Succeeds if there is the same route already. It ends
    /// with the interface.
    ///
    /// # Errors
    ///
    /// `ENETDOWN` if the interface is down, `EPERM` without CAP_NET_ADMIN in the namespace.
    pub fn add_route(&mut self, destination: IpAddr, prefix: u8) -> Result<(), NetlinkError> {
        let request = rtnetlink::create_route(self.index, destination, prefix);
        match self.change(
            &format!("add a route to {destination}/{prefix} through"),
            request,
        ) {
            Err(NetlinkError {
                errno: Errno::EXIST,
                ..
            }) => Ok(()),
            other => other,
        }
    }

    /// Adds a default route of the IP version of `like` through this interface, as [`add_route`](Self::add_route) does.
    ///
    /// # Errors
    ///
    /// As [`add_route`](Self::add_route).
    pub fn add_default_route(&mut self, like: IpAddr) -> Result<(), NetlinkError> {
        let any: IpAddr = match like {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.add_route(any, 0)
    }
}
