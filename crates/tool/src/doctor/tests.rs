//! The table of recorded facts: of a guest with a gVNIC, and of a machine without any support.

use devmem_linux::doctor::{KernelFacts, Leased, Lessor, NicFacts};
use devmem_linux::drivers::known_driver;
use devmem_linux::ethtool::DriverInfo;
use devmem_linux::netdev::{KernelRxQueueId, QueueUser};
use devmem_uapi::DmabufId;

use super::*;

fn good(name: &'static str, found: &str) -> Check {
    Check {
        name,
        state: CheckState::Good,
        found: found.to_owned(),
        remedy: None,
    }
}

fn mend(name: &'static str, found: &str, remedy: &str) -> Check {
    Check {
        state: CheckState::Mendable,
        remedy: Some(remedy.to_owned()),
        ..good(name, found)
    }
}

fn missing(name: &'static str, found: &str) -> Check {
    Check {
        state: CheckState::Missing,
        ..good(name, found)
    }
}

fn nic(name: &str, driver: Option<&str>, checks: Vec<Check>, verdict: NicVerdict) -> NicFacts {
    NicFacts {
        name: name.to_owned(),
        index: 2,
        driver: driver.map(|driver| DriverInfo {
            driver: driver.to_owned(),
            version: "1.0.0".to_owned(),
            firmware: String::new(),
            bus: "0000:00:01.0".to_owned(),
        }),
        known: driver.and_then(known_driver),
        rx_queues: 4,
        taken: Vec::new(),
        leased: Vec::new(),
        checks,
        verdict,
    }
}

fn loopback() -> NicFacts {
    let checks = vec![
        good("up", "up"),
        missing("bind_rx", "netdev does not support queue management"),
        missing("bind_tx", "the driver does not support it"),
        missing("tcp_data_split", "the driver does not support it"),
    ];
    nic("lo", None, checks, NicVerdict::Unsupported)
}

/// Facts of a guest with Linux 7.2 and an emulated gVNIC.
fn guest() -> Diagnosis {
    let checks = vec![
        good("up", "up"),
        good("bind_rx", "the driver supports it"),
        good("bind_tx", "the driver supports it"),
        good("rx_queues", "2 of 4 can be bound"),
        mend("tcp_data_split", "off", "ethtool -G eth1 tcp-data-split on"),
        good("hds_thresh", "none"),
        mend(
            "rx-ntuple-filter",
            "off",
            "ethtool -K eth1 rx-ntuple-filter on",
        ),
        good("flow_rules", "0 of 64 in use"),
        good("rss_table", "128 entries, 0 further contexts"),
        good("xdp", "no program attached"),
    ];
    let mut gvnic = nic("eth1", Some("gve"), checks, NicVerdict::NeedsSetup);
    gvnic.taken = vec![(KernelRxQueueId(3), QueueUser::Dmabuf(DmabufId(1)))];
    diagnosis(
        KernelFacts {
            release: "7.2.12".to_owned(),
            config_source: Some("/boot/config-7.2.12".to_owned()),
            config: [("CONFIG_NET_DEVMEM", "y"), ("CONFIG_UDMABUF", "m")]
                .map(|(option, value)| (option, value.to_owned()))
                .into(),
        },
        vec![
            good("devmem_sockets", "TCP sockets support device memory"),
            good("cap_net_admin", "held in the initial user namespace"),
        ],
        vec![good("udmabuf", "works, at most 64 MiB each")],
        vec![loopback(), gvnic],
        vec![good(
            "cuda",
            "cuda:0 is a GPU at 0000:02:00.0, 80 GiB, CUDA 13.0, exports dma-bufs",
        )],
    )
}

/// Facts of a machine with kernel support, but without a suitable NIC, exporter or privilege.
fn bare() -> Diagnosis {
    let udmabuf = Check {
        remedy: Some("modprobe udmabuf; the kernel must be built with CONFIG_UDMABUF".to_owned()),
        ..missing("udmabuf", "there is no /dev/udmabuf")
    };
    diagnosis(
        KernelFacts {
            release: "6.18.2".to_owned(),
            config_source: None,
            config: [].into(),
        },
        vec![good("cap_net_admin", "held in the initial user namespace")],
        vec![udmabuf],
        vec![loopback()],
        vec![missing(
            "cuda",
            "libcuda.so.1 cannot be loaded: no such file",
        )],
    )
}

fn diagnosis(
    kernel: KernelFacts,
    machine: Vec<Check>,
    exporters: Vec<Check>,
    nics: Vec<NicFacts>,
    devices: Vec<Check>,
) -> Diagnosis {
    let doctor = Doctor {
        kernel,
        machine,
        exporters,
        nics,
    };
    Diagnosis {
        ready: doctor.can_receive(),
        doctor,
        devices,
        user_space: UserSpace {
            ready: true,
            checks: vec![
                good("tap", "works"),
                mend(
                    "huge_pages",
                    "no huge pages are reserved for hugetlb",
                    "reserve huge pages: sysctl vm.nr_hugepages=512",
                ),
            ],
        },
    }
}

/// Compares line by line, so that differences are readable.
#[track_caller]
fn assert_table(table: &str, golden: &str) {
    for (found, expected) in table.lines().zip(golden.lines()) {
        assert_eq!(found, expected, "in:\n{table}");
    }
    assert_eq!(table.lines().count(), golden.lines().count(), "{table}");
}

#[test]
fn the_table_of_a_guest_with_a_gvnic() {
    let guest = guest();
    assert!(guest.ready);
    assert_table(
        &guest.table(Unsupported::InOneLine),
        include_str!("golden/guest.txt"),
    );
}

#[test]
fn the_table_of_an_unsupported_machine_names_the_obstacles() {
    let bare = bare();
    assert!(!bare.ready);
    assert_table(
        &bare.table(Unsupported::InFull),
        include_str!("golden/bare.txt"),
    );
    assert_eq!(
        bare.doctor.obstacles_to_receiving(),
        ["no exporter of dma-bufs works", "lo does not support it"]
    );
    assert!(bare.instead().contains("devmem-tcp demo"));
}

#[test]
fn settings_to_fix_by_hand_are_distinguished_from_those_of_set_up() {
    let mut guest = guest();
    guest.doctor.nics[1].checks[0] = mend("up", "down", "ip link set eth1 up");
    let table = guest.table(Unsupported::InOneLine);
    assert!(table.contains("\n  eth1: fix up first\n"), "{table}");
    assert!(!table.contains("recv --backend"), "{table}");
}

#[test]
fn a_leased_queue_is_told_on_both_sides() {
    let leased = |queue, from| Leased {
        queue: KernelRxQueueId(queue),
        from,
    };
    let checks = vec![good("leased_queues", "2 of 2 can be bound")];
    let mut netkit = nic("dm0", Some("netkit"), checks, NicVerdict::Ready);
    netkit.leased = vec![
        leased(
            1,
            Some(Lessor {
                interface: "eth1".to_owned(),
                queue: KernelRxQueueId(15),
            }),
        ),
        leased(2, None),
    ];
    let mut guest = guest();
    guest.doctor.nics[1].taken = vec![(KernelRxQueueId(15), QueueUser::Lease(None))];
    guest.doctor.nics.push(netkit);
    let table = guest.table(Unsupported::InOneLine);
    for line in [
        "RX queue 15 is used by a lease to another netdev",
        "RX queue 1 is leased from queue 15 of eth1",
        "RX queue 2 is leased from a NIC of another network namespace",
    ] {
        assert!(table.contains(line), "{table}");
    }
}

#[test]
fn a_missing_privilege_is_the_first_obstacle() {
    let mut bare = bare();
    bare.doctor.machine[0] = mend(
        "cap_net_admin",
        "not held: set-up and bind-rx require it",
        "run as root",
    );
    bare.doctor.nics[0].verdict = NicVerdict::Unknown;
    let obstacles = bare.doctor.obstacles_to_receiving().join("; ");
    assert!(
        obstacles.ends_with("the capabilities of lo could not be determined"),
        "{obstacles}"
    );
    assert!(
        bare.instead().starts_with("run it as root"),
        "{}",
        bare.instead()
    );
}

#[test]
fn the_json_has_the_same_results_under_stable_names() {
    let json = serde_json::to_value(guest()).unwrap();
    assert_eq!(json["ready"], true);
    assert_eq!(json["kernel"]["config"]["CONFIG_UDMABUF"], "m");
    assert_eq!(json["nics"][1]["verdict"], "needs_setup");
    assert_eq!(json["nics"][1]["taken"][0][1]["dmabuf"], 1);
    let split = &json["nics"][1]["checks"][4];
    assert_eq!(split["name"], "tcp_data_split");
    assert_eq!(split["state"], "mendable");
    assert_eq!(split["remedy"], "ethtool -G eth1 tcp-data-split on");
    assert_eq!(json["user_space"]["checks"][0]["found"], "works");
}

#[test]
fn results_of_probes_become_checks() {
    let missing = |remedy| Verdict::Missing {
        reason: "it does not exist".to_owned(),
        remedy,
    };
    assert_eq!(check("tun", &Verdict::Works), good("tun", "works"));
    assert_eq!(check("tun", &missing(None)).state, CheckState::Missing);
    let mendable = check("tun", &missing(Some("modprobe tun")));
    assert_eq!(mendable, mend("tun", "it does not exist", "modprobe tun"));
}
