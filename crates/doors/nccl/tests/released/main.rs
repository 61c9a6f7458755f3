//! The released library of NCCL over this plugin, without a GPU: ranks are processes, in which the CUDA runtime of the library is replaced by
//! one whose device memory is memory of the process, and whose kernels are played by threads. All the rest is NCCL's own code: its bootstrap,
//! topology, proxies, and what they call of the plugin.
//!
//! `DEVMEM_TEST_NCCL` names a folder with the libraries, `VERSION/libnccl.so.2` (`.ci/run --only nccl` fetches them). Without it, and for each
//! library that is missing or was built in another way, the tests say SKIP.

mod device;
mod library;
mod play;
mod rank;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use play::{Play, RELEASES, Wire, released};

/// From one element to more than all buffers of a connection hold, in bytes.
const ALL_SIZES: &str = "NCCL_RELEASED_SIZES=4,8,4100,65536,1048576,16777216";
const SOME_SIZES: &str = "NCCL_RELEASED_SIZES=4,4100,1048576";

/// The releases whose kernels are played.
const PLAYED: [&str; 3] = ["2.29.7", "2.30.7", "2.32.3"];
/// The one for cases that are about something else.
const ONE: &str = "2.32.3";

/// Init and all connections of all channels, with each version of the interface.
fn every_release_connects_all_its_channels() {
    const TEST: &str = "every_release_connects_all_its_channels";
    for (version, interface) in RELEASES {
        let Some(library) = released(TEST, version) else {
            continue;
        };
        let play = Play::new("start", library, 2, "NCCL_RUNTIME_CONNECT=0");
        for log in play.succeed(TEST) {
            for line in ["Connected all rings", "via NET/Devmem/0", "Init COMPLETE"] {
                assert!(log.contains(line), "{version}: no {line:?} in\n{log}");
            }
            // NCCL says so of all versions but the one that was the newest then.
            let loaded = format!("Loaded net plugin Devmem (v{interface})");
            assert!(
                interface == 8 || log.contains(&loaded),
                "{version}: no {loaded:?} in\n{log}"
            );
        }
    }
}

/// Runs a case that all ranks play to its end.
fn succeed(test: &str, case: &'static str, ranks: usize, wire: Wire, settings: &str) {
    if let Some(library) = released(test, ONE) {
        Play::new(case, library, ranks, settings)
            .over(wire)
            .succeed(test);
    }
}

/// Every element of every collective with each release.
fn collectives_of_every_release_that_is_played() {
    const TEST: &str = "collectives_of_every_release_that_is_played";
    for library in PLAYED
        .into_iter()
        .filter_map(|version| released(TEST, version))
    {
        Play::new("collectives", library, 3, SOME_SIZES).succeed(TEST);
    }
}

/// Every element of every collective, on two to four ranks.
fn collectives_over_the_kernels_sockets() {
    const TEST: &str = "collectives_over_the_kernels_sockets";
    for ranks in 2..=4 {
        succeed(TEST, "collectives", ranks, Wire::Loopback, ALL_SIZES);
    }
}

fn collectives_over_shared_memory() {
    const TEST: &str = "collectives_over_shared_memory";
    succeed(TEST, "collectives", 2, Wire::Shared, ALL_SIZES);
}

fn collectives_under_loss_and_reordering() {
    const TEST: &str = "collectives_under_loss_and_reordering";
    let wire = Wire::Cable("loss=1%,reorder=2%,seed=7");
    succeed(TEST, "collectives", 2, wire, SOME_SIZES);
}

fn several_communicators_at_once() {
    const TEST: &str = "several_communicators_at_once";
    succeed(TEST, "several", 3, Wire::Loopback, "");
}

/// NCCL's own messages at the start go through the plugin, too.
fn the_bootstrap_uses_the_plugin() {
    const TEST: &str = "the_bootstrap_uses_the_plugin";
    let settings = format!("NCCL_OOB_NET_ENABLE=1 {SOME_SIZES}");
    succeed(TEST, "collectives", 3, Wire::Loopback, &settings);
}

fn a_killed_rank_ends_the_others() {
    const TEST: &str = "a_killed_rank_ends_the_others";
    let Some(library) = released(TEST, ONE) else {
        return;
    };
    let play = Play::new("killed", library, 3, "");
    let ended = play.run(|_| "");
    let told = play.told(&ended);
    let [first, second, killed] = [0, 1, 2].map(|rank: usize| ended[rank].status.success());
    assert!(first && second && !killed, "{told}");
    assert!(told.contains("aborted in"), "{told}");
}

/// The rank without the plugin takes NCCL's own sockets. The other one says what is wrong.
fn a_rank_without_the_plugin_is_named() {
    const TEST: &str = "a_rank_without_the_plugin_is_named";
    let Some(library) = released(TEST, ONE) else {
        return;
    };
    let play = Play::new("refused", library, 2, "NCCL_RUNTIME_CONNECT=0");
    let ended = play.run(|rank| ["", "NCCL_NET_PLUGIN=none NCCL_NET=Socket"][rank]);
    let told = play.told(&ended);
    assert!(ended.iter().all(|rank| rank.status.success()), "{told}");
    assert!(ended[0].log.contains("not one of this plugin"), "{told}");
}

/// The tests by their names. A function that is missing here is dead code, which is an error.
macro_rules! trials {
    ($($test:path),* $(,)?) => {
        vec![$(Trial::test(stringify!($test), || {
            $test();
            Ok(())
        })),*]
    };
}

/// Runs the tests; or the rank or cable that a test starts this program as.
fn main() -> ExitCode {
    if let Ok(case) = std::env::var(play::CASE) {
        match case.as_str() {
            "cable" => play::cable(),
            case => rank::play(case),
        }
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Each has several processes with several threads.
    arguments.test_threads.get_or_insert(1);
    let tests = trials![
        every_release_connects_all_its_channels,
        collectives_of_every_release_that_is_played,
        collectives_over_the_kernels_sockets,
        collectives_over_shared_memory,
        collectives_under_loss_and_reordering,
        several_communicators_at_once,
        the_bootstrap_uses_the_plugin,
        a_killed_rank_ends_the_others,
        a_rank_without_the_plugin_is_named,
    ];
    libtest_mimic::run(&arguments, tests).exit_code()
}
