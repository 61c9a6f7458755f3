//! Bridges, for tests: an interface that does not filter by a second unicast address.

use super::interface::{Interface, read_link};
use super::rtnetlink::{self, RTM_GETLINK};
use crate::netlink::{NetlinkError, NetlinkSocket};

impl Interface {
    /// Creates a bridge in the calling thread's network namespace.
    pub(crate) fn create_bridge(name: &str) -> Result<Self, NetlinkError> {
        let what = format!("make bridge {name}");
        NetlinkSocket::route()?.request(&what, rtnetlink::create_bridge(name), |_| {})?;
        Self::by_name(name)
    }

    /// Makes the interface a port of a bridge.
    pub(crate) fn join_bridge(&mut self, bridge: &Self) -> Result<(), NetlinkError> {
        let request = self.request().u32(rtnetlink::IFLA_MASTER, bridge.index);
        self.change("move to a bridge", request)
    }

    /// Returns how many users want all frames of the interface.
    pub(crate) fn promiscuity(&mut self) -> Result<u32, NetlinkError> {
        let get = rtnetlink::link(RTM_GETLINK, self.index);
        read_link(&mut self.socket, "read promiscuity", get, |link| {
            link.promiscuity()
        })
    }
}
