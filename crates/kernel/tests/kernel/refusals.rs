//! Refusals of this machine's kernel: the message, and the attribute that it names.

use std::fmt::Display;
use std::net::IpAddr;
use std::os::fd::AsFd;

use crate::common::{in_kernel, in_kernel_as_root, veth_pair};
use devmem_linux::errors::CauseKind;
use devmem_linux::ethtool::{ChannelsChange, Ethtool};
use devmem_linux::netdev::{DriverSupport, KernelRxQueueId, Netdev, QueueKind};
use devmem_linux::netif::{self, Interface, NewNetkit};

/// Prints a refusal, for comparisons of two versions of this crate, and returns it.
fn refusal<T, E: Display>(result: Result<T, E>) -> String {
    let text = match result {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("refusal: {text}");
    text
}

#[test]
fn interface_requests_keep_the_kernels_message() {
    const TEST: &str = "refusals::interface_requests_keep_the_kernels_message";
    in_kernel(TEST, || {
        veth_pair("v0", "v1", 1);
        let mut veth = Interface::by_name("v0").unwrap();
        let four = IpAddr::from([192, 0, 2, 1]);
        let words = [
            (
                refusal(veth.set_mtu(70_000)),
                "mtu greater than device maximum",
            ),
            (refusal(veth.set_mtu(10)), "mtu less than device minimum"),
            (
                refusal(veth.add_address(four, 33)),
                "ipv4: Invalid prefix length",
            ),
            (
                refusal(Interface::create_veth_pair("v0", "v2")),
                "make veth pair v0 and v2: EEXIST",
            ),
            (refusal(veth.set_mac([1; 6])), "set MAC address of v0: "),
            (
                refusal(Interface::by_name("lo").unwrap().delete()),
                "delete lo: EOPNOTSUPP",
            ),
            (refusal(netif::route_interface(four)), ": ENETUNREACH"),
        ];
        for (said, expected) in words {
            assert!(said.contains(expected), "{said}");
        }
    });
}

#[test]
fn interface_requests_name_the_attribute() {
    const TEST: &str = "refusals::interface_requests_name_the_attribute";
    in_kernel(TEST, || {
        let name = refusal(Interface::by_name("a-name-that-no-interface-has"));
        assert!(name.contains("ERANGE"), "{name}");
        assert!(
            name.contains("(ifname)") || name.contains("attribute ifname"),
            "{name}"
        );
        let lo = Interface::by_name("lo").unwrap();
        let gone = std::fs::File::open("/dev/null").unwrap();
        refusal(lo.move_to(gone.as_fd()));
        refusal(Interface::by_name("lo").unwrap().set_gso_max_size(1));
    });
}

#[test]
fn netdev_requests_name_the_attribute() {
    const TEST: &str = "refusals::netdev_requests_name_the_attribute";
    in_kernel(TEST, || {
        veth_pair("v0", "v1", 1);
        Interface::by_name("v0").unwrap().set_up().unwrap();
        let mut veth = Netdev::by_name("v0").unwrap();
        refusal(veth.queue(QueueKind::Rx, 77));
        let counters = refusal(veth.queue_stats());
        assert!(
            counters.ends_with("(kernel: attribute ifindex is not accepted)"),
            "{counters}"
        );
    });
}

#[test]
fn bind_probes_name_the_attribute() {
    const TEST: &str = "refusals::bind_probes_name_the_attribute";
    in_kernel_as_root(TEST, || {
        use devmem_linux::netdev::{DriverSupport, KernelRxQueueId};
        let mut lo = Netdev::by_name("lo").unwrap();
        let fd = std::fs::File::open("/dev/null").unwrap();
        refusal(lo.bind_rx(fd.as_fd(), &[KernelRxQueueId(0)]));
        refusal(lo.bind_tx(fd.as_fd()));
        let none = lo.bind_rx(fd.as_fd(), &[]).unwrap_err();
        println!("refusal: {none} at {:?}", none.attribute);
        assert_eq!(none.attribute.as_deref(), Some("queues"));
        for support in [lo.probe_bind_rx(), lo.probe_bind_tx()] {
            println!("refusal: {support:?}");
            assert!(matches!(support, DriverSupport::No { .. }), "{support:?}");
        }
    });
}

#[test]
fn ethtool_requests_keep_message_and_attribute() {
    const TEST: &str = "refusals::ethtool_requests_keep_message_and_attribute";
    in_kernel(TEST, || {
        veth_pair("v0", "v1", 2);
        let mut veth = Ethtool::by_name("v0").unwrap();
        let to = |rx| ChannelsChange {
            rx: Some(rx),
            ..ChannelsChange::default()
        };
        let many = refusal(veth.set_channels(to(3)));
        assert!(many.contains("exceeds maximum (rx-count)"), "{many}");
        let unknown = refusal(veth.set_feature("no-such-feature", true));
        assert!(unknown.contains("(wanted.bits.bit.name)"), "{unknown}");
        refusal(veth.set_channels(to(0)));
        refusal(veth.rings());
        refusal(veth.rss());
        refusal(veth.rss_contexts());
        refusal(veth.set_rss_table(0, &[0, 1]));
    });
}

/// Features of newer kernels: without them, the refusal names the Linux that has them.
#[test]
fn what_this_kernel_is_too_old_for_is_named_with_the_linux_that_has_it() {
    const TEST: &str =
        "refusals::what_this_kernel_is_too_old_for_is_named_with_the_linux_that_has_it";
    in_kernel_as_root(TEST, || {
        veth_pair("v0", "v1", 2);
        let mut veth = Netdev::by_name("v0").unwrap();
        let sized = veth.probe_niov_size();
        println!("net_iovs of other sizes: {sized:?}");
        if let DriverSupport::No { reason } = &sized {
            assert!(reason.contains("Linux 7.3"), "{reason}");
            let nothing = std::fs::File::open("/dev/null").unwrap();
            let queues = [KernelRxQueueId(1)];
            let refused = veth.bind_rx_sized(nothing.as_fd(), &queues, Some(16384));
            let refused = refused.unwrap_err();
            assert_eq!(refused.cause.kind, CauseKind::KernelTooOld, "{refused}");
            assert!(refused.to_string().contains("Linux 7.3"), "{refused}");
        }
        assert!(!matches!(sized, DriverSupport::Unknown { .. }), "{sized:?}");
        let refused = veth.lease_queue_to(KernelRxQueueId(1), "v1").unwrap_err();
        println!("refusal: {refused}");
        if !veth.can_lease() {
            assert_eq!(refused.cause.kind, CauseKind::KernelTooOld, "{refused}");
            assert!(refused.to_string().contains("Linux 7.1"), "{refused}");
        }
        // A netkit can be made and removed since Linux 6.7.
        let new = NewNetkit {
            name: "nk0",
            peer: "nk0p",
            rx_queues: 2,
        };
        match Interface::create_netkit(&new) {
            Ok((primary, _peer)) => {
                let netkits = netif::netkits().unwrap().into_iter();
                let mut names: Vec<_> = netkits.map(|(_, name)| name).collect();
                names.sort_unstable();
                assert_eq!(names, ["nk0", "nk0p"]);
                let again = refusal(Interface::create_netkit(&new));
                assert!(again.contains("EEXIST"), "{again}");
                primary.delete().unwrap();
                assert_eq!(netif::netkits().unwrap(), []);
            }
            Err(error) => println!("SKIP netkit: {error}"),
        }
    });
}

#[test]
fn a_route_without_a_router_leads_through_its_interface() {
    const TEST: &str = "refusals::a_route_without_a_router_leads_through_its_interface";
    in_kernel(TEST, || {
        veth_pair("v0", "v1", 1);
        let mut veth = Interface::by_name("v0").unwrap();
        let pod = IpAddr::from([10, 99, 0, 9]);
        let far: IpAddr = "fd99::9".parse().unwrap();
        veth.set_up().unwrap();
        Interface::by_name("v1").unwrap().set_up().unwrap();
        for (address, prefix) in [(pod, 32), (far, 128)] {
            veth.add_route(address, prefix).unwrap();
            veth.add_route(address, prefix).unwrap();
            assert_eq!(netif::route_interface(address).as_deref(), Ok("v0"));
        }
        let anywhere = IpAddr::from([192, 0, 2, 1]);
        veth.add_default_route(anywhere).unwrap();
        assert_eq!(netif::route_interface(anywhere).as_deref(), Ok("v0"));
    });
}
