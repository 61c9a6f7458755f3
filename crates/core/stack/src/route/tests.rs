//! Tests of routes.

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
            ip: ip("224.0.0.1"),
            kind: "a multicast address",
        }
    );
    let off_link = AddressError::GatewayOffLink {
        gateway: ip("10.1.0.1"),
    };
    assert_eq!(new(&[(ip("10.0.0.1"), 24)], &[ip("10.1.0.1")]), off_link);
    let text = "gateway 10.1.0.1 is in no prefix of this interface";
    assert_eq!(off_link.to_string(), text);
    assert!(off_link.remedy().starts_with("give a gateway inside"));
    let ours = ip("10.0.0.1");
    assert_eq!(
        new(&[(ours, 24)], &[ours]),
        AddressError::GatewayIsOurs { gateway: ours }
    );
    for (text, kind) in [
        ("10.0.0.0", "the address of the network"),
        ("10.0.0.255", "the broadcast address of the network"),
        ("224.0.0.1", "a multicast address"),
        ("0.0.0.0", "the unspecified address"),
    ] {
        let gateway = ip(text);
        assert_eq!(
            new(&[(ours, 24)], &[gateway]),
            AddressError::GatewayNotUnicast { gateway, kind }
        );
    }
}

#[test]
fn addresses_that_no_host_can_have_are_refused_with_what_they_are() {
    let kind = |text| match check_address(ip(text), 24) {
        Err(AddressError::NotUnicast { kind, .. }) => kind,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(kind("0.0.0.0"), "the unspecified address");
    assert_eq!(kind("::"), "the unspecified address");
    assert_eq!(kind("127.0.0.1"), "a loopback address");
    assert_eq!(kind("::1"), "a loopback address");
    assert_eq!(kind("239.1.2.3"), "a multicast address");
    assert_eq!(kind("ff02::1"), "a multicast address");
    assert_eq!(kind("255.255.255.255"), "the broadcast address");
    assert_eq!(kind("240.0.0.1"), "a reserved address");
    assert_eq!(kind("0.1.2.3"), "a reserved address");
    assert_eq!(kind("::ffff:10.0.0.1"), "an IPv4 address inside IPv6");
    for (text, prefix_len) in [
        ("10.77.0.0", 24),
        ("10.0.0.0", 8),
        ("10.77.0.4", 30),
        ("fd77::", 64),
    ] {
        let ip = ip(text);
        assert_eq!(
            check_address(ip, prefix_len),
            Err(AddressError::Network { ip, prefix_len })
        );
    }
    for (text, prefix_len) in [
        ("10.77.0.255", 24),
        ("10.255.255.255", 8),
        ("10.77.0.7", 30),
    ] {
        let ip = ip(text);
        assert_eq!(
            check_address(ip, prefix_len),
            Err(AddressError::Broadcast { ip, prefix_len })
        );
    }
    // The two addresses of a link between two hosts, and one alone, have no third one beside them.
    for (text, prefix_len) in [
        ("10.77.0.0", 31),
        ("10.77.0.1", 31),
        ("10.77.0.0", 32),
        ("10.77.0.255", 32),
        ("fd77::", 127),
        ("fd77::", 128),
        ("10.77.1.0", 16),
        ("10.77.0.255", 16),
        ("fd77::ffff:ffff:ffff:ffff", 64),
        ("10.0.0.1", 0),
    ] {
        assert_eq!(
            check_address(ip(text), prefix_len),
            Ok(()),
            "{text}/{prefix_len}"
        );
    }
}

#[test]
fn an_address_without_a_network_has_its_router_beside_it() {
    for (ours, router, far) in [
        ("10.156.0.18/32", "10.156.0.1", "192.0.2.9"),
        ("203.0.113.7/32", "100.64.0.1", "192.0.2.9"),
        ("2001:db8::5/128", "fe80::1", "2001:db8:9::9"),
        ("2001:db8::5/128", "2001:db8:ffff::1", "2001:db8:9::9"),
        ("10.0.0.0/31", "10.0.0.1", "192.0.2.9"),
    ] {
        let (address, len) = ours.split_once('/').unwrap();
        let router = ip(router);
        let routes = Routes::new(MAC, &[(ip(address), len.parse().unwrap())], &[router]).unwrap();
        let expected = Route {
            source: ip(address),
            next_hop: router,
        };
        assert_eq!(routes.route(ip(far)), Ok(expected), "{ours}");
        let to_it = routes.route(router).unwrap();
        assert_eq!(to_it.next_hop, router, "{ours}");
        assert!(routes.is_on_link(router), "it may answer");
    }
    let alone = Routes::new(MAC, &[(ip("10.156.0.18"), 32)], &[]).unwrap();
    assert_eq!(
        alone.route(ip("10.156.0.1")),
        Err(RouteError::NoRoute(ip("10.156.0.1")))
    );
}

#[test]
fn the_longest_prefix_of_addresses_and_routes_decides() {
    let through = |network: &str, prefix_len, router: Option<&str>| NetworkRoute {
        network: ip(network),
        prefix_len,
        router: router.map(ip),
    };
    let mut routes = routes(&[ip("10.77.0.1")]);
    // As Google's cloud lends them: the router is on the link by a route of its own.
    let leased = LeasedAddress {
        routes: vec![
            through("10.156.0.1", 32, None),
            through("0.0.0.0", 0, Some("10.156.0.1")),
            through("192.0.2.0", 24, Some("10.156.0.1")),
            through("10.77.0.128", 25, Some("10.156.0.1")),
            through("172.16.0.0", 12, None),
        ],
        ..LeasedAddress::new(ip("10.156.0.18"), 32)
    };
    routes.add(MAC, &leased).unwrap();
    for (destination, next_hop) in [
        ("8.8.8.8", "10.77.0.1"),
        ("192.0.2.9", "10.156.0.1"),
        ("10.156.0.1", "10.156.0.1"),
        ("10.77.0.9", "10.77.0.9"),
        ("10.77.0.200", "10.156.0.1"),
        ("172.17.1.1", "172.17.1.1"),
    ] {
        let route = routes.route(ip(destination)).unwrap();
        assert_eq!(route.next_hop, ip(next_hop), "{destination}");
    }
    routes.remove(ip("10.156.0.18"));
    assert_eq!(
        routes.route(ip("192.0.2.9")).unwrap().next_hop,
        ip("10.77.0.1")
    );
    let off_link = LeasedAddress {
        routes: vec![through("0.0.0.0", 0, Some("10.156.0.1"))],
        ..LeasedAddress::new(ip("10.9.0.2"), 24)
    };
    assert_eq!(
        routes.add(MAC, &off_link),
        Err(AddressError::GatewayOffLink {
            gateway: ip("10.156.0.1")
        })
    );
}

#[test]
fn a_deprecated_address_is_no_source_while_there_is_another() {
    let mut routes = Routes::new(MAC, &[(ip("10.0.0.1"), 24)], &[]).unwrap();
    let router = NetworkRoute::default_through(ip("fe80::1"));
    let old = LeasedAddress {
        is_deprecated: true,
        routes: vec![router],
        ..LeasedAddress::new(ip("2001:db8:1::5"), 64)
    };
    routes.add(MAC, &old).unwrap();
    let source = |routes: &Routes, to: &str| routes.route(ip(to)).unwrap().source;
    // The longest common prefix does not decide.
    assert_eq!(source(&routes, "2001:db8:1::9"), ip("2001:db8:1::5"));
    let live = LeasedAddress {
        routes: vec![router],
        ..LeasedAddress::new(ip("2001:db8:2::5"), 64)
    };
    routes.add(MAC, &live).unwrap();
    assert_eq!(source(&routes, "2001:db8:1::9"), ip("2001:db8:2::5"));
    assert!(routes.is_ours(ip("2001:db8:1::5")), "it can still be used");
}

#[test]
fn a_tentative_address_is_that_of_another_host() {
    let mut routes = routes(&[ip("10.77.0.1")]);
    routes.doubt_all();
    assert_eq!(routes.addresses().count(), 0);
    assert_eq!(routes.destination(ip("10.77.0.2")), Destination::Other);
    assert_eq!(
        routes.route(ip("8.8.8.8")),
        Err(RouteError::NoRoute(ip("8.8.8.8")))
    );
    assert!(!routes.may_bind(ip("10.77.0.2")));
    routes.trust(ip("10.77.0.2"));
    assert_eq!(routes.route(ip("8.8.8.8")).unwrap().source, ip("10.77.0.2"));
    assert_eq!(routes.addresses().count(), 1);
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
