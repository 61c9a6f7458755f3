//! `devmem-tcp demo`, from a stock kernel sender to device memory and back.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use devmem_linux::test_util::skip;
use rustix::process::{Signal, kill_process};

use crate::common::{
    assert_all_right, assert_everything_home, assert_nothing_dropped, has_tap, run, start_command,
    tool,
};

const MIB: u64 = 1 << 20;

/// Runs the demo over a TAP and asserts that every byte is correct.
#[track_caller]
fn tap_demo(mib: u64, options: &str) -> serde_json::Value {
    let finished = run(&format!("demo --link tap --json --bytes {mib}M {options}"));
    let json = finished.json();
    assert_all_right(&json, mib * MIB);
    assert_eq!(json["link"], "tap:dm0");
    assert_eq!(json["backend"], "user");
    json
}

#[test]
fn a_kernel_senders_bytes_are_all_verified_in_device_memory() {
    if !has_tap("a_kernel_senders_bytes_are_all_verified_in_device_memory") {
        return;
    }
    let json = tap_demo(64, "");
    assert_eq!(json["connections"], 1);
    assert_eq!(
        json["device_bytes"],
        64 * MIB,
        "a split NIC leaves no payload in host memory"
    );
    assert_nothing_dropped(&json);
    assert!(json["gbit_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
    assert!(
        json["recv_cpu_s_per_gb"]
            .as_f64()
            .is_some_and(|cost| cost > 0.0)
    );
}

#[test]
fn both_ip_versions_and_mtus_and_net_iov_sizes_work() {
    if !has_tap("both_ip_versions_and_mtus_and_net_iov_sizes_work") {
        return;
    }
    for options in [
        "--ipv6",
        "--mtu 9000",
        "--ipv6 --mtu 9000",
        "--niov 4K",
        "--niov 2M",
        "--mem-size 8M",
        "--queues 2 --connections 4",
    ] {
        let memory = match options {
            "--niov 2M" => "--mem-size 32M",
            "--mem-size 8M" => "",
            _ => "--mem-size 8M",
        };
        tap_demo(32, &format!("{options} {memory}"));
    }
}

#[test]
fn a_file_of_each_stock_server_is_loaded_over_a_tap_and_a_packet_socket() {
    const TEST: &str = "a_file_of_each_stock_server_is_loaded_over_a_tap_and_a_packet_socket";
    if !has_tap(TEST) {
        return;
    }
    for server in ["nginx", "python", "qemu-nbd", "nbdkit", "nvme"] {
        for (link, name) in [("tap", "tap:dm0"), ("packet", "packet:dm1")] {
            let line = format!("demo --load={server} --link {link} --bytes 20M --json");
            let finished = run(&line);
            if finished.code == Some(3) {
                skip(TEST, server, &finished.stderr);
                break;
            }
            let json = finished.json();
            assert_eq!(json["verified_bytes"], 20 * MIB, "{json}");
            assert_eq!(
                (&json["bad_bytes"], &json["link"]),
                (&0.into(), &name.into())
            );
            assert_eq!(json["linear_bytes"], 0, "{json}");
            assert_everything_home(&json);
        }
    }
}

#[test]
fn a_user_without_privileges_sees_a_file_of_each_stock_server() {
    const TEST: &str = "a_user_without_privileges_sees_a_file_of_each_stock_server";
    // As root of a user namespace that has no other users, which `unshare` makes of any user.
    let without_privileges = |line: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--"]);
        command.arg(env!("CARGO_BIN_EXE_devmem-tcp"));
        command.args(line.split_whitespace());
        command
    };
    let allowed = without_privileges("--version").output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return skip(TEST, "unshare", "users may not make user namespaces");
    }
    for server in ["nginx", "python", "qemu-nbd", "nbdkit", "nvme"] {
        let line = format!("demo --load={server} --bytes 5M --json");
        let finished = start_command(without_privileges(&line)).finish();
        match finished.code {
            Some(3) => skip(TEST, server, &finished.stderr),
            _ => assert_eq!(finished.json()["verified_bytes"], 5 * MIB),
        }
    }
}

#[test]
fn a_packet_socket_carries_both_directions() {
    if !has_tap("a_packet_socket_carries_both_directions") {
        return;
    }
    for options in ["", "--ipv6 --mtu 9000", "--connections 64"] {
        let finished = run(&format!(
            "demo --link packet --mem-size 32M --direction both --json --bytes 32M {options}"
        ));
        let json = finished.json();
        assert_all_right(&json["rx"], 32 * MIB);
        assert_eq!(json["rx"]["device_bytes"], 32 * MIB);
        assert_eq!(json["tx"]["verified_bytes"], 32 * MIB);
        for way in ["rx", "tx"] {
            assert_eq!(json[way]["link"], "packet:dm1");
        }
    }
}

#[test]
fn sixty_four_connections_at_once_are_kept_apart() {
    if !has_tap("sixty_four_connections_at_once_are_kept_apart") {
        return;
    }
    let json = tap_demo(64, "--connections 64");
    assert_eq!(json["connections"], 64);
}

#[test]
fn sends_of_any_size_are_received() {
    if !has_tap("sends_of_any_size_are_received") {
        return;
    }
    for size in ["1", "2", "3", "7", "8"] {
        let finished = run(&format!(
            "demo --link tap --mem-size 8M --niov 4K --json --bytes 20K --write-size {size}"
        ));
        assert_all_right(&finished.json(), 20 << 10);
    }
    for size in ["16", "64", "512", "1447", "1448", "4096", "8192", "65536"] {
        tap_demo(2, &format!("--write-size {size}"));
    }
}

#[test]
fn every_byte_is_correct_over_an_impaired_link() {
    if !has_tap("every_byte_is_correct_over_an_impaired_link") {
        return;
    }
    for (mib, impair) in [
        (4, "loss=1%"),
        (2, "loss=5%"),
        (4, "reorder=2%"),
        (4, "dup=2%"),
        (4, "corrupt=1%"),
        (4, "delay=2ms,jitter=1ms"),
        (3, "rate=100mbit,limit=100"),
        (
            2,
            "loss=1%,reorder=1%,dup=1%,corrupt=1%,delay=1ms,jitter=500us",
        ),
    ] {
        for version in ["", "--ipv6"] {
            let json = tap_demo(
                mib,
                &format!("--mem-size 8M --impair {impair},seed=7 {version}"),
            );
            assert!(
                json["impair"]
                    .as_str()
                    .is_some_and(|said| said.contains("seed=7")),
                "{json}"
            );
        }
    }
}

#[test]
fn an_in_memory_wire_needs_no_privilege_and_is_named_in_the_json() {
    for options in ["", "--ipv6 --connections 3", "--impair loss=1%,seed=3"] {
        let json = run(&format!(
            "demo --link wire --mem-size 8M --json --bytes 8M {options}"
        ))
        .json();
        assert_eq!(json["link"], "wire");
        assert_all_right(&json, 8 * MIB);
    }
}

#[test]
fn people_get_a_table_on_stderr_and_nothing_on_stdout() {
    let finished = run("demo --link wire --mem-size 8M --bytes 1M");
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stdout.is_empty());
    assert!(
        finished.stderr.contains("every byte, in device memory"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_sender_that_cannot_start_ends_the_demo_with_its_error() {
    if !has_tap("a_sender_that_cannot_start_ends_the_demo_with_its_error") {
        return;
    }
    let finished = run("demo --link tap --mem-size 8M --bytes 1M --congestion nosuch");
    finished.failed_with(
        1,
        "the sender failed: congestion control nosuch: No such file",
    );
}

/// Asserts that every byte was sent from device memory and that every send was completed.
#[track_caller]
fn assert_all_completed(json: &serde_json::Value) {
    assert!(
        json["sends"].as_u64().is_some_and(|sends| sends > 0),
        "{json}"
    );
    assert_eq!(json["sends"], json["completions"], "{json}");
    assert_eq!(json["copied_completions"], 0, "{json}");
    assert!(
        json["send_cpu_s_per_gb"]
            .as_f64()
            .is_some_and(|cost| cost > 0.0),
        "{json}"
    );
}

#[test]
fn a_kernel_receiver_verifies_bytes_sent_from_device_memory() {
    if !has_tap("a_kernel_receiver_verifies_bytes_sent_from_device_memory") {
        return;
    }
    for options in [
        "",
        "--ipv6 --mtu 9000",
        "--connections 8 --write-size 4097",
        "--impair loss=1%,reorder=1%,seed=7",
    ] {
        let line = format!("demo --direction tx --link tap --json --bytes 8M {options}");
        let json = run(&line).json();
        assert_eq!(json["direction"], "tx");
        assert_all_right(&json, 8 * MIB);
        assert_all_completed(&json);
    }
}

#[test]
fn loopback_goes_from_device_memory_to_device_memory() {
    for options in ["", "--ipv6 --connections 4 --write-size 4095"] {
        let line = format!(
            "demo --direction loopback --link wire --mem-size 32M --json --bytes 32M {options}"
        );
        let json = run(&line).json();
        assert_eq!(json["direction"], "loopback");
        assert_all_right(&json, 32 * MIB);
        assert_eq!(json["device_bytes"], 32 * MIB, "{json}");
        assert_all_completed(&json);
    }
}

#[test]
fn both_directions_are_one_object_with_a_result_each() {
    let json = run("demo --direction both --link auto --json --bytes 8M").json();
    assert_eq!(json["direction"], "both");
    for direction in ["rx", "tx"] {
        let result = &json[direction];
        assert_eq!(result["direction"], direction);
        assert_all_right(result, 8 * MIB);
    }
    assert_all_completed(&json["tx"]);
}

#[test]
fn without_tun_device_memory_is_sent_to_device_memory_of_another_stack() {
    let json = run("demo --direction tx --link wire --json --bytes 8M").json();
    assert_eq!(
        (&json["direction"], &json["link"]),
        (&"tx".into(), &"wire".into())
    );
    assert_all_right(&json, 8 * MIB);
    assert_all_completed(&json);
}

#[test]
fn the_table_fits_a_narrow_terminal() {
    let mut command = crate::common::tool();
    command.args([
        "demo",
        "--link",
        "wire",
        "--bytes",
        "1M",
        "--direction",
        "both",
    ]);
    command
        .env("COLUMNS", "40")
        .stdin(std::process::Stdio::null());
    let finished = crate::common::start_command(command).finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("in device\n"),
        "{}",
        finished.stderr
    );
    for line in finished.stderr.lines() {
        assert!(
            line.chars().count() <= 40,
            "{line:?} in:\n{}",
            finished.stderr
        );
    }
}

#[test]
fn both_directions_of_the_demo_can_be_captured() {
    let folder = tempfile::tempdir().unwrap();
    for direction in ["rx", "tx"] {
        let file = folder.path().join(direction);
        let options = format!(
            "--link wire --mem-size 8M --bytes 1M --direction {direction} --json --capture"
        );
        crate::common::run(&format!("demo {options} {}", file.display())).json();
        let comments = crate::common::comments(&std::fs::read(&file).unwrap(), 5201);
        // Without a TAP, both directions end in our memory.
        let has_token =
            |comment: &String| comment.contains("split at") && comment.contains("token");
        assert!(comments.iter().any(has_token), "{direction}: {comments:?}");
    }
    let refused = crate::common::run("demo --direction both --capture /dev/null");
    refused.failed_with(2, "--capture takes --direction rx or tx");
}

#[test]
fn four_processes_exchange_a_vector_and_agree_with_a_serial_computation() {
    for (floats, options, link) in [
        (65_537, "", "unix-listen"),
        (4, "--ipv6", "unix-listen"),
        (5_000, "--impair loss=1%,seed=3", "unix"),
    ] {
        let bytes = 4 * floats;
        let json = run(&format!("demo --exchange --json --bytes {bytes} {options}")).json();
        assert_eq!(
            (&json["floats"], &json["ranks"]),
            (&floats.into(), &4.into())
        );
        assert_eq!(json["link"], link);
        for (collective, share) in [("all_reduce", 1.5), ("all_gather", 0.75)] {
            let figures = &json[collective];
            assert_eq!(figures["wrong"], 0, "{json}");
            let rate = |name: &str| figures[name].as_f64().expect("a rate");
            let bus = rate("algbw_gb_per_s") * share;
            assert!((rate("busbw_gb_per_s") - bus).abs() <= bus * 1e-9, "{json}");
        }
    }
}

#[test]
fn an_exchange_that_is_interrupted_leaves_no_process_and_no_socket() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = tool();
    command.args([
        "demo",
        "--exchange",
        "--bytes",
        "1G",
        "--impair",
        "rate=10mbit",
    ]);
    command.env("TMPDIR", folder.path());
    let running = start_command(command);
    let pid = running.pid();
    let id = pid.as_raw_pid();
    let children = || {
        let listed = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let listed = listed.expect("the list of children");
        let ids = listed.split_whitespace().map(str::to_owned);
        ids.collect::<Vec<_>>()
    };
    // Four cables and four ranks.
    while children().len() < 8 {
        thread::sleep(Duration::from_millis(5));
    }
    let helpers = children();
    kill_process(pid, Signal::INT).expect("it runs");
    running.finish().failed_with(1, "interrupted");
    for helper in helpers {
        assert!(
            !Path::new("/proc").join(&helper).exists(),
            "{helper} still runs"
        );
    }
    let left = fs::read_dir(folder.path()).expect("the folder");
    assert_eq!(left.count(), 0, "the sockets are removed");
}

#[test]
fn options_of_other_demos_are_no_options_of_the_exchange() {
    run("demo --exchange --connections 2").failed_with(2, "");
    run("demo --exchange --bytes 17").failed_with(2, "multiple of 4 bytes from 16 bytes to 4 GiB");
}
