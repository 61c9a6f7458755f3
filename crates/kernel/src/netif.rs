//! Network interfaces of this machine: find, set up, read. Uses route netlink for both IP versions, so that neither the `ip`
//! command nor files under /sys are needed (in a new network namespace, /sys still shows the old one).

#[cfg(test)]
mod bridge;
mod facts;
mod interface;
mod macvtap;
mod netkit;
mod route;
mod rtnetlink;
mod watch;

use std::net::IpAddr;

use rustix::io::Errno;

use self::interface::read_link;
use self::rtnetlink::{LinkMessage, RTM_GETLINK};
use crate::netlink::{NetlinkError, NetlinkSocket};
pub(crate) use facts::LEGACY_GSO_MAX_SIZE;
pub use facts::{GSO_MAX_SIZE, InterfaceFacts};
pub use interface::Interface;
pub use macvtap::{MacvtapMode, NewMacvtap};
pub use netkit::{NewNetkit, netkits};
pub use rtnetlink::TunKind;
pub use watch::{InterfaceState, InterfaceWatch, Presence};

/// Lists the interfaces of the calling thread's network namespace: index, name, and whether each is up.
///
/// # Errors
///
/// The error of the kernel.
pub fn interfaces() -> Result<Vec<(u32, String, bool)>, NetlinkError> {
    let all = rtnetlink::list_links();
    NetlinkSocket::route()?.dump("list interfaces", &all, |reply| {
        let link = LinkMessage::parse(&reply)?;
        Some((link.index, link.name()?.to_owned(), link.up))
    })
}

/// Lists the addresses of the interface `index` of the calling thread's network namespace.
///
/// # Errors
///
/// `ENODEV` if there is no such interface.
pub fn addresses(index: u32) -> Result<Vec<IpAddr>, NetlinkError> {
    let what = format!("list the addresses of interface {index}");
    let list = rtnetlink::list_addresses(index);
    NetlinkSocket::route()?.dump(&what, &list, |reply| {
        let (of, address) = rtnetlink::address(&reply)?;
        (of == index).then_some(address)
    })
}

/// Lists the addresses of all interfaces of the calling thread's network namespace, each with the index of its interface.
///
/// # Errors
///
/// The error of the kernel.
pub fn all_addresses() -> Result<Vec<(u32, IpAddr)>, NetlinkError> {
    let list = rtnetlink::list_addresses(0);
    NetlinkSocket::route()?.dump("list the addresses of this machine", &list, |reply| {
        rtnetlink::address(&reply)
    })
}

/// Returns the interface of the route to `destination` in the calling thread's network namespace.
///
/// # Errors
///
/// `ENETUNREACH` if there is no route.
pub fn route_interface(destination: IpAddr) -> Result<String, NetlinkError> {
    let what = format!("find the route to {destination}");
    let mut socket = NetlinkSocket::route()?;
    let get = rtnetlink::get_route(destination);
    let index = socket.get(&what, get, |reply| rtnetlink::route_interface(&reply))?;
    let index = index.ok_or_else(|| NetlinkError::new(&what, Errno::NETUNREACH))?;
    let get = rtnetlink::link(RTM_GETLINK, index);
    read_link(&mut socket, &what, get, |link| {
        Some(link.name()?.to_owned())
    })
}

/// Returns whether an XDP program is attached to the interface `index` of the calling thread's network namespace.
///
/// # Errors
///
/// `ENODEV` if there is no such interface.
pub fn has_xdp_program(index: u32) -> Result<bool, NetlinkError> {
    let what = format!("look for an XDP program on interface {index}");
    let mut socket = NetlinkSocket::route()?;
    let get = rtnetlink::link(RTM_GETLINK, index);
    read_link(&mut socket, &what, get, |link| Some(link.has_xdp_program()))
}

/// Parses a message as each known kind of reply, for fuzzing.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) fn fuzz_replies(message: &crate::netlink::NetlinkMessage<'_>) {
    if let Some(link) = LinkMessage::parse(message) {
        let _ = (
            link.name(),
            link.kind(),
            link.facts(),
            link.has_xdp_program(),
        );
    }
    let _ = InterfaceState::parse(message, 1);
    let _ = rtnetlink::address(message);
    let _ = rtnetlink::route_interface(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_and_read() {
        let mut lo = Interface::by_name("lo").expect("every network namespace has lo");
        assert_eq!(lo.index(), 1);
        let facts = lo.facts().unwrap();
        assert_eq!(facts.mac, Some([0; 6]));
        assert!(facts.mtu >= 1280, "{facts:?}");
    }

    #[test]
    fn the_loopback_has_its_address() {
        let index = Interface::by_name("lo").unwrap().index();
        let all = addresses(index).unwrap();
        // Down, as in a namespace that was just made, it may have none.
        if !all.is_empty() {
            assert!(all.iter().all(|address| address.is_loopback()), "{all:?}");
        }
        let of_all = all_addresses().unwrap();
        let is_there = |address: &IpAddr| of_all.contains(&(index, *address));
        assert!(all.iter().all(is_there), "{all:?} in {of_all:?}");
        assert_eq!(addresses(u32::MAX).unwrap_or_default(), [] as [IpAddr; 0]);
    }

    #[test]
    fn the_loopback_is_among_the_interfaces() {
        let interfaces = interfaces().unwrap();
        assert!(
            interfaces
                .iter()
                .any(|(i, name, _)| *i == 1 && name == "lo"),
            "{interfaces:?}"
        );
    }

    #[test]
    fn the_loopback_has_no_xdp_program_and_an_unknown_interface_is_enodev() {
        assert_eq!(has_xdp_program(1), Ok(false));
        assert_eq!(has_xdp_program(1 << 30).unwrap_err().errno, Errno::NODEV);
    }

    #[test]
    fn packets_to_this_machine_are_routed_through_the_loopback() {
        let home = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(route_interface(home).as_deref(), Ok("lo"));
    }

    #[test]
    fn a_name_that_is_too_long_for_a_message_is_refused() {
        let error = Interface::by_name(&"x".repeat(70_000)).unwrap_err();
        assert_eq!(error.errno, Errno::MSGSIZE);
    }

    #[test]
    fn an_unknown_interface_is_enodev_with_its_name() {
        let error = Interface::by_name("nosuch0").unwrap_err();
        assert_eq!(error.errno, Errno::NODEV);
        assert!(
            error.to_string().starts_with("find interface nosuch0: "),
            "{error}"
        );
    }
}
