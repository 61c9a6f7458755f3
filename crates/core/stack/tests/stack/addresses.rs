//! Addresses that come and go while the stack runs.

use std::net::{IpAddr, SocketAddr};

use devmem_uapi::MsgFlags;
use netsim::{Door as _, PairConfig, Side};
use stack::{AddressError, LeasedAddress, NetworkRoute, SendMsg};
use tcp::TcpError;

use crate::scenarios::Pair;
use crate::scenarios::common::PORT;

/// Another address of the second stack, in the network of both.
const LENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 99));

fn lent(router: Option<IpAddr>) -> LeasedAddress {
    address(LENT, 24, router)
}

/// An address with its default router.
fn address(ip: IpAddr, prefix_len: u8, router: Option<IpAddr>) -> LeasedAddress {
    LeasedAddress {
        routes: router
            .map(NetworkRoute::default_through)
            .into_iter()
            .collect(),
        ..LeasedAddress::new(ip, prefix_len)
    }
}

#[test]
fn connections_of_an_address_that_was_removed_are_aborted_and_those_of_others_are_not() {
    let mut pair = Pair::new(&PairConfig::default());
    let now = pair.now();
    let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
    let listener = pair.b.listen(any, 4).unwrap();
    pair.b.stack_mut().add_address(&lent(None), now).unwrap();
    let ends = [LENT, Side::B.ipv4()].map(|ip| {
        let now = pair.now();
        let client = pair.a.connect(SocketAddr::new(ip, PORT), now).unwrap();
        pair.run_until_idle().unwrap();
        (client, pair.b.accept(listener).unwrap().0)
    });
    let [ended, kept] = ends;
    let now = pair.now();
    pair.b.stack_mut().remove_address(LENT, now);
    pair.run_until_idle().unwrap();
    let errors = [
        pair.b.stack_mut().take_error(ended.1),
        pair.a.stack_mut().take_error(ended.0),
        pair.b.stack_mut().take_error(kept.1),
    ];
    assert_eq!(
        errors,
        [
            Ok(Some(TcpError::Aborted)),
            Ok(Some(TcpError::Reset)),
            Ok(None)
        ]
    );
    let message = SendMsg::new(b"still here");
    pair.a.sendmsg(kept.0, &message, MsgFlags::empty()).unwrap();
    assert!(!pair.b.stack_mut().addresses().any(|ip| ip == LENT));
    // It can come back.
    let now = pair.now();
    pair.b.stack_mut().add_address(&lent(None), now).unwrap();
    let again = pair.a.connect(SocketAddr::new(LENT, PORT), now).unwrap();
    pair.run_until_idle().unwrap();
    assert_eq!(pair.a.stack_mut().take_error(again), Ok(None));
    pair.b.accept(listener).unwrap();
}

#[test]
fn an_address_that_no_host_can_have_and_a_router_elsewhere_are_refused() {
    let mut pair = Pair::new(&PairConfig::default());
    let (now, stack) = (pair.now(), pair.b.stack_mut());
    let before: Vec<_> = stack.addresses().collect();
    let router: IpAddr = "192.0.2.1".parse().unwrap();
    assert_eq!(
        stack.add_address(&lent(Some(router)), now),
        Err(AddressError::GatewayOffLink { gateway: router })
    );
    let group = "224.0.0.1".parse().unwrap();
    let kind = "a multicast address";
    assert_eq!(
        stack.add_address(&address(group, 24, None), now),
        Err(AddressError::NotUnicast { ip: group, kind })
    );
    assert_eq!(stack.addresses().collect::<Vec<_>>(), before);
}

#[test]
fn a_router_comes_and_goes_with_the_address_whose_network_it_is_in() {
    let mut pair = Pair::new(&PairConfig::default());
    let far = SocketAddr::new("203.0.113.5".parse().unwrap(), PORT);
    let now = pair.now();
    let router = "172.16.0.1".parse().unwrap();
    let lent = address("172.16.0.5".parse().unwrap(), 24, Some(router));
    assert!(pair.b.stack_mut().connect(far, now).is_err(), "no route");
    let stack = pair.b.stack_mut();
    stack.add_address(&lent, now).unwrap();
    let id = stack.connect(far, now).unwrap();
    stack.abort(id).unwrap();
    stack.remove_address(lent.ip, now);
    assert!(stack.connect(far, now).is_err(), "no route any more");
    // The router of an IPv6 address has a link-local one.
    let far = SocketAddr::new("2001:db8::5".parse().unwrap(), PORT);
    let lent = address(
        "fd88::5".parse().unwrap(),
        64,
        Some("fe80::1".parse().unwrap()),
    );
    stack.add_address(&lent, now).unwrap();
    let id = stack.connect(far, now).unwrap();
    stack.abort(id).unwrap();
    let without = address(lent.ip, 64, None);
    stack.add_address(&without, now).unwrap();
    assert!(stack.connect(far, now).is_err(), "the router has left");
}
