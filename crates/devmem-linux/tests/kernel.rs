mod common;
use devmem_linux::ethtool::*;
use devmem_linux::netdev::{Netdev, RxQueueId};
use devmem_linux::netif::Interface;
use devmem_linux::test_util::in_netns;
use std::os::fd::AsFd;
#[test]
fn explore() {
    in_netns("explore", || {
        common::veth_pair("v0", "v1", 4);
        for n in ["v0", "v1"] {
            Interface::by_name(n).unwrap().set_up().unwrap();
        }
        let fd = std::fs::File::open("/dev/null").unwrap();
        for name in ["lo", "v0"] {
            let mut n = Netdev::by_name(name).unwrap();
            println!(
                "{name} {:?}",
                n.bind_rx(fd.as_fd(), &[RxQueueId(1)])
                    .map_err(|e| format!("{e}\n{:?}", e))
            );
            println!(
                "{name} {:?}",
                n.bind_rx(fd.as_fd(), &[]).map_err(|e| e.to_string())
            );
            println!(
                "{name} {:?}",
                n.bind_tx(fd.as_fd()).map_err(|e| e.to_string())
            );
            println!("probe {:?} {:?}", n.probe_bind_rx(), n.probe_bind_tx());
            println!("{:?}", n.queues());
            println!(
                "{:?}",
                n.queue(devmem_linux::netdev::QueueKind::Rx, 77)
                    .map_err(|e| e.to_string())
            );
            println!("{:?}", n.page_pools());
            println!("{:?}", n.page_pool_stats().map_err(|e| e.to_string()));
            println!("{:?}", n.queue_stats().map_err(|e| e.to_string()));
            println!("{:?}", n.total_stats().map_err(|e| e.to_string()));
            println!("{:?}", n.xdp_features());
            let mut e = Ethtool::by_name(name).unwrap();
            println!("{:?}", e.driver().map_err(|e| e.to_string()));
            println!("{:?}", e.rings().map_err(|e| e.to_string()));
            println!(
                "{:?}",
                e.set_rings(RingsChange {
                    data_split: Some(DataSplit::Enabled),
                    hds_thresh: Some(0),
                    rx: None
                })
                .map_err(|e| e.to_string())
            );
            println!("{:?}", e.channels().map_err(|e| e.to_string()));
            println!(
                "{:?}",
                e.set_channels(ChannelsChange {
                    rx: Some(2),
                    ..Default::default()
                })
                .map_err(|e| e.to_string())
            );
            println!("{:?}", e.channels().map_err(|e| e.to_string()));
            println!(
                "{:?}",
                e.set_channels(ChannelsChange {
                    rx: Some(200),
                    ..Default::default()
                })
                .map_err(|e| e.to_string())
            );
            println!("{:?}", e.feature(NTUPLE));
            println!("{:?}", e.feature("rx-gro-list"));
            println!(
                "{:?}",
                e.features()
                    .unwrap()
                    .iter()
                    .filter(|f| f.changeable && !f.fixed)
                    .map(|f| (f.name.as_str(), f.active))
                    .collect::<Vec<_>>()
            );
            println!(
                "{:?}",
                e.set_feature(NTUPLE, true).map_err(|e| e.to_string())
            );
            println!(
                "{:?}",
                e.set_feature("no-such", true).map_err(|e| e.to_string())
            );
            println!("{:?}", e.rss().map_err(|e| e.to_string()));
            println!("{:?}", e.rss_contexts().map_err(|e| e.to_string()));
            println!("{:?}", e.set_rss_table(0, &[0]).map_err(|e| e.to_string()));
            println!("{:?}", e.reset_rss_table().map_err(|e| e.to_string()));
            println!(
                "{:?}",
                e.create_rss_context(&[0]).map_err(|e| e.to_string())
            );
            println!("{:?}", e.delete_rss_context(4).map_err(|e| e.to_string()));
            println!("{:?}", e.rule_table().map_err(|e| e.to_string()));
            println!("{:?}", e.rules().map_err(|e| e.to_string()));
            println!("{:?}", e.rule(3).map_err(|e| e.to_string()));
        }
        let mut n = Netdev::with_index("gone", devmem_uapi::IfIndex(4242)).unwrap();
        println!(
            "{:?}",
            n.bind_rx(fd.as_fd(), &[RxQueueId(1)])
                .map_err(|e| e.to_string())
        );
        println!("{:?}", n.bind_tx(fd.as_fd()).map_err(|e| e.to_string()));
        println!("{:?}", n.queues());
    });
}
