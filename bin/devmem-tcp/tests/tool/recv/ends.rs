//! How runs end: signals, resets, kills, and links that go down.

use super::*;

#[test]
fn with_k_it_keeps_listening_until_a_signal_and_ends_cleanly() {
    in_netns(
        "recv::ends::with_k_it_keeps_listening_until_a_signal_and_ends_cleanly",
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
        "recv::ends::a_signal_during_a_transfer_ends_the_run_and_all_net_iovs_return",
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

#[test]
fn the_receive_buffer_limits_the_window_that_the_peer_sees() {
    const TEST: &str = "recv::ends::the_receive_buffer_limits_the_window_that_the_peer_sees";
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
    const TEST: &str = "recv::ends::a_receiver_that_keeps_all_of_its_memory_says_why_it_stalls";
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
        "recv::ends::a_reset_during_a_transfer_is_a_failure_and_all_net_iovs_return",
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
    in_netns(
        "recv::ends::after_a_killed_receiver_the_next_one_works",
        || {
            let recv = start_recv("-v 7");
            let mut stream = connect(recv_addr());
            stream.write_all(&repeating(7, 0, 7_000_000)).unwrap();
            signal(&recv, Signal::KILL);
            assert_eq!(recv.finish().code, None);
            let recv = start_recv("-v 7 --json");
            send(recv_addr(), &repeating(7, 0, 7_000_000));
            assert_all_right(&recv.finish().json(), 7_000_000);
        },
    );
}

#[test]
fn no_byte_is_lost_while_the_link_is_down() {
    in_netns("recv::ends::no_byte_is_lost_while_the_link_is_down", || {
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
fn a_run_ends_when_the_other_end_of_its_wire_was_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recv = |kind: &str, host: u8| {
        let wire = folder.path().join("wire");
        let line = format!(
            "recv --mem-size 32M --link {kind}:{} --addr 10.77.0.{host}/24 -l --json",
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
fn a_signal_ends_a_run_that_waits_for_an_address() {
    in_netns(
        "recv::ends::a_signal_ends_a_run_that_waits_for_an_address",
        || {
            let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
            near.set_up().unwrap();
            far.set_up().unwrap();
            // It hears the client, and does not answer.
            let server = std::net::UdpSocket::bind("0.0.0.0:67").unwrap();
            for line in [
                "recv --mem-size 32M -l",
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
