//! The released library of NCCL over this plugin, without a GPU: ranks are processes, in which the CUDA runtime of the library is replaced by
//! one whose device memory is memory of the process, and whose kernels are played by threads. All the rest is NCCL's own code: its bootstrap,
//! topology, proxies, and what they call of the plugin.
//!
//! `DEVMEM_TEST_NCCL` names a folder with the libraries, `VERSION/libnccl.so.2` (`.ci/run --only nccl` fetches them). Without it, and for each
//! library that is missing or was built in another way, the tests say SKIP.

#[path = "../../../../devmem-tcp/tests/kernel_nic/bench.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod bench;
mod nccl;
mod play;
mod rank;
mod runtime;
#[path = "../wires/mod.rs"]
mod wires;

use std::process::ExitCode;

use devmem_linux::test_util::skip;
use libtest_mimic::{Arguments, Trial};

use bench::Bench;
use play::Play;
use wires::Wire;

/// The oldest release for this plugin and the newest, those between that bring a version of the interface, and that version.
const RELEASES: [(&str, u32); 6] = [
    ("2.20.5", 8),
    ("2.25.1", 9),
    ("2.27.7", 10),
    ("2.29.7", 11),
    ("2.30.7", 12),
    ("2.32.3", 12),
];
/// The releases whose kernels are played.
const PLAYED: [&str; 3] = ["2.29.7", "2.30.7", "2.32.3"];
const NEWEST: &str = PLAYED[2];

/// From one element to more than all buffers of a connection hold, in bytes.
const ALL_SIZES: &str = "NCCL_RELEASED_SIZES=4,8,4100,65536,1048576,16777216";
const SOME_SIZES: &str = "NCCL_RELEASED_SIZES=4,4100,1048576";
const LARGE_SIZE: &str = "NCCL_RELEASED_SIZES=16777216";

const LOSSY: Wire = Wire::Cable("loss=1%,reorder=2%,seed=7");

/// Init and all connections of all channels, with each version of the interface.
fn start(test: &str) {
    for (version, interface) in RELEASES {
        let play = Play::of("start", version, 2, "NCCL_RUNTIME_CONNECT=0");
        // NCCL says the version of the interface, unless it was the newest then.
        let loaded = match interface {
            8 => "Using network Devmem".to_owned(),
            _ => format!("Loaded net plugin Devmem (v{interface})"),
        };
        let rings = "Connected all rings";
        for log in play.succeed(test) {
            for line in [rings, "via NET/Devmem/0", "Init COMPLETE", &loaded] {
                assert!(log.contains(line), "{version}: no {line:?} in\n{log}");
            }
        }
    }
}

/// Every element of every collective with each release.
fn releases(test: &str) {
    for version in PLAYED {
        Play::of("collectives", version, 3, SOME_SIZES).succeed(test);
    }
}

/// Every element of every collective, on two to four ranks.
fn sockets(test: &str) {
    for ranks in 2..=4 {
        Play::of("collectives", NEWEST, ranks, ALL_SIZES).succeed(test);
    }
}

fn shared_memory(test: &str) {
    let play = Play::of("collectives", NEWEST, 2, ALL_SIZES);
    play.over(Wire::Shared).succeed(test);
}

/// Each communicator has several streams.
fn loss(test: &str) {
    let settings = format!("{ALL_SIZES} NCCL_DEVMEM_STREAMS=3 NCCL_DEVMEM_CHUNK=262144");
    let play = Play::of("collectives", NEWEST, 2, &settings);
    play.over(LOSSY).succeed(test);
}

/// The buffers of the connections are memory of the stand-in's GPU with dma-bufs, and messages are received in a pool on that GPU.
fn device_memory(test: &str, play: &Play<'_>) {
    for log in play.succeed(test) {
        for way in ["send", "receive"] {
            let line = format!("[{way}] via NET/Devmem/0/GDRDMA");
            assert!(log.contains(&line), "no {line:?} in\n{log}");
        }
        // What a communicator says at its end: bytes sent, received, and received by way of device memory.
        let ends = log.split("a communicator is closed: ").skip(1);
        let counts = ends.map(|end| end.split([' ', ',']).flat_map(str::parse::<u64>));
        let counts: Vec<Vec<u64>> = counts.map(|of| of.take(3).collect()).collect();
        assert!(counts.iter().any(|of| of[1] > 0), "{log}");
        assert!(counts.iter().all(|of| of[1] == of[2]), "{log}");
    }
}

fn gpu(test: &str) {
    let several = ("several", NEWEST);
    let each = PLAYED.map(|version| ("collectives", version));
    for (case, version) in each.into_iter().chain([several]) {
        let play = Play::of(case, version, 2, SOME_SIZES).over(LOSSY);
        device_memory(test, &play.with_gpu("polls=1"));
    }
}

/// A NIC that cannot send from memory of a GPU: the buffers are in host memory.
fn gpu_without_nic(test: &str) {
    let play = Play::of("collectives", NEWEST, 2, SOME_SIZES).with_gpu("devices=1");
    for log in play.and("NCCL_DEVMEM_POOL=0").succeed(test) {
        assert!(
            log.contains("takes host memory only: lo cannot send"),
            "{log}"
        );
        assert!(!log.contains("GDRDMA"), "{log}");
    }
}

/// The memory of the GPU are dma-bufs of the kernel, whose NICs write to them and read from them.
fn kernel_nics(test: &str) {
    if std::env::var_os("DEVMEM_TEST_NIC").is_none() {
        return skip(test, "nic", "crates/gvnic/lab/nccl.sh runs it in a guest");
    }
    let bench = Bench::new(test).expect("the NIC of a guest");
    let before = bench.settings();
    // A guest is slow.
    for (case, sizes) in [("collectives", SOME_SIZES), ("all_reduce", LARGE_SIZE)] {
        let play = Play::of(case, NEWEST, 2, sizes).over_nics(&bench);
        device_memory(test, &play.with_gpu("udmabuf=1"));
    }
    assert_eq!(bench.settings(), before);
}

/// NCCL's own messages at the start go through the plugin, too.
fn bootstrap(test: &str) {
    let settings = format!("NCCL_OOB_NET_ENABLE=1 {SOME_SIZES}");
    Play::of("collectives", NEWEST, 3, &settings).succeed(test);
}

fn several(test: &str) {
    Play::of("several", NEWEST, 3, "").succeed(test);
}

/// The last rank is gone between two collectives, or in the middle of one; the others say how soon their abort was over.
fn killed(test: &str) {
    for case in ["killed", "killed_in_transfer"] {
        outlived(test, &Play::of(case, NEWEST, 3, ""));
    }
    let play = Play::of("killed_in_transfer", NEWEST, 2, "");
    outlived(test, &play.over(LOSSY).with_gpu("polls=1"));
}

fn outlived(test: &str, play: &Play<'_>) {
    let Some(mut ended) = play.run(test, |_| "") else {
        return;
    };
    let report = play.report(&ended);
    let dead = ended.pop().expect("ranks");
    assert!(!dead.status.success(), "{report}");
    for left in ended {
        assert!(left.status.success(), "{report}");
        print!("{}", left.said);
    }
}

/// The rank without the plugin takes NCCL's own sockets. The other one says what is wrong.
fn without(test: &str) {
    let play = Play::of("refused", NEWEST, 2, "NCCL_RUNTIME_CONNECT=0");
    let differs = |rank: usize| ["", "NCCL_NET_PLUGIN=none NCCL_NET=Socket"][rank];
    if let Some(ended) = play.run(test, differs) {
        let report = play.report(&ended);
        assert!(ended.iter().all(|rank| rank.status.success()), "{report}");
        assert!(ended[0].log.contains("not one of this plugin"), "{report}");
    }
}

/// A test, which is told its name.
type Test = (&'static str, fn(&str));

const TESTS: [Test; 12] = [
    ("every_release_connects_all_its_channels", start),
    ("collectives_of_every_release_that_is_played", releases),
    ("collectives_over_the_kernels_sockets", sockets),
    ("collectives_over_shared_memory", shared_memory),
    ("collectives_under_loss_and_reordering", loss),
    ("device_memory_under_loss_and_reordering", gpu),
    (
        "device_memory_stays_unused_if_the_nic_cannot_send_it",
        gpu_without_nic,
    ),
    ("kernel_nics_move_device_memory", kernel_nics),
    ("the_bootstrap_uses_the_plugin", bootstrap),
    ("several_communicators_at_once", several),
    ("a_killed_rank_ends_the_others", killed),
    ("a_rank_without_the_plugin_is_named", without),
];

/// Runs the tests; or the rank or cable that a test starts this program as.
fn main() -> ExitCode {
    wires::play_cable();
    if let Ok(case) = std::env::var(play::CASE) {
        rank::play(&case);
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Each has several processes with several threads.
    arguments.test_threads.get_or_insert(1);
    let trial = |(name, test): Test| {
        let run = move || {
            test(name);
            Ok(())
        };
        Trial::test(name, run)
    };
    let mut tests = Vec::from(TESTS.map(trial));
    if std::env::var_os(play::LIBRARIES).is_none() {
        let reason = format!("{} names no folder with releases", play::LIBRARIES);
        skip("released", "nccl", &reason);
        tests.clear();
    }
    libtest_mimic::run(&arguments, tests).exit_code()
}
