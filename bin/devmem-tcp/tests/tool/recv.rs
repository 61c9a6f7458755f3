//! `devmem-tcp recv` with kernel sockets as peers. Each test has a separate network namespace.

mod lines;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    LIMIT, Running, assert_all_right, assert_everything_home, assert_nothing_dropped, comments,
    connect, hang_up, recv_addr, repeating, run, start, start_recv,
};
use devmem_linux::macvtap::{self, MacvtapMode, MacvtapOptions};
use devmem_linux::netif::Interface;
use devmem_linux::netns::{self, NetNs};
use devmem_linux::test_util::{in_netns, skip, wait_or_kill};
use rustix::process::{Signal, kill_process};
use tool::stock;

/// Sends `bytes` over a kernel socket and ends the stream.
#[track_caller]
fn send(to: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(to);
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    read_to_end(&mut stream);
}

/// Waits until the peer has ended the stream.
fn read_to_end(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "the receiver sends nothing");
}

fn signal(running: &Running, signal: Signal) {
    kill_process(running.pid(), signal).unwrap();
}

/// Returns whether `command` can be run; if not, prints that the test is skipped.
fn has(test: &str, command: &str) -> bool {
    // It is not run: to dnsmasq, -h is no question but an option, and a server would stay behind.
    let is_here = stock::path_of(command).is_some();
    if !is_here {
        skip(test, command, &format!("there is no {command} here"));
    }
    is_here
}

#[test]
fn the_pipeline_of_ncdevmem_is_validated_byte_for_byte() {
    const TEST: &str = "recv::the_pipeline_of_ncdevmem_is_validated_byte_for_byte";
    const BYTES: u64 = 256 << 20;
    in_netns(TEST, || {
        if !has(TEST, "bash") || !has(TEST, "nc") {
            return;
        }
        let recv = start_recv("-p 5201 -v 7 --json");
        // -N makes the OpenBSD netcat end the stream after the input; other versions do so anyway, or have -q.
        let pipeline = format!(
            r"N=$(nc -h 2>&1 | grep -q -- -N && echo -N || echo -q0)
              yes $(echo -e \\x01\\x02\\x03\\x04\\x05\\x06) | tr \\n \\0 | head -c {BYTES} |
              nc $N 10.77.0.2 5201"
        );
        let mut sender = Command::new("bash")
            .args(["-c", &pipeline])
            .spawn()
            .unwrap();
        let json = recv.finish().json();
        assert!(wait_or_kill(&mut sender, LIMIT).is_some());
        assert_all_right(&json, BYTES);
        assert_eq!(json["device_bytes"], BYTES);
    });
}

#[test]
fn a_wrong_byte_fails_the_run_and_its_position_is_named() {
    in_netns(
        "recv::a_wrong_byte_fails_the_run_and_its_position_is_named",
        || {
            let recv = start_recv("-v 7");
            let mut stream = repeating(7, 0, 1_000_000);
            stream[777_777] ^= 1;
            send(recv_addr(), &stream);
            recv.finish().failed_with(
                1,
                "1 bytes are wrong, the first at byte 777777 of its stream",
            );
        },
    );
}

#[test]
fn newline_or_nul_in_the_zero_position_is_accepted_but_not_both() {
    in_netns(
        "recv::newline_or_nul_in_the_zero_position_is_accepted_but_not_both",
        || {
            let recv = start_recv("-v 7 --json");
            send(recv_addr(), &repeating(7, b'\n', 100_000));
            assert_all_right(&recv.finish().json(), 100_000);

            let recv = start_recv("-v 7");
            let both = [repeating(7, b'\n', 7000), repeating(7, 0, 70)].concat();
            send(recv_addr(), &both);
            recv.finish()
                .failed_with(1, "10 bytes are wrong, the first at byte 7006");
        },
    );
}

#[test]
fn the_payload_goes_to_a_file_or_to_stdout() {
    in_netns("recv::the_payload_goes_to_a_file_or_to_stdout", || {
        let payload: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("payload");
        let recv = start_recv(&format!("--json -o {}", file.display()));
        send(recv_addr(), &payload);
        let json = recv.finish().json();
        assert_eq!(json["bytes"], payload.len());
        assert_eq!(
            json["verified_bytes"],
            serde_json::Value::Null,
            "no check was requested"
        );
        let written = fs::read(&file).unwrap();
        assert!(written == payload, "{} bytes written", written.len());

        let recv = start_recv("-o -");
        send(recv_addr(), &payload);
        let finished = recv.finish();
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        assert!(
            finished.stdout == payload,
            "{} bytes on stdout",
            finished.stdout.len()
        );
    });
}

#[test]
fn ipv6_works_like_ipv4() {
    in_netns("recv::ipv6_works_like_ipv4", || {
        let line =
            "recv --addr fd77::2/64 --peer-addr fd77::1/64 -l -p 5202 -v 7 --json --mtu 9000";
        let mut recv = start(line);
        recv.until("listening on [fd77::2]:5202");
        send(
            "[fd77::2]:5202".parse().unwrap(),
            &repeating(7, 0, 20_000_000),
        );
        let json = recv.finish().json();
        assert_all_right(&json, 20_000_000);
        assert_eq!(json["ip_version"], 6);
    });
}

#[test]
fn several_connections_at_once_each_have_their_own_stream() {
    in_netns(
        "recv::several_connections_at_once_each_have_their_own_stream",
        || {
            let recv = start_recv("--connections 8 -v 7 --json");
            thread::scope(|scope| {
                for i in 0..8 {
                    scope.spawn(move || send(recv_addr(), &repeating(7, 0, 500_000 + i)));
                }
            });
            let json = recv.finish().json();
            assert_eq!(json["connections"], 8);
            assert_all_right(&json, 4_000_028);
        },
    );
}

#[test]
fn with_k_it_keeps_listening_until_a_signal_and_ends_cleanly() {
    in_netns(
        "recv::with_k_it_keeps_listening_until_a_signal_and_ends_cleanly",
        || {
            for end in [Signal::INT, Signal::TERM].into_iter().chain(hang_up()) {
                let recv = start_recv("-k -v 7 --json");
                for _ in 0..3 {
                    send(recv_addr(), &repeating(7, 0, 70_000));
                }
                signal(&recv, end);
                let json = recv.finish().json();
                assert_eq!(json["connections"], 3);
                assert_all_right(&json, 210_000);
            }
        },
    );
}

#[test]
fn a_signal_during_a_transfer_ends_the_run_and_all_net_iovs_return() {
    in_netns(
        "recv::a_signal_during_a_transfer_ends_the_run_and_all_net_iovs_return",
        || {
            let mut recv = start_recv("-v 7 -i 0.1 --json");
            let mut stream = connect(recv_addr());
            stream.write_all(&repeating(7, 0, 7_000_000)).unwrap();
            // What was written may be in buffers, of a connection that waits to be accepted. The line of an interval has received bytes.
            recv.until("bit/s\n");
            signal(&recv, Signal::INT);
            let json = recv.finish().interrupted_json();
            assert_eq!(json["bad_bytes"], 0);
            assert_everything_home(&json);
        },
    );
}

/// Makes a persistent interface of the TUN driver by ip(8).
fn tuntap(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(["tuntap", "add"]).args(arguments.split(' '));
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_tap_of_several_queues_works_with_one_and_other_interfaces_are_named() {
    const TEST: &str =
        "recv::a_tap_of_several_queues_works_with_one_and_other_interfaces_are_named";
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
fn the_receive_buffer_limits_the_window_that_the_peer_sees() {
    const TEST: &str = "recv::the_receive_buffer_limits_the_window_that_the_peer_sees";
    in_netns(TEST, || {
        let windows = ["", "--receive-buffer 32K"].map(|options| {
            let recv = start_recv(&format!("-v 7 --json {options}"));
            let mut stream = connect(recv_addr());
            let mut longest = 0;
            for _ in 0..40 {
                stream.write_all(&repeating(7, 0, 70_000)).unwrap();
                let info = devmem_linux::socket::TcpInfo::of(stream.as_fd()).unwrap();
                longest = longest.max(info.snd_wnd());
            }
            drop(stream);
            assert_all_right(&recv.finish().json(), 2_800_000);
            longest
        });
        assert!(windows[0] > 64 << 10, "{windows:?}");
        assert!(windows[1] <= 32 << 10, "{windows:?}");
    });
}

#[test]
fn a_receiver_that_keeps_all_of_its_memory_says_why_it_stalls() {
    const TEST: &str = "recv::a_receiver_that_keeps_all_of_its_memory_says_why_it_stalls";
    in_netns(TEST, || {
        let mut recv = start_recv("--mem-size 1M --keep-tokens 100000 --json");
        let mut stream = connect(recv_addr());
        std::thread::spawn(move || {
            let _ends_with_the_receiver = stream.write_all(&repeating(7, 0, 70_000_000));
        });
        recv.until(" of 16 net_iovs of dma-buf ");
        signal(&recv, Signal::INT);
        let finished = recv.finish();
        let text = "are lent to the program; keep fewer frags (--keep-tokens), or bind more memory (--mem-size)";
        assert!(finished.stderr.contains(text), "{}", finished.stderr);
        assert_everything_home(&finished.interrupted_json());
    });
}

#[test]
fn a_reset_during_a_transfer_is_a_failure_and_all_net_iovs_return() {
    in_netns(
        "recv::a_reset_during_a_transfer_is_a_failure_and_all_net_iovs_return",
        || {
            let recv = start_recv("-v 7");
            let mut stream = connect(recv_addr());
            stream.write_all(&repeating(7, 0, 700_000)).unwrap();
            // Closing with a zero linger time sends RST.
            rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO))
                .unwrap();
            drop(stream);
            recv.finish().failed_with(1, "1 connection failed");
        },
    );
}

#[test]
fn after_a_killed_receiver_the_next_one_works() {
    in_netns("recv::after_a_killed_receiver_the_next_one_works", || {
        let recv = start_recv("-v 7");
        let mut stream = connect(recv_addr());
        stream.write_all(&repeating(7, 0, 7_000_000)).unwrap();
        signal(&recv, Signal::KILL);
        assert_eq!(recv.finish().code, None);
        let recv = start_recv("-v 7 --json");
        send(recv_addr(), &repeating(7, 0, 7_000_000));
        assert_all_right(&recv.finish().json(), 7_000_000);
    });
}

#[test]
fn no_byte_is_lost_while_the_link_is_down() {
    in_netns("recv::no_byte_is_lost_while_the_link_is_down", || {
        let recv = start_recv("-v 7 --json");
        let mut host = Interface::by_name("dm0").unwrap();
        let bytes = repeating(7, 0, 30_000_000);
        let mut stream = connect(recv_addr());
        stream.write_all(&bytes[..10_000_000]).unwrap();
        host.set_down().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                stream.write_all(&bytes[10_000_000..]).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
            host.set_up().unwrap();
        });
        assert_all_right(&recv.finish().json(), 30_000_000);
    });
}

#[test]
fn a_packet_link_receives_and_ends_when_its_interface_is_removed() {
    in_netns(
        "recv::a_packet_link_receives_and_ends_when_its_interface_is_removed",
        || {
            let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
            near.set_up().unwrap();
            far.set_mtu(1400).unwrap();
            far.set_up().unwrap();
            near.add_address([10, 77, 0, 1].into(), 24).unwrap();
            let options = "--link packet:far,mac=02:00:00:00:00:77 --addr 10.77.0.2/24 --json";
            let mut recv = start(&format!("recv {options} -l -v 7"));
            recv.until("listening on");
            send(recv_addr(), &repeating(7, 0, 7_000_000));
            let json = recv.finish().json();
            assert_all_right(&json, 7_000_000);
            assert_eq!(json["link"], "packet:far");
            assert_eq!(json["mtu"], 1400, "that of the interface");

            let mut recv = start(&format!("recv {options} -l"));
            recv.until("listening on");
            near.delete().unwrap();
            recv.finish()
                .failed_with(1, "the interface of packet:far was removed");
        },
    );
}

#[test]
fn a_run_ends_when_the_other_end_of_its_wire_was_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recv = |kind: &str, host: u8| {
        let wire = folder.path().join("wire");
        let line = format!(
            "recv --link {kind}:{} --addr 10.77.0.{host}/24 -l --json",
            wire.display()
        );
        let mut running = start(&line);
        running.until("listening on");
        running
    };
    let listening = recv("unix-listen", 1);
    let connected = recv("unix", 2);
    kill_process(listening.pid(), Signal::KILL).expect("it runs");
    listening.finish();
    connected
        .finish()
        .failed_with(1, "wire has left; start again when it is back");
}

#[test]
fn shards_of_a_packet_link_divide_the_connections_and_the_report_tells_how() {
    in_netns(
        "recv::shards_of_a_packet_link_divide_the_connections_and_the_report_tells_how",
        || {
            const CONNECTIONS: usize = 16;
            const BYTES: usize = 500_000;
            let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
            near.set_up().unwrap();
            far.set_up().unwrap();
            near.add_address([10, 77, 0, 1].into(), 24).unwrap();
            let options = "--link packet:far --addr 10.77.0.2/24 --json -v 7 --shards 2";
            let mut recv = start(&format!("recv {options} --connections {CONNECTIONS}"));
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
    const TEST: &str =
        "recv::a_macvtap_link_receives_and_leaves_nothing_behind_when_the_receiver_is_killed";
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
        let mut recv = start(&format!("recv {options} -l -v 7"));
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
        let mut recv = start(&format!("recv {options} -l -v 7"));
        recv.until("listening on");
        send(recv_addr(), &repeating(7, 0, 7_000_000));
        let json = recv.finish().json();
        assert_all_right(&json, 7_000_000);
        assert_eq!(json["link"], "macvtap:far");
    });
}

#[test]
fn a_receiver_gets_its_address_from_a_dhcp_server() {
    const TEST: &str = "recv::a_receiver_gets_its_address_from_a_dhcp_server";
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
        let mut recv = start("recv --link packet:far --addr auto --json -l -v 7");
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
    const TEST: &str = "recv::on_a_network_that_has_only_a_router_a_receiver_listens_on_the_addresses_that_it_prints";
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
        let mut recv = start(&format!("recv --link {link} --addr auto --json -l -v 7"));
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
fn a_signal_ends_a_run_that_waits_for_an_address() {
    in_netns(
        "recv::a_signal_ends_a_run_that_waits_for_an_address",
        || {
            let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
            near.set_up().unwrap();
            far.set_up().unwrap();
            // It hears the client, and does not answer.
            let server = std::net::UdpSocket::bind("0.0.0.0:67").unwrap();
            for line in [
                "recv -l",
                "send 10.77.0.1 5201 --bytes 1",
                "load http://10.77.0.1/x",
            ] {
                let running = start(&format!("{line} --link packet:far --addr auto"));
                server.recv_from(&mut [0; 1500]).unwrap();
                signal(&running, Signal::INT);
                running.finish().failed_with(1, "devmem-tcp: interrupted");
                // Its repetitions.
                server.set_nonblocking(true).unwrap();
                while server.recv_from(&mut [0; 1500]).is_ok() {}
                server.set_nonblocking(false).unwrap();
            }
        },
    );
}

#[test]
fn after_a_killed_receiver_the_kernel_answers_the_shared_ports_again() {
    in_netns(
        "recv::after_a_killed_receiver_the_kernel_answers_the_shared_ports_again",
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
                let mut recv = start(&format!("recv {link} -l -v 7"));
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
fn a_receiver_that_keeps_its_tokens_slows_the_sender_and_loses_no_byte() {
    in_netns(
        "recv::a_receiver_that_keeps_its_tokens_slows_the_sender_and_loses_no_byte",
        || {
            let recv = start_recv("-v 7 --json --mem-size 4M --niov 16K --keep-tokens 40");
            send(recv_addr(), &repeating(7, 0, 50_000_000));
            let json = recv.finish().json();
            assert_all_right(&json, 50_000_000);
            assert_nothing_dropped(&json);
        },
    );
}

#[test]
fn linear_bytes_are_delivered_in_order_with_the_rest() {
    in_netns(
        "recv::linear_bytes_are_delivered_in_order_with_the_rest",
        || {
            let recv = start_recv("-v 7 --json --linear 100");
            send(recv_addr(), &repeating(7, 0, 10_000_000));
            let json = recv.finish().json();
            assert_all_right(&json, 10_000_000);
            assert!(
                json["linear_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
                "{json}"
            );
            assert!(
                json["device_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
                "{json}"
            );
        },
    );
}

#[test]
fn a_capture_has_every_payload_byte() {
    in_netns("recv::a_capture_has_every_payload_byte", || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("capture.pcapng");
        let recv = start_recv(&format!("-v 7 --json --capture {}", file.display()));
        let sent = repeating(7, 0, 3_000_000);
        send(recv_addr(), &sent);
        let json = recv.finish().json();
        assert_all_right(&json, 3_000_000);
        let captured = captured_stream(&fs::read(&file).unwrap(), sent.len());
        assert!(captured == sent, "the capture's stream differs");
        let comments = comments(&fs::read(&file).unwrap(), 5201);
        assert!(
            comments
                .iter()
                .any(|comment| comment == "rx queue 1, no payload")
        );
        let split = "rx queue 1, split at 66, net_iov ";
        for comment in comments.iter().filter(|comment| comment.contains("split")) {
            // A packet that the sender repeated was received before, and has no token.
            let is_read = comment.contains(", token ");
            assert!(comment.starts_with(split), "{comment}");
            assert!(
                is_read || json["discarded"]["tcp_duplicate"].is_u64(),
                "{comment}"
            );
        }
        assert!(
            comments.iter().any(|comment| comment.contains("token")),
            "{comments:?}"
        );
    });
}

/// Reassembles the stream to port 5201 from a capture file.
fn captured_stream(file: &[u8], len: usize) -> Vec<u8> {
    use pcap_file::pcapng::{Block, PcapNgReader};
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut stream = vec![0; len];
    let mut start = None;
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else {
            continue;
        };
        let Ok(headers) = wire::RxHeaders::parse(&packet.data, packet.data.len()) else {
            continue;
        };
        let Some(tcp) = headers.tcp().filter(|tcp| tcp.dst_port == 5201) else {
            continue;
        };
        if tcp.flags.contains(wire::TcpFlags::SYN) {
            start = Some(tcp.seq.wrapping_add(1));
        }
        let (from, to) = (headers.header_len, headers.header_len + headers.payload_len);
        let offset = tcp.seq.wrapping_sub(start.expect("the SYN comes first"));
        let offset = usize::try_from(offset).unwrap();
        if from < to {
            stream[offset..offset + (to - from)].copy_from_slice(&packet.data[from..to]);
        }
    }
    stream
}

#[test]
fn a_tap_in_use_is_named_with_a_remedy() {
    in_netns("recv::a_tap_in_use_is_named_with_a_remedy", || {
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
