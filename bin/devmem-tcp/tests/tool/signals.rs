//! A signal ends every command that transfers by one rule: the report of what was done, and exit status 1 if anything was left to do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

use crate::common::{
    Finished, LIMIT, Running, connect, hang_up, has_tap, recv_addr, repeating, start,
    start_command, start_recv, tool,
};
use devmem_linux::test_util::{in_netns, skip};
use rustix::process::{Signal, kill_process, kill_process_group};
use tool::stock;

/// Starts the tool in a process group, as a shell does.
fn start_group(line: &str) -> Running {
    let mut command = tool();
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.process_group(0);
    start_command(command)
}

#[test]
fn a_send_whose_peer_does_not_read_prints_its_report() {
    const TEST: &str = "signals::a_send_whose_peer_does_not_read_prints_its_report";
    in_netns(TEST, || {
        for signal in [Signal::INT, Signal::TERM] {
            for form in ["--json", ""] {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 5201)).unwrap();
                let mut running = start(&format!(
                    "send --peer-addr 10.77.0.1/24 10.77.0.1 5201 --bytes 64M -v 7 {form}"
                ));
                running.until("sending to");
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                // The peer has bytes, so the run is in the middle of the transfer; all of them fill the buffers of both ends.
                until_window_is_full(&stream);
                kill_process(running.pid(), signal).unwrap();
                let finished = running.finish();
                finished.failed_with(1, "interrupted");
                assert!(finished.stderr.contains(" sent  "), "{}", finished.stderr);
                let mut bytes = Vec::new();
                // The NIC is gone, and the end of the stream may not have arrived.
                stream.set_nonblocking(true).unwrap();
                let _ = stream.read_to_end(&mut bytes);
                assert!(bytes == repeating(7, 0, bytes.len()));
                if form == "--json" {
                    let json = finished.interrupted_json();
                    let sent = json["bytes"].as_u64().unwrap();
                    assert!(
                        (1..=bytes.len() as u64).contains(&sent),
                        "{} {json}",
                        bytes.len()
                    );
                }
            }
        }
    });
}

/// Waits until no more bytes arrive in a socket that is not read.
fn until_window_is_full(stream: &std::net::TcpStream) {
    let mut before = 0;
    loop {
        thread::sleep(std::time::Duration::from_millis(300));
        let unread = rustix::io::ioctl_fionread(stream).unwrap();
        if unread == before && unread > 0 {
            return;
        }
        before = unread;
    }
}

#[test]
fn a_send_that_waits_for_its_peer_prints_its_report() {
    const TEST: &str = "signals::a_send_that_waits_for_its_peer_prints_its_report";
    in_netns(TEST, || {
        let mut running = start("send --addr 10.77.0.2/24 10.77.0.1 --bytes 1M --json");
        // The last note before it connects; nobody answers.
        running.until("has no address in the network");
        kill_process(running.pid(), Signal::INT).unwrap();
        let json = running.finish().interrupted_json();
        assert_eq!(
            (&json["bytes"], &json["to"]),
            (&0.into(), &"10.77.0.1:5201".into())
        );
    });
}

#[test]
fn a_recv_that_waits_or_has_a_connection_is_interrupted_and_one_that_keeps_listening_is_done() {
    const TEST: &str = "signals::a_recv_that_waits_or_has_a_connection_is_interrupted_and_one_that_keeps_listening_is_done";
    in_netns(TEST, || {
        let recv = start_recv("--json");
        kill_process(recv.pid(), hang_up().unwrap_or(Signal::TERM)).unwrap();
        assert_eq!(recv.finish().interrupted_json()["broken"], 0);

        let recv = start_recv("-k --json");
        kill_process(recv.pid(), Signal::INT).unwrap();
        let json = recv.finish().json();
        assert_eq!(json["interrupted"], false, "{json}");

        for options in ["-k --json -i 0.1", "--json -i 0.1"] {
            let mut recv = start_recv(options);
            let mut stream = connect(recv_addr());
            stream.write_all(&[7; 5000]).unwrap();
            // The line of an interval with these bytes.
            recv.until("4.88 KiB");
            kill_process(recv.pid(), Signal::INT).unwrap();
            let finished = recv.finish();
            let json = finished.interrupted_json();
            assert_eq!((&json["bytes"], &json["broken"]), (&5000.into(), &1.into()));
            assert!(
                finished.stderr.contains("broken  1 connection\n"),
                "{}",
                finished.stderr
            );
        }
    });
}

/// Asserts what a demo prints that is interrupted in the middle.
#[track_caller]
fn assert_interrupted_demo(finished: &Finished) {
    let json = finished.interrupted_json();
    assert!(json["bytes"].as_u64() > Some(0), "{json}");
    assert!(finished.stderr.contains("  rate  "), "{}", finished.stderr);
}

#[test]
fn ctrl_c_in_a_terminal_ends_a_demo_with_its_report() {
    const TEST: &str = "signals::ctrl_c_in_a_terminal_ends_a_demo_with_its_report";
    if !has_tap(TEST) {
        return;
    }
    for options in ["", "--direction tx", "--link wire"] {
        let folder = tempfile::tempdir().unwrap();
        let capture = folder.path().join("capture");
        let running = start_group(&format!(
            "demo --bytes 900G --json --capture {} {options}",
            capture.display()
        ));
        // Packets are captured from the first on.
        while std::fs::metadata(&capture).map_or(0, |file| file.len()) < 1 << 20 {
            thread::yield_now();
        }
        // The terminal signals the whole group.
        kill_process_group(running.pid(), Signal::INT).unwrap();
        assert_interrupted_demo(&running.finish());
    }
}

#[test]
fn a_load_that_is_cut_short_prints_its_report() {
    const TEST: &str = "signals::a_load_that_is_cut_short_prints_its_report";
    in_netns(TEST, || {
        // A server that stops in the middle of the file.
        let server = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8000)).unwrap();
        let mut command = tool();
        command.args("load --peer-addr 10.77.0.1/24 http://10.77.0.1:8000/file --json".split(' '));
        command.env_remove("http_proxy").stdin(Stdio::null());
        let mut running = start_command(command);
        let (mut stream, _) = server.accept().unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).unwrap() > 0);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            .unwrap();
        running.until("loading http");
        stream.write_all(&[1; 70_000]).unwrap();
        kill_process(running.pid(), Signal::TERM).unwrap();
        let json = running.finish().interrupted_json();
        assert_eq!(json["url"], "http://10.77.0.1:8000/file");
        assert_eq!(json["net_iovs_home"], json["net_iovs_total"]);
    });
}

#[test]
fn a_store_that_is_cut_short_prints_its_report() {
    const TEST: &str = "signals::a_store_that_is_cut_short_prints_its_report";
    if stock::path_of("nbdkit").is_none() {
        return skip(TEST, "nbdkit", "there is no nbdkit here");
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, vec![1; 64 << 20]).unwrap();
        let mut nbdkit = Command::new("nbdkit");
        nbdkit.args([
            "-f",
            "-p",
            "10809",
            "--filter=rate",
            "memory",
            "64M",
            "rate=8M",
        ]);
        let mut nbdkit = nbdkit.stderr(Stdio::null()).spawn().unwrap();
        while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, 10809)).is_err() {
            thread::yield_now();
        }
        let mut running = start(&format!(
            "store --peer-addr 10.77.0.1/24 {} nbd://10.77.0.1/ --json",
            file.display()
        ));
        running.until("storing");
        kill_process(running.pid(), Signal::INT).unwrap();
        let json = running.finish().interrupted_json();
        assert!(json["bytes"].as_u64() < Some(64 << 20), "{json}");
        nbdkit.kill().unwrap();
        nbdkit.wait().unwrap();
    });
}

#[test]
fn a_wire_ends_with_1_before_its_time_and_with_0_if_it_has_none() {
    const TEST: &str = "signals::a_wire_ends_with_1_before_its_time_and_with_0_if_it_has_none";
    in_netns(TEST, || {
        let line = "wire --a tap:x --b tap:y --json";
        for (options, code) in [("", 0), ("--seconds 3600", 1)] {
            let mut wire = start(&format!("{line} {options}"));
            wire.until("are connected");
            kill_process(wire.pid(), Signal::INT).unwrap();
            let finished = wire.finish();
            assert_eq!(finished.code, Some(code), "{}", finished.stderr);
            let json: serde_json::Value = serde_json::from_slice(&finished.stdout).unwrap();
            assert!(json["a_to_b"].is_object(), "{json}");
        }
    });
}
