use clap::Parser;

use super::*;
use crate::args::{Cli, Command};

fn recv(line: &str) -> Result<RecvPlan, String> {
    let words = ["devmem-tcp", "recv"]
        .into_iter()
        .chain(line.split_whitespace());
    match Cli::try_parse_from(words).unwrap().command {
        Command::Recv(args) => RecvPlan::new(args).map_err(|failure| failure.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_defaults_are_a_valid_plan() {
    let plan = recv("").unwrap();
    assert_eq!(
        (plan.tap.as_str(), plan.local.to_string().as_str()),
        ("dm0", "10.77.0.2:5201")
    );
    assert_eq!(
        (plan.nic.niov.bytes(), plan.nic.mem_bytes),
        (65536, 256 << 20)
    );
}

#[test]
fn an_option_that_makes_no_sense_is_named_in_the_error() {
    let cases = [
        ("--link eth0", "--link \"eth0\" is not a link"),
        ("--link tap:", "--link \"tap:\" is not a link"),
        ("--link tap:sixteen-bytes-xx", "is not a link"),
        ("--addr 10.77.0.2", "is not an address with a prefix length"),
        (
            "--addr 10.77.0.2/33",
            "is not an address with a prefix length",
        ),
        (
            "--addr 224.0.0.1/24",
            "is not an address with a prefix length",
        ),
        ("--peer-addr 10.78.0.1/24", "are not in the same network"),
        ("--peer-addr fd77::1/64", "are not in the same network"),
        (
            "--peer-addr 10.77.0.2/24",
            "both ends have the address 10.77.0.2",
        ),
        ("--mtu 500", "--mtu 500: 576 to 65521 for IPv4"),
        (
            "--addr fd77::2/64 --mtu 1000",
            "--mtu 1000: 1280 to 65521 for IPv6",
        ),
        ("--queues 0", "--queues 0: 1 to 64"),
        ("--niov 5000", "--niov: "),
        ("--niov 4M", "--niov: "),
        (
            "--mem-size 100000",
            "--mem-size 97.66 KiB: with net_iovs of 64 KiB",
        ),
        ("--mem-size 64K", "and for 1 queues at least 512 KiB"),
        ("--impair loss=200%", "--impair: "),
        ("--connections 0", "--connections 0: 1 to 1024"),
        ("--port 0", "--port 0"),
        ("-v 1", "--validate 1: 2 to 256"),
        ("-v 257", "--validate 257: 2 to 256"),
        ("-o x -k", "--output-file takes one connection"),
        ("-o x --connections 2", "--output-file takes one connection"),
        ("-o - --json", "both want stdout"),
    ];
    for (line, text) in cases {
        let error = recv(line).expect_err(line);
        assert!(error.contains(text), "{line}: {error}");
    }
}

#[test]
fn a_wire_has_two_different_ends() {
    let wire = |line: &str| {
        let words = ["devmem-tcp", "wire"]
            .into_iter()
            .chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Wire(args) => WirePlan::new(args).map_err(|failure| failure.to_string()),
            other => panic!("{other:?}"),
        }
    };
    assert!(wire("--a tap:x --b tap:y").is_ok());
    assert!(wire("--a tap:x --b tap:x --b-netns other").is_ok());
    assert!(
        wire("--a tap:x --b tap:x")
            .unwrap_err()
            .contains("the same interface, x")
    );
    assert!(
        wire("--a tap:x --b eth0")
            .unwrap_err()
            .contains("--b \"eth0\" is not a link")
    );
}

#[test]
fn prefixes_know_their_network() {
    let prefix: Prefix = "10.77.0.2/24".parse().unwrap();
    assert!(prefix.contains("10.77.0.255".parse().unwrap()));
    assert!(!prefix.contains("10.77.1.1".parse().unwrap()));
    assert!(
        "fd77::2/0"
            .parse::<Prefix>()
            .unwrap()
            .contains("::1".parse().unwrap())
    );
}
