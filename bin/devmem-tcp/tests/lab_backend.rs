//! `recv` and `send --backend kernel` on a NIC that supports device memory. For the lab: see `common/lab.rs`. The NIC's
//! settings are compared before and after each test.

mod common;

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use common::lab::{Nic, OURS, PEERS, connect, peer, receive_all, send, settings};
use common::{LIMIT, Running, assert_all_right, hang_up, repeating, run, start};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// Starts the receiver and waits until it listens.
fn recv(nic: &Nic, port: u16, options: &str) -> Running {
    let name = &nic.name;
    let mut recv = start(&format!(
        "recv --backend kernel --if {name} -l -p {port} --json {options}"
    ));
    recv.until("listening on");
    recv
}

/// Asserts the results of a successful run of the kernel backend.
#[track_caller]
fn assert_right(json: &Value, bytes: u64) {
    assert_all_right(json, bytes);
    assert_eq!(json["backend"], "kernel", "{json}");
}

#[test]
fn the_dry_run_prints_the_changes_and_makes_none() {
    let Some(nic) = Nic::take("the_dry_run_prints_the_changes_and_makes_none") else {
        return;
    };
    let name = &nic.name;
    let finished = run(&format!("recv --backend kernel --if {name} --dry-run"));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let commands = String::from_utf8(finished.stdout).expect("they are text");
    let rule = format!(
        "ethtool -N {name} flow-type tcp4 dst-ip {} dst-port 5201 action ",
        OURS[0]
    );
    assert!(
        commands.lines().all(|line| line.starts_with("ethtool -")),
        "{commands}"
    );
    assert!(
        commands.contains(&format!("ethtool -G {name} tcp-data-split on")),
        "{commands}"
    );
    assert!(commands.contains(&rule), "{commands}");
    nic.assert_restored();
}

#[test]
fn every_byte_is_in_device_memory_and_correct() {
    let Some(nic) = Nic::take("every_byte_is_in_device_memory_and_correct") else {
        return;
    };
    let bytes = repeating(7, b'\n', 4 << 20);
    for (port, (ours, peers)) in (5401..).zip(OURS.into_iter().zip(PEERS)) {
        let recv = recv(&nic, port, &format!("--addr {ours} -v 7"));
        send(ours, peers, port, &[&bytes]);
        let json = recv.finish().json();
        assert_right(&json, bytes.len() as u64);
        assert_eq!(json["linear_bytes"], 0, "{json}");
        nic.assert_restored();
    }
}

#[test]
fn auto_chooses_the_nic_and_prints_that() {
    let Some(nic) = Nic::take("auto_chooses_the_nic_and_prints_that") else {
        return;
    };
    let name = &nic.name;
    let mut recv = start(&format!("recv --if {name} -p 5410 -v 7 --json"));
    recv.until(&format!(
        "the kernel backend: {name} can receive into device memory"
    ));
    recv.until("listening on");
    send(OURS[0], PEERS[0], 5410, &[&repeating(7, b'\n', 70_000)]);
    assert_right(&recv.finish().json(), 70_000);
    nic.assert_restored();
}

#[test]
fn connections_are_spread_over_two_queues() {
    let Some(nic) = Nic::take("connections_are_spread_over_two_queues") else {
        return;
    };
    let bytes = repeating(7, b'\n', 700_000);
    let recv = recv(&nic, 5411, "-v 7 --queues 2 --connections 3");
    let to = SocketAddr::new(OURS[0].parse().expect("an address"), 5411);
    let senders = [(); 3].map(|()| {
        let bytes = bytes.clone();
        thread::spawn(move || {
            let connected = peer().run(|| std::net::TcpStream::connect(to));
            let mut stream = connected.expect("it can be joined").expect("it listens");
            stream.write_all(&bytes).expect("it receives");
        })
    });
    for sender in senders {
        sender.join().expect("it sent");
    }
    let json = recv.finish().json();
    assert_right(&json, 2_100_000);
    assert_eq!(json["connections"], 3, "{json}");
    nic.assert_restored();
}

/// More than half of the memory is kept, and for a while no frags are returned: the sender stalls, and continues when frags
/// are returned.
#[test]
fn a_starved_queue_recovers_when_frags_are_returned() {
    let Some(nic) = Nic::take("a_starved_queue_recovers_when_frags_are_returned") else {
        return;
    };
    let bytes = repeating(7, b'\n', 32 << 20);
    // 8 MiB are 2,048 net_iovs.
    let recv = recv(&nic, 5412, "-v 7 --mem-size 8M --keep-tokens 1200");
    let mut stream = connect(OURS[0], PEERS[0], 5412);
    kill_process(recv.pid(), Signal::STOP).expect("it runs");
    let limit = Some(Duration::from_millis(500));
    stream.set_write_timeout(limit).expect("a time limit");
    let mut rest = &bytes[..];
    loop {
        match stream.write(rest) {
            Ok(taken) => rest = &rest[taken..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(!rest.is_empty(), "32 MiB cannot be buffered");
    kill_process(recv.pid(), Signal::CONT).expect("it is there");
    stream.set_write_timeout(Some(LIMIT)).expect("a time limit");
    stream.write_all(rest).expect("it receives again");
    drop(stream);
    assert_right(&recv.finish().json(), bytes.len() as u64);
    nic.assert_restored();
}

#[test]
fn the_settings_of_a_prepared_nic_are_not_changed() {
    let Some(nic) = Nic::take("the_settings_of_a_prepared_nic_are_not_changed") else {
        return;
    };
    let prepared = recv(&nic, 5413, "--mem-size 8M");
    let settings_then = settings(&nic.name);
    // The first receiver uses the last queue and keeps the NIC prepared.
    let name = &nic.name;
    let taken = run(&format!(
        "recv --backend kernel --if {name} -l -p 5413 --configured"
    ));
    taken.failed_with(1, "is used by dma-buf");
    let queue = nic.queues().saturating_sub(2);
    let other = recv(
        &nic,
        5414,
        &format!("--configured --first-queue {queue} --mem-size 8M"),
    );
    assert_eq!(settings(name), settings_then);
    for receiver in [other, prepared] {
        kill_process(receiver.pid(), Signal::TERM).expect("it runs");
        receiver.finish().failed_with(1, "interrupted");
    }
    nic.assert_restored();
}

#[test]
fn signals_and_kill_9_leave_a_nic_that_is_or_can_be_restored() {
    let Some(nic) = Nic::take("signals_and_kill_9_leave_a_nic_that_is_or_can_be_restored") else {
        return;
    };
    let signals = [Signal::INT, Signal::TERM].into_iter().chain(hang_up());
    for (port, signal) in (5420..).zip(signals) {
        let recv = recv(&nic, port, "");
        let stream = connect(OURS[0], PEERS[0], port);
        assert_ne!(settings(&nic.name), nic.before, "it was set up");
        kill_process(recv.pid(), signal).expect("it runs");
        recv.finish().failed_with(1, "interrupted");
        drop(stream);
        nic.assert_restored();
    }
    let recv = recv(&nic, 5424, "");
    kill_process(recv.pid(), Signal::KILL).expect("it runs");
    assert_eq!(recv.finish().code, None);
    assert_ne!(settings(&nic.name), nic.before, "it is not restored yet");
    let name = &nic.name;
    run(&format!("recv --backend kernel --if {name}")).failed_with(1, "devmem-tcp restore");
    assert_eq!(run(&format!("restore {name}")).code, Some(0));
    nic.assert_restored();
}

#[test]
fn the_peer_gets_every_byte_that_is_sent_from_device_memory() {
    let Some(nic) = Nic::take("the_peer_gets_every_byte_that_is_sent_from_device_memory") else {
        return;
    };
    let receiver = receive_all(5430);
    let name = &nic.name;
    let line = format!(
        "send --backend kernel --if {name} {} 5430 --bytes 5M -v 7 -z 4095 --mem-size 1M --json",
        PEERS[0]
    );
    let json = run(&line).json();
    assert_eq!(json["backend"], "kernel", "{json}");
    assert_eq!(json["bytes"], 5 << 20, "{json}");
    assert_eq!(json["copied_completions"], 0, "{json}");
    let received = receiver.join().expect("it received");
    assert!(
        received == repeating(7, 0, 5 << 20),
        "{} bytes",
        received.len()
    );
    nic.assert_restored();
}
