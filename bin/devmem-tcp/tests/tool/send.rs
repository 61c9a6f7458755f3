//! `devmem-tcp send` to kernel sockets. Each test has a separate network namespace.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::{Finished, LIMIT, comments, repeating, run, start, start_with};
use devmem_linux::test_util::{in_netns, skip, wait_or_kill};
use pattern::PositionPattern;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

const V4: (&str, &str, u8) = ("10.77.0.1", "10.77.0.2", 24);
const V6: (&str, &str, u8) = ("fd77::1", "fd77::2", 64);

/// A kernel socket that listens.
struct Host {
    addresses: (&'static str, &'static str, u8),
    listener: TcpListener,
}

impl Host {
    fn new(addresses: (&'static str, &'static str, u8)) -> Self {
        // All addresses of the host, because it listens before the TAP exists.
        let any = if addresses == V4 { "0.0.0.0" } else { "::" };
        let listener = TcpListener::bind((any, 5201)).unwrap();
        Self {
            addresses,
            listener,
        }
    }

    /// Returns the arguments of a run that sends to this host.
    fn line(&self, options: &str) -> String {
        let (host, ours, len) = self.addresses;
        format!("send --peer-addr {host}/{len} --addr {ours}/{len} {host} 5201 --json {options}")
    }

    /// Accepts one connection and receives all of its data.
    fn receive(&self) -> JoinHandle<(Vec<u8>, SocketAddr)> {
        let listener = self.listener.try_clone().unwrap();
        thread::spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            (bytes, peer)
        })
    }
}

/// Asserts the results of a successful run.
#[track_caller]
fn assert_all_sent(json: &Value, bytes: usize) {
    assert_eq!(json["bytes"], bytes, "{json}");
    assert_eq!(json["sends"], json["completions"], "{json}");
    assert_eq!(json["copied_completions"], 0, "{json}");
    assert_eq!(json["drops"].get("tx_no_memory"), None, "{json}");
}

/// Sends a pattern and compares the received bytes.
#[track_caller]
fn send_repeating(host: &Host, bytes: usize, options: &str) -> Value {
    let receiver = host.receive();
    let json = run(&host.line(&format!("--bytes {bytes} -v 7 {options}"))).json();
    let (received, _) = receiver.join().unwrap();
    assert!(received == repeating(7, 0, bytes), "{options}");
    assert_all_sent(&json, bytes);
    json
}

#[test]
fn chunks_of_any_size_arrive_byte_for_byte() {
    in_netns("send::chunks_of_any_size_arrive_byte_for_byte", || {
        for addresses in [V4, V6] {
            let host = Host::new(addresses);
            for (chunk, bytes) in [
                (1, 2_000),
                (3, 10_000),
                (4095, 3_000_001),
                (4097, 3_000_001),
                (65536, 40_000_000),
            ] {
                // The ring wraps around, which shows a chunk that is overwritten too early.
                let json =
                    send_repeating(&host, bytes, &format!("--chunk {chunk} --mem-size 128K"));
                let least = bytes.div_ceil(chunk) as u64;
                assert!(
                    json["sends"].as_u64().is_some_and(|sends| sends >= least),
                    "{json}"
                );
                assert_eq!(json["ip_version"], if addresses == V4 { 4 } else { 6 });
            }
        }
    });
}

#[test]
fn every_byte_of_a_small_ring_is_correct_over_an_impaired_link() {
    in_netns(
        "send::every_byte_of_a_small_ring_is_correct_over_an_impaired_link",
        || {
            let host = Host::new(V4);
            for impair in ["loss=1%,seed=3", "reorder=2%,dup=1%,delay=1ms,seed=4"] {
                let options = format!("--chunk 10000 --mem-size 64K --impair {impair}");
                let json = send_repeating(&host, 2_000_000, &options);
                assert!(json["rtt_us"].as_f64() > Some(0.0), "{json}");
                assert!(
                    json["min_rtt_us"].as_f64() <= json["rtt_us"].as_f64(),
                    "{json}"
                );
                if impair.starts_with("loss") {
                    // A lossy path can be told from a slow peer.
                    assert!(json["retransmitted_packets"].as_u64() > Some(0), "{json}");
                    assert!(json["retransmitted_bytes"].as_u64() > Some(0), "{json}");
                }
            }
        },
    );
}

#[test]
fn stdin_and_files_are_sent_unchanged() {
    in_netns("send::stdin_and_files_are_sent_unchanged", || {
        let host = Host::new(V4);
        let sent = repeating(251, 7, 5_000_000);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sent");
        std::fs::write(&path, &sent).unwrap();
        let receiver = host.receive();
        let json = run(&host.line(&format!("-i {}", path.display()))).json();
        assert!(receiver.join().unwrap().0 == sent);
        assert_all_sent(&json, sent.len());

        let receiver = host.receive();
        let file = File::open(&path).unwrap();
        let json = start_with(&host.line(""), file.into()).finish().json();
        assert!(receiver.join().unwrap().0 == sent);
        assert_all_sent(&json, sent.len());

        // A pipe without data for a while: the bytes written before are sent at once.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let running = start_with(&host.line("-i -"), OwnedFd::from(reader).into());
        let (mut stream, _) = host.listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        writer.write_all(b"first").unwrap();
        let mut first = [0; 5];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"first");
        thread::sleep(Duration::from_millis(250));
        writer.write_all(b"second").unwrap();
        drop(writer);
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "second");
        drop(stream);
        assert_all_sent(&running.finish().json(), 11);
    });
}

/// Bytes of a file for a stock receiver.
fn file_bytes() -> usize {
    match std::env::var_os("DEVMEM_SLOW") {
        Some(_) => 5 << 28,
        None => 24 << 20,
    }
}

/// Waits until a kernel socket of this namespace listens on the port.
#[track_caller]
fn until_listening(port: u16) {
    let port_column = format!(":{port:04X}");
    // The second column of /proc/net/tcp is the local address, the fourth the state; 0A is TCP_LISTEN.
    let listens = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        matches!(columns[..], [_, local, _, "0A", ..] if local.ends_with(&port_column))
    };
    let start = std::time::Instant::now();
    loop {
        for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
            let table = std::fs::read_to_string(table).unwrap_or_default();
            if table.lines().any(listens) {
                return;
            }
        }
        assert!(start.elapsed() < LIMIT, "no socket listens on {port}");
        thread::yield_now();
    }
}

/// Sends a file to a stock receiver that writes it to another file, and compares the two. Every byte depends on its position.
fn stock_receiver(test: &str, program: &str, arguments: &[&str], options: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [sent, received] = ["sent", "received"].map(|name| folder.path().join(name));
    let mut bytes = vec![0; file_bytes()];
    PositionPattern::new(1).fill(0, &mut bytes);
    std::fs::write(&sent, &bytes).unwrap();
    let receiver = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::create(&received).unwrap())
        .spawn();
    let Ok(mut receiver) = receiver else {
        return skip(test, program, &format!("there is no {program} here"));
    };
    until_listening(5201);
    let json = run(&format!("send --json -i {} {options}", sent.display())).json();
    assert!(
        wait_or_kill(&mut receiver, LIMIT).is_some(),
        "{program} did not end"
    );
    let got = std::fs::read(&received).unwrap();
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    assert_all_sent(&json, bytes.len());
}

const TO_V4: &str = "--peer-addr 10.77.0.1/24 10.77.0.1 5201";
const TO_V6: &str = "--peer-addr fd77::1/64 --addr fd77::2/64 --mtu 9000 fd77::1 5201";

#[test]
fn netcat_gets_the_file() {
    const TEST: &str = "send::netcat_gets_the_file";
    in_netns(TEST, || {
        stock_receiver(TEST, "nc", &["-l", "-p", "5201"], TO_V4);
        stock_receiver(TEST, "nc", &["-6", "-l", "-p", "5201"], TO_V6);
    });
}

#[test]
fn socat_gets_the_file() {
    const TEST: &str = "send::socat_gets_the_file";
    in_netns(TEST, || {
        stock_receiver(
            TEST,
            "socat",
            &["-u", "TCP4-LISTEN:5201,reuseaddr", "STDOUT"],
            TO_V4,
        );
        stock_receiver(
            TEST,
            "socat",
            &["-u", "TCP6-LISTEN:5201,reuseaddr", "STDOUT"],
            TO_V6,
        );
    });
}

#[test]
fn after_sigint_the_queued_bytes_are_sent_and_reported() {
    in_netns(
        "send::after_sigint_the_queued_bytes_are_sent_and_reported",
        || {
            for signal in [Signal::INT, Signal::TERM] {
                let host = Host::new(V4);
                let mut running = start(&host.line("--bytes 100G -v 7"));
                running.until("sending to");
                let (mut stream, _) = host.listener.accept().unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                let mut bytes = vec![0; 1_000_000];
                stream.read_exact(&mut bytes).unwrap();
                kill_process(running.pid(), signal).unwrap();
                stream.read_to_end(&mut bytes).unwrap();
                drop(stream);
                let finished = running.finish();
                finished.failed_with(1, "interrupted");
                // The received bytes are a correct prefix of the stream, and the report has their number.
                assert!(bytes == repeating(7, 0, bytes.len()));
                let json: Value = serde_json::from_slice(&finished.stdout).unwrap();
                assert_all_sent(&json, bytes.len());
            }
        },
    );
}

#[test]
fn the_options_of_tcp_are_those_of_the_connection() {
    in_netns(
        "send::the_options_of_tcp_are_those_of_the_connection",
        || {
            let host = Host::new(V4);
            for options in [
                "--congestion reno --pacing",
                "--send-buffer 16K",
                "--congestion cubic",
            ] {
                send_repeating(&host, 300_000, options);
            }
        },
    );
}

#[test]
fn a_reset_by_the_peer_fails_the_run() {
    in_netns("send::a_reset_by_the_peer_fails_the_run", || {
        let host = Host::new(V4);
        let running = start(&host.line("--bytes 1G"));
        let (mut stream, _) = host.listener.accept().unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        // Closing with unread bytes resets the connection.
        drop(stream);
        let finished: Finished = running.finish();
        assert_eq!(finished.code, Some(1), "{}", finished.stderr);
        assert!(finished.stdout.is_empty());
    });
}

#[test]
fn host_and_port_can_be_one_argument() {
    in_netns("send::host_and_port_can_be_one_argument", || {
        let host = Host::new(V4);
        let receiver = host.receive();
        let json =
            run("send --peer-addr 10.77.0.1/24 10.77.0.1:5201 --json --bytes 7000 -v 7").json();
        assert_eq!(json["to"], "10.77.0.1:5201");
        let (received, _) = receiver.join().unwrap();
        assert!(received == repeating(7, 0, 7000));
    });
}

#[test]
fn a_refused_connection_is_a_failure_with_the_command_that_listens() {
    in_netns(
        "send::a_refused_connection_is_a_failure_with_the_command_that_listens",
        || {
            let finished = run("send --peer-addr 10.77.0.1/24 10.77.0.1 5202 --bytes 1K");
            finished.failed_with(
            1,
            "10.77.0.1 refuses the connection: no program listens on port 5202; start one there, for example `nc -l -p 5202",
        );
        },
    );
}

#[test]
fn a_capture_names_the_device_memory_of_every_sent_packet() {
    in_netns(
        "send::a_capture_names_the_device_memory_of_every_sent_packet",
        || {
            let host = Host::new(V4);
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("sent.pcapng");
            send_repeating(&host, 700_000, &format!("--capture {}", file.display()));
            let comments = comments(&std::fs::read(&file).unwrap(), 5201);
            let payload = "tx, split at 66, device memory at 0x0: ";
            assert!(
                comments.iter().any(|comment| comment.starts_with(payload)),
                "{comments:?}"
            );
            let is_known = |comment: &String| {
                comment == "tx, no payload" || comment.contains("device memory at 0x")
            };
            assert!(comments.iter().all(is_known), "{comments:?}");
        },
    );
}
