//! `devmem-tcp broker` without a NIC: who is served, what is logged, and how it ends. The lab has the rows with one.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use devmem_linux::broker::{BrokerError, bind_rx};
use devmem_linux::netdev::KernelRxQueueId;
use devmem_uapi::Errno;
use rustix::process::{Signal, geteuid, kill_process};
use serde_json::Value;

use crate::common::{run, start};

fn ask(socket: &Path, queue: u32) -> BrokerError {
    let file = File::open("/dev/null").expect("every machine has it");
    let queues = [KernelRxQueueId(queue)];
    bind_rx(socket, "lo", file.as_fd(), &queues, None).expect_err("the loopback interface cannot")
}

#[test]
fn a_broker_serves_until_a_signal_and_logs_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let uid = geteuid().as_raw();
    let mut broker = start(&format!(
        "broker {} --allow uid={uid}:lo:0 --json",
        socket.display()
    ));
    broker.until(&format!("serving uid={uid}:lo:0 at "));
    run(&format!(
        "broker {} --allow uid={uid}:lo:0",
        socket.display()
    ))
    .failed_with(1, "another process is listening there");
    let by_kernel = ask(&socket, 0);
    assert!(
        by_kernel
            .to_string()
            .contains("bind-rx on lo queue 0 refused"),
        "{by_kernel}"
    );
    assert_eq!(ask(&socket, 1).errno(), Errno::EPERM);
    kill_process(broker.pid(), Signal::TERM).unwrap();
    let finished = broker.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(!socket.exists());
    let stdout = String::from_utf8(finished.stdout).unwrap();
    let lines: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    for line in &lines {
        assert_eq!(line["outcome"], "refused", "{line}");
        assert_eq!(line["client"]["pid"], std::process::id(), "{line}");
        assert_eq!(line["client"]["uid"], uid, "{line}");
    }
    assert_eq!(lines[0]["errno"], by_kernel.errno().0);
}

#[test]
fn a_broker_of_a_namespace_that_does_not_exist_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let line = format!(
        "broker {} --netns nosuch --allow uid=1:lo:0",
        socket.display()
    );
    run(&line).failed_with(1, "open network namespace /run/netns/nosuch: ");
    assert!(!socket.exists());
}
