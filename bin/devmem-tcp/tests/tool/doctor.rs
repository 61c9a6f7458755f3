//! `devmem-tcp doctor` on the machine that runs the tests, whatever it supports.

use crate::common::{Finished, run};
use devmem_linux::netif::Interface;
use devmem_linux::test_util::in_netns;
use serde_json::Value;

/// Returns the JSON object on stdout, for any exit code.
#[track_caller]
fn object(finished: &Finished) -> Value {
    let text = std::str::from_utf8(&finished.stdout).expect("JSON is text");
    assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
    serde_json::from_str(text).expect("stdout is JSON")
}

#[test]
fn the_table_goes_to_stdout_and_the_exit_code_has_the_result() {
    let finished = run("doctor");
    let table = String::from_utf8(finished.stdout).unwrap();
    assert!(table.starts_with("kernel "), "{table}");
    for part in [
        "\nthis machine\n",
        "\ndma-buf exporters",
        "\nuser-space backend\n",
    ] {
        assert!(table.contains(part), "no {part:?} in:\n{table}");
    }
    match finished.code {
        Some(0) => assert!(
            table.contains("\nthe kernel can receive into device memory:"),
            "{table}"
        ),
        Some(3) => {
            let said = finished.stderr;
            assert!(
                said.starts_with("devmem-tcp: the kernel cannot receive into device memory here: "),
                "{said}"
            );
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        code => panic!("{code:?}: {}", finished.stderr),
    }
}

#[test]
fn the_json_has_the_result_of_the_exit_code() {
    let finished = run("doctor --json");
    let json = object(&finished);
    assert_eq!(json["ready"], finished.code == Some(0), "{json}");
    let release = json["kernel"]["release"].as_str().unwrap();
    let running = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(release, running.trim());
    let names: Vec<_> = json["nics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|nic| &nic["name"])
        .collect();
    assert!(names.iter().any(|name| **name == "lo"), "{names:?}");
}

#[test]
fn one_interface_is_listed_in_full_and_the_loopback_is_unsupported() {
    let finished = run("doctor lo");
    finished.failed_with(3, "the kernel cannot receive into device memory here: ");
    let table = String::from_utf8(finished.stdout).unwrap();
    // The first check depends on the user: without CAP_NET_ADMIN, support of bind_rx cannot be determined.
    assert!(table.contains("\nlo: no driver: unsupported ("), "{table}");
    assert!(
        table.contains("\n  missing  tcp_data_split    the driver does not support it\n"),
        "{table}"
    );
    let json = object(&run("doctor lo --json"));
    assert_eq!(json["nics"].as_array().unwrap().len(), 1, "{json}");
    assert_eq!(json["nics"][0]["verdict"], "unsupported", "{json}");
}

#[test]
fn an_unknown_interface_is_a_failure() {
    run("doctor nosuch0").failed_with(1, "examine nosuch0: ENODEV");
}

/// Returns the check of this name of the user-space backend.
fn check(name: &str) -> Value {
    let json = object(&run("doctor --json"));
    let checks = json["user_space"]["checks"].as_array().unwrap().clone();
    let found = checks.into_iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name}: {json}"))
}

#[test]
fn the_links_of_this_machine_are_listed_with_what_is_missing() {
    in_netns(
        "doctor::the_links_of_this_machine_are_listed_with_what_is_missing",
        || {
            // There is the loopback interface alone.
            let none = check("packet");
            assert_eq!(none["state"], "mendable", "{none}");
            assert_eq!(none["found"], "no Ethernet interface is up", "{none}");
            assert!(
                none["remedy"]
                    .as_str()
                    .unwrap()
                    .contains("ip link set NAME up")
            );
            let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
            near.set_up().unwrap();
            far.set_up().unwrap();
            let packet = check("packet");
            assert_eq!(packet["state"], "good", "{packet}");
            const MERGES: &str = "(merges packets up to 64 KiB)";
            let found = |kind| format!("works: {kind}:far {MERGES}, {kind}:near {MERGES}");
            assert_eq!(packet["found"], found("packet"), "{packet}");
            let macvtap = check("macvtap");
            let is_good = macvtap["found"] == found("macvtap");
            assert_eq!(macvtap["state"] == "good", is_good, "{macvtap}");
            assert!(is_good || macvtap["found"].is_string(), "{macvtap}");
            near.delete().unwrap();
        },
    );
}

#[test]
fn the_table_fits_a_narrow_terminal() {
    let mut command = crate::common::tool();
    command.arg("doctor").env("COLUMNS", "60");
    let finished = crate::common::start_command(command).finish();
    let table = String::from_utf8(finished.stdout).unwrap();
    assert!(table.contains("user-space backend"), "{table}");
    for line in table.lines() {
        // A long word, such as a path, stays in one piece.
        let is_one_word = line.split_whitespace().count() == 1;
        assert!(
            line.chars().count() <= 60 || is_one_word,
            "{line:?} in:\n{table}"
        );
    }
}
