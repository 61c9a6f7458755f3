//! What the tests start this program as: a rank of a case.

use std::path::PathBuf;

use crate::cases;
use crate::descriptors;
use crate::gpu;
use crate::loaded::{Plugin, WARNINGS};
use crate::rank::Rank;
use crate::unpack;
use devmem_linux::test_util::built_library;

/// Environment variable: the role.
pub(crate) const ROLE: &str = "NCCL_JUDGE_ROLE";
/// Environment variable: the folder through which the ranks of a case meet.
pub(crate) const FOLDER: &str = "NCCL_JUDGE_FOLDER";

/// Environment variable: the plugin to judge instead of this one.
pub(crate) const PLUGIN: &str = "NCCL_JUDGE_PLUGIN";

/// Returns a setting that the test gave to the role.
pub(crate) fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn given(name: &str) -> String {
    setting(name).unwrap_or_else(|| panic!("the test sets {name}"))
}

fn folder() -> PathBuf {
    given(FOLDER).into()
}

/// Plays a role to its end.
///
/// # Panics
///
/// If what the role asserts is false, or there is no such role.
pub(crate) fn play(role: &str) {
    match role {
        "rank" => rank(),
        "refused" => refused(),
        role => panic!("there is no role {role}"),
    }
}

fn plugin() -> PathBuf {
    match std::env::var_os(PLUGIN) {
        Some(path) => path.into(),
        None => built_library("libnccl_net_devmem.so"),
    }
}

/// A rank of a case.
fn rank() {
    let case = given("NCCL_JUDGE_CASE");
    let version = given("NCCL_JUDGE_VERSION").parse().expect("a version");
    let rank = setting("NCCL_JUDGE_RANK").map_or(0, |rank| rank.parse().expect("a number"));
    let before = descriptors::count();
    let plugin = Plugin::load(&plugin(), version);
    let plugin = plugin.unwrap_or_else(|code| panic!("init: {code}; {:?}", WARNINGS.lock()));
    let rank = Rank::new(plugin, rank, &folder());
    match case.as_str() {
        "sizes" => cases::sizes(&rank),
        "few_sizes" => cases::few_sizes(&rank),
        "device" => cases::device(&rank),
        "many" => cases::many(&rank),
        "reversed" => cases::reversed(&rank),
        "grouped" => cases::grouped(&rank),
        "in_turn" => cases::in_turn(&rank),
        "threads" => cases::threads(&rank),
        "too_long" => cases::too_long(&rank),
        "early_close" => cases::early_close(&rank),
        "killed" => cases::killed(&rank),
        "killed_in_transfer" => cases::killed_in_transfer(&rank),
        "alone" => cases::alone(&rank),
        "refusals" => cases::refusals(&rank),
        case => match gpu::CASES
            .iter()
            .chain(unpack::CASES)
            .chain(descriptors::CASES)
            .find(|(name, _)| *name == case)
        {
            Some((_, play)) => play(&rank),
            None => panic!("there is no case {case}"),
        },
    }
    rank.plugin.unload().expect("finalize and dlclose");
    descriptors::check_unloaded(&case, version, before);
}

/// A plugin whose settings are wrong.
fn refused() {
    let loaded = Plugin::load(&plugin(), 12);
    assert_eq!(loaded.map(drop), Err(cases::USAGE));
    let warnings = WARNINGS.lock().expect("no test panics with it").clone();
    let expected = given("NCCL_JUDGE_CASE");
    assert!(
        warnings.iter().any(|warning| warning.contains(&expected)),
        "not {expected:?}: {warnings:?}"
    );
}
