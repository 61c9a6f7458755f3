//! `ncdevmem`, `doctor` and `restore` on a NIC that supports device memory: the tests of the kernel selftests' devmem.py, and
//! more. For the lab: see `common/lab.rs`. The NIC's settings are compared before and after each test.

mod common;

use std::env;
use std::fs::{self, Permissions};
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use common::lab::{Nic, OURS, PEERS, connect, receive_all, send, settings};
use common::{Finished, repeating, run, start_command, start_with, tool};
use devmem_linux::test_util::skip;
use rustix::process::{Signal, kill_process};

/// The payload sizes of the selftests' header split test.
const SIZES: [usize; 12] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Standard input with these bytes.
fn input(bytes: &[u8]) -> Stdio {
    let mut file = tempfile::tempfile().expect("there is room");
    file.write_all(bytes).expect("there is room");
    file.rewind().expect("it is a file");
    file.into()
}

#[track_caller]
fn assert_done(finished: &Finished) {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}

/// Runs a client that sends from the NIC; returns the received bytes and the client's output.
fn sent_by_client(nic: &Nic, port: u16, options: &str, bytes: &[u8]) -> (Vec<u8>, Finished) {
    let receiver = receive_all(port);
    let (name, to) = (&nic.name, PEERS[0]);
    let line = format!("ncdevmem -f {name} -s {to} -p {port} {options}");
    let finished = start_with(&line, input(bytes)).finish();
    assert_done(&finished);
    (receiver.join().expect("it received"), finished)
}

#[test]
fn the_probe_succeeds() {
    let Some(nic) = Nic::take("the_probe_succeeds") else {
        return;
    };
    let finished = run(&format!("ncdevmem -f {}", nic.name));
    assert_done(&finished);
    for said in ["got dmabuf id=", "setting channel count", "as expected"] {
        assert!(
            finished.stderr.contains(said),
            "no {said:?}: {}",
            finished.stderr
        );
    }
    nic.assert_restored();
}

#[test]
fn rx_is_validated_over_both_ip_versions() {
    let Some(nic) = Nic::take("rx_is_validated_over_both_ip_versions") else {
        return;
    };
    let bytes = repeating(7, b'\n', 1 << 20);
    for (port, (ours, peers)) in (5201..).zip(OURS.into_iter().zip(PEERS)) {
        let server = nic.server(ours, port, &format!("-c {peers} -v 7"));
        send(ours, peers, port, &[&bytes]);
        let finished = server.finish();
        assert_done(&finished);
        let text = String::from_utf8(finished.stdout).expect("it is text");
        assert!(
            text.lines().all(|line| line == "Validated buffer"),
            "{text}"
        );
        let total = format!("total_received={}\n", bytes.len());
        assert!(finished.stderr.contains(&total), "{}", finished.stderr);
        assert!(finished.stderr.contains("ncdevmem: client exited"));
        nic.assert_restored();
    }
}

#[test]
fn a_wrong_byte_fails_the_run() {
    let Some(nic) = Nic::take("a_wrong_byte_fails_the_run") else {
        return;
    };
    let mut bytes = repeating(7, b'\n', 7000);
    bytes[4000] ^= 1;
    let server = nic.server(OURS[0], 5203, "-v 7");
    send(OURS[0], PEERS[0], 5203, &[&bytes]);
    server
        .finish()
        .failed_with(1, "validation failed: 1 bytes are wrong");
    nic.assert_restored();
}

#[test]
fn payload_goes_to_stdout_byte_for_byte() {
    let Some(nic) = Nic::take("payload_goes_to_stdout_byte_for_byte") else {
        return;
    };
    let bytes: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    let server = nic.server(OURS[0], 5204, "");
    send(OURS[0], PEERS[0], 5204, &[&bytes]);
    let finished = server.finish();
    assert_done(&finished);
    assert!(finished.stdout == bytes, "{} bytes", finished.stdout.len());
}

#[test]
fn payloads_of_every_size_are_received_into_device_memory() {
    let Some(nic) = Nic::take("payloads_of_every_size_are_received_into_device_memory") else {
        return;
    };
    for (port, size) in (5300..).zip(SIZES) {
        let server = nic.server(OURS[0], port, "-L");
        send(OURS[0], PEERS[0], port, &[&vec![0; size]]);
        let finished = server.finish();
        assert_done(&finished);
        assert_eq!(finished.stdout, vec![0; size], "{}", finished.stderr);
    }
    nic.assert_restored();
}

#[test]
fn two_queues_share_a_binding() {
    let Some(nic) = Nic::take("two_queues_share_a_binding") else {
        return;
    };
    let first = nic.queues().saturating_sub(2);
    let bytes = repeating(7, b'\n', 1 << 20);
    let server = nic.server(OURS[0], 5205, &format!("-v 7 -t {first} -q 2"));
    send(OURS[0], PEERS[0], 5205, &[&bytes]);
    assert_done(&server.finish());
    nic.assert_restored();
}

#[test]
fn larger_net_iovs_are_bound_or_refused_by_name() {
    let Some(nic) = Nic::take("larger_net_iovs_are_bound_or_refused_by_name") else {
        return;
    };
    let finished = run(&format!("ncdevmem -f {} -b 16384", nic.name));
    if finished.code != Some(0) {
        // Without huge pages, on an older kernel, or with a driver that does not support this size.
        assert_eq!(finished.code, Some(1), "{}", finished.stderr);
        let said = &finished.stderr;
        let known = ["Failed to allocate memory buffer", "Failed to bind"];
        assert!(known.iter().any(|words| said.contains(words)), "{said}");
    }
    nic.assert_restored();
}

#[test]
fn the_client_sends_lines_at_once_and_in_chunks() {
    let Some(nic) = Nic::take("the_client_sends_lines_at_once_and_in_chunks") else {
        return;
    };
    for (port, options) in (5210..).zip(["", "-z 3", "-z 4095"]) {
        let (received, finished) = sent_by_client(&nic, port, options, b"hello\nworld\n");
        assert_eq!(received, b"hello\nworld\n", "{options}");
        assert_eq!(finished.stderr.matches("tx complete [").count(), 2);
        assert!(
            finished.stderr.ends_with("ncdevmem: tx ok\n"),
            "{}",
            finished.stderr
        );
    }
    // More pieces than the NIC can gather for a packet.
    let (received, _) = sent_by_client(
        &nic,
        5218,
        "-z 3",
        b"more than thirty bytes, thrice three of them at a time\n",
    );
    assert_eq!(received.len(), 55);
    let line: Vec<u8> = (0..60_000u32)
        .map(|i| b'a' + (i % 26) as u8)
        .chain(*b"\n")
        .collect();
    let lines = line.repeat(20);
    let (received, _) = sent_by_client(&nic, 5219, "-z 1000", &lines);
    assert!(received == lines, "{} bytes", received.len());
    nic.assert_restored();
}

/// The lab's NIC leaves the first bytes of every payload in header buffers if it was started with
/// `devmem-tcp nic --linear N`.
#[test]
fn linear_bytes_are_printed_in_order_or_refused() {
    const TEST: &str = "linear_bytes_are_printed_in_order_or_refused";
    let Some(nic) = Nic::take(TEST) else { return };
    if env::var_os("DEVMEM_TEST_LINEAR").is_none() {
        return skip(
            TEST,
            "linear",
            "DEVMEM_TEST_LINEAR is not set: the NIC leaves no linear bytes",
        );
    }
    let bytes = repeating(7, b'\n', 700_000);
    let server = nic.server(OURS[0], 5230, "-v 7");
    send(OURS[0], PEERS[0], 5230, &[&bytes]);
    let finished = server.finish();
    assert_done(&finished);
    assert!(
        finished
            .stderr
            .contains("SCM_DEVMEM_LINEAR. dmabuf_cmsg->frag_size=")
    );
    let total = format!("total_received={}\n", bytes.len());
    assert!(finished.stderr.contains(&total), "{}", finished.stderr);

    let server = nic.server(OURS[0], 5231, "-L");
    let mut stream = connect(OURS[0], PEERS[0], 5231);
    // The server may close the connection before everything is sent.
    let _ = std::io::Write::write_all(&mut stream, &bytes);
    server
        .finish()
        .failed_with(1, "bytes of payload landed in host memory");
    nic.assert_restored();
}

#[test]
fn all_settings_are_restored_after_a_signal() {
    let Some(nic) = Nic::take("all_settings_are_restored_after_a_signal") else {
        return;
    };
    for (port, signal) in (5220..).zip([Signal::INT, Signal::TERM]) {
        let server = nic.server(OURS[0], port, "");
        assert_ne!(settings(&nic.name), nic.before, "it was set up");
        kill_process(server.pid(), signal).expect("it runs");
        server.finish().failed_with(1, "interrupted");
        nic.assert_restored();
    }
}

#[test]
fn after_kill_9_restore_puts_everything_back_and_the_queue_can_be_bound_again() {
    const TEST: &str = "after_kill_9_restore_puts_everything_back_and_the_queue_can_be_bound_again";
    let Some(nic) = Nic::take(TEST) else { return };
    let name = &nic.name;
    let server = nic.server(OURS[0], 5222, "");
    let stream = connect(OURS[0], PEERS[0], 5222);
    run(&format!("restore {name}")).failed_with(1, "is in use by process");
    kill_process(server.pid(), Signal::KILL).expect("it runs");
    assert_eq!(server.finish().code, None);
    drop(stream);

    assert_ne!(settings(name), nic.before, "it is not restored yet");
    let refused = run(&format!("ncdevmem -l -f {name} -s {} -p 5223", OURS[0]));
    refused.failed_with(1, "was left changed by a crashed process");
    let json = run(&format!("restore {name} --json")).json();
    assert_eq!(json[0]["failed"], serde_json::json!([]), "{json}");
    assert_eq!(json[0]["left"], serde_json::json!([]), "{json}");
    nic.assert_restored();

    let server = nic.server(OURS[0], 5224, "-v 7");
    send(OURS[0], PEERS[0], 5224, &[&repeating(7, b'\n', 70_000)]);
    assert_done(&server.finish());
    nic.assert_restored();
}

#[test]
fn an_unprivileged_bind_is_refused_with_the_capability_it_needs() {
    let Some(nic) = Nic::take("an_unprivileged_bind_is_refused_with_the_capability_it_needs")
    else {
        return;
    };
    const UDMABUF: &str = "/dev/udmabuf";
    let mode = fs::metadata(UDMABUF)
        .expect("the lab has udmabuf")
        .permissions();
    fs::set_permissions(UDMABUF, Permissions::from_mode(0o666)).expect("we are root");
    let mut command = tool();
    command.args(["ncdevmem", "-n", "-l", "-t", "1", "-q", "1", "-p", "5225"]);
    command.args(["-f", &nic.name, "-s", OURS[0]]);
    command.uid(65534).gid(65534).stdin(Stdio::null());
    let finished = start_command(command).finish();
    fs::set_permissions(UDMABUF, mode).expect("we are root");
    finished.failed_with(1, "Failed to bind: bind-rx on ");
    finished.failed_with(1, "EPERM");
    finished.failed_with(1, "CAP_NET_ADMIN");
    nic.assert_restored();
}

#[test]
fn the_doctor_reports_the_nic_as_ready() {
    let Some(nic) = Nic::take("the_doctor_reports_the_nic_as_ready") else {
        return;
    };
    let json = run(&format!("doctor --json {}", nic.name)).json();
    assert_eq!(json["ready"], true, "{json}");
    let verdict = json["nics"][0]["verdict"].as_str().unwrap_or_default();
    assert!(["ready", "needs_setup"].contains(&verdict), "{json}");
    nic.assert_restored();
}
