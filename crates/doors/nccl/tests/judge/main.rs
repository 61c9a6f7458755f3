//! A judge of NCCL network plugins: loads one by its symbols, and has two ranks, which are processes, exchange messages.
//!
//! `NCCL_JUDGE_PLUGIN=/path/libnccl-net-x.so` judges another plugin, where the devices are its own matter.

mod cases;
mod loaded;
mod rank;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use gvnic_server::plan::{WireEnd, WirePlan, WirePort};
use loaded::Plugin;
use rank::Rank;

/// Every version that NCCL loads since 2.20.
const VERSIONS: [u32; 5] = [8, 9, 10, 11, 12];

/// What connects the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    /// The kernel's loopback, with its TCP on both sides.
    Loopback,
    /// Two stacks in user space on a cable with these impairments.
    Unix(&'static str),
    /// A stack in user space, and the kernel's.
    Tap,
}

/// Where cargo put the plugin: beside this test, or one folder up.
fn plugin() -> PathBuf {
    if let Some(path) = std::env::var_os("NCCL_JUDGE_PLUGIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("this program has a path");
    let places = test.ancestors().skip(1).take(2);
    let mut places = places.map(|folder| folder.join("libnccl_net_devmem.so"));
    places
        .find(|place| place.exists())
        .expect("cargo builds the plugin before the test")
}

/// Starts this program as one of the roles below.
fn start(role: &str, folder: &Path, settings: &[(&str, String)]) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args(["--exact", role, "--ignored", "--nocapture"]);
    command.env("NCCL_JUDGE_FOLDER", folder);
    command.envs(settings.iter().map(|(name, value)| (*name, value)));
    command.spawn().expect("this program can be started")
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn folder() -> PathBuf {
    setting("NCCL_JUDGE_FOLDER")
        .expect("the parent sets it")
        .into()
}

/// Ends a cable when the test is over.
struct Cable(Child);

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a case with two ranks. Returns whether each of them succeeded.
fn outcome(case: &str, wire: Wire, version: u32) -> [bool; 2] {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let unix = |end: &str| folder.path().join(end).display().to_string();
    let (devices, cable) = match wire {
        Wire::Loopback => (["kernel:lo".to_owned(), "kernel:lo".to_owned()], None),
        Wire::Tap => (
            [
                "user:tap:judge0:10.99.0.2/24".to_owned(),
                "kernel:judge0".to_owned(),
            ],
            None,
        ),
        Wire::Unix(impairment) => {
            let settings = [("NCCL_JUDGE_IMPAIR", impairment.to_owned())];
            let cable = Cable(start("cable", folder.path(), &settings));
            let devices = [1, 2]
                .map(|end| format!("user:unix:{}:10.77.0.{end}/24", unix(&format!("end{end}"))));
            (devices, Some(cable))
        }
    };
    let mut ranks: Vec<_> = devices
        .into_iter()
        .enumerate()
        .map(|(number, devices)| {
            let settings = [
                ("NCCL_JUDGE_CASE", case.to_owned()),
                ("NCCL_JUDGE_RANK", number.to_string()),
                ("NCCL_JUDGE_VERSION", version.to_string()),
                ("DEVMEM_TCP_DEVICES", devices),
            ];
            start("rank", folder.path(), &settings)
        })
        .collect();
    let ended = [0, 1].map(|at| ranks[at].wait().expect("a child").success());
    drop(cable);
    ended
}

fn judge(case: &str, wire: Wire, version: u32) {
    let ended = outcome(case, wire, version);
    assert_eq!(
        ended,
        [true, true],
        "{case} over {wire:?}, version {version}"
    );
}

/// A rank of a case, in a process of its own.
#[test]
#[ignore = "a role that the other tests start"]
fn rank() {
    let Some(case) = setting("NCCL_JUDGE_CASE") else {
        return;
    };
    let number = |name| setting(name).and_then(|text| text.parse().ok());
    let version = number("NCCL_JUDGE_VERSION").expect("the parent sets it");
    let rank: usize = number("NCCL_JUDGE_RANK").map_or(0, |rank| rank as usize);
    for end in ["end1", "end2"] {
        // The ends of a cable, if there is one, are made by another process.
        if setting("DEVMEM_TCP_DEVICES").is_some_and(|devices| devices.contains(end)) {
            rank::until("the cable", || folder().join(end).exists().then_some(()));
        }
    }
    let plugin = Plugin::load(&plugin(), version).expect("init");
    let rank = Rank::new(plugin, rank, &folder());
    match case.as_str() {
        "sizes" => cases::sizes(&rank),
        "few_sizes" => cases::few_sizes(&rank),
        "many" => cases::many(&rank),
        "reversed" => cases::reversed(&rank),
        "grouped" => cases::grouped(&rank),
        "in_turn" => cases::in_turn(&rank),
        "threads" => cases::threads(&rank),
        "too_long" => cases::too_long(&rank),
        "early_close" => cases::early_close(&rank),
        "killed" => cases::killed(&rank),
        "alone" => cases::alone(&rank),
        "refusals" => cases::refusals(&rank),
        case => panic!("there is no case {case}"),
    }
    rank.plugin.unload().expect("finalize and dlclose");
}

/// The cable between two stacks in user space.
#[test]
#[ignore = "a role that the other tests start"]
fn cable() {
    let Some(impairment) = setting("NCCL_JUDGE_IMPAIR") else {
        return;
    };
    let end = |end: &str| WireEnd {
        port: WirePort::Listen(folder().join(end)),
        netns: None,
    };
    let plan = WirePlan {
        ends: [end("end1"), end("end2")],
        mtu: 1500,
        impairment: impairment.parse().expect("impairments"),
        limit: None,
        json: false,
    };
    let _ = gvnic_server::cable::run(&plan);
}

/// Runs a case of one process.
fn single(case: &str, version: u32) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [
        ("NCCL_JUDGE_CASE", case.to_owned()),
        ("NCCL_JUDGE_VERSION", version.to_string()),
        ("DEVMEM_TCP_DEVICES", "kernel:lo".to_owned()),
    ];
    let ended = start("rank", folder.path(), &settings).wait();
    assert!(
        ended.expect("a child").success(),
        "{case}, version {version}"
    );
}

#[test]
fn every_version_connects_and_moves_messages() {
    for version in VERSIONS {
        judge("few_sizes", Wire::Loopback, version);
    }
}

#[test]
fn every_version_connects_to_itself_and_refuses_alike() {
    for version in VERSIONS {
        single("alone", version);
        single("refusals", version);
    }
}

#[test]
fn messages_of_no_byte_to_64_mib_over_loopback() {
    judge("sizes", Wire::Loopback, 12);
}

#[test]
fn messages_of_no_byte_to_64_mib_over_a_cable() {
    judge("sizes", Wire::Unix("none"), 12);
}

#[test]
fn messages_survive_loss_and_reordering() {
    judge("few_sizes", Wire::Unix("loss=1%,reorder=2%,seed=7"), 11);
    judge("grouped", Wire::Unix("loss=1%,reorder=2%,seed=8"), 12);
}

#[test]
fn many_communicators_at_once() {
    judge("many", Wire::Loopback, 12);
    judge("many", Wire::Unix("none"), 9);
}

#[test]
fn requests_are_tested_in_any_order_and_in_groups() {
    for wire in [Wire::Loopback, Wire::Unix("none")] {
        judge("reversed", wire, 10);
        judge("grouped", wire, 12);
    }
}

#[test]
fn a_thousand_requests_in_turn() {
    judge("in_turn", Wire::Loopback, 12);
    judge("in_turn", Wire::Unix("none"), 8);
}

#[test]
fn four_threads() {
    judge("threads", Wire::Loopback, 12);
    judge("threads", Wire::Unix("none"), 12);
}

#[test]
fn a_message_longer_than_its_receive_is_the_users_mistake() {
    for wire in [Wire::Loopback, Wire::Unix("none")] {
        judge("too_long", wire, 12);
    }
}

#[test]
fn a_close_with_requests_in_flight_succeeds_and_fails_the_peer() {
    for wire in [Wire::Loopback, Wire::Unix("none")] {
        judge("early_close", wire, 12);
    }
}

#[test]
fn a_killed_peer_fails_the_requests() {
    assert_eq!(outcome("killed", Wire::Loopback, 12), [false, true]);
}

/// A stack in user space at one end, the kernel's at the other, in a network namespace of their own.
#[test]
fn ranks_on_a_tap() {
    let program = std::env::current_exe().expect("this program has a path");
    let inside = "ip link set lo up && ip tuntap add judge0 mode tap && ip address add 10.99.0.1/24 dev judge0 && \
                  ip link set judge0 up && exec \"$0\" --exact on_a_tap --ignored --nocapture";
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c", inside])
        .arg(program)
        .env("NCCL_JUDGE_TAP", "1");
    let probe = Command::new("unshare")
        .args(["--net", "ip", "tuntap", "add", "judge0", "mode", "tap"])
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("SKIP a TAP in a network namespace needs root, unshare and ip");
        return;
    }
    let ended = command.status();
    assert!(ended.expect("unshare runs").success());
}

/// The cases on a TAP.
#[test]
#[ignore = "a role that `ranks_on_a_tap` starts"]
fn on_a_tap() {
    if setting("NCCL_JUDGE_TAP").is_some() {
        for case in ["sizes", "reversed", "early_close"] {
            judge(case, Wire::Tap, 12);
        }
    }
}
