use clap::Parser;

use devmem_tcp::NiovSize;
use gvnic_server::plan::WirePlan;
use tool::parse::Prefix;

use super::*;
use crate::args::{BackendChoice, Cli, Command};

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
    let tap = &plan.link.tap;
    assert_eq!(
        (
            tap.link.to_string().as_str(),
            tap.local(plan.port).to_string().as_str()
        ),
        ("tap:dm0", "10.77.0.2:5201")
    );
    assert_eq!(plan.link.backend, BackendChoice::User);
    assert_eq!(
        (plan.nic.niov.bytes(), plan.nic.mem_bytes),
        (65536, 256 << 20)
    );
}

/// Invalid options of `recv`, and what their error says.
const INVALID: &[(&str, &str)] = &[
    ("--link eth0", "--link: 'eth0' names no link"),
    ("--link tap:", "--link: 'tap:' names no link"),
    (
        "--link tap:sixteen-bytes-xx",
        "the interface name is too long",
    ),
    ("--link mem:a", "mem:a is a wire inside one process"),
    (
        "--link tap:dm0,10.77.0.1/24 --peer-addr 10.77.0.3/24",
        "has an address for the kernel's end already",
    ),
    ("--addr 10.77.0.2", "is not an address with a prefix length"),
    (
        "--addr 10.77.0.2/33",
        "the prefix is longer than the address, which has 32 bits",
    ),
    ("--addr 224.0.0.1/24", "224.0.0.1 is a multicast address"),
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
    (
        "--mem-size 512K --shards 2",
        "and for 1 queues of each of 2 shards at least 1 MiB",
    ),
    (
        "--link unix:/tmp/wire --shards 2",
        "--shards 2: unix:/tmp/wire has one queue",
    ),
    ("--impair loss=200%", "--impair: "),
    ("--connections 0", "--connections 0: 1 to 1024"),
    ("--port 0", "--port 0"),
    ("-v 1", "--validate 1: 2 to 256"),
    ("-v 257", "--validate 257: 2 to 256"),
    ("-o x -k", "--output-file takes one connection"),
    ("-o x --connections 2", "--output-file takes one connection"),
    ("-o - --json", "both write to stdout"),
    ("--backend kernel", "--backend kernel needs --if NAME"),
    ("--if a/b", "--if \"a/b\" is not the name of an interface"),
    ("--addr 10.0.0.1", "is not an address with a prefix length"),
    (
        "--gateway 10.78.0.1",
        "--gateway 10.78.0.1 is not in the network 10.77.0.2/24",
    ),
];

#[test]
fn an_invalid_option_is_named_in_the_error() {
    for (line, text) in INVALID {
        let error = recv(line).expect_err(line);
        assert!(error.contains(text), "{line}: {error}");
    }
}

#[test]
fn a_packet_link_needs_an_address_and_has_no_kernels_end() {
    let cases = [
        ("--link packet:", "names no link"),
        (
            "--link packet:eth0",
            "--link packet:eth0 needs --addr ADDR/LEN, or --addr auto",
        ),
        (
            "--link macvtap:eth0",
            "--link macvtap:eth0 needs --addr ADDR/LEN, or --addr auto",
        ),
        (
            "--link packet:eth0 --addr 10.0.0.2/24 --peer-addr 10.0.0.1/24",
            "--peer-addr is for the kernel's end of a TAP",
        ),
    ];
    for (line, text) in cases {
        let error = recv(line).expect_err(line);
        assert!(error.contains(text), "{line}: {error}");
    }
    let plan = recv("--link packet:eth0,ports=5201-5203 --addr 10.0.0.2/24").unwrap();
    assert_eq!(plan.link.tap.link.kind().to_string(), "packet:eth0");
    assert_eq!(plan.link.tap.link.shared_ports(), Some(5201..=5203));
    assert_eq!(plan.nic.mtu, None, "that of the interface");
    let error = recv("--addr auto").expect_err("a TAP");
    assert!(error.contains("--addr auto is for"), "{error}");
    let plan = recv("--link packet:eth0 --addr auto --gateway 10.0.0.1").unwrap();
    assert_eq!(plan.link.tap.local(5201).to_string(), "[::]:5201");
    let plan = recv("--link macvtap:eth0,mode=private --addr 10.0.0.2/24").unwrap();
    let link = plan.link.tap.link.to_string();
    assert_eq!(link, "macvtap:eth0,mode=private");
    assert_eq!(plan.nic.mtu, None, "that of the interface");
}

#[test]
fn with_an_interface_of_the_kernel_the_backend_is_chosen_and_the_prefix_optional() {
    let plan = recv("--if eth1 --addr 192.0.2.1").unwrap();
    assert_eq!(plan.link.backend, BackendChoice::Auto);
    assert_eq!(plan.link.address, Some("192.0.2.1".parse().unwrap()));
    let plan = recv("--if eth1 --backend kernel --addr fd77::2/64 --queues 2").unwrap();
    assert_eq!(plan.link.backend, BackendChoice::Kernel);
    assert_eq!(plan.link.address, Some("fd77::2".parse().unwrap()));
    assert_eq!((plan.kernel.queues, plan.kernel.niov), (2, None));
    assert_eq!(plan.kernel.mem_bytes, 64 << 20);
    let asked_for = recv("--if eth1 --niov 16K --mem-size 128M").unwrap().kernel;
    assert_eq!(asked_for.niov.map(NiovSize::bytes), Some(16 << 10));
    assert_eq!(asked_for.mem_bytes, 128 << 20);
}

#[test]
fn options_that_only_our_nic_supports_are_found() {
    let cases = [
        ("--if eth1", None),
        ("--if eth1 --mtu 1500 --queues 2 --niov 4K", None),
        ("--if eth1 --mtu 9000", Some("--mtu")),
        (
            "--if eth1 --link packet:eth0 --addr 10.0.0.2/24",
            Some("--link"),
        ),
        ("--if eth1 --impair loss=1%", Some("--impair")),
        ("--if eth1 --linear 8", Some("--linear")),
        ("--if eth1 --capture x", Some("--capture")),
        ("--if eth1 --link tap:x", Some("--link")),
        ("--if eth1 --peer-addr 10.77.0.1/24", Some("--peer-addr")),
        ("--if eth1 --gateway 10.77.0.1", Some("--gateway")),
        ("--if eth1 --shards 2", Some("--shards")),
    ];
    for (line, expected) in cases {
        assert_eq!(recv(line).unwrap().kernel.users_alone, expected, "{line}");
    }
}

#[test]
fn an_address_that_no_host_can_have_is_a_usage_error_that_says_what_it_is() {
    for (line, text) in [
        (
            "--addr 10.77.0.0/24",
            "10.77.0.0 is the address of the network 10.77.0.0/24",
        ),
        (
            "--addr 10.77.0.255/24",
            "10.77.0.255 is the broadcast address",
        ),
        ("--addr 255.255.255.255/32", "is the broadcast address"),
        ("--addr 224.0.0.1/24", "224.0.0.1 is a multicast address"),
        ("--addr 127.0.0.1/8", "127.0.0.1 is a loopback address"),
        ("--addr 0.0.0.0/24", "0.0.0.0 is the unspecified address"),
        ("--addr ::1/128", "::1 is a loopback address"),
        ("--addr ff02::1/64", "ff02::1 is a multicast address"),
        (
            "--addr fd77::/64",
            "fd77:: is the address of the network fd77::/64",
        ),
        (
            "--peer-addr 10.77.0.255/24",
            "10.77.0.255 is the broadcast address",
        ),
        (
            "--gateway 10.77.0.255",
            "10.77.0.255 is the broadcast address of the network",
        ),
        (
            "--gateway 10.77.0.0",
            "10.77.0.0 is the address of the network",
        ),
        (
            "--gateway 10.77.0.2",
            "10.77.0.2 is an address of this interface",
        ),
    ] {
        for link in [
            "tap:dm0",
            "packet:eth0",
            "macvtap:eth0",
            "unix:/run/x",
            "unix-listen:/run/x",
        ] {
            let is_for_tap = line.starts_with("--peer");
            if is_for_tap && link != "tap:dm0" {
                continue;
            }
            let address = if line.contains("--addr") {
                ""
            } else {
                "--addr 10.77.0.2/24"
            };
            let line = format!("--link {link} {address} {line}");
            let error = recv(&line).expect_err(&line);
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}

#[test]
fn a_router_may_be_outside_of_an_address_without_a_network() {
    for line in [
        "--addr 10.156.0.18/32 --gateway 10.156.0.1",
        "--addr 203.0.113.7/32 --gateway 100.64.0.1",
        "--addr 10.0.0.0/31 --gateway 10.0.0.1",
        "--addr 2001:db8::5/128 --gateway fe80::1",
        "--addr 2001:db8::5/64 --gateway fe80::1",
        "--link packet:eth0 --addr auto --gateway 10.156.0.1",
        "--link packet:eth0 --addr auto --gateway fe80::1",
    ] {
        assert!(recv(line).is_ok(), "{line}: {:?}", recv(line).err());
    }
    let error = recv("--addr 10.77.0.2/24 --gateway 10.156.0.1").expect_err("elsewhere");
    assert!(error.ends_with("write --addr 10.77.0.2/32"), "{error}");
    assert!(recv("--link packet:eth0 --addr auto --gateway 224.0.0.1").is_err());
}

#[test]
fn a_host_outside_the_network_needs_a_gateway() {
    let send = |line: &str| {
        let words = ["devmem-tcp", "send"]
            .into_iter()
            .chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Send(args) => SendPlan::new(args).map_err(|failure| failure.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let refused = send("192.0.2.1").unwrap_err();
    assert!(
        refused.ends_with("--gateway ADDR names the router to it"),
        "{refused}"
    );
    let gateway = send("192.0.2.1 --gateway 10.77.0.1")
        .unwrap()
        .link
        .tap
        .gateway;
    assert_eq!(gateway, Some("10.77.0.1".parse().unwrap()));
    assert!(
        send("2001:db8::1 --gateway 10.77.0.1").is_err(),
        "the gateway is of IPv4"
    );
    // The kernel has its own routes.
    assert!(send("192.0.2.1 --if eth1").is_ok());
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
    assert!(wire("--a packet:x --b packet:x --b-netns other").is_ok());
    assert!(
        wire("--a tap:x --b tap:x")
            .unwrap_err()
            .contains("the same end, tap:x")
    );
    assert!(wire("--a tap:x,10.0.0.1/24 --b unix-listen:/tmp/w").is_ok());
    for (line, text) in [
        ("--a tap:x --b eth0", "--b \"eth0\" is not a wire"),
        ("--a unix:/w --b unix:/w", "the same end, unix:/w"),
        (
            "--a tap:x --b unix:/w --b-netns y",
            "--b-netns is for an interface",
        ),
        (
            "--a tap:x --b packet:y --b-addr 10.0.0.2/24",
            "--b-addr is for a TAP",
        ),
        ("--a packet:x --b packet:x", "the same end, packet:x"),
        (
            "--a tap:x,10.0.0.1/24 --a-addr 10.0.0.3/24 --b tap:y",
            "--a-addr: --a tap:x,10.0.0.1/24 has an address already",
        ),
    ] {
        let error = wire(line).unwrap_err();
        assert!(error.contains(text), "{line}: {error}");
    }
}

#[test]
fn a_prefix_contains_the_addresses_of_its_network() {
    let prefix: Prefix = "10.77.0.2/24".parse().unwrap();
    assert!(prefix.contains("10.77.0.255".parse().unwrap()));
    assert!(!prefix.contains("10.77.1.1".parse().unwrap()));
    for (ours, theirs) in [
        ("10.77.0.2/24", "10.77.0.1/24"),
        ("10.77.0.1/24", "10.77.0.2/24"),
        ("10.77.0.3/24", "10.77.0.2/24"),
        ("10.77.0.4/24", "10.77.0.5/24"),
        ("fd77::2/64", "fd77::1/64"),
    ] {
        let neighbour = ours.parse::<Prefix>().unwrap().neighbour();
        assert_eq!(neighbour.to_string(), theirs, "{ours}");
    }
    assert!(
        "fd77::2/0"
            .parse::<Prefix>()
            .unwrap()
            .contains("::1".parse().unwrap())
    );
}
