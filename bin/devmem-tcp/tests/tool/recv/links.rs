//! Links: TAPs of several queues, packet sockets, macvtaps, addresses from the network.

use super::*;

/// Makes a persistent interface of the TUN driver by ip(8).
fn tuntap(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(["tuntap", "add"]).args(arguments.split(' '));
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_tap_of_several_queues_works_with_one_and_other_interfaces_are_named() {
    const TEST: &str =
        "recv::links::a_tap_of_several_queues_works_with_one_and_other_interfaces_are_named";
    if !has(TEST, "ip") {
        return;
    }
    in_netns(TEST, || {
        assert!(tuntap("name dm0 mode tap multi_queue"));
        let recv = start_recv("-v 7 --json");
        send(recv_addr(), &repeating(7, 0, 700_000));
        assert_all_right(&recv.finish().json(), 700_000);

        assert!(tuntap("name one mode tap") && tuntap("name tun mode tun"));
        for (line, text) in [
            (
                "recv --link tap:one --shards 4",
                "one is a TAP with one queue, and 4 were requested; use one queue (--shards 1), or make the TAP with several: \
                 ip tuntap add NAME mode tap multi_queue",
            ),
            (
                "recv --link tap:tun",
                "tun is a TUN, which has no Ethernet frames; name another interface, or make it as a TAP",
            ),
            (
                "recv --link tap:lo",
                "lo exists and is not a TAP; name another interface",
            ),
        ] {
            crate::common::run(line).failed_with(1, text);
        }
    });
}

#[test]
fn a_packet_link_receives_and_ends_when_its_interface_is_removed() {
    in_netns(
        "recv::links::a_packet_link_receives_and_ends_when_its_interface_is_removed",
        || {
            let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
            near.set_up().unwrap();
            far.set_mtu(1400).unwrap();
            far.set_up().unwrap();
            near.add_address([10, 77, 0, 1].into(), 24).unwrap();
            let options = "--link packet:far,mac=02:00:00:00:00:77 --addr 10.77.0.2/24 --json";
            let mut recv = start(&format!("recv --mem-size 32M {options} -l -v 7"));
            recv.until("listening on");
            send(recv_addr(), &repeating(7, 0, 7_000_000));
            let json = recv.finish().json();
            assert_all_right(&json, 7_000_000);
            assert_eq!(json["link"], "packet:far");
            assert_eq!(json["mtu"], 1400, "that of the interface");

            let mut recv = start(&format!("recv --mem-size 32M {options} -l"));
            recv.until("listening on");
            near.delete().unwrap();
            recv.finish()
                .failed_with(1, "the interface of packet:far was removed");
        },
    );
}

#[test]
fn shards_of_a_packet_link_divide_the_connections_and_the_report_tells_how() {
    in_netns(
        "recv::links::shards_of_a_packet_link_divide_the_connections_and_the_report_tells_how",
        || {
            const CONNECTIONS: usize = 16;
            const BYTES: usize = 500_000;
            let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
            near.set_up().unwrap();
            far.set_up().unwrap();
            near.add_address([10, 77, 0, 1].into(), 24).unwrap();
            let options = "--link packet:far --addr 10.77.0.2/24 --json -v 7 --shards 2";
            let mut recv = start(&format!(
                "recv --mem-size 32M {options} --connections {CONNECTIONS}"
            ));
            recv.until("listening on");
            for _ in 0..CONNECTIONS {
                send(recv_addr(), &repeating(7, 0, BYTES));
            }
            let ended = recv.finish();
            assert!(
                ended.stderr.contains("shards  2, with "),
                "{}",
                ended.stderr
            );
            let json = ended.json();
            assert_all_right(&json, (CONNECTIONS * BYTES) as u64);
            let of_shard = |shard: usize| json["shards"][shard]["bytes"].as_u64();
            let shards = [of_shard(0), of_shard(1), of_shard(2)];
            assert!(
                matches!(shards, [Some(1..), Some(1..), None]),
                "{shards:?} bytes"
            );
            assert_eq!(json["crossed_frames"], 0);
        },
    );
}

#[test]
fn a_macvtap_link_receives_and_leaves_nothing_behind_when_the_receiver_is_killed() {
    const TEST: &str = "recv::links::a_macvtap_link_receives_and_leaves_nothing_behind_when_the_receiver_is_killed";
    in_netns(TEST, || {
        if let Err(error) = macvtap::try_open() {
            return skip(TEST, "macvtap", &error.to_string());
        }
        let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
        near.set_up().unwrap();
        far.set_up().unwrap();
        near.add_address([10, 77, 0, 1].into(), 24).unwrap();
        // In mode passthru there can be no other macvtap interface, so a second run shows that the first one's has gone.
        let options = "--link macvtap:far,mode=passthru --addr 10.77.0.2/24 --json";
        let mut recv = start(&format!("recv --mem-size 32M {options} -l -v 7"));
        recv.until("listening on");
        let busy = run(&format!("recv {options} -l"));
        assert!(busy.stderr.contains("`ip -d link`"), "{}", busy.stderr);
        signal(&recv, Signal::KILL);
        assert_eq!(recv.finish().code, None);
        let only_one = MacvtapOptions {
            mode: Some(MacvtapMode::Passthru),
            ..MacvtapOptions::new("far")
        };
        let begin = Instant::now();
        // The kernel removes the namespace of the interface a little later.
        while only_one.open().is_err() {
            assert!(begin.elapsed() < LIMIT, "the interface stays");
            thread::sleep(Duration::from_millis(10));
        }
        let mut recv = start(&format!("recv --mem-size 32M {options} -l -v 7"));
        recv.until("listening on");
        send(recv_addr(), &repeating(7, 0, 7_000_000));
        let json = recv.finish().json();
        assert_all_right(&json, 7_000_000);
        assert_eq!(json["link"], "macvtap:far");
    });
}

#[test]
fn a_receiver_gets_its_address_from_a_dhcp_server() {
    const TEST: &str = "recv::links::a_receiver_gets_its_address_from_a_dhcp_server";
    in_netns(TEST, || {
        if !has(TEST, "dnsmasq") {
            return;
        }
        let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
        near.set_up().unwrap();
        far.set_up().unwrap();
        near.add_address([10, 77, 0, 1].into(), 24).unwrap();
        let mut server = Command::new("dnsmasq")
            .args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0"])
            .args(["--interface=near", "--bind-interfaces", "--user=root"])
            .args(["--dhcp-authoritative", "--no-ping", "--leasefile-ro"])
            .args(["--dhcp-range=10.77.0.60,10.77.0.60,255.255.255.0,2m"])
            .args(["--pid-file=", "--log-facility=/dev/null"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut recv = start("recv --mem-size 32M --link packet:far --addr auto --json -l -v 7");
        recv.until("address of this NIC: 10.77.0.60");
        let to = "10.77.0.60:5201".parse().unwrap();
        send(to, &repeating(7, 0, 7_000_000));
        let json = recv.finish().json();
        server.kill().unwrap();
        server.wait().unwrap();
        assert_all_right(&json, 7_000_000);
    });
}

#[test]
fn on_a_network_that_has_only_a_router_a_receiver_listens_on_the_addresses_that_it_prints() {
    const TEST: &str = "recv::links::on_a_network_that_has_only_a_router_a_receiver_listens_on_the_addresses_that_it_prints";
    in_netns(TEST, || {
        if !has(TEST, "radvd") {
            return;
        }
        let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
        far.quiet_ipv6();
        near.set_up().unwrap();
        far.set_up().unwrap();
        for (address, prefix) in [("fe80::1", 64), ("2001:db8:1::1", 64)] {
            near.add_address(address.parse().unwrap(), prefix).unwrap();
        }
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let config = "interface near { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; \
                      prefix 2001:db8:7::/64 { AdvValidLifetime 0; AdvPreferredLifetime 0; }; \
                      prefix 2001:db8:1::/64 { AdvValidLifetime 1800; AdvPreferredLifetime 900; }; };";
        std::fs::write(path("radvd.conf"), config).unwrap();
        let mut router = Command::new("radvd")
            .args(["--nodaemon", "--logmethod", "none", "--config"])
            .arg(path("radvd.conf"))
            .arg("--pidfile")
            .arg(path("radvd.pid"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let link = "packet:far,mac=02:00:00:aa:bb:cc";
        let mut recv = start(&format!(
            "recv --mem-size 32M --link {link} --addr auto --json -l -v 7"
        ));
        recv.until("listening on [::]:5201");
        recv.until("address of this NIC: 2001:db8:1::ff:feaa:bbcc");
        let to = "[2001:db8:1::ff:feaa:bbcc]:5201".parse().unwrap();
        send(to, &repeating(7, 0, 7_000_000));
        let json = recv.finish().json();
        router.kill().unwrap();
        router.wait().unwrap();
        assert_all_right(&json, 7_000_000);
        assert_eq!(json["ip_version"], 6);
    });
}

#[test]
fn after_a_killed_receiver_the_kernel_answers_the_shared_ports_again() {
    in_netns(
        "recv::links::after_a_killed_receiver_the_kernel_answers_the_shared_ports_again",
        || {
            let peers = NetNs::current().unwrap();
            // A new network namespace with the receiver's kernel, as another machine.
            let work = || {
                netns::enter_new().unwrap();
                let (near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
                near.move_to(peers.as_fd()).unwrap();
                far.set_up().unwrap();
                far.add_address([10, 77, 0, 2].into(), 24).unwrap();
                let near_up = || {
                    let mut near = Interface::by_name("near").unwrap();
                    near.set_up().unwrap();
                    near.add_address([10, 77, 0, 1].into(), 24).unwrap();
                };
                peers.run(near_up).unwrap();
                let link = "--link packet:far,ports=5201-5202 --addr 10.77.0.2/24";
                let mut recv = start(&format!("recv --mem-size 32M {link} -l -v 7"));
                recv.until("listening on");
                let taken = TcpListener::bind("10.77.0.2:5202").unwrap_err();
                assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
                let connecting = || connect(recv_addr());
                let mut stream = peers.run(connecting).unwrap();
                stream.write_all(&repeating(7, 0, 700_000)).unwrap();
                signal(&recv, Signal::KILL);
                assert_eq!(recv.finish().code, None);
                let listener = TcpListener::bind("10.77.0.2:5201").unwrap();
                let connected = peers.run(connecting).unwrap();
                let (_, from) = listener.accept().unwrap();
                assert_eq!(from, connected.local_addr().unwrap());
            };
            thread::scope(|scope| scope.spawn(work).join().unwrap());
        },
    );
}

#[test]
fn a_tap_in_use_is_named_with_a_remedy() {
    in_netns("recv::links::a_tap_in_use_is_named_with_a_remedy", || {
        let first = start_recv("-k --json");
        let second = crate::common::run("recv --peer-addr 10.77.0.1/24");
        second.failed_with(
            1,
            "TAP dm0 is in use by another process; stop the other process",
        );
        signal(&first, Signal::TERM);
        assert_eq!(first.finish().json()["bytes"], 0);
    });
}
