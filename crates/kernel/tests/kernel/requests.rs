//! Tests of this machine's kernel without a NIC that supports device memory: refusals, and requests on a veth and a TAP.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;

use crate::common::{in_kernel, in_kernel_as_root, veth_pair};
use devmem_linux::errors::CauseKind;
use devmem_linux::ethtool::{
    ChannelsChange, DataSplit, Ethtool, NTUPLE, RingsChange, RuleAction, TcpFlow,
};
use devmem_linux::netdev::{DriverSupport, KernelRxQueueId, Netdev, QueueKind};
use devmem_linux::netif::{self, Interface};
use devmem_linux::tap::TapOptions;
use devmem_linux::test_util::{GuestHas, skip_outside_guest};
use devmem_uapi::{Errno, IfIndex};
use rustix::io::Errno as RawErrno;

/// An open descriptor that is not a dma-buf.
fn no_dmabuf() -> File {
    File::open("/dev/null").unwrap()
}

/// A veth with four RX and four TX queues, up.
fn veth() -> Netdev {
    veth_pair("v0", "v1", 4);
    for name in ["v0", "v1"] {
        Interface::by_name(name).unwrap().set_up().unwrap();
    }
    Netdev::by_name("v0").unwrap()
}

#[test]
fn bind_rx_on_the_loopback_is_refused_for_its_driver() {
    const TEST: &str = "requests::bind_rx_on_the_loopback_is_refused_for_its_driver";
    in_kernel_as_root(TEST, || {
        let mut lo = Netdev::by_name("lo").unwrap();
        let error = lo
            .bind_rx(no_dmabuf().as_fd(), &[KernelRxQueueId(0)])
            .unwrap_err();
        assert_eq!(error.errno, Errno::EOPNOTSUPP, "{error}");
        assert_eq!(error.cause.kind, CauseKind::DriverCannot);
        let text = error.to_string();
        assert!(
            text.starts_with("bind-rx on lo queue 0 refused: EOPNOTSUPP: "),
            "{text}"
        );
        assert!(error.cause.hint.as_ref().unwrap().contains("mlx5_core"));
    });
}

#[test]
fn bind_rx_on_a_veth_names_the_driver() {
    const TEST: &str = "requests::bind_rx_on_a_veth_names_the_driver";
    in_kernel_as_root(TEST, || {
        let mut veth = veth();
        let queues = [KernelRxQueueId(1), KernelRxQueueId(2)];
        let error = veth.bind_rx(no_dmabuf().as_fd(), &queues).unwrap_err();
        assert_eq!(error.errno, Errno::EOPNOTSUPP, "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("bind-rx on v0 queues 1, 2 refused: "),
            "{text}"
        );
        assert!(text.contains("(veth)"), "{text}");
    });
}

#[test]
fn bind_without_queues_is_einval_and_names_the_attribute() {
    const TEST: &str = "requests::bind_without_queues_is_einval_and_names_the_attribute";
    in_kernel_as_root(TEST, || {
        let mut lo = Netdev::by_name("lo").unwrap();
        let error = lo.bind_rx(no_dmabuf().as_fd(), &[]).unwrap_err();
        assert_eq!(error.errno, Errno::EINVAL, "{error}");
        assert_eq!(error.cause.kind, CauseKind::BadQueue);
        assert_eq!(error.attribute.as_deref(), Some("queues"));
    });
}

#[test]
fn an_unsupported_net_iov_size_is_named() {
    const TEST: &str = "requests::an_unsupported_net_iov_size_is_named";
    in_kernel_as_root(TEST, || {
        let mut lo = Netdev::by_name("lo").unwrap();
        let fd = no_dmabuf();
        // Not a power of two, which no kernel accepts; older kernels do not have the attribute.
        let error = lo
            .bind_rx_sized(fd.as_fd(), &[KernelRxQueueId(0)], Some(4097))
            .unwrap_err();
        // A kernel with the attribute may check the driver first.
        if error.errno != Errno::EOPNOTSUPP {
            assert_eq!(error.errno, Errno::EINVAL, "{error}");
            let knows = error
                .kernel
                .as_deref()
                .is_some_and(|text| text.contains("power of 2"));
            let (kind, words) = match knows {
                true => (CauseKind::DmabufGeometry, "a power of two"),
                false => (CauseKind::KernelTooOld, "Linux 7.3"),
            };
            assert_eq!(error.cause.kind, kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    });
}

#[test]
fn bind_to_an_unknown_ifindex_is_enodev() {
    const TEST: &str = "requests::bind_to_an_unknown_ifindex_is_enodev";
    in_kernel_as_root(TEST, || {
        let mut gone = Netdev::with_index("gone0", IfIndex(4242)).unwrap();
        let fd = no_dmabuf();
        let rx = gone.bind_rx(fd.as_fd(), &[KernelRxQueueId(1)]).unwrap_err();
        assert_eq!(
            (rx.errno, rx.cause.kind),
            (Errno::ENODEV, CauseKind::NoDevice)
        );
        assert_eq!(rx.cause.message, "there is no gone0");
        let tx = gone.bind_tx(fd.as_fd()).unwrap_err();
        assert_eq!(
            (tx.errno, tx.cause.kind),
            (Errno::ENODEV, CauseKind::NoDevice)
        );
        assert_eq!(gone.queues().unwrap_err().errno, RawErrno::NODEV);
    });
}

#[test]
fn bind_tx_on_an_unsupported_driver_keeps_the_kernels_message() {
    const TEST: &str = "requests::bind_tx_on_an_unsupported_driver_keeps_the_kernels_message";
    in_kernel(TEST, || {
        let error = veth().bind_tx(no_dmabuf().as_fd()).unwrap_err();
        assert_eq!(error.errno, Errno::EOPNOTSUPP, "{error}");
        let words = error.kernel.as_deref();
        assert_eq!(words, Some("Driver does not support netmem TX"));
        assert_eq!(error.cause.kind, CauseKind::DriverCannot);
    });
}

#[test]
fn bind_without_privilege_names_the_privilege() {
    const TEST: &str = "requests::bind_without_privilege_names_the_privilege";
    in_kernel_as_root(TEST, || {
        // Changes the user, and so drops the capabilities, of this thread only, which ends with the test.
        let nobody = rustix::process::Uid::from_raw(65534);
        let dropped = rustix::thread::set_thread_res_uid(nobody, nobody, nobody);
        if let Err(errno) = dropped {
            // In a namespace that maps only one user, there is no other user.
            return skip_outside_guest(TEST, GuestHas::Kernel, &errno.to_string());
        }
        let mut lo = Netdev::by_name("lo").unwrap();
        let error = lo
            .bind_rx(no_dmabuf().as_fd(), &[KernelRxQueueId(0)])
            .unwrap_err();
        assert_eq!(
            (error.errno, error.cause.kind),
            (Errno::EPERM, CauseKind::NotPermitted)
        );
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        assert!(matches!(lo.probe_bind_rx(), DriverSupport::Unknown { .. }));
        // Binding for sending needs no privilege, so the driver refuses it.
        let error = lo.bind_tx(no_dmabuf().as_fd()).unwrap_err();
        assert_eq!(error.errno, Errno::EOPNOTSUPP, "{error}");
    });
}

#[test]
fn a_probe_reports_an_unsupported_driver_and_changes_nothing() {
    const TEST: &str = "requests::a_probe_reports_an_unsupported_driver_and_changes_nothing";
    in_kernel_as_root(TEST, || {
        let mut veth = veth();
        let before = veth.queues().unwrap();
        let no = |support| matches!(support, DriverSupport::No { .. });
        assert!(no(veth.probe_bind_rx()) && no(veth.probe_bind_tx()));
        assert_eq!(veth.queues().unwrap(), before);
    });
}

#[test]
fn queues_are_listed_and_read_one_by_one() {
    const TEST: &str = "requests::queues_are_listed_and_read_one_by_one";
    in_kernel(TEST, || {
        let mut veth = veth();
        let queues = veth.queues().unwrap();
        assert_eq!(queues.len(), 8);
        assert!(queues.iter().all(|queue| queue.user.is_none()));
        let expected: Vec<_> = (0..4).map(|id| (KernelRxQueueId(id), None)).collect();
        assert_eq!(veth.rx_queues().unwrap(), expected);
        for queue in queues {
            assert_eq!(veth.queue(queue.kind, queue.id).unwrap(), queue);
        }
        let error = veth.queue(QueueKind::Rx, 77).unwrap_err();
        assert_eq!(error.errno, RawErrno::INVAL, "{error}");
        Interface::by_name("v0").unwrap().set_down().unwrap();
        assert_eq!(veth.queues().unwrap(), []);
    });
}

#[test]
fn statistics_that_a_driver_does_not_have_are_empty_or_unsupported() {
    const TEST: &str = "requests::statistics_that_a_driver_does_not_have_are_empty_or_unsupported";
    in_kernel(TEST, || {
        let mut veth = veth();
        // The page pools of a veth have no netdev (linux drivers/net/veth.c veth_create_page_pool).
        assert_eq!(veth.page_pools().unwrap(), []);
        // Only kernels with CONFIG_PAGE_POOL_STATS have these counters.
        match veth.page_pool_stats() {
            Ok(stats) => assert_eq!(stats, []),
            Err(error) => assert_eq!(error.errno, RawErrno::OPNOTSUPP, "{error}"),
        }
        for refusal in [veth.queue_stats().map(drop), veth.total_stats().map(drop)] {
            let error = refusal.unwrap_err();
            assert_eq!(error.errno, RawErrno::OPNOTSUPP, "{error}");
            assert_eq!(error.attribute.unwrap().path, "ifindex");
        }
        assert_ne!(veth.xdp_features().unwrap(), 0, "a veth supports XDP");
    });
}

#[test]
fn channels_are_read_changed_and_bounded() {
    const TEST: &str = "requests::channels_are_read_changed_and_bounded";
    in_kernel(TEST, || {
        let veth = veth();
        let mut ethtool = Ethtool::by_name(veth.name()).unwrap();
        let before = ethtool.channels().unwrap();
        assert_eq!((before.rx, before.rx_max, before.rx_queues()), (4, 4, 4));
        let to = |rx| ChannelsChange {
            rx: Some(rx),
            ..ChannelsChange::default()
        };
        ethtool.set_channels(to(2)).unwrap();
        assert_eq!(ethtool.channels().unwrap().rx, 2);
        ethtool.set_channels(to(4)).unwrap();
        assert_eq!(ethtool.channels().unwrap(), before);
        let error = ethtool.set_channels(to(5)).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EINVAL));
        let text = error.to_string();
        assert!(
            text.contains("exceeds maximum") && text.contains("rx-count"),
            "{text}"
        );
    });
}

#[test]
fn features_are_read_and_switched_by_name() {
    const TEST: &str = "requests::features_are_read_and_switched_by_name";
    in_kernel(TEST, || {
        let veth = veth();
        let mut ethtool = Ethtool::by_name(veth.name()).unwrap();
        let gro = |ethtool: &mut Ethtool| ethtool.feature("rx-gro").unwrap().unwrap();
        assert!(gro(&mut ethtool).changeable && !gro(&mut ethtool).active);
        ethtool.set_feature("rx-gro", true).unwrap();
        assert!(gro(&mut ethtool).wanted && gro(&mut ethtool).active);
        ethtool.set_feature("rx-gro", false).unwrap();
        assert!(!gro(&mut ethtool).wanted && !gro(&mut ethtool).active);
        let ntuple = ethtool.feature(NTUPLE).unwrap().unwrap();
        assert!(!ntuple.changeable && !ntuple.active);
        assert_eq!(ethtool.feature("no-such-feature").unwrap(), None);
        let error = ethtool.set_feature("no-such-feature", true).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        assert!(
            error.to_string().contains("wanted.bits.bit.name"),
            "{error}"
        );
    });
}

#[test]
fn unsupported_settings_have_the_kernels_message() {
    const TEST: &str = "requests::unsupported_settings_have_the_kernels_message";
    in_kernel(TEST, || {
        let veth = veth();
        let mut ethtool = Ethtool::by_name(veth.name()).unwrap();
        assert_eq!(ethtool.driver().unwrap().driver, "veth");
        let split = RingsChange {
            data_split: Some(DataSplit::Enabled),
            hds_thresh: Some(0),
            ..RingsChange::default()
        };
        let error = ethtool.set_rings(split).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        assert!(error.to_string().contains("TCP data split"), "{error}");
        let flow = TcpFlow {
            ipv6: false,
            source: None,
            source_port: None,
            destination: None,
            destination_port: Some(5201),
        };
        let queue = RuleAction::Queue(KernelRxQueueId(1));
        let refusals = [
            ethtool.rss().map(drop),
            ethtool.set_rss_table(0, &[0, 1]),
            ethtool.reset_rss_table(),
            ethtool.create_rss_context(&[1]).map(drop),
            ethtool.delete_rss_context(1),
            ethtool.rule_table().map(drop),
            ethtool.rules().map(drop),
            ethtool.rule(0).map(drop),
            ethtool.insert_rule(&flow, queue).map(drop),
            ethtool.delete_rule(0),
        ];
        for (i, refusal) in refusals.into_iter().enumerate() {
            let error = refusal.unwrap_err();
            assert!(error.is_unsupported(), "{i}: {error}");
        }
    });
}

#[test]
fn an_interface_lists_its_addresses_and_no_others() {
    const TEST: &str = "requests::an_interface_lists_its_addresses_and_no_others";
    in_kernel(TEST, || {
        veth_pair("v0", "v1", 1);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let given = [
            ("v0", ip("192.0.2.1"), 24),
            ("v0", ip("2001:db8::1"), 64),
            ("v1", ip("198.51.100.1"), 24),
        ];
        for (name, address, prefix) in given {
            let mut interface = Interface::by_name(name).unwrap();
            interface.quiet_ipv6();
            match interface.add_address(address, prefix) {
                Err(error) if address.is_ipv6() => {
                    return skip_outside_guest(TEST, GuestHas::Kernel, &error.to_string());
                }
                other => other.unwrap(),
            }
        }
        for name in ["v0", "v1"] {
            let index = Interface::by_name(name).unwrap().index();
            let of_it = given.iter().filter(|(of, ..)| *of == name);
            let expected: Vec<_> = of_it.map(|(_, address, _)| *address).collect();
            assert_eq!(netif::addresses(index).unwrap(), expected, "{name}");
        }
        let gone = netif::addresses(4242).unwrap_err();
        assert_eq!(gone.errno, RawErrno::NODEV, "{gone}");
    });
}

#[test]
fn a_renamed_interface_is_still_found() {
    const TEST: &str = "requests::a_renamed_interface_is_still_found";
    in_kernel(TEST, || {
        let veth = veth();
        let mut ethtool = Ethtool::by_name("v0").unwrap();
        crate::common::rename(veth.index().0, "renamed0");
        assert_eq!(ethtool.driver().unwrap().driver, "veth", "by ioctl");
        assert_eq!(ethtool.channels().unwrap().rx, 4, "by netlink");
        Interface::by_name("v1").unwrap().delete().unwrap();
        let error = ethtool.driver().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENODEV), "{error}");
    });
}

#[test]
fn the_doctor_names_the_missing_features_of_a_tap_and_a_veth() {
    use devmem_linux::doctor::{CheckState, Doctor, NicVerdict};
    const TEST: &str = "requests::the_doctor_names_the_missing_features_of_a_tap_and_a_veth";
    in_kernel_as_root(TEST, || {
        let _veth = veth();
        let _tap = TapOptions::new("dm0").open().unwrap();
        for (name, driver) in [("v0", "veth"), ("dm0", "tun")] {
            let doctor = Doctor::examine(Some(name)).unwrap();
            let [nic] = &doctor.nics[..] else {
                panic!("{:?}", doctor.nics);
            };
            assert_eq!(nic.driver.as_ref().unwrap().driver, driver);
            assert_eq!(nic.known.unwrap().name, driver);
            assert_eq!(nic.verdict, NicVerdict::Unsupported);
            assert!(!doctor.can_receive());
            let state = |name: &str| nic.checks.iter().find(|c| c.name == name).unwrap().state;
            assert_eq!(state("bind_rx"), CheckState::Missing);
            assert_eq!(state("tcp_data_split"), CheckState::Missing);
            assert_eq!(state("xdp"), CheckState::Good);
        }
    });
}
